"""ModernBERT, trained as a masked language model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from qkgeom.training.families.base import Language, Recipe
from qkgeom.training.tokens import Corpus

if TYPE_CHECKING:
    from transformers import ModernBertForMaskedLM


class ModernBert(Language):
    """transformers' ModernBertForMaskedLM: RoPE, and local layers that see a quarter of the sequence to either side."""

    name = "modernbert"
    layouts = ("modernbert",)
    projections = (".attn.Wqkv",)
    objectives = ("masked",)

    def _build(self, recipe: Recipe, corpus: Corpus | None) -> ModernBertForMaskedLM:
        # Of each three layers the first sees the whole sequence, the others their neighbours.
        from transformers import ModernBertConfig, ModernBertForMaskedLM

        return ModernBertForMaskedLM(
            ModernBertConfig(
                vocab_size=corpus.vocab_size,
                hidden_size=recipe.d_model,
                num_hidden_layers=recipe.n_layer,
                num_attention_heads=recipe.n_head,
                intermediate_size=2 * recipe.d_model,  # gated, so its first weight is twice as wide
                max_position_embeddings=recipe.length,
                sparse_prediction=True,  # logits of the masked tokens only, as it was trained
                local_attention=recipe.length // 2,
                pad_token_id=corpus.special["[PAD]"],
                bos_token_id=corpus.special["[CLS]"],
                cls_token_id=corpus.special["[CLS]"],
                eos_token_id=corpus.special["[SEP]"],
                sep_token_id=corpus.special["[SEP]"],
                initializer_range=recipe.init_std,
            )
        )
