"""CLIP and SigLIP: an image and a text tower of separate Linear weights.

A published config.json may leave out of a tower's section what equals the library's default, so the defaults stand
here. SigLIP's pooling head (`head.attention.in_proj_weight`) does not match.

Source: transformers/models/{clip,siglip}/modeling_*.py and configuration_*.py.
"""

from qkgeom.layouts.base import Case, SeparateLinear

_BASE = {"hidden_size": 768, "num_attention_heads": 12, "num_hidden_layers": 12}  # of both, unless said otherwise
_CLIP_TEXT = {"hidden_size": 512, "num_attention_heads": 8, "num_hidden_layers": 12}
_TINY = {
    "vision_config": {
        "hidden_size": 20,
        "num_attention_heads": 2,
        "num_hidden_layers": 4,
        "intermediate_size": 32,
        "image_size": 16,
        "patch_size": 4,
    },
    "text_config": {
        "hidden_size": 24,
        "num_attention_heads": 3,
        "num_hidden_layers": 3,
        "intermediate_size": 32,
        "vocab_size": 50,
        "projection_size": 20,  # SigLIP's
        "bos_token_id": 1,
        "eos_token_id": 2,
    },
    "projection_dim": 8,
}
_CASES = tuple(Case(model, _TINY, inputs="image_and_text") for model in ("CLIPModel", "SiglipModel"))


class ClipVision(SeparateLinear):
    """The image tower."""

    name = "clip_vision"
    model_types = ("clip", "siglip")
    part = "vision"
    section = "vision_config"
    tensors = {
        "q": r"vision_model\.encoder\.layers\.{N}\.self_attn\.q_proj\.weight",
        "k": r"vision_model\.encoder\.layers\.{N}\.self_attn\.k_proj\.weight",
    }
    cases = _CASES

    def sizes(self, config):
        return {**_BASE, **super().sizes(config)}


class ClipText(SeparateLinear):
    """The text tower, causal in CLIP and not in SigLIP."""

    name = "clip_text"
    model_types = ("clip", "siglip")
    part = "text"
    section = "text_config"
    tensors = {
        "q": r"text_model\.encoder\.layers\.{N}\.self_attn\.q_proj\.weight",
        "k": r"text_model\.encoder\.layers\.{N}\.self_attn\.k_proj\.weight",
    }
    cases = _CASES

    def sizes(self, config):
        return {**(_CLIP_TEXT if config.get("model_type") == "clip" else _BASE), **super().sizes(config)}
