"""Mask2Former with a Swin backbone: the backbone, and the decoder's self-attention among the queries.

The decoder's `cross_attn` is fused under another name, and the pixel decoder is deformable and has no keys: neither
matches. The query and the key read x + position. One decoder layer fewer is built than the config says.

Source: transformers/models/mask2former/modeling_mask2former.py, `Mask2FormerMaskedAttentionDecoder`
(`range(self.decoder_layers)` with `decoder_layers = config.decoder_layers - 1`).
"""

from qkgeom.layouts.base import AttentionShape, Case, SeparateLinear, field
from qkgeom.layouts.swin import Swin

_BACKBONE = {
    "model_type": "swin",
    "image_size": 64,
    "patch_size": 2,
    "embed_dim": 8,
    "depths": [1, 2, 1, 1],
    "num_heads": [2, 4, 2, 4],
    "window_size": 4,
    "out_features": ["stage1", "stage2", "stage3", "stage4"],
}
_TINY = {
    "backbone_config": _BACKBONE,
    "feature_size": 32,
    "mask_feature_size": 32,
    "hidden_dim": 32,
    "encoder_feedforward_dim": 32,
    "dim_feedforward": 32,
    "encoder_layers": 1,
    "decoder_layers": 4,
    "num_attention_heads": 4,
    "num_queries": 5,
}
_CASES = tuple(
    Case(model, _TINY, inputs="large_pixels") for model in ("Mask2FormerModel", "Mask2FormerForUniversalSegmentation")
)


class Mask2FormerEncoder(Swin):
    """The Swin backbone."""

    name = "mask2former_encoder"
    model_types = ("mask2former",)
    part = "encoder"
    section = "backbone_config"
    cases = _CASES


class Mask2FormerDecoder(SeparateLinear):
    """The transformer decoder's self-attention, which is not causal."""

    name = "mask2former_decoder"
    model_types = ("mask2former",)
    part = "decoder"
    tensors = {
        "q": r"transformer_module\.decoder\.layers\.{N}\.self_attn\.q_proj\.weight",
        "k": r"transformer_module\.decoder\.layers\.{N}\.self_attn\.k_proj\.weight",
    }
    cases = _CASES

    def n_layer(self, config):
        return field(config, "decoder_layers") - 1

    def shape(self, config, layer):
        d_model, n_head = field(config, "hidden_dim"), field(config, "num_attention_heads")
        return AttentionShape.multi_head(d_model, n_head)
