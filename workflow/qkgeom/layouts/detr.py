"""DETR: named and sized as BART is; the query and the key read x + position, the value reads x.

The decoder's self-attention, among the object queries, is not causal; its `encoder_attn` does not match.

Source: transformers/models/detr/modeling_detr.py, `DetrSelfAttention`, `DetrEncoderLayer`, `DetrDecoderLayer`.
"""

from qkgeom.layouts.bart import BartDecoder, BartEncoder
from qkgeom.layouts.base import Case

_TINY = {
    "use_timm_backbone": False,
    "backbone": None,
    "backbone_config": {
        "model_type": "resnet",
        "embedding_size": 8,
        "hidden_sizes": [8, 12],
        "depths": [1, 1],
        "layer_type": "basic",
        "out_features": ["stage2"],
    },
    "d_model": 24,
    "encoder_layers": 3,
    "decoder_layers": 2,
    "encoder_attention_heads": 3,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 32,
    "decoder_ffn_dim": 32,
    "num_queries": 5,
}
_CASES = (
    Case("DetrModel", _TINY, inputs="large_pixels"),
    Case("DetrForObjectDetection", {**_TINY, "decoder_layers": 4}, inputs="large_pixels"),
)


class DetrEncoder(BartEncoder):
    """The encoder, on the feature map."""

    name = "detr_encoder"
    model_types = ("detr",)
    cases = _CASES

    def position_in(self, config):
        return "sinusoidal" if config.get("position_embedding_type", "sine") == "sine" else "learned"


class DetrDecoder(BartDecoder):
    """The decoder's self-attention, among the learned object queries."""

    name = "detr_decoder"
    model_types = ("detr",)
    cases = _CASES
