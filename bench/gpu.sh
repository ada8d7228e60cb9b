#!/bin/sh
# On a machine with a GPU, after `make setup`: trains the paper's model for some steps with our settings and with the
# authors', and compares their speeds; under 4 minutes, no network. With --tiny it shows on any machine that it runs.
set -eu
cd "$(dirname "$0")/.."
python=.venv/bin/python
[ -x "$python" ] || { echo "error: there is no environment yet; run \`make setup\` first" >&2; exit 2; }
export CUDA_VISIBLE_DEVICES="${CUDA_VISIBLE_DEVICES-0}" HF_HUB_OFFLINE=1 PYTHONPATH=workflow
exec "$python" bench/run.py gpu "$@"
