"""The environment in which the pipeline's jobs run `python -m qkgeom`."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path


def prepare_jobs(workflow: Path) -> None:
    """Lets jobs find this Python and this package without an activated environment or an installed package.

    An environment that Snakemake deploys (--sdm conda) is activated later and so comes before.

    Args:
        workflow: the folder that holds the package.
    """
    _put_first("PATH", str(Path(sys.executable).parent))
    _put_first("PYTHONPATH", str(workflow))


def expand_hf_home() -> None:
    """Lets HF_HOME lie in a job's own folder, as `$TMPDIR/huggingface`: not every library that reads it expands it."""
    if "HF_HOME" in os.environ:
        os.environ.setdefault("TMPDIR", tempfile.gettempdir())
        os.environ["HF_HOME"] = os.path.expandvars(os.environ["HF_HOME"])


def _put_first(variable: str, folder: str) -> None:
    present = os.environ.get(variable, "").split(os.pathsep)
    os.environ[variable] = os.pathsep.join([folder, *(each for each in present if each and each != folder)])
