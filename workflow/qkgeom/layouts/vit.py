"""Vision transformers of transformers: ViT, DeiT, DINO, DINOv2, BEiT and DiT; see vit_mae.py for MAE.

Separate Linear weights. transformers 5 renamed the modules (`layers.N.attention.q_proj`); published files and
`save_pretrained` keep the old names, and both are read. BEiT's key has no bias.

Source: transformers/models/{vit,deit,dinov2,beit}/modeling_*.py and conversion_mapping.py.
"""

from qkgeom.layouts.base import Case, SeparateLinear

_TINY = {
    "hidden_size": 24,
    "num_attention_heads": 3,
    "num_hidden_layers": 3,
    "intermediate_size": 32,
    "image_size": 16,
    "patch_size": 4,
}


class Vit(SeparateLinear):
    """ViT, DeiT, DINO, DINOv2, BEiT, DiT."""

    name = "vit"
    model_types = ("vit", "deit", "dinov2", "beit")
    tensors = {
        "q": r"(?:encoder\.layer|layers)\.{N}\.attention\.(?:attention\.)?(?:query|q_proj)\.weight",
        "k": r"(?:encoder\.layer|layers)\.{N}\.attention\.(?:attention\.)?(?:key|k_proj)\.weight",
    }
    cases = (
        Case("ViTModel", dict(_TINY), inputs="pixels"),
        Case("ViTForImageClassification", dict(_TINY), inputs="pixels"),
        Case("DeiTModel", dict(_TINY), inputs="pixels"),
        Case("Dinov2Model", dict(_TINY), inputs="pixels"),
        Case("BeitModel", dict(_TINY), inputs="pixels"),
        Case("BeitForMaskedImageModeling", {**_TINY, "vocab_size": 20}, inputs="pixels"),
        Case("BeitForImageClassification", {**_TINY, "use_relative_position_bias": True}, inputs="pixels"),
    )

    def position_in(self, config):
        relative = any(config.get(f"use_{kind}relative_position_bias") for kind in ("", "shared_"))
        return "relative" if relative else self.position
