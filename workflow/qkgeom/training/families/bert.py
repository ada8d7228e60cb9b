"""BERT, trained as a masked language model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from qkgeom.training.families.base import MaskedLanguage, Sizes

if TYPE_CHECKING:
    from transformers import BertForMaskedLM


class Bert(MaskedLanguage):
    """transformers' BertForMaskedLM."""

    name = "bert"
    layouts = ("bert",)
    projections = (".self.query", ".self.key")

    def build(self, seed: int, sizes: Sizes) -> BertForMaskedLM:
        """Without dropout, which a short training does not need."""
        from transformers import BertConfig, BertForMaskedLM, set_seed

        set_seed(seed)
        return BertForMaskedLM(
            BertConfig(
                vocab_size=sizes.vocab_size,
                hidden_size=sizes.d_model,
                num_hidden_layers=sizes.n_layer,
                num_attention_heads=sizes.n_head,
                intermediate_size=4 * sizes.d_model,
                max_position_embeddings=sizes.length,
                initializer_range=sizes.init_std,
                hidden_dropout_prob=0.0,
                attention_probs_dropout_prob=0.0,
            )
        )
