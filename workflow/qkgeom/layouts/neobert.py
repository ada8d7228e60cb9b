"""NeoBERT: one Linear weight whose rows are interleaved head by head, [head, (q, k, v), d_head].

No library has its class: checkpoints bring their own code, which the contract test follows (tests/remote_models.py).

Source: `EncoderBlock._att_block` of that code: view(B, T, n_head, 3 * d_head), then chunk(3, -1).
"""

from qkgeom.layouts.base import Case, FusedPerHead

_TINY = {"hidden_size": 24, "num_attention_heads": 3, "num_hidden_layers": 3, "vocab_size": 50}


class NeoBert(FusedPerHead):
    """NeoBERT."""

    name = "neobert"
    model_types = ("neobert",)
    position = "rope"
    tensors = {"qkv": r"transformer_encoder\.{N}\.qkv\.weight"}
    cases = (Case("NeoBERT", _TINY, "remote"), Case("NeoBERTLMHead", _TINY, "remote"))
