"""BERT, trained as a masked language model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from qkgeom.training.families.base import Language, Recipe
from qkgeom.training.tokens import Corpus

if TYPE_CHECKING:
    from transformers import BertForMaskedLM


class Bert(Language):
    """transformers' BertForMaskedLM."""

    name = "bert"
    layouts = ("bert",)
    projections = (".self.query", ".self.key")
    objectives = ("masked",)

    def _build(self, recipe: Recipe, corpus: Corpus | None) -> BertForMaskedLM:
        # Without dropout, which a short training does not need.
        from transformers import BertConfig, BertForMaskedLM

        return BertForMaskedLM(
            BertConfig(
                vocab_size=corpus.vocab_size,
                hidden_size=recipe.d_model,
                num_hidden_layers=recipe.n_layer,
                num_attention_heads=recipe.n_head,
                intermediate_size=4 * recipe.d_model,
                max_position_embeddings=recipe.length,
                initializer_range=recipe.init_std,
                hidden_dropout_prob=0.0,
                attention_probs_dropout_prob=0.0,
            )
        )
