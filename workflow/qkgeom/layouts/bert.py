"""BERT and its relatives: separate Linear weights for query and key.

Source: transformers/models/{bert,roberta,xlm_roberta,distilbert,albert}/modeling_*.py.
"""

from qkgeom.layouts.base import AttentionShape, Case, SeparateLinear, field

_TINY = {"hidden_size": 24, "num_attention_heads": 3, "num_hidden_layers": 3, "intermediate_size": 32, "vocab_size": 50}


class Bert(SeparateLinear):
    """BERT, RoBERTa, XLM-RoBERTa; a decoder's cross-attention is called `crossattention.self` and does not match."""

    name = "bert"
    model_types = ("bert", "roberta", "xlm-roberta", "camembert", "electra")
    tensors = {
        "q": r"encoder\.layer\.{N}\.attention\.self\.query\.weight",
        "k": r"encoder\.layer\.{N}\.attention\.self\.key\.weight",
    }
    gguf = {"q": r"blk\.{N}\.attn_q\.weight", "k": r"blk\.{N}\.attn_k\.weight"}
    cases = tuple(
        Case(model, dict(_TINY))
        for model in ("BertModel", "BertForMaskedLM", "RobertaForMaskedLM", "XLMRobertaModel", "CamembertModel", "ElectraModel")
    )


class DistilBert(SeparateLinear):
    """DistilBERT."""

    name = "distilbert"
    model_types = ("distilbert",)
    tensors = {
        "q": r"transformer\.layer\.{N}\.attention\.q_lin\.weight",
        "k": r"transformer\.layer\.{N}\.attention\.k_lin\.weight",
    }
    cases = (
        Case("DistilBertModel", {"dim": 24, "n_heads": 3, "n_layers": 3, "hidden_dim": 32, "vocab_size": 50}),
        Case("DistilBertForMaskedLM", {"dim": 24, "n_heads": 3, "n_layers": 2, "hidden_dim": 32, "vocab_size": 50}),
    )


class Albert(SeparateLinear):
    """ALBERT shares one layer among all its depths: the checkpoint holds num_hidden_groups distinct layers."""

    name = "albert"
    model_types = ("albert",)
    tensors = {
        "q": r"encoder\.albert_layer_groups\.{N}\.albert_layers\.0\.attention\.query\.weight",
        "k": r"encoder\.albert_layer_groups\.{N}\.albert_layers\.0\.attention\.key\.weight",
    }
    cases = (
        Case("AlbertModel", {**_TINY, "embedding_size": 8}),
        Case("AlbertForMaskedLM", {**_TINY, "embedding_size": 8, "num_hidden_groups": 3}),
    )

    def n_layer(self, config):
        return field({"num_hidden_groups": 1, **config}, "num_hidden_groups")

    def shape(self, config, layer) -> AttentionShape:
        shape = super().shape(config, layer)
        return AttentionShape(shape.d_model, shape.n_head, shape.n_head, shape.d_head)
