"""OPT: separate Linear weights under a decoder's names, but there is no encoder.

Source: transformers/models/opt/modeling_opt.py, `OPTAttention.forward`.
"""

from qkgeom.layouts.base import Case, SeparateLinear

_TINY = {"hidden_size": 24, "num_attention_heads": 3, "num_hidden_layers": 3, "ffn_dim": 32, "vocab_size": 50}


class Opt(SeparateLinear):
    """OPT; the 350M model embeds words in fewer dimensions (`word_embed_proj_dim`) than its layers have."""

    name = "opt"
    model_types = ("opt",)
    tensors = {
        "q": r"decoder\.layers\.{N}\.self_attn\.q_proj\.weight",
        "k": r"decoder\.layers\.{N}\.self_attn\.k_proj\.weight",
    }
    cases = (
        Case("OPTModel", {**_TINY, "word_embed_proj_dim": 24}),
        Case("OPTForCausalLM", {**_TINY, "word_embed_proj_dim": 12, "do_layer_norm_before": False}),
    )
