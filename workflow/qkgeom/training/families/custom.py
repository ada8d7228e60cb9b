"""The paper's custom models: BERT-shaped, trained bidirectionally (masked) or autoregressively (causal mask)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from qkgeom.training.families.base import Language, Recipe
from qkgeom.training.tokens import Corpus

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class Custom(Language):
    """transformers' BertForMaskedLM, or BertLMHeadModel with its causal mask; from W_q = W_k where `init` is symmetric."""

    name = "custom"
    layouts = ("bert",)
    projections = (".self.query", ".self.key")
    objectives = ("masked", "autoregressive")
    inits = ("default", "symmetric")  # symmetric: W_q = W_k in every layer, so that symmetry is 1 (paper, section 5)

    def _build(self, recipe: Recipe, corpus: Corpus | None) -> PreTrainedModel:
        from transformers import BertConfig, BertForMaskedLM, BertLMHeadModel

        config = BertConfig(
            vocab_size=corpus.vocab_size,
            hidden_size=recipe.d_model,
            num_hidden_layers=recipe.n_layer,
            num_attention_heads=recipe.n_head,
            intermediate_size=4 * recipe.d_model,
            max_position_embeddings=recipe.length,
            is_decoder=not recipe.masked,
            use_cache=False,
        )
        model = (BertForMaskedLM if recipe.masked else BertLMHeadModel)(config)
        if recipe.init == "symmetric":
            for layer in model.bert.encoder.layer:
                attention = layer.attention.self
                attention.query.weight.data.copy_(attention.key.weight.data)
        return model
