#!/bin/sh
# On a machine with a GPU: scores layers and whole models, and compares with the straightforward way and with the rate of
# copying (one minute; needs Python with torch and numpy, no more); and after `make setup`, which has transformers, trains
# the paper's model for some steps with our settings and with the authors' (3 minutes). With --tiny it shows on any machine
# that it runs. No network.
set -eu
cd "$(dirname "$0")/.."
python=.venv/bin/python
[ -x "$python" ] || python=python3
"$python" -c 'import numpy, torch' 2>/dev/null || { echo "error: Python has no torch, or no numpy, here; run \`make setup\` first" >&2; exit 2; }
export CUDA_VISIBLE_DEVICES="${CUDA_VISIBLE_DEVICES-0}" HF_HUB_OFFLINE=1 PYTHONPATH=workflow
exec "$python" bench/run.py gpu "$@"
