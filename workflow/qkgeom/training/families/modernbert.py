"""ModernBERT, trained as a masked language model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from qkgeom.training.families.base import Language, Recipe
from qkgeom.training.tokens import SPECIAL

if TYPE_CHECKING:
    from transformers import ModernBertForMaskedLM

PAD, START, END = (SPECIAL.index(token) for token in ("[PAD]", "[CLS]", "[SEP]"))


class ModernBert(Language):
    """transformers' ModernBertForMaskedLM: RoPE, and local layers that see a quarter of the sequence to either side."""

    name = "modernbert"
    layouts = ("modernbert",)
    projections = (".attn.Wqkv",)
    objectives = ("masked",)

    def _build(self, recipe: Recipe, vocab_size: int) -> ModernBertForMaskedLM:
        # Of each three layers the first sees the whole sequence, the others their neighbours.
        from transformers import ModernBertConfig, ModernBertForMaskedLM

        return ModernBertForMaskedLM(
            ModernBertConfig(
                vocab_size=vocab_size,
                hidden_size=recipe.d_model,
                num_hidden_layers=recipe.n_layer,
                num_attention_heads=recipe.n_head,
                intermediate_size=2 * recipe.d_model,  # gated, so its first weight is twice as wide
                max_position_embeddings=recipe.length,
                sparse_prediction=True,  # logits of the masked tokens only, as it was trained
                local_attention=recipe.length // 2,
                pad_token_id=PAD,
                bos_token_id=START,
                cls_token_id=START,
                eos_token_id=END,
                sep_token_id=END,
                initializer_range=recipe.init_std,
            )
        )
