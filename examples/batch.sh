#!/bin/sh
# vbatch queues a command and leaves. The id is all that stands on standard output.
set -eu

id=$(vbatch -n example sh -c 'for i in 1 2 3; do echo "step $i"; done')
echo "queued $id"

# Wait for it; the exit status is the task's. Its output stays.
virga task wait "$id"
virga task logs "$id"

# Or follow from the beginning to the end in one go.
vbatch -f sh -c 'echo working; exit 7' || echo "the task exited with $?"

virga task list --all --limit 5
