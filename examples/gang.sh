#!/bin/sh
# Four tasks that start together or not at all, find each other and work as one. RANK, WORLD_SIZE,
# MASTER_ADDR and MASTER_PORT are set as torchrun expects them.
set -eu
here=$(cd "$(dirname "$0")" && pwd)

vbatch -f -n gang --gang -N 4 python3 "$here/gang.py"
