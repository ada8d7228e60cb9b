"""SAM: the image encoder, one Linear weight with rows [Q; K; V], and the mask decoder's self-attention, separate.

The mask decoder's cross-attentions (`cross_attn_token_to_image`, `cross_attn_image_to_token`, `final_attn...`) are
narrower and do not match.

Source: transformers/models/sam/modeling_sam.py, `SamVisionAttention` (`reshape(batch_size, height * width, 3, heads, -1)`)
and `SamTwoWayTransformer`.
"""

from qkgeom.layouts.base import Case, FusedRows, SeparateLinear

_VISION = {
    "hidden_size": 24,
    "num_attention_heads": 3,
    "num_hidden_layers": 3,
    "mlp_dim": 32,
    "image_size": 32,
    "patch_size": 4,
    "output_channels": 16,
    "num_pos_feats": 8,
    "window_size": 3,
    "global_attn_indexes": [1],
}
_PROMPTS = {"hidden_size": 16, "image_size": 32, "patch_size": 4, "mask_input_channels": 4}
_DECODER = {
    "hidden_size": 16,
    "num_attention_heads": 2,
    "num_hidden_layers": 2,
    "mlp_dim": 32,
    "iou_head_hidden_dim": 16,
}
_TINY = {"vision_config": _VISION, "prompt_encoder_config": _PROMPTS, "mask_decoder_config": _DECODER}
_CASES = (Case("SamModel", _TINY, inputs="prompted_pixels"),)


class SamEncoder(FusedRows):
    """The image encoder: windows, and a few global layers."""

    name = "sam_encoder"
    model_types = ("sam",)
    part = "encoder"
    section = "vision_config"
    position = "relative"
    tensors = {"qkv": r"vision_encoder\.layers\.{N}\.attn\.qkv\.weight"}
    cases = _CASES


class SamDecoder(SeparateLinear):
    """The mask decoder's self-attention among output tokens and prompts, whose places enter by sines."""

    name = "sam_decoder"
    model_types = ("sam",)
    part = "decoder"
    section = "mask_decoder_config"
    position = "sinusoidal"
    tensors = {
        "q": r"mask_decoder\.transformer\.layers\.{N}\.self_attn\.q_proj\.weight",
        "k": r"mask_decoder\.transformer\.layers\.{N}\.self_attn\.k_proj\.weight",
    }
    cases = _CASES
