"""LLaMA 3: RMS norms, gated feed-forward layers, grouped queries, and RoPE with its base of 500,000."""

from __future__ import annotations

from typing import TYPE_CHECKING

from qkgeom.training.families.base import Language, Recipe
from qkgeom.training.tokens import Corpus

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM

THETA = 500_000.0


class Llama(Language):
    """transformers' LlamaForCausalLM."""

    name = "llama"
    layouts = ("llama",)
    projections = (".self_attn.q_proj", ".self_attn.k_proj")
    objectives = ("autoregressive",)

    def _build(self, recipe: Recipe, corpus: Corpus | None) -> LlamaForCausalLM:
        from transformers import LlamaConfig, LlamaForCausalLM

        rope = {"rope_type": "default", "rope_theta": THETA}
        return LlamaForCausalLM(LlamaConfig(**sizes(recipe, corpus), rope_parameters=rope))


def sizes(recipe: Recipe, corpus: Corpus) -> dict[str, object]:
    """What the configurations of LLaMA and of its kin share; two query heads read each key head."""
    return {
        "vocab_size": corpus.vocab_size,
        "hidden_size": recipe.d_model,
        "num_hidden_layers": recipe.n_layer,
        "num_attention_heads": recipe.n_head,
        "num_key_value_heads": max(1, recipe.n_head // 2),
        "intermediate_size": 8 * recipe.d_model // 3,  # three matrices instead of two
        "max_position_embeddings": recipe.length,
        "bos_token_id": corpus.special["[SEP]"],
        "eos_token_id": corpus.special["[SEP]"],
        "use_cache": False,
        "initializer_range": recipe.init_std,
    }
