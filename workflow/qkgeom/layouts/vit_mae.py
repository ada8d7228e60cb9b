"""MAE: a ViT as its encoder, and a decoder of its own width. Separate Linear weights.

Published files call the decoder's layers `decoder.decoder_layers.N`, transformers 5 saves them as
`decoder.decoder_encoder.layer.N`, and both are read.

Source: transformers/models/vit_mae/modeling_vit_mae.py and conversion_mapping.py.
"""

from qkgeom.layouts.base import AttentionShape, Case, SeparateLinear, field
from qkgeom.layouts.vit import Vit

_CASES = (
    Case(
        "ViTMAEForPreTraining",
        {
            "hidden_size": 24,
            "num_attention_heads": 3,
            "num_hidden_layers": 3,
            "intermediate_size": 32,
            "image_size": 16,
            "patch_size": 4,
            "decoder_hidden_size": 12,
            "decoder_num_attention_heads": 2,
            "decoder_num_hidden_layers": 2,
            "decoder_intermediate_size": 16,
        },
        inputs="pixels",
    ),
)


class MaeEncoder(Vit):
    """The encoder, of the patches that are not masked."""

    name = "vit_mae_encoder"
    model_types = ("vit_mae",)
    part = "encoder"
    position = "sinusoidal"
    cases = _CASES


class MaeDecoder(SeparateLinear):
    """The decoder, of all patches."""

    name = "vit_mae_decoder"
    model_types = ("vit_mae",)
    part = "decoder"
    position = "sinusoidal"
    tensors = {
        "q": r"decoder\.(?:decoder_layers|decoder_encoder\.layer)\.{N}\.attention\.(?:attention\.)?(?:query|q_proj)\.weight",
        "k": r"decoder\.(?:decoder_layers|decoder_encoder\.layer)\.{N}\.attention\.(?:attention\.)?(?:key|k_proj)\.weight",
    }
    cases = _CASES

    def n_layer(self, config):
        return field(config, "decoder_num_hidden_layers")

    def shape(self, config, layer):
        d_model, n_head = field(config, "decoder_hidden_size"), field(config, "decoder_num_attention_heads")
        return AttentionShape.multi_head(d_model, n_head)
