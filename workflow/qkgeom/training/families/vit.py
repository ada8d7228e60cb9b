"""timm's vision transformer, trained to classify digits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from qkgeom.training.digits import CLASSES, SIDE, Digits, patch_size
from qkgeom.training.families.base import Data, Family, Sizes
from qkgeom.training.tokens import Corpus

if TYPE_CHECKING:
    from qkgeom.training.wrappers import TimmClassifier

ARCHITECTURE = "vit_tiny_patch16_224"  # timm's VisionTransformer; its sizes are all given


class Vit(Family):
    """timm's VisionTransformer."""

    name = "vit"
    layouts = ("timm_vit",)
    projections = (".attn.qkv",)
    metric = "accuracy"

    def data(self, seed: int, sizes: Sizes, corpus: Corpus | None = None) -> Data:
        """Labelled images."""
        return Digits(seed)

    def build(self, seed: int, sizes: Sizes) -> TimmClassifier:
        """Square patches, as many as `length`, of the one channel."""
        import timm
        from transformers import set_seed

        from qkgeom.training.wrappers import TimmClassifier

        set_seed(seed)
        return TimmClassifier(
            timm.create_model(
                ARCHITECTURE,
                img_size=SIDE,
                patch_size=patch_size(sizes.length),
                in_chans=1,
                num_classes=CLASSES,
                embed_dim=sizes.d_model,
                depth=sizes.n_layer,
                num_heads=sizes.n_head,
            )
        )
