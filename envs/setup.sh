#!/bin/sh
# Makes .venv and installs the pinned lock in it: `sh envs/setup.sh run|dev`. Needs Python 3.11 or 3.12; no root, no conda.
set -eu
kind=$1
venv=.venv

fits() { "$1" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 12))' 2>/dev/null; }

if [ ! -x "$venv/bin/python" ] || ! "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
    python=
    for candidate in ${PYTHON:-} python3.12 python3.11 python3; do
        # one that can make environments by itself is preferred
        if fits "$candidate" && "$candidate" -c 'import ensurepip, venv' 2>/dev/null; then python=$candidate; break; fi
    done
    if [ -n "$python" ]; then
        "$python" -m venv "$venv"
    else
        for candidate in ${PYTHON:-} python3.12 python3.11 python3; do
            # Debian without python3-venv: a pip that is already there can fill the environment
            if fits "$candidate" && "$candidate" -m pip --version >/dev/null 2>&1; then python=$candidate; break; fi
        done
        if [ -z "$python" ]; then
            echo "setup: no Python 3.11 or 3.12 that can make a virtual environment was found." >&2
            echo "       found: $(command -v python3 >/dev/null && python3 --version || echo 'no python3')" >&2
            echo "       do:    install python3 with python3-venv (apt install python3-venv), or name one: make PYTHON=/path/to/python3.12" >&2
            exit 1
        fi
        "$python" -m venv --without-pip "$venv"
        "$python" -m pip --python "$venv/bin/python" install --quiet pip
    fi
fi

pip="$venv/bin/python -m pip --disable-pip-version-check"
echo "setup: installing the pinned packages in $venv (about 6 GB, 4 to 10 minutes)"
case $kind in
    run) $pip install -r envs/requirements.txt
         $pip install --quiet --no-deps --no-build-isolation --editable . ;;
    dev) $pip install -r envs/requirements.txt -r envs/dev.txt ;;
    *) echo "usage: setup.sh run|dev" >&2; exit 2 ;;
esac
touch "$venv/$kind.stamp"
