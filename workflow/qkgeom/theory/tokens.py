"""The implicit gradient rearranged: by the token at the query position, and by the token at the key position.

G = sum over i of x_i^T c_i with c_i = sum over j of beta_ij x_j, and G = sum over j of r_j^T x_j with r_j = sum over i of
beta_ij x_i. What token t adds on the row side is the part of the first sum over positions that hold t, and on the column
side that of the second. Both add up to G. beta is summed over heads, since W_qk of a layer is the sum over its heads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from qkgeom.training.sequences import IGNORED

if TYPE_CHECKING:
    from torch import Tensor

    from qkgeom.theory.attention import Attention

MOST_TYPES = 1000  # token types of a table of pairs, the most frequent


def sides(attention: Attention) -> tuple[Tensor, Tensor]:
    """c_i and r_j of every position, [batch, token, d] each, summed over heads."""
    beta = attention.beta.sum(1)
    return beta @ attention.x, beta.transpose(1, 2) @ attention.x


def added(rows: Tensor, others: Tensor, tokens: Tensor, types: Tensor) -> Tensor:
    """What each token type adds: the sum of rows_i^T others_i over the positions that hold it, [type, d, d].

    Args:
        rows: [batch, token, d]; the input rows for the row side, r_j for the column side.
        others: likewise; c_i for the row side, the input rows for the column side.
        tokens: [batch, token].
        types: those wanted.
    """
    rows, others, tokens = rows.flatten(0, 1), others.flatten(0, 1), tokens.flatten()
    sums = rows.new_zeros(len(types), rows.shape[1], others.shape[1])
    for each, token in zip(sums, types, strict=True):
        holding = tokens == token
        torch.mm(rows[holding].T, others[holding], out=each)
    return sums


def texts(batch: dict[str, Tensor]) -> Tensor:
    """The tokens of the text, [batch, token]: what was there before masking.

    Labels stand at the position of their token, but for batches with a mask of their own (`training.controls`), whose
    labels are moved by one and whose tokens are not masked.
    """
    if "attention_mask" in batch:
        return batch["input_ids"]
    return torch.where(batch["labels"] == IGNORED, batch["input_ids"], batch["labels"])


def frequent(tokens: np.ndarray, most: int = MOST_TYPES) -> np.ndarray:
    """The most frequent token types, ascending."""
    types, counts = np.unique(tokens, return_counts=True)
    return np.sort(types[np.argsort(-counts, kind="stable")[:most]])


def pair_sums(beta: np.ndarray, tokens: np.ndarray, types: np.ndarray) -> np.ndarray:
    """Beta summed over pairs of positions by the types they hold, [type, type], query first; i = j is left out.

    Args:
        beta: [batch, token, token].
        tokens: [batch, token].
        types: ascending; pairs with another type are left out.
    """
    places = np.searchsorted(types, tokens).clip(max=len(types) - 1)
    known = types[places] == tokens
    counted = known[:, :, None] & known[:, None, :] & ~np.eye(tokens.shape[1], dtype=bool)
    cells = (places[:, :, None] * len(types) + places[:, None, :])[counted]
    return np.bincount(cells, beta[counted], len(types) ** 2).reshape(len(types), -1)


def shuffled_positions(tokens: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """The tokens of each sequence in random order: the control that keeps beta, its mask, and how often a token comes."""
    return rng.permuted(tokens, axis=1)
