"""Writes workflow/qkgeom/layouts/timm_vit.tsv: the sizes of timm's plain vision transformers, read from timm itself.

timm's config.json names an architecture but not its number of heads. Run by `make timm-table` when the lock's timm
changes; a test compares the table with the installed timm.
"""

import csv
import sys
from pathlib import Path

import timm
import torch

TARGET = Path(__file__).parents[1] / "workflow/qkgeom/layouts/timm_vit.tsv"
MODULES = ("vision_transformer", "deit", "beit", "eva")
FIELDS = ("architecture", "d_model", "n_head", "n_layer")


def sizes(architecture: str) -> dict[str, object] | None:
    """The sizes of an architecture, or None if its blocks are not `blocks.N.attn.qkv` of one shape."""
    with torch.device("meta"):
        model = timm.create_model(architecture, pretrained=False)
    blocks = getattr(model, "blocks", None)
    attentions = [getattr(block, "attn", None) for block in blocks or ()]
    if not attentions or any(getattr(attention, "qkv", None) is None for attention in attentions):
        return None
    shapes = {(tuple(attention.qkv.weight.shape), attention.num_heads) for attention in attentions}
    if len(shapes) != 1:
        return None
    (rows, d_model), n_head = shapes.pop()
    if rows != 3 * d_model:
        return None
    return {"architecture": architecture, "d_model": d_model, "n_head": n_head, "n_layer": len(attentions)}


def main() -> None:
    """Writes the table."""
    architectures = sorted({name for module in MODULES for name in timm.list_models(module=module)})
    rows = [row for row in map(sizes, architectures) if row]
    with TARGET.open("w", newline="") as file:
        writer = csv.DictWriter(file, FIELDS, delimiter="\t", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    sys.stdout.write(f"{len(rows)} of {len(architectures)} architectures written to {TARGET.name}\n")


if __name__ == "__main__":
    main()
