"""ModernBERT: one Linear weight with rows [Q; K; V]; its decoder: separate Linear weights. RoPE, local and global layers.

Source: transformers/models/{modernbert,modernbert_decoder}/modeling_*.py, `ModernBertAttention`,
`ModernBertDecoderAttention`.
"""

from qkgeom.layouts.base import Case, FusedRows, SeparateLinear

_TINY = {
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
}


class ModernBert(FusedRows):
    """ModernBERT, mmBERT, Ettin's encoders and other derivatives."""

    name = "modernbert"
    model_types = ("modernbert",)
    position = "rope"
    tensors = {"qkv": r"layers\.{N}\.attn\.Wqkv\.weight"}
    cases = tuple(Case(model, _TINY) for model in ("ModernBertModel", "ModernBertForMaskedLM"))


class ModernBertDecoder(SeparateLinear):
    """Ettin's decoders: the encoder's shapes with a causal mask."""

    name = "modernbert_decoder"
    model_types = ("modernbert-decoder",)
    position = "rope"
    tensors = {
        "q": r"layers\.{N}\.attn\.q_proj\.weight",
        "k": r"layers\.{N}\.attn\.k_proj\.weight",
    }
    cases = tuple(Case(model, _TINY) for model in ("ModernBertDecoderModel", "ModernBertDecoderForCausalLM"))
