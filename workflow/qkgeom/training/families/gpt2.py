"""GPT-2, trained to predict the next token."""

from __future__ import annotations

from typing import TYPE_CHECKING

from qkgeom.training.families.base import CausalLanguage, Sizes
from qkgeom.training.tokens import SPECIAL

if TYPE_CHECKING:
    from transformers import GPT2LMHeadModel


class Gpt2(CausalLanguage):
    """transformers' GPT2LMHeadModel."""

    name = "gpt2"
    layouts = ("gpt2",)
    projections = (".attn.c_attn",)

    def build(self, seed: int, sizes: Sizes) -> GPT2LMHeadModel:
        """Without dropout, which a short training does not need."""
        from transformers import GPT2Config, GPT2LMHeadModel, set_seed

        set_seed(seed)
        return GPT2LMHeadModel(
            GPT2Config(
                vocab_size=sizes.vocab_size,
                n_embd=sizes.d_model,
                n_layer=sizes.n_layer,
                n_head=sizes.n_head,
                n_positions=sizes.length,
                bos_token_id=SPECIAL.index("[SEP]"),
                eos_token_id=SPECIAL.index("[SEP]"),
                use_cache=False,
                initializer_range=sizes.init_std,
                resid_pdrop=0.0,
                embd_pdrop=0.0,
                attn_pdrop=0.0,
            )
        )
