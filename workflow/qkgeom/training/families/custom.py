"""The paper's custom models: BERT-shaped, trained bidirectionally (masked) or autoregressively (causal mask)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from qkgeom.errors import UsageError
from qkgeom.training.families.base import Language, Recipe
from qkgeom.training.families.bert import bert_config
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
    has_dropout = True

    def require_buildable(self, recipe: Recipe) -> None:
        """As of every family; and the paper starts encoders only from a symmetric initialisation."""
        super().require_buildable(recipe)
        if recipe.init == "symmetric" and not recipe.masked:
            raise UsageError("a symmetric start is for encoders", found=f"objective {recipe.objective}", expected="masked")

    def _build(self, recipe: Recipe, corpus: Corpus | None) -> PreTrainedModel:
        from transformers import BertForMaskedLM, BertLMHeadModel

        model = (BertForMaskedLM if recipe.masked else BertLMHeadModel)(bert_config(recipe, corpus))
        if recipe.init == "symmetric":
            for layer in model.bert.encoder.layer:
                attention = layer.attention.self
                attention.query.weight.data.copy_(attention.key.weight.data)
        return model
