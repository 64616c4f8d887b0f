#!/bin/sh
# vrun in a pipe is like the plain command: standard input, output and error stay apart, and when the
# reader leaves early the command hears of it.
set -eu

seq 1000 -1 1 | vrun sort -n | head -n 3

# Two tasks in one pipe; nothing is stored on the way.
vrun seq 1 100000 | vrun awk '{ sum += $1 } END { print "sum", sum }'

# Errors do not mix into the data.
vrun sh -c 'echo data; echo trouble >&2' 2>/dev/null
