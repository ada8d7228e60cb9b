# make figures: set-up if needed, then the default pipeline.   make test: set-up if needed, then every test.
# make bench: set-up if needed, then the benchmarks, to results/bench/bench.json.   bench/gpu.sh: those that need a GPU.
# PRESET=... and CORES=... pass through to Snakemake; PYTHON=... names the interpreter for the environment.
SHELL := /bin/sh
VENV := .venv
CORES ?= all
SNAKEMAKE = $(VENV)/bin/snakemake --cores $(CORES) $(if $(PRESET),--config preset=$(PRESET))

.PHONY: help setup figures test bench lint format lock timm-table
help:
	@sed -n '1,3s/^# //p' Makefile

$(VENV)/run.stamp: envs/requirements.txt envs/setup.sh pyproject.toml
	PYTHON="$(PYTHON)" sh envs/setup.sh run

$(VENV)/dev.stamp: $(VENV)/run.stamp envs/dev.txt
	PYTHON="$(PYTHON)" sh envs/setup.sh dev

setup: $(VENV)/run.stamp

figures: setup
	$(SNAKEMAKE)

test: $(VENV)/dev.stamp
	$(VENV)/bin/python -m pytest -n auto --maxprocesses 4 --dist loadfile $(PYTEST_ARGS)

bench: setup
	PYTHONPATH=workflow $(VENV)/bin/python bench/run.py

lint: $(VENV)/dev.stamp
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/snakefmt --check Snakefile workflow/rules
	$(VENV)/bin/snakemake --lint

format: $(VENV)/dev.stamp
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .
	$(VENV)/bin/snakefmt Snakefile workflow/rules

# After editing envs/*.in: pin again, for Python 3.11 and 3.12, and write the conda file from the lock.
lock: $(VENV)/dev.stamp
	cd envs && ../$(VENV)/bin/uv pip compile --universal --python-version 3.11 --no-header --no-emit-index-url -q -o requirements.txt requirements.in
	cd envs && ../$(VENV)/bin/uv pip compile --universal --python-version 3.11 --no-header --no-emit-index-url -q -o dev.txt dev.in
	$(VENV)/bin/python tools/conda_env.py

# After a new timm or openai-whisper in the lock.
timm-table: $(VENV)/dev.stamp
	$(VENV)/bin/python tools/timm_table.py
	$(VENV)/bin/python tools/name_tables.py
