"""The straightforward way, which the engine is measured against: float32, K expanded to all heads, M formed once."""

from __future__ import annotations

import torch


def dense_scores(W_q: torch.Tensor, W_k: torch.Tensor) -> tuple[float, float, float]:
    """Symmetry and both directionalities of a layer, word for word.

    Args:
        W_q: [d_model, n_head, d_head], float32.
        W_k: [d_model, n_kv_head, d_head], float32.
    """
    K = W_k.repeat_interleave(W_q.shape[1] // W_k.shape[1], dim=1)
    return of_matrix(W_q.flatten(1) @ K.flatten(1).T)


def dense_head_scores(W_q: torch.Tensor, W_k: torch.Tensor, head: int) -> tuple[float, float, float]:
    """The same for one head."""
    return of_matrix(W_q[:, head] @ W_k[:, head // (W_q.shape[1] // W_k.shape[1])].T)


def of_matrix(M: torch.Tensor) -> tuple[float, float, float]:
    """Symmetry, directionality and its excess form of a matrix [d, d]."""
    S, N = (M + M.T) / 2, (M - M.T) / 2
    symmetry = (S.norm() ** 2 - N.norm() ** 2) / M.norm() ** 2
    (R, R_excess), (C, C_excess) = outliers(M.norm(dim=1)), outliers(M.norm(dim=0))
    return float(symmetry), float((R - C) / (R + C)), float((R_excess - C_excess) / (R_excess + C_excess))


def outliers(norms: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Sums of the norms beyond mean + 2 std, and of their excess."""
    threshold = norms.mean() + 2 * norms.std()
    beyond = norms[norms > threshold]
    return beyond.sum(), (beyond - threshold).sum()
