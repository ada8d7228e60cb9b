"""Vision transformers of timm: one Linear weight with rows [Q; K; V].

timm's config.json names the architecture but not its heads: they are in its `model_args`, or in timm_vit.tsv, which
`make timm-table` writes from timm itself.

Source: timm/layers/attention.py, timm/models/beit.py
(`reshape(B, N, 3, heads, -1)`).
"""

from __future__ import annotations

import csv
from functools import cache
from pathlib import Path

from qkgeom.layouts.base import AttentionShape, Case, FusedRows, field

HEADS_TABLE = Path(__file__).with_name("timm_vit.tsv")


@cache
def timm_heads() -> dict[str, dict[str, int]]:
    """The sizes `d_model`, `n_head`, `n_layer` of each timm architecture."""
    with HEADS_TABLE.open(newline="") as file:
        return {
            row.pop("architecture"): {key: int(value) for key, value in row.items()}
            for row in csv.DictReader(file, delimiter="\t")
        }


class TimmVit(FusedRows):
    """ViT, DeiT, BEiT, BEiTv2 and their relatives in timm, whose blocks are `blocks.N.attn.qkv`."""

    name = "timm_vit"
    model_types = ("timm_vit",)
    prefix = r"(?:(?!layers)\w+\.)*?"  # Swin's blocks lie in `layers.S.blocks.N`
    tensors = {"qkv": r"blocks\.{N}\.attn\.qkv\.weight"}
    cases = (
        Case("vit_tiny_patch16_224", {"img_size": 32, "depth": 3}, "timm", "pixels"),
        Case("deit_tiny_distilled_patch16_224", {"img_size": 32, "depth": 3}, "timm", "pixels"),
        Case("deit3_small_patch16_224", {"img_size": 32, "depth": 2}, "timm", "pixels"),
        Case("beit_base_patch16_224", {"img_size": 32, "depth": 2}, "timm", "pixels"),
        Case("beitv2_base_patch16_224", {"img_size": 32, "depth": 2}, "timm", "pixels"),
    )

    def reads(self, config):
        return config.get("model_type") in self.model_types or str(config.get("architecture")).split(".")[0] in timm_heads()

    def _sizes(self, config) -> dict[str, int]:
        known = timm_heads().get(str(config.get("architecture")).split(".")[0], {})
        arguments = config.get("model_args") or {}
        named = {"d_model": "embed_dim", "n_head": "num_heads", "n_layer": "depth"}
        return known | {ours: arguments[theirs] for ours, theirs in named.items() if theirs in arguments} | dict(config)

    def n_layer(self, config):
        return field(self._sizes(config), "n_layer")

    def shape(self, config, layer):
        sizes = self._sizes(config)
        d_model, n_head = field(sizes, "d_model"), field(sizes, "n_head")
        return AttentionShape(d_model, n_head, n_head, d_model // n_head)

    def position_in(self, config):
        return "relative" if str(config.get("architecture")).startswith("beit") else self.position
