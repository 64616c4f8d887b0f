#!/bin/sh
# Steps that wait for each other. Each is queued at once; the cloud starts it when what it waits for
# has ended as it should. Tasks can be named by id, or by a name of one's own.
set -eu
cd "$(mktemp -d)"
run=steps-$$

vbatch -n "$run-prepare" sh -c 'seq 1 100 > numbers' > /dev/null
vbatch -n "$run-train" --after-success "$run-prepare" -N 4 \
    sh -c 'awk -v s="$VIRGA_SHARD" "NR % 4 == s { t += \$1 } END { print t }" numbers > part.$VIRGA_SHARD' > /dev/null
vbatch -n "$run-report" --after-success "$run-train" \
    sh -c 'cat part.* | awk "{ t += \$1 } END { print \"the sum is\", t }"' > /dev/null
# Runs only when the training failed: here it is cancelled, since that can never come true.
vbatch -n "$run-alarm" --after-fail "$run-train" echo "the training failed" > /dev/null

virga task wait "$run-report"
virga task logs "$run-report"
virga task wait "$run-alarm" 2>/dev/null || virga task get "$run-alarm" | grep '^reason'
