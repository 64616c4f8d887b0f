#!/bin/sh
# Many commands at once: each is a task of its own, placed where there is room.
set -eu
jobs=${1:-20}

seq "$jobs" | xargs -P 8 -I{} vrun sh -c 'echo "part {} of the work"' | sort -k2n

# One that fails makes xargs fail, as it would with plain commands.
seq 3 | xargs -P 3 -I{} vrun sh -c 'test {} -ne 2' || echo "one of them failed, as it should"
