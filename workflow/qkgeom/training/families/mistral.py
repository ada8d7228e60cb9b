"""Mistral: as LLaMA, with attention to a sliding window of half a sequence."""

from __future__ import annotations

from typing import TYPE_CHECKING

from qkgeom.training.families.base import Language, Recipe
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
        # Two query heads read each key head.
        from transformers import MistralConfig, MistralForCausalLM

        return MistralForCausalLM(
            MistralConfig(
                vocab_size=corpus.vocab_size,
                hidden_size=recipe.d_model,
                num_hidden_layers=recipe.n_layer,
                num_attention_heads=recipe.n_head,
                num_key_value_heads=max(1, recipe.n_head // 2),
                intermediate_size=8 * recipe.d_model // 3,  # three matrices instead of two
                max_position_embeddings=recipe.length,
                sliding_window=max(1, recipe.length // 2),
                bos_token_id=corpus.special["[SEP]"],
                eos_token_id=corpus.special["[SEP]"],
                use_cache=False,
                initializer_range=recipe.init_std,
            )
        )
