"""GPT-2, trained to predict the next token."""

from __future__ import annotations

from typing import TYPE_CHECKING

from qkgeom.training.families.base import Language, Recipe
from qkgeom.training.tokens import Corpus

if TYPE_CHECKING:
    from transformers import GPT2LMHeadModel


class Gpt2(Language):
    """transformers' GPT2LMHeadModel."""

    name = "gpt2"
    layouts = ("gpt2",)
    projections = (".attn.c_attn",)
    objectives = ("autoregressive",)

    def _build(self, recipe: Recipe, corpus: Corpus | None) -> GPT2LMHeadModel:
        # Without dropout, which a short training does not need.
        from transformers import GPT2Config, GPT2LMHeadModel

        return GPT2LMHeadModel(
            GPT2Config(
                vocab_size=corpus.vocab_size,
                n_embd=recipe.d_model,
                n_layer=recipe.n_layer,
                n_head=recipe.n_head,
                n_positions=recipe.length,
                bos_token_id=corpus.special["[SEP]"],
                eos_token_id=corpus.special["[SEP]"],
                use_cache=False,
                initializer_range=recipe.init_std,
                resid_pdrop=0.0,
                embd_pdrop=0.0,
                attn_pdrop=0.0,
            )
        )
