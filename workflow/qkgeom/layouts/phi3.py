"""Phi-3 and Phi-4: one Linear weight with rows [Q; K; V] and fewer key heads than query heads; Phi-3-small: interleaved.

Phi-1, 1.5 and 2 store separate weights (llama.py). No library has Phi-3-small's class: checkpoints bring their own code,
which the contract test follows (tests/remote_models.py).

Source: transformers/models/phi3/modeling_phi3.py, `Phi3Attention.forward`; `Phi3SmallSelfAttention._split_heads` of
that code. GGUF names: the gguf package, `constants.TENSOR_NAMES`.
"""

from qkgeom.layouts.base import LANGUAGE_PREFIX, Case, FusedPerHead, FusedRows

_TINY = {"hidden_size": 24, "num_attention_heads": 6, "num_hidden_layers": 3, "intermediate_size": 32, "vocab_size": 50}
_TOKENS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}


class Phi3(FusedRows):
    """Phi-3-mini, Phi-3.5-mini, Phi-3-medium, Phi-4."""

    name = "phi3"
    model_types = ("phi3",)
    prefix = LANGUAGE_PREFIX
    position = "rope"
    tensors = {"qkv": r"layers\.{N}\.self_attn\.qkv_proj\.weight"}
    gguf = {"qkv": r"blk\.{N}\.attn_qkv\.weight"}
    cases = (
        Case("Phi3Model", {**_TINY, **_TOKENS, "num_key_value_heads": 6}),
        Case("Phi3ForCausalLM", {**_TINY, **_TOKENS, "num_key_value_heads": 2}),  # medium and Phi-4: 40 and 10
    )


class Phi3Small(FusedPerHead):
    """Phi-3-small."""

    name = "phi3small"
    model_types = ("phi3small",)
    prefix = LANGUAGE_PREFIX
    position = "rope"
    tensors = {"qkv": r"layers\.{N}\.self_attn\.query_key_value\.weight"}
    cases = (Case("Phi3SmallForCausalLM", {**_TINY, "num_key_value_heads": 2}, "remote"),)
