"""BERT, trained as a masked language model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from qkgeom.training.families.base import Language, Recipe
from qkgeom.training.tokens import Corpus

if TYPE_CHECKING:
    from transformers import BertConfig, BertForMaskedLM


class Bert(Language):
    """transformers' BertForMaskedLM."""

    name = "bert"
    layouts = ("bert",)
    projections = (".self.query", ".self.key")
    objectives = ("masked",)
    has_dropout = True

    def _build(self, recipe: Recipe, corpus: Corpus | None) -> BertForMaskedLM:
        from transformers import BertForMaskedLM

        return BertForMaskedLM(bert_config(recipe, corpus))


def bert_config(recipe: Recipe, corpus: Corpus) -> BertConfig:
    """The configuration of a BERT-shaped model, with a causal mask unless the objective is masked."""
    from transformers import BertConfig

    return BertConfig(
        vocab_size=corpus.vocab_size,
        hidden_size=recipe.d_model,
        num_hidden_layers=recipe.n_layer,
        num_attention_heads=recipe.n_head,
        intermediate_size=4 * recipe.d_model,
        max_position_embeddings=recipe.length,
        initializer_range=recipe.init_std,
        hidden_dropout_prob=recipe.dropout,
        attention_probs_dropout_prob=recipe.dropout,
        is_decoder=not recipe.masked,
        use_cache=False,
    )
