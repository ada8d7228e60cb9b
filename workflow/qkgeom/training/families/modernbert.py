"""ModernBERT, trained as a masked language model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from qkgeom.training.families.base import MaskedLanguage, Sizes
from qkgeom.training.tokens import SPECIAL

if TYPE_CHECKING:
    from transformers import ModernBertForMaskedLM

PAD, START, END = (SPECIAL.index(token) for token in ("[PAD]", "[CLS]", "[SEP]"))


class ModernBert(MaskedLanguage):
    """transformers' ModernBertForMaskedLM: RoPE, and local layers that see a quarter of the sequence to either side."""

    name = "modernbert"
    layouts = ("modernbert",)
    projections = (".attn.Wqkv",)

    def build(self, seed: int, sizes: Sizes) -> ModernBertForMaskedLM:
        """Of each three layers the first sees the whole sequence, the others their neighbours."""
        from transformers import ModernBertConfig, ModernBertForMaskedLM, set_seed

        set_seed(seed)
        return ModernBertForMaskedLM(
            ModernBertConfig(
                vocab_size=sizes.vocab_size,
                hidden_size=sizes.d_model,
                num_hidden_layers=sizes.n_layer,
                num_attention_heads=sizes.n_head,
                intermediate_size=2 * sizes.d_model,  # gated, so its first weight is twice as wide
                max_position_embeddings=sizes.length,
                sparse_prediction=True,  # logits of the masked tokens only, as it was trained
                local_attention=sizes.length // 2,
                pad_token_id=PAD,
                bos_token_id=START,
                cls_token_id=START,
                eos_token_id=END,
                sep_token_id=END,
                initializer_range=sizes.init_std,
            )
        )
