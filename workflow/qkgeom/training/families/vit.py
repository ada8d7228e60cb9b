"""timm's vision transformer, trained to classify digits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from qkgeom.training.digits import CLASSES, SIDE, Digits, patch_size
from qkgeom.training.families.base import Data, Family, Recipe
from qkgeom.training.tokens import Corpus

if TYPE_CHECKING:
    from qkgeom.training.wrappers import TimmClassifier

ARCHITECTURE = "vit_tiny_patch16_224"  # timm's VisionTransformer; its sizes are all given


class Vit(Family):
    """timm's VisionTransformer."""

    name = "vit"
    layouts = ("timm_vit",)
    projections = (".attn.qkv",)
    objectives = ("classification",)
    metric = "accuracy"

    def data(self, recipe: Recipe, corpus: Corpus | None = None) -> Data:
        """Labelled images."""
        return Digits(recipe.seed)

    def _build(self, recipe: Recipe, corpus: Corpus | None) -> TimmClassifier:
        # Square patches, as many as `length`, of the one channel.
        import timm

        from qkgeom.training.wrappers import TimmClassifier

        return TimmClassifier(
            timm.create_model(
                ARCHITECTURE,
                img_size=SIDE,
                patch_size=patch_size(recipe.length),
                in_chans=1,
                num_classes=CLASSES,
                embed_dim=recipe.d_model,
                depth=recipe.n_layer,
                num_heads=recipe.n_head,
            )
        )
