"""The implicit update of W_qk, the gradients of its factors, and what these do to W_qk to first order.

Shapes: x [batch, token, d], W_q [d, n_head, d_head], W_k [d, n_kv_head, d_head], G [n_head, d, d]. Query head h reads key
head g(h) = h // (n_head / n_kv_head).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor

    from qkgeom.theory.attention import Attention


def implicit_gradient(attention: Attention) -> Tensor:
    """G of every head, [n_head, d, d]: the sum of beta_ij x_i^T x_j over all pairs of a batch.

    With RoPE this is the gradient at W_qk as if no pair was rotated, and no longer what the factors see (docs/theory.md).
    """
    return torch.einsum("bhij,bid,bje->hde", attention.beta, attention.x, attention.x)


def factor_gradients(attention: Attention) -> tuple[Tensor, Tensor]:
    """The gradients of W_q [d, n_head, d_head] and W_k [d, n_kv_head, d_head].

    dL/dW_q,h = sum of beta_ij x_i^T k_j R_i^T and dL/dW_k,g = sum over its heads of beta_ij x_j^T q_i R_j^T, with the
    operands q, k of the attention product and RoPE's R_i (1 without it). Without biases and RoPE these are G_h W_k,g and the
    sum of G_h^T W_q,h. Biases are in the operands; a norm of queries or keys is not covered.
    """
    groups = attention.key.shape[1]
    beta = attention.beta.unflatten(1, (groups, attention.group))
    query = attention.query.unflatten(1, (groups, attention.group))
    from_keys = torch.einsum("bgrij,bgjc->bgric", beta, attention.key).flatten(1, 2)
    from_queries = torch.einsum("bgrij,bgric->bgjc", beta, query)
    if attention.rotation is not None:
        from_keys, from_queries = (
            torch.einsum("bhic,iac->bhia", each, attention.rotation) for each in (from_keys, from_queries)
        )
    return tuple(torch.einsum("bid,bhic->dhc", attention.x, each) for each in (from_keys, from_queries))


def products(W_q: Tensor, W_k: Tensor) -> Tensor:
    """W_q,h W_k,g(h)^T of every head, [n_head, d, d]."""
    return torch.einsum("dhc,ehc->hde", W_q, _per_query_head(W_k, W_q.shape[1]))


def first_order_change(W_q: Tensor, W_k: Tensor, dW_q: Tensor, dW_k: Tensor) -> Tensor:
    """The change of every head's W_qk to first order in changes of its factors, [n_head, d, d].

    Under SGD these are -lr times the gradients, and without biases, RoPE and shared key heads the change is
    -lr (G W_k W_k^T + W_q W_q^T G).
    """
    return products(dW_q, W_k) + products(W_q, dW_k)


def _per_query_head(W_k: Tensor, n_head: int) -> Tensor:
    return W_k.repeat_interleave(n_head // W_k.shape[1], 1)
