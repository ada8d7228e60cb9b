"""BLOOM: one Linear weight whose rows are interleaved head by head, [head, (q, k, v), d_head]; ALiBi.

Falcon uses the same tensor name (falcon.py).

Source: transformers/models/bloom/modeling_bloom.py, `BloomAttention._reshape`.
"""

from qkgeom.layouts.base import Case, FusedPerHead

_TINY = {"hidden_size": 24, "n_head": 3, "n_layer": 3, "vocab_size": 50}


class Bloom(FusedPerHead):
    """BLOOM."""

    name = "bloom"
    model_types = ("bloom",)
    position = "alibi"
    tensors = {"qkv": r"h\.{N}\.self_attention\.query_key_value\.weight"}
    cases = (Case("BloomModel", _TINY), Case("BloomForCausalLM", _TINY))
