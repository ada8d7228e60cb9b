"""Swin and SwinV2 of timm: one Linear weight with rows [Q; K; V], in stages of growing width.

SwinV2 normalises each query and key (cosine attention).

Source: timm/models/swin_transformer.py, timm/models/swin_transformer_v2.py (`WindowAttention`).
"""

from qkgeom.layouts.base import Case, FusedRows
from qkgeom.layouts.swin import Staged
from qkgeom.layouts.timm_base import Timm

_TINY = {"img_size": 32, "patch_size": 2, "embed_dim": 16, "depths": [2, 1, 3], "num_heads": [2, 4, 2], "window_size": 4}


class TimmSwin(Timm, Staged, FusedRows):
    """Swin and SwinV2 in timm: `layers.S.blocks.N.attn.qkv`."""

    name = "timm_swin"
    model_types = ("timm_swin",)
    modules = ("swin_transformer", "swin_transformer_v2")
    columns = {size: size for size in ("embed_dim", "depths", "num_heads")}
    tensors = {"qkv": r"layers\.{S}\.blocks\.{N}\.attn\.qkv\.weight"}
    cases = (
        Case("swin_tiny_patch4_window7_224", _TINY, "timm", "pixels"),
        Case("swinv2_tiny_window8_256", _TINY, "timm", "pixels"),
    )

    def sizes_of(self, module):
        stages = [[block.attn for block in stage.blocks] for stage in getattr(module, "layers", ()) if hasattr(stage, "blocks")]
        if not stages or any(getattr(attention, "qkv", None) is None for stage in stages for attention in stage):
            return None
        return {
            "embed_dim": stages[0][0].qkv.in_features,
            "depths": [len(stage) for stage in stages],
            "num_heads": [stage[0].num_heads for stage in stages],
        }
