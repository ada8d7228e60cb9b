"""What a family says, and how its held-out metric and the trivial baseline are computed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from qkgeom.errors import UsageError
from qkgeom.training.sequences import IGNORED, Sequences
from qkgeom.training.tokens import Corpus

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Recipe:
    """What makes one model before it is trained.

    Attributes:
        objective: what it is trained to do, one of its family's.
        init: how its weights start, one of its family's.
        n_layer: depth, of each tower where there are two.
        d_model: width; feed-forward layers are four times as wide.
        n_head: query heads; families with grouped queries have half as many key heads.
        length: tokens of a sequence, patches of an image, or digits of a recording.
        dropout: chance with which a hidden unit or an attention weight is dropped in training.
        init_std: standard deviation of the initial weights.
        seed: of the initialisation and of the order of the examples.
    """

    objective: str
    init: str
    n_layer: int
    d_model: int
    n_head: int
    length: int
    dropout: float
    init_std: float
    seed: int

    @property
    def masked(self) -> bool:
        """Whether masked tokens are predicted, from both sides; else the next token."""
        return self.objective == "masked"


class Data(Protocol):
    """Examples, each a function of (seed, index) alone, so that a resumed run sees the same."""

    @property
    def digest(self) -> str:
        """Of what they are made from."""

    def train_batch(self, indices: Sequence[int]) -> dict[str, torch.Tensor]:
        """The training batch of these indices."""

    def heldout_batches(self, batch: int, most: int) -> list[dict[str, torch.Tensor]]:
        """At most `most` held-out batches, the same for every run."""

    def targets(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        """What a batch's predictions are compared with, IGNORED where there is no loss."""


@dataclass(frozen=True)
class Measurement:
    """How well a model does on held-out data.

    Attributes:
        metric: `loss`, in nats per target, or `accuracy`.
        value: of the model.
        baseline: of the best constant prediction, chosen with the held-out targets in hand: their unigram entropy
            (Miller-Madow, since few targets look more predictable than they are), or the share of the most frequent one.
    """

    metric: str
    value: float
    baseline: float

    @property
    def gain(self) -> float:
        """By how much the model beats the baseline, in the metric's unit; negative if it does not."""
        return self.value - self.baseline if self.metric == "accuracy" else self.baseline - self.value


def entropy(counts: np.ndarray) -> float:
    """Entropy of a distribution in nats, from how often each of its values was drawn.

    Source: Miller (1955), the plug-in estimate plus its bias to first order, (values - 1) / (2 draws).
    """
    shares = counts / counts.sum()
    return float(-(shares * np.log(shares)).sum() + (len(counts) - 1) / (2 * counts.sum()))


class Family(ABC):
    """A kind of model.

    Attributes:
        name: of the family, and of its file.
        layouts: those that read its checkpoints, one per part; an encoder before its decoder.
        projections: how the names of the modules end that give queries and keys.
        objectives: what it can be trained to do.
        inits: how its weights can start.
        metric: `loss` or `accuracy`.
        reads_corpus: whether it is trained on a corpus's tokens.
        has_dropout: whether it can be trained with dropout.
    """

    name: str
    layouts: tuple[str, ...]
    projections: tuple[str, ...]
    objectives: tuple[str, ...]
    inits: tuple[str, ...] = ("default",)
    metric: str = "loss"
    reads_corpus: bool = False
    has_dropout: bool = False

    @abstractmethod
    def data(self, recipe: Recipe, corpus: Corpus | None = None) -> Data:
        """The training and held-out examples."""

    @abstractmethod
    def _build(self, recipe: Recipe, corpus: Corpus | None) -> torch.nn.Module: ...

    def build(self, recipe: Recipe, corpus: Corpus | None = None) -> torch.nn.Module:
        """A model with random weights, whose forward gives `loss` and `logits`, and whose `save_pretrained` is native.

        Args:
            recipe: of the model.
            corpus: whose vocabulary it has, for a family that reads one.
        """
        from transformers import set_seed

        set_seed(recipe.seed)
        return self._build(recipe, corpus)

    def require_buildable(self, recipe: Recipe) -> None:
        """Checks a recipe before anything heavy is imported.

        Raises:
            UsageError: this family has no such model.
        """
        for name in ("objective", "init"):
            known = getattr(self, f"{name}s")
            if getattr(recipe, name) not in known:
                found, expected = getattr(recipe, name), " or ".join(known)
                raise UsageError(f"family {self.name} has no such {name}", found=found, expected=expected)
        if recipe.dropout and not self.has_dropout:
            raise UsageError(f"family {self.name} has no dropout", found=f"dropout {recipe.dropout}", expected="0")
        if recipe.d_model % recipe.n_head:
            expected = f"a divisor of d_model {recipe.d_model}"
            raise UsageError("the heads do not divide the width", found=f"n_head {recipe.n_head}", expected=expected)

    def is_query_or_key(self, name: str) -> bool:
        """Whether a tensor is a query or key weight of a self-attention, or its bias: all that a snapshot needs."""
        return name.rpartition(".")[0].endswith(self.projections)

    def measure(self, model: torch.nn.Module, data: Data, heldout: Sequence[dict[str, torch.Tensor]]) -> Measurement:
        """The held-out metric and the trivial baseline, each target counted once."""
        import torch

        model.eval()
        total, targets = 0.0, []
        with torch.no_grad():
            for batch in heldout:
                outputs = model(**{key: value.to(model.device) for key, value in batch.items()})
                counted = (wanted := data.targets(batch)) != IGNORED
                targets.append(wanted[counted])
                if self.metric == "accuracy":
                    total += float((outputs.logits.argmax(-1).cpu() == wanted)[counted].sum())
                else:
                    total += float(outputs.loss) * int(counted.sum())
        counts = torch.unique(torch.cat(targets), return_counts=True)[1]
        n = int(counts.sum())
        baseline = float(counts.max()) / n if self.metric == "accuracy" else entropy(counts.numpy())
        return Measurement(self.metric, total / n, baseline)


class Language(Family):
    """Trained on packed sequences of a corpus; 15 % of the tokens are masked and predicted, or every next token is."""

    reads_corpus = True

    def data(self, recipe: Recipe, corpus: Corpus | None = None) -> Data:
        """Packed sequences."""
        return Sequences(corpus, recipe.length, recipe.masked, recipe.seed)
