"""Vision transformers of timm: one Linear weight with rows [Q; K; V].

Source: timm/layers/attention.py, timm/models/beit.py, timm/models/vision_transformer_sam.py
(`reshape(B, N, 3, heads, -1)`).
"""

from qkgeom.layouts.base import Case, FusedRows
from qkgeom.layouts.timm_base import Timm, architecture

_SMALL = {"img_size": 32, "depth": 2}


class TimmVit(Timm, FusedRows):
    """ViT, DeiT, BEiT, BEiTv2, DINOv2, CLIP's, SigLIP's and SAM's image towers in timm: `blocks.N.attn.qkv`."""

    name = "timm_vit"
    model_types = ("timm_vit",)
    prefix = r"(?:(?!layers)\w+\.)*?"  # Swin's blocks lie in `layers.S.blocks.N`
    modules = ("vision_transformer", "deit", "beit", "eva", "vision_transformer_sam")
    columns = {"d_model": "embed_dim", "n_head": "num_heads", "n_layer": "depth"}
    tensors = {"qkv": r"blocks\.{N}\.attn\.qkv\.weight"}
    cases = (
        Case("vit_tiny_patch16_224", {"img_size": 32, "depth": 3}, "timm", "pixels"),
        Case("deit_tiny_distilled_patch16_224", {"img_size": 32, "depth": 3}, "timm", "pixels"),
        Case("deit3_small_patch16_224", _SMALL, "timm", "pixels"),
        Case("beit_base_patch16_224", _SMALL, "timm", "pixels"),
        Case("beitv2_base_patch16_224", _SMALL, "timm", "pixels"),
        Case("vit_small_patch14_reg4_dinov2", {"img_size": 28, "depth": 2}, "timm", "pixels"),
        Case("vit_base_patch16_clip_224", _SMALL, "timm", "pixels"),
        Case("vit_base_patch16_siglip_224", _SMALL, "timm", "pixels"),
        Case(
            "samvit_base_patch16", {"img_size": 64, "depth": 3, "window_size": 3, "global_attn_indexes": [1]}, "timm", "pixels"
        ),
    )

    def position_in(self, config):
        return "relative" if architecture(config).startswith(("beit", "samvit")) else self.position

    def sizes_of(self, module):
        attentions = [getattr(block, "attn", None) for block in getattr(module, "blocks", ())]
        if not attentions or any(getattr(attention, "qkv", None) is None for attention in attentions):
            return None
        shapes = {(tuple(attention.qkv.weight.shape), attention.num_heads) for attention in attentions}
        ((rows, d_model), n_head) = shapes.pop()
        if shapes or rows != 3 * d_model:
            return None
        return {"d_model": d_model, "n_head": n_head, "n_layer": len(attentions)}
