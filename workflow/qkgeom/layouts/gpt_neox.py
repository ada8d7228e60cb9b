"""GPT-NeoX and Pythia: one Linear weight whose rows are interleaved head by head, [head, (q, k, v), d_head].

Source: transformers/models/gpt_neox/modeling_gpt_neox.py, `GPTNeoXAttention.forward` (view, then chunk).
"""

from qkgeom.layouts.base import Case, FusedPerHead


class GptNeoX(FusedPerHead):
    """GPT-NeoX, Pythia."""

    name = "gpt_neox"
    model_types = ("gpt_neox",)
    position = "rope"
    tensors = {"qkv": r"layers\.{N}\.attention\.query_key_value\.weight"}
    cases = tuple(
        Case(
            model,
            {
                "hidden_size": 24,
                "num_attention_heads": 3,
                "num_hidden_layers": 3,
                "intermediate_size": 32,
                "vocab_size": 50,
                "rotary_pct": 0.5,
            },
        )
        for model in ("GPTNeoXModel", "GPTNeoXForCausalLM")
    )
