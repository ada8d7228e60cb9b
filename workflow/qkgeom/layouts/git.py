"""GIT: an image tower named as CLIP's, and a causal text decoder named as BERT. Separate Linear weights.

The config's `num_hidden_layers` is the text decoder's; the image tower's sizes are in `vision_config`.

Source: transformers/models/git/modeling_git.py.
"""

from qkgeom.layouts.base import Case, SeparateLinear

_TINY = {
    "hidden_size": 24,
    "num_attention_heads": 3,
    "num_hidden_layers": 2,
    "intermediate_size": 32,
    "vocab_size": 50,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "vision_config": {
        "hidden_size": 20,
        "num_attention_heads": 2,
        "num_hidden_layers": 4,
        "intermediate_size": 32,
        "image_size": 16,
        "patch_size": 4,
    },
}
_CASES = tuple(Case(model, _TINY, inputs="image_and_text") for model in ("GitModel", "GitForCausalLM"))


class GitVision(SeparateLinear):
    """The image tower."""

    name = "git_vision"
    model_types = ("git",)
    part = "vision"
    section = "vision_config"
    tensors = {
        "q": r"image_encoder\.vision_model\.encoder\.layers\.{N}\.self_attn\.q_proj\.weight",
        "k": r"image_encoder\.vision_model\.encoder\.layers\.{N}\.self_attn\.k_proj\.weight",
    }
    cases = _CASES


class GitText(SeparateLinear):
    """The text decoder, whose self-attention runs over image and text tokens."""

    name = "git_text"
    model_types = ("git",)
    part = "text"
    tensors = {
        "q": r"encoder\.layer\.{N}\.attention\.self\.query\.weight",
        "k": r"encoder\.layer\.{N}\.attention\.self\.key\.weight",
    }
    cases = _CASES
