"""BEiT, trained to predict the visual tokens of masked patches of digits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from qkgeom.training.digits import SIDE, VISUAL_TOKENS, MaskedDigits, patch_size
from qkgeom.training.families.base import Data, Family, Recipe
from qkgeom.training.tokens import Corpus

if TYPE_CHECKING:
    from transformers import BeitForMaskedImageModeling


class Beit(Family):
    """transformers' BeitForMaskedImageModeling."""

    name = "beit"
    layouts = ("vit",)
    projections = (".attention.q_proj", ".attention.k_proj")
    objectives = ("masked patches",)

    def data(self, recipe: Recipe, corpus: Corpus | None = None) -> Data:
        """Images with masked patches."""
        return MaskedDigits(recipe.seed, recipe.length)

    def _build(self, recipe: Recipe, corpus: Corpus | None) -> BeitForMaskedImageModeling:
        # Square patches, as many as `length`, and relative positions shared by the layers, as in BEiT's pre-training.
        from transformers import BeitConfig, BeitForMaskedImageModeling

        return BeitForMaskedImageModeling(
            BeitConfig(
                vocab_size=VISUAL_TOKENS,
                hidden_size=recipe.d_model,
                num_hidden_layers=recipe.n_layer,
                num_attention_heads=recipe.n_head,
                intermediate_size=4 * recipe.d_model,
                image_size=SIDE,
                patch_size=patch_size(recipe.length),
                num_channels=1,
                use_mask_token=True,
                use_shared_relative_position_bias=True,
                initializer_range=recipe.init_std,
            )
        )
