"""BEiT, trained to predict the visual tokens of masked patches of digits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from qkgeom.training.digits import SIDE, VISUAL_TOKENS, MaskedDigits, patch_size
from qkgeom.training.families.base import Data, Family, Sizes
from qkgeom.training.tokens import Corpus

if TYPE_CHECKING:
    from transformers import BeitForMaskedImageModeling


class Beit(Family):
    """transformers' BeitForMaskedImageModeling."""

    name = "beit"
    layouts = ("vit",)
    projections = (".attention.q_proj", ".attention.k_proj")

    def data(self, seed: int, sizes: Sizes, corpus: Corpus | None = None) -> Data:
        """Images with masked patches."""
        return MaskedDigits(seed, sizes.length)

    def build(self, seed: int, sizes: Sizes) -> BeitForMaskedImageModeling:
        """Square patches, as many as `length`, and relative positions shared by the layers, as in BEiT's pre-training."""
        from transformers import BeitConfig, BeitForMaskedImageModeling, set_seed

        set_seed(seed)
        return BeitForMaskedImageModeling(
            BeitConfig(
                vocab_size=VISUAL_TOKENS,
                hidden_size=sizes.d_model,
                num_hidden_layers=sizes.n_layer,
                num_attention_heads=sizes.n_head,
                intermediate_size=4 * sizes.d_model,
                image_size=SIDE,
                patch_size=patch_size(sizes.length),
                num_channels=1,
                use_mask_token=True,
                use_shared_relative_position_bias=True,
                initializer_range=sizes.init_std,
            )
        )
