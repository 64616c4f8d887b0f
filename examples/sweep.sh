#!/bin/sh
# One task for every combination of values; each value is a variable of its task. The group has one
# id, one row in the list and one progress line; -f shows each task's lines with its number in front.
set -eu

vbatch -f -n sweep --sweep lr=0.1,0.01 --sweep seed=1..3 \
    sh -c 'echo "lr=$lr seed=$seed is point $VIRGA_SHARD of $VIRGA_SHARDS"'

# The same without waiting: the id is that of the whole group.
id=$(vbatch --sweep n=1..5 sh -c 'test "$n" -ne 4')
virga task wait "$id" || echo "one point failed with status $?"
virga task list --all --of "$id"
