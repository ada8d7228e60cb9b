"""GPT-Neo and TinyStories: separate Linear weights without bias; scores are not scaled; local and global layers.

Source: transformers/models/gpt_neo/modeling_gpt_neo.py, `GPTNeoSelfAttention.forward`.
"""

from qkgeom.layouts.base import Case, SeparateLinear

_TINY = {
    "hidden_size": 24,
    "num_heads": 3,
    "num_layers": 4,
    "attention_types": [[["global", "local"], 2]],
    "window_size": 4,
    "max_position_embeddings": 32,
    "vocab_size": 50,
}


class GptNeo(SeparateLinear):
    """GPT-Neo, TinyStories."""

    name = "gpt_neo"
    model_types = ("gpt_neo",)
    tensors = {
        "q": r"h\.{N}\.attn\.attention\.q_proj\.weight",
        "k": r"h\.{N}\.attn\.attention\.k_proj\.weight",
    }
    cases = (Case("GPTNeoModel", _TINY), Case("GPTNeoForCausalLM", _TINY))
