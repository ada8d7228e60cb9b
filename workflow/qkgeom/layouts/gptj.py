"""GPT-J: separate Linear weights without bias; RoPE turns the first `rotary_dim` dimensions of each head.

Source: transformers/models/gptj/modeling_gptj.py, `GPTJAttention.forward`. GGUF names: the gguf package,
`constants.TENSOR_NAMES`.
"""

from qkgeom.layouts.base import Case, SeparateLinear

_TINY = {"n_embd": 24, "n_head": 3, "n_layer": 3, "rotary_dim": 4, "n_positions": 32, "vocab_size": 50}


class GptJ(SeparateLinear):
    """GPT-J."""

    name = "gptj"
    model_types = ("gptj",)
    position = "rope"
    tensors = {"q": r"h\.{N}\.attn\.q_proj\.weight", "k": r"h\.{N}\.attn\.k_proj\.weight"}
    gguf = {"q": r"blk\.{N}\.attn_q\.weight", "k": r"blk\.{N}\.attn_k\.weight"}
    cases = (Case("GPTJModel", _TINY), Case("GPTJForCausalLM", _TINY))
