"""Writes envs/conda.yaml from the lock: the same pins, complete in itself (Snakemake copies the file before use)."""

from pathlib import Path

import yaml

ENVS = Path(__file__).parents[1] / "envs"
HEAD = "# Generated from requirements.txt by `make lock`; a test keeps the two equal. Used by: snakemake --sdm conda\n"


def conda_env(lock: str) -> str:
    """The conda file for a lock's text."""
    pins = [line for line in lock.splitlines() if line and not line.lstrip().startswith("#")]
    return HEAD + yaml.safe_dump(
        {
            "channels": ["conda-forge", "nodefaults"],
            "dependencies": ["python=3.12", "pip", {"pip": pins}],
        },
        sort_keys=False,
        width=1000,
    )


if __name__ == "__main__":
    (ENVS / "conda.yaml").write_text(conda_env((ENVS / "requirements.txt").read_text()))
