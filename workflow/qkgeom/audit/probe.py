"""The query and key maps of a model's self-attentions, found by running the model itself.

No tensor's name and no split of a fused weight is used. The model runs once on a tiny input, and notes which modules
execute an attention product. Each of them is then given rows of the identity as hidden states, and what it multiplies, q and
k as operands of the product, are the rows of W_q and W_k, as its own code reads its own weights. Biases and what a token's
place adds are what zeros give, and are taken off; QK norms are replaced by the identity; one token of text stands at
position 0, where RoPE turns nothing. Whether q and k are linear in x at all is tested with one more row.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode

PRODUCTS = dict.fromkeys((torch.matmul, torch.bmm, torch.Tensor.matmul, torch.Tensor.__matmul__, torch.Tensor.bmm), 0)
PRODUCTS |= dict.fromkeys((torch.baddbmm, torch.Tensor.baddbmm), 1)
QK_NORMS = ("q_norm", "k_norm", "q_layernorm", "k_layernorm", "query_norm", "key_norm")
LATENT_NORMS = ("q_a_layernorm", "kv_a_layernorm")  # their gain is part of the map, their division is not
HIDDEN = ("hidden_states", "x")
CROSS = ("key_value_states", "encoder_hidden_states")
LINEAR = 1e-5  # relative; some models compute products in float32 whatever their weights are


@dataclass(frozen=True)
class Maps:
    """What a self-attention multiplies: W_q and W_k, float64, [d_model, n_head, d_head], each query head with its key head."""

    name: str
    W_q: torch.Tensor
    W_k: torch.Tensor


class NotProbed(Exception):
    """A model, or one of its attentions, cannot be probed; its text says why."""


class _Enough(Exception):
    """The operands are there; the rest of the module need not run."""


@dataclass
class _Call:
    """A module under way: itself, its name, its arguments, and where its hidden states are among them."""

    name: str
    module: torch.nn.Module
    args: tuple
    kwargs: dict
    place: int | str

    @property
    def hidden(self) -> torch.Tensor:
        return (self.args if isinstance(self.place, int) else self.kwargs)[self.place]

    def repeat(self, hidden: torch.Tensor) -> None:
        """Calls the module again with other hidden states, and everything else in float64 as they are."""
        args, kwargs = [_double(each) for each in self.args], {name: _double(each) for name, each in self.kwargs.items()}
        (args if isinstance(self.place, int) else kwargs)[self.place] = hidden
        self.module(*args, **kwargs)


def _double(value: object) -> object:
    if isinstance(value, tuple):  # cosines and sines
        return tuple(map(_double, value))
    return value.double() if isinstance(value, torch.Tensor) and value.is_floating_point() else value


class _Watch(TorchFunctionMode):
    """Notes the calls inside which a product of queries and keys is executed, the innermost for each."""

    def __init__(self) -> None:
        super().__init__()
        self.stack: list[_Call | None] = []
        self.calls: dict[torch.nn.Module, _Call] = {}

    def __torch_function__(self, func, types, args=(), kwargs=None):  # noqa: ANN001, ANN204
        if (operands := _operands(func, args, kwargs)) and (call := next(filter(None, reversed(self.stack)), None)):
            q, k = operands
            if q.shape[-1] == k.shape[-1] and call.module not in self.calls and q.shape[-2] == call.hidden.shape[-2]:
                self.calls[call.module] = call
        return func(*args, **(kwargs or {}))


class _Operands(TorchFunctionMode):
    """Takes the operands of the first product, and ends the call."""

    def __torch_function__(self, func, types, args=(), kwargs=None):  # noqa: ANN001, ANN204
        if func is functional.normalize:  # SwinV2's norm of q and k
            return args[0]
        if operands := _operands(func, args, kwargs):
            self.operands = operands
            raise _Enough
        return func(*args, **(kwargs or {}))


def probe(model: torch.nn.Module, inputs: Mapping[str, object]) -> list[Maps]:
    """The maps of every self-attention that the model executes, in their order; a shared module counts once.

    Args:
        model: in evaluation mode, on the CPU.
        inputs: keywords of its forward.

    Raises:
        NotProbed: it does not run on these inputs, or an attention's queries or keys are not linear in its hidden states.
    """
    calls = _calls(model, inputs)
    maps = [found for call in calls if (found := _maps(call)) is not None]
    if not maps:
        raise NotProbed(f"no self-attention was seen in {type(model).__name__}")
    return maps


def _calls(model: torch.nn.Module, inputs: Mapping[str, object]) -> list[_Call]:
    watch = _Watch()
    names = {module: name for name, module in model.named_modules()}

    def enter(module: torch.nn.Module, args: tuple, kwargs: dict) -> None:
        place = _place(args, kwargs)
        weighty = (
            place is not None and next(module.parameters(), None) is not None and next(module.children(), None) is not None
        )
        watch.stack.append(_Call(names[module], module, args, kwargs, place) if weighty else None)

    def leave(module: torch.nn.Module, args: tuple, output: object) -> None:
        watch.stack.pop()

    with ExitStack() as hooks:
        for module in names:
            hooks.callback(module.register_forward_pre_hook(enter, with_kwargs=True).remove)
            hooks.callback(module.register_forward_hook(leave).remove)
        try:
            with torch.no_grad(), watch:
                model(**inputs)
        except Exception as error:  # what a model class raises of inputs that do not suit it can be anything
            raise NotProbed(f"{type(model).__name__} does not run on a tiny input: {str(error).splitlines()[:1]}") from error
    return list(watch.calls.values())


def _maps(call: _Call) -> Maps | None:
    """The maps of a module; None if it is no self-attention, so that its keys come from elsewhere."""
    if any(isinstance(call.kwargs.get(name), torch.Tensor) for name in CROSS):
        return None
    d, n_token = call.hidden.shape[-1], call.hidden.shape[-2]
    batch = 1 + -(-(d + 1) // n_token)  # the first example is all zero, and gives each token's offset
    rows = torch.zeros(batch * n_token, d, dtype=torch.float64)
    rows[n_token : n_token + d] = torch.eye(d)
    rows[n_token + d] = torch.randn(d, generator=torch.Generator().manual_seed(0))
    with _in_float64(call.module), torch.no_grad(), _Operands() as watch:
        try:
            call.repeat(rows.reshape(-1, n_token, d))
        except _Enough:
            q, k = watch.operands
        except Exception as error:
            raise NotProbed(f"{call.name} cannot be run alone: {str(error).splitlines()[:1]}") from error
        else:
            return None
    if k.shape[-2] != n_token or k.numel() % len(rows) or q.numel() % len(rows) or k.ndim != q.ndim:
        return None
    if q.shape[0] % batch or k.shape[0] % batch:
        return None  # cross-attention: its keys are as many as before
    q, k = (each.double().reshape(batch, -1, n_token, each.shape[-1]).transpose(1, 2) for each in (q, k))
    q, k = ((each[1:] - each[0]).flatten(0, 1) for each in (q, k))
    if not k[:d].any():
        return None
    for name, each in (("queries", q), ("keys", k)):
        linear = torch.einsum("i,ihd->hd", rows[n_token + d], each[:d])
        if not torch.linalg.vector_norm(linear - each[d]) <= LINEAR * torch.linalg.vector_norm(each[d]):
            raise NotProbed(f"the {name} of {call.name} are not linear in its hidden states")
    return Maps(call.name, q[:d], k[:d].repeat_interleave(q.shape[1] // k.shape[1], 1))


@contextmanager
def _in_float64(module: torch.nn.Module) -> Iterator[None]:
    """The module in float64 and without QK norms; it is of no further use afterwards than to be probed."""
    for each in list(module.modules()):
        for name in QK_NORMS:
            if isinstance(getattr(each, name, None), torch.nn.Module):
                setattr(each, name, torch.nn.Identity())
        for name in LATENT_NORMS:
            if isinstance(norm := getattr(each, name, None), torch.nn.Module):
                setattr(each, name, _Gain(norm.weight))
    module.double()
    try:
        yield
    finally:
        module.float()


class _Gain(torch.nn.Module):
    """A norm without its division."""

    def __init__(self, weight: torch.nn.Parameter) -> None:
        super().__init__()
        self.weight = weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.weight


def _place(args: tuple, kwargs: Mapping) -> int | str | None:
    """Where the hidden states [batch, token, d_model] are among a module's arguments."""
    named = [(name, kwargs[name]) for name in HIDDEN if name in kwargs]
    for place, value in [*enumerate(args[:1]), *named]:
        if isinstance(value, torch.Tensor) and value.ndim == 3 and value.is_floating_point():
            return place
    return None


def _operands(func: object, args: tuple, kwargs: Mapping | None) -> tuple[torch.Tensor, torch.Tensor] | None:
    """The queries and keys, [..., token, d_head] each, if this is a product of two activations."""
    if func is functional.scaled_dot_product_attention:
        return tuple([*args, *(kwargs or {}).values()][:2])
    if func in PRODUCTS:
        first, second = [*args, *(kwargs or {}).values()][PRODUCTS[func] :][:2]
        if first.ndim >= 3 and second.ndim == first.ndim:
            return first, second.mT
    return None
