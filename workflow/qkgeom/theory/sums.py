"""What one model at one step says of its updates, summed layer by layer over batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import torch

from qkgeom.errors import ModelFault
from qkgeom.theory.attention import Attention, attention_gradients
from qkgeom.theory.factors import factors
from qkgeom.theory.tokens import added, frequent, pair_sums, shuffled_positions, sides, texts
from qkgeom.theory.updates import factor_gradients, first_order_change, implicit_gradient, products

if TYPE_CHECKING:
    from torch import Tensor

OFTEN = 20  # a token's growth is compared where it stands at so many positions: of a rare one it is noise
RANK = 1e-9  # eigenvalues below this share of the largest are directions that inputs do not have


@dataclass
class LayerSums:
    """Per batch and layer, summed over heads.

    Attributes:
        W_qk: [d, d].
        implicit: the implicit updates -G, [batch, d, d].
        implicit_pairs: the same without the terms of a position with itself, which are symmetric whatever they hold.
        first_order: the first-order changes of W_qk under SGD with rate 1, [batch, d, d].
        pairs: beta by pair of token types, [batch, type, type].
        pairs_shuffled: the same with the positions of each sequence shuffled.
        x: input rows of all batches, [batch, sequence, token, d].
        c: for every position the other side of what it adds as a query, likewise.
        r: the same as a key.
    """

    W_qk: np.ndarray
    implicit: list[np.ndarray] = field(default_factory=list)
    implicit_pairs: list[np.ndarray] = field(default_factory=list)
    first_order: list[np.ndarray] = field(default_factory=list)
    pairs: list[np.ndarray] = field(default_factory=list)
    pairs_shuffled: list[np.ndarray] = field(default_factory=list)
    x: list[Tensor] = field(default_factory=list)
    c: list[Tensor] = field(default_factory=list)
    r: list[Tensor] = field(default_factory=list)

    def add(self, attention: Attention, W_q: Tensor, W_k: Tensor) -> None:
        """Adds a batch, but for its pairs."""
        G = implicit_gradient(attention).sum(0)
        own = attention.beta.sum(1).diagonal(dim1=1, dim2=2)
        self.implicit.append(-G.numpy())
        self.implicit_pairs.append((torch.einsum("bi,bid,bie->de", own, attention.x, attention.x) - G).numpy())
        self.first_order.append(-first_order_change(W_q, W_k, *factor_gradients(attention)).sum(0).numpy())
        c, r = sides(attention)
        self.x.append(attention.x)
        self.c.append(c)
        self.r.append(r)

    def whitened(self) -> np.ndarray:
        """The implicit updates from whitened input rows and the same beta, [batch, d, d].

        With mean m and P the inverse root of the covariance of the rows (of all batches) it is
        -P (G - m^T sum of c_i) P: since beta sums to zero over keys, no other term of the mean is left.
        """
        rows = torch.stack(self.x).flatten(0, -2)
        mean = rows.mean(0)
        values, vectors = torch.linalg.eigh(torch.cov(rows.T))
        there = values > RANK * values[-1]
        P = ((vectors[:, there] / values[there].sqrt()) @ vectors[:, there].T).numpy()
        of_mean = [torch.outer(mean, c.sum((0, 1))).numpy() for c in self.c]
        return np.stack([P @ (update + each) @ P for update, each in zip(self.implicit, of_mean, strict=True)])


@dataclass
class StepSums:
    """All layers of a model at one step.

    Attributes:
        layers: from input to output.
        tokens: those at the positions of every batch, [batch, sequence, token].
        targets: how often each token is to be predicted, by id.
        losses: of the batches.
    """

    layers: list[LayerSums]
    tokens: Tensor
    targets: dict[int, int]
    losses: list[float]

    def compared_tokens(self) -> Tensor:
        """The types that stand at `OFTEN` positions at least, ascending."""
        types, counts = torch.unique(self.tokens, return_counts=True)
        return types[counts >= OFTEN]


def step_sums(
    model: torch.nn.Module, batches: Sequence[Mapping[str, Tensor]], targets: Sequence[Tensor], seed: int
) -> StepSums:
    """The updates that a model would make on some batches.

    Args:
        model: of transformers, one stack of self-attention.
        batches: of training examples, with `input_ids` and `labels`.
        targets: those that count, of each batch.
        seed: of the shuffled positions.

    Raises:
        ModelFault: no layout reads the model, it has RoPE, or its examples are no texts.
        QkgeomError: its attention cannot be recorded, or a loss is not finite.
    """
    if not all("input_ids" in batch for batch in batches):
        raise without_tokens(type(model).__name__, ", ".join(batches[0]))
    weights = factors(model.state_dict(), model.config)
    layers = [LayerSums(products(*pair).sum(0).numpy()) for pair in weights]
    rng = np.random.default_rng(seed)
    types = frequent(np.concatenate([texts(batch).numpy().ravel() for batch in batches]))
    losses = []
    for batch in batches:
        loss, recorded = attention_gradients(model, batch)
        if any(attention.rotation is not None for attention in recorded):
            raise ModelFault(
                "a model with RoPE has no W_qk whose plain update its factors follow",
                where=type(model).__name__,
                expected="a model without rotations",
                fix="leave its runs out of the preset's `updates: runs` (docs/theory.md)",
            )
        losses.append(loss)
        words = texts(batch).numpy()
        shuffled = shuffled_positions(words, rng)
        for layer, attention, pair in zip(layers, recorded, weights, strict=True):
            layer.add(attention, *pair)
            beta = attention.beta.sum(1).numpy()
            layer.pairs.append(pair_sums(beta, words, types))
            layer.pairs_shuffled.append(pair_sums(beta, shuffled, types))
    counts = torch.unique(torch.cat([each.flatten() for each in targets]), return_counts=True)
    tokens = torch.stack([batch["input_ids"] for batch in batches])
    return StepSums(layers, tokens, dict(zip(*(each.tolist() for each in counts), strict=True)), losses)


def without_tokens(where: str, found: str) -> ModelFault:
    """The fault of a model whose examples are no texts."""
    return ModelFault(
        "the updates of a model are grouped by tokens, and its examples have none",
        where=where,
        found=found,
        expected="a model that reads tokens, from input_ids and labels",
        fix="name language models only in the preset's `updates: runs`",
    )


def added_norms(layer: LayerSums, tokens: Tensor, types: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """The norms of what each token adds on the row side and on the column side, averaged over batches, [type] each."""
    x, c, r = (torch.stack(each).flatten(0, 1) for each in (layer.x, layer.c, layer.r))
    tokens = tokens.flatten(0, 1)
    row_side, column_side = added(x, c, tokens, types), added(r, x, tokens, types)
    return tuple(each.norm(dim=(1, 2)).numpy() / len(layer.x) for each in (row_side, column_side))


def growth(layer: LayerSums, later: np.ndarray, tokens: Tensor, types: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """By how much |x W_qk| and |W_qk x^T| grow until W_qk is `later`, x a token's mean input row now, [type] each."""
    x, tokens = torch.stack(layer.x).flatten(0, -2), tokens.flatten()
    means = np.array([x[tokens == each].mean(0).numpy() for each in types]).reshape(len(types), x.shape[1])
    before, after = ((means @ W, means @ W.T) for W in (layer.W_qk, later))
    return tuple(np.linalg.norm(b, axis=1) - np.linalg.norm(a, axis=1) for a, b in zip(before, after, strict=True))
