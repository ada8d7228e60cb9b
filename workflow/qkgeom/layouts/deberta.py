"""DeBERTa: version 1 with one Linear weight interleaved head by head, versions 2 and 3 with separate Linear weights.

The projections of relative positions (`pos_proj`, `pos_q_proj`; `pos_key_proj`, `pos_query_proj`) do not match. With
`share_att_key` versions 2 and 3 give positions to the projections of query and key too; that is no part of W_qk.

Source: transformers/models/{deberta,deberta_v2}/modeling_*.py, `DisentangledSelfAttention.forward`.
"""

from qkgeom.layouts.base import Case, FusedPerHead, SeparateLinear

_TINY = {"hidden_size": 24, "num_attention_heads": 3, "num_hidden_layers": 3, "intermediate_size": 32, "vocab_size": 50}
_DISENTANGLED = {**_TINY, "relative_attention": True, "position_biased_input": False, "pos_att_type": ["c2p", "p2c"]}
_SHARED = {**_DISENTANGLED, "position_buckets": 4, "share_att_key": True, "norm_rel_ebd": "layer_norm"}  # version 3's


class Deberta(FusedPerHead):
    """DeBERTa, version 1; its query has a bias (`q_bias`), its key none."""

    name = "deberta"
    model_types = ("deberta",)
    position = "relative"
    tensors = {"qkv": r"encoder\.layer\.{N}\.attention\.self\.in_proj\.weight"}
    cases = (
        Case("DebertaModel", _TINY),
        Case("DebertaModel", _DISENTANGLED),
        Case("DebertaForMaskedLM", _DISENTANGLED),
    )


class DebertaV2(SeparateLinear):
    """DeBERTa, versions 2 and 3."""

    name = "deberta_v2"
    model_types = ("deberta-v2",)
    position = "relative"
    tensors = {
        "q": r"encoder\.layer\.{N}\.attention\.self\.query_proj\.weight",
        "k": r"encoder\.layer\.{N}\.attention\.self\.key_proj\.weight",
    }
    cases = (
        Case("DebertaV2Model", _TINY),
        Case("DebertaV2Model", _DISENTANGLED),
        Case("DebertaV2ForMaskedLM", _SHARED),
    )
