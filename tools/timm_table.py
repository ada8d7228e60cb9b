"""Writes the tables of timm's architectures beside the layouts that read them, from timm itself.

timm's config.json names an architecture but not its number of heads. Run by `make timm-table` when the lock's timm
changes; a test compares the tables with the installed timm.
"""

import csv
import json
import sys

import timm
import torch

from qkgeom.layouts import all_layouts
from qkgeom.layouts.timm_base import Timm


def write(layout: Timm) -> str:
    """Writes the table of a layout; says how many architectures are in it."""
    names = sorted({name for module in layout.modules for name in timm.list_models(module=module)})
    rows = []
    for name in names:
        with torch.device("meta"):
            module = timm.create_model(name, pretrained=False)
        if sizes := layout.sizes_of(module):
            rows.append({"architecture": name} | {column: json.dumps(sizes[column]) for column in layout.columns})
    with layout.table.open("w", newline="") as file:
        writer = csv.DictWriter(file, ("architecture", *layout.columns), delimiter="\t", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    return f"{len(rows)} of {len(names)} architectures written to {layout.table.name}\n"


if __name__ == "__main__":
    for each in all_layouts().values():
        if isinstance(each, Timm):
            sys.stdout.write(write(each))
