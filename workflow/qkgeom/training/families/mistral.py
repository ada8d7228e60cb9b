"""Mistral: as LLaMA, with attention to a sliding window of half a sequence."""

from __future__ import annotations

from typing import TYPE_CHECKING

from qkgeom.training.families.base import Language, Recipe
from qkgeom.training.families.llama import sizes
from qkgeom.training.tokens import Corpus

if TYPE_CHECKING:
    from transformers import MistralForCausalLM


class Mistral(Language):
    """transformers' MistralForCausalLM."""

    name = "mistral"
    layouts = ("llama",)
    projections = (".self_attn.q_proj", ".self_attn.k_proj")
    objectives = ("autoregressive",)

    def _build(self, recipe: Recipe, corpus: Corpus | None) -> MistralForCausalLM:
        from transformers import MistralConfig, MistralForCausalLM

        window = max(1, recipe.length // 2)
        return MistralForCausalLM(MistralConfig(**sizes(recipe, corpus), sliding_window=window))
