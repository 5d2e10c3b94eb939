#!/usr/bin/env bash
# Check and time the Triton kernels on this machine's GPU, within 8 minutes:
# parity with the definition (float32 without tf32, bfloat16; real sizes),
# races, then the benchmark table.
#
#   tools/gpu_check.sh            everything
#   PYTHON=python tools/gpu_check.sh    with another Python than .venv's
#
# Exit status 0 only if every part passed.
set -u
cd "$(dirname "$0")/.."

PYTHON=${PYTHON:-.venv/bin/python}
if ! command -v "$PYTHON" >/dev/null; then
    echo "$PYTHON is not there: run \`make venv\` and install, or set PYTHON." >&2
    exit 2
fi
"$PYTHON" - <<'PY' || exit 2
import sys

import torch
import triton

if not torch.cuda.is_available():
    sys.exit('No CUDA device was found; tools/gpu_check.sh needs one.')
print(torch.cuda.get_device_name(), 'torch', torch.__version__, 'triton',
      triton.__version__)
PY

status=0
run() {
    echo
    echo "== $1"
    shift
    local start=$SECONDS
    "$@" || status=1
    echo "== $((SECONDS - start)) s"
}

run 'parity' timeout 240 "$PYTHON" -m pytest tests/test_ops/parity \
    --device cuda -q -p no:cacheprovider
run 'races' timeout 90 "$PYTHON" tools/benchmarks/check_races.py
run 'benchmark' timeout 150 "$PYTHON" tools/benchmarks/benchmark_gpu.py \
    --markdown

echo
[ "$status" = 0 ] && echo 'gpu_check: passed' || echo 'gpu_check: FAILED'
exit "$status"
