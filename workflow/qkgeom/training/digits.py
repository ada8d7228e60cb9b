"""scikit-learn's handwritten digits, 8 x 8 pixels: nothing is downloaded. Labelled images, or masked patches.

Every batch is a function of (seed, index) alone. An image is held out by the digest of its number.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from qkgeom.errors import UsageError
from qkgeom.training.sequences import shuffled

if TYPE_CHECKING:
    import torch

SIDE = 8  # pixels
CLASSES = 10
HELD_OUT = 5  # one image in so many
VISUAL_TOKENS = 32
MASKED = 0.4  # of the patches, as in BEiT; here single patches, since blocks would cover the digit


def patch_size(patches: int) -> int:
    """The side, in pixels, of the patches of an image with so many of them.

    Raises:
        UsageError: an image cannot be cut into so many square patches.
    """
    size = SIDE // max(1, math.isqrt(patches))
    if size == 0 or SIDE % size or (SIDE // size) ** 2 != patches:
        raise UsageError("an image cannot be cut into so many patches", found=patches, expected="4, 16 or 64", where="length")
    return size


@dataclass(frozen=True)
class Digits:
    """Images and their classes.

    Attributes:
        seed: of the order.
    """

    seed: int

    @cached_property
    def images(self) -> tuple[np.ndarray, np.ndarray]:
        """Pixels in [-1, 1], float32 [n, 1, 8, 8], and classes, int64 [n]."""
        from sklearn.datasets import load_digits

        data = load_digits()
        return (data.images[:, None] / 8 - 1).astype(np.float32), data.target.astype(np.int64)

    @cached_property
    def splits(self) -> tuple[np.ndarray, np.ndarray]:
        """Numbers of the training images and of those held out."""
        count = len(self.images[0])
        held = np.array([int(hashlib.sha256(str(i).encode()).hexdigest(), 16) % HELD_OUT == 0 for i in range(count)])
        return np.flatnonzero(~held), np.flatnonzero(held)

    @property
    def digest(self) -> str:
        """Of the images and classes, for the run's record."""
        return hashlib.sha256(b"".join(array.tobytes() for array in self.images)).hexdigest()

    def train_batch(self, indices: Sequence[int]) -> dict[str, torch.Tensor]:
        """The training examples of these indices."""
        train = self.splits[0]
        return self.batch(train[shuffled(indices, len(train), self.seed)], (1, self.seed, indices[0]))

    def heldout_batches(self, batch: int, most: int) -> list[dict[str, torch.Tensor]]:
        """At most `most` batches of held-out examples, the same for every run."""
        held = self.splits[1]
        return [self.batch(held[i : i + batch], (0, i)) for i in range(0, len(held), batch)][:most]

    def targets(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        """Classes, or visual tokens."""
        return batch["labels"]

    def batch(self, chosen: np.ndarray, seed: tuple[int, ...]) -> dict[str, torch.Tensor]:
        """`pixel_values` [batch, 1, 8, 8] and `labels` [batch] of the chosen images."""
        import torch

        pixels, classes = self.images
        return {"pixel_values": torch.from_numpy(pixels[chosen]), "labels": torch.from_numpy(classes[chosen])}


@dataclass(frozen=True)
class MaskedDigits(Digits):
    """Images with masked patches, whose visual tokens are to be predicted: k-means clusters of the training patches.

    BEiT's own tokens come from a trained autoencoder, which these images do not need.

    Attributes:
        patches: of an image.
    """

    patches: int

    @cached_property
    def tokens(self) -> np.ndarray:
        """Visual tokens, int64 [n, patches]."""
        from sklearn.cluster import KMeans

        size = patch_size(self.patches)
        side = SIDE // size
        pixels = self.images[0].reshape(-1, side, size, side, size).swapaxes(2, 3).reshape(-1, size * size)
        train = pixels.reshape(-1, self.patches, size * size)[self.splits[0]].reshape(-1, size * size)
        clusters = KMeans(VISUAL_TOKENS, n_init=1, random_state=0).fit(train)
        return clusters.predict(pixels).reshape(-1, self.patches).astype(np.int64)

    def batch(self, chosen: np.ndarray, seed: tuple[int, ...]) -> dict[str, torch.Tensor]:
        """`pixel_values`, `bool_masked_pos` [batch, patches], and `labels` [masked patches of the batch]."""
        import torch

        ranks = np.random.default_rng(seed).random((len(chosen), self.patches)).argsort(1)
        masked = ranks < round(MASKED * self.patches)
        return {
            "pixel_values": torch.from_numpy(self.images[0][chosen]),
            "bool_masked_pos": torch.from_numpy(masked),
            "labels": torch.from_numpy(self.tokens[chosen][masked]),
        }
