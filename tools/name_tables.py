"""Writes the tables of names beside the sources that read them: timm's weights, and openai-whisper's files.

Run by `make timm-table` when one of the two changes in the lock; a test compares the tables with the installed packages.
"""

import csv
import sys
from collections.abc import Iterator
from pathlib import Path

import timm
import whisper
from timm.models import get_arch_pretrained_cfgs

SOURCES = Path(__file__).parents[1] / "workflow/qkgeom/sources"


def timm_names() -> Iterator[dict[str, str]]:
    """Name and hub repository of all weights, each architecture's default first; no repository for a few of other places."""
    for architecture in timm.list_models():
        for name, config in get_arch_pretrained_cfgs(architecture).items():
            if config.has_weights:
                yield {"name": name, "repo": config.hf_hub_id or ""}


def whisper_names() -> Iterator[dict[str, str]]:
    """Name, address and sha256 of each file; the package has the digest in the address (whisper/__init__.py, `_download`)."""
    for name, url in whisper._MODELS.items():
        yield {"name": name, "url": url, "sha256": url.split("/")[-2]}


if __name__ == "__main__":
    for library, names in {"timm": timm_names, "whisper": whisper_names}.items():
        rows = list(names())
        with (SOURCES / f"{library}.tsv").open("w", newline="") as file:
            writer = csv.DictWriter(file, rows[0], delimiter="\t", lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
        sys.stdout.write(f"{len(rows)} names of {library} written\n")
