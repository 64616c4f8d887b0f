#!/bin/sh
# What a real card shows: bench/gpu.sh [STEP...] > results; needs root, an NVIDIA GPU that nobody uses, and Python with torch.
# One JSON object a line; the steps and what they need are in bench/gpu/steps.py. $PYTHON names a Python that has torch.
here=$(cd "$(dirname "$0")" && pwd)
for python in "$PYTHON" python3 /opt/torch/.venv/bin/python3; do
    [ -n "$python" ] && "$python" -c 'import torch' 2>/dev/null && break
done
PYTHON=$python exec "$python" "$here/gpu/steps.py" "$@"
