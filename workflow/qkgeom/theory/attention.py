"""The gradient of a model's loss at its attention logits, with the rows that made them.

No attention is computed here. While `attention_gradients` runs, the model uses an attention function registered with
transformers, which hands each call to the eager function of the model's own file, with a mask of zeros added that is a
variable of its own: it is added to the logits, so its gradient is theirs. Only eager attention materialises logits, so a
model set to another implementation is switched to eager for the time being, and the log says so.
"""

from __future__ import annotations

import logging
import math
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.masking_utils import eager_mask

from qkgeom.errors import QkgeomError

if TYPE_CHECKING:
    from torch import Tensor

logger = logging.getLogger(__name__)
NAME = "qkgeom_recorded"  # of our attention function, among transformers' own
TOLERANCE = (
    1e-4  # of attention weights against the softmax of their logits; some models take it in float32 whatever they are in
)
COARSE = 2e-2  # the same in half precision


@dataclass(frozen=True)
class Attention:
    """One self-attention layer on one batch.

    Attributes:
        x: input rows [batch, token, d_model].
        query: as multiplied, [batch, n_head, token, d_head]; with biases and rotations where the model has them.
        key: as multiplied, [batch, n_kv_head, token, d_head].
        beta: gradient of the loss at the logits times their scale, [batch, n_head, token, token], query first.
        rotation: the matrix R_i of RoPE by which the query (a row) at position i was multiplied, [token, d_head, d_head];
            None without RoPE.
    """

    x: Tensor
    query: Tensor
    key: Tensor
    beta: Tensor
    rotation: Tensor | None = None

    @property
    def group(self) -> int:
        """Query heads per key head."""
        return self.query.shape[1] // self.key.shape[1]


@dataclass
class _Call:
    """What one attention call leaves until the gradient is there."""

    x: Tensor
    query: Tensor
    key: Tensor
    added: Tensor
    scaling: float
    rotation: Tensor | None


@dataclass
class _Recorder:
    """Collects the self-attention calls of one forward pass."""

    inputs: dict[torch.nn.Module, tuple[Tensor, Mapping[str, Any]]] = field(default_factory=dict)
    calls: list[_Call] = field(default_factory=list)

    def note(self, module: torch.nn.Module, args: tuple, kwargs: dict[str, Any]) -> None:
        """A forward hook: the rows that a module is given, in case it calls attention."""
        rows = args[0] if args else kwargs.get("hidden_states")
        if isinstance(rows, torch.Tensor) and rows.ndim == 3:
            self.inputs[module] = rows, kwargs


_recorder: _Recorder | None = None  # of the pass that is running


def _recorded(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor]:
    """The model's own eager attention, with the gradient of its logits to be had."""
    if module not in _recorder.inputs:
        raise _no_logits(module, "its attention is not called by the module that is given the rows")
    x, given = _recorder.inputs[module]
    eager = _own_eager(module)
    if key.shape[2] != query.shape[2] or given.get("encoder_hidden_states") is not None:  # cross-attention
        return eager(module, query, key, value, attention_mask, scaling=scaling, **kwargs)
    scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
    added = query.new_zeros(*query.shape[:3], key.shape[2]).requires_grad_()
    if attention_mask is None:
        mask = added
    elif attention_mask.dtype == torch.bool:
        mask = added.masked_fill(~attention_mask, torch.finfo(added.dtype).min)
    else:
        mask = attention_mask + added
    output, weights = eager(module, query, key, value, mask, scaling=scaling, **kwargs)
    _require_softmax(module, query, key, mask, scaling, weights)
    _recorder.calls.append(_Call(x, query, key, added, scaling, _rotation(module, query, given)))
    return output, weights


AttentionInterface.register(NAME, _recorded)
AttentionMaskInterface.register(NAME, eager_mask)


def attention_gradients(model: torch.nn.Module, batch: Mapping[str, Tensor]) -> tuple[float, list[Attention]]:
    """The loss of a batch, and every self-attention layer of the model with the loss's gradient at its logits.

    Args:
        model: of transformers, whose forward gives a loss; it is put into evaluation mode, so that nothing is dropped.
        batch: what its forward takes.

    Returns:
        The loss, and the layers from input to output.

    Raises:
        QkgeomError: the model has no softmax attention logits to record, the batch has sequences of length 1, or its
            attention weights or its loss are not finite.
    """
    model.eval()
    with _recording(model) as recorder:
        loss = model(**{key: value.to(model.device) for key, value in batch.items()}).loss
    if not recorder.calls:
        raise _no_logits(model, "no self-attention")
    if recorder.calls[0].x.shape[1] < 2:
        raise QkgeomError(
            "a token that attends to itself alone has no gradient at its attention logit",
            where="a batch of sequences",
            found="length 1",
            expected="at least 2 tokens in a sequence",
        )
    value = math.nan if loss is None else loss.item()
    if not math.isfinite(value):
        raise QkgeomError(
            "the loss of a batch is not finite, so that there are no updates",
            where=type(model).__name__,
            found="no loss" if loss is None else value,
            expected="a number",
            fix="give labels of which at least one counts, and weights that have not diverged",
        )
    gradients = torch.autograd.grad(loss, [call.added for call in recorder.calls], materialize_grads=True)
    layers = [
        Attention(call.x.detach(), call.query.detach(), call.key.detach(), gradient * call.scaling, call.rotation)
        for call, gradient in zip(recorder.calls, gradients, strict=True)
    ]
    return value, layers


@contextmanager
def _recording(model: torch.nn.Module) -> Iterator[_Recorder]:
    """Inside the block the model's attention is recorded."""
    global _recorder
    if not isinstance(model, PreTrainedModel):
        raise _no_logits(model, "not a model of transformers, whose attention function can be exchanged")
    before = model.config._attn_implementation
    model.set_attn_implementation(NAME)
    if model.config._attn_implementation != NAME:
        raise _no_logits(model, f"attention {before}, which cannot be switched to eager")
    if before not in ("eager", NAME):
        _tell_of_switch(type(model).__name__, before)
    _recorder = _Recorder()
    hooks = [module.register_forward_pre_hook(_recorder.note, with_kwargs=True) for module in model.modules()]
    try:
        yield _recorder
    finally:
        for hook in hooks:
            hook.remove()
        model.set_attn_implementation(before)
        _recorder = None


@cache  # once for a kind of model, not for each batch
def _tell_of_switch(model: str, before: str) -> None:
    logger.info("%s: switched from %s to eager attention, which alone has logits", model, before)


def _own_eager(module: torch.nn.Module) -> Callable[..., tuple[Tensor, Tensor]]:
    function = getattr(sys.modules[type(module).__module__], "eager_attention_forward", None)
    if function is None:
        raise _no_logits(module, f"no eager_attention_forward in {type(module).__module__}")
    return function


def _require_softmax(
    module: torch.nn.Module, query: Tensor, key: Tensor, mask: Tensor, scaling: float, weights: Tensor | None
) -> None:
    """Checks that attention is the softmax of scaled products and the mask, and nothing else (soft caps, sinks)."""
    if weights is None:
        raise _no_logits(module, "an eager attention that does not give its weights")
    if not weights.isfinite().all():
        raise QkgeomError(
            "the attention weights of a model are not finite",
            where=type(module).__name__,
            found=f"{int((~weights.isfinite()).sum())} of {weights.numel()} are NaN or infinite",
            expected="numbers",
            fix="use weights that have not diverged, and a mask that leaves every query a key",
        )
    with torch.no_grad():
        key = key.repeat_interleave(query.shape[1] // key.shape[1], 1)
        expected = torch.softmax(scaling * query @ key.transpose(2, 3) + mask, -1)
        same = weights.shape == expected.shape
        error = float((weights - expected).abs().max()) if same else math.inf
    if not error <= (TOLERANCE if query.itemsize > 2 else COARSE):
        raise _no_logits(module, f"attention weights that differ by {error:.2g} from the softmax of scale * q k^T + mask")


def _rotation(module: torch.nn.Module, query: Tensor, given: Mapping[str, Any]) -> Tensor | None:
    """RoPE's matrix at each position, read off from what the model's own function makes of the unit vectors."""
    positions = given.get("position_embeddings")
    if positions is None:
        return None
    rotate = getattr(sys.modules[type(module).__module__], "apply_rotary_pos_emb", None)
    if rotate is None:
        raise _no_logits(module, f"position embeddings, and no apply_rotary_pos_emb in {type(module).__module__}")
    n_token, d_head = query.shape[2:]
    if positions[0].shape[-1] != d_head:
        raise _no_logits(
            module, f"rotations of {positions[0].shape[-1]} of a head's {d_head} dimensions, which are not covered"
        )
    units = torch.eye(d_head, dtype=query.dtype, device=query.device)[None, :, None].expand(1, d_head, n_token, d_head)
    with torch.no_grad():
        cos, sin = (each[:1] for each in positions)
        rotated, _ = rotate(units, units, cos, sin)
    return rotated[0].transpose(0, 1)


def _no_logits(module: torch.nn.Module, found: str) -> QkgeomError:
    return QkgeomError(
        "a model has no softmax attention logits that can be recorded",
        where=type(module).__name__,
        found=found,
        expected="a model of transformers whose own eager attention is softmax(scale * q k^T + mask)",
        fix="use such a model; set_attn_implementation('eager') must work on it",
    )
