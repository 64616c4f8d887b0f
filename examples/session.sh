#!/bin/sh
# A session is a place that several commands share: its processes, its /tmp, its network.
set -eu
name=example-$$

vrun -s "$name" --keep 10m sh -c 'echo "left by the first command" > /tmp/note'
vrun -s "$name" cat /tmp/note

virga session list

# It would go by itself ten minutes after its last command; this ends it now.
virga session end "$name"
