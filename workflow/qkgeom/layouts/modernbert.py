"""ModernBERT: one Linear weight with rows [Q; K; V], RoPE, local and global layers.

Source: transformers/models/modernbert/modeling_modernbert.py, `ModernBertAttention.forward`.
"""

from qkgeom.layouts.base import Case, FusedRows


class ModernBert(FusedRows):
    """ModernBERT and its derivatives."""

    name = "modernbert"
    model_types = ("modernbert",)
    position = "rope"
    tensors = {"qkv": r"layers\.{N}\.attn\.Wqkv\.weight"}
    cases = tuple(
        Case(
            model,
            {
                "hidden_size": 24,
                "num_attention_heads": 3,
                "num_hidden_layers": 4,
                "intermediate_size": 32,
                "vocab_size": 50,
                "pad_token_id": 0,
                "bos_token_id": 1,
                "eos_token_id": 2,
                "cls_token_id": 1,
                "sep_token_id": 2,
            },
        )
        for model in ("ModernBertModel", "ModernBertForMaskedLM")
    )
