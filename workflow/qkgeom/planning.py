"""What an extraction would move, store and compute, told without moving weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from qkgeom.checkpoint import heads_from
from qkgeom.errors import AccessRefused, ModelFault, QkgeomError
from qkgeom.extraction import ranges_of, tensors_to_store
from qkgeom.layouts import layout_named
from qkgeom.locate import Layer, find_layers
from qkgeom.registry import Model
from qkgeom.sources import checkpoint_of, on_hub
from qkgeom.sources.base import Fetched
from qkgeom.sources.hub import Survey, survey
from qkgeom.sources.hub_faults import public_endpoint
from qkgeom.sources.hub_many import ask_each
from qkgeom.sources.read_ahead import spans_of

FLOPS = 1e10  # float64 operations a second of one CPU core
STORED = 3e8  # bytes a second put in order and written
START = 6.0  # seconds in which `extract` and `score` start
_WHOLE = (".gguf", ".safetensors")  # these are, if they could not be opened here
HOW = (
    "time: of one CPU core at 10 GFLOP/s in float64, 300 MB/s to the disk and 6 s to start a model, without the network; "
    "estimates: query and key parameters of models.tsv, at the checkpoint's bytes per parameter (if it is out of reach: "
    "4, above 1 B parameters 2), width as of 64 per layer"
)


@dataclass(frozen=True)
class Plan:
    """What a row of models.tsv costs.

    Attributes:
        model: its id.
        state: `headers` (read from the checkpoint's headers: exact), `estimate` (from the table), `gated` (this token may
            not read it), `unusable` (missing, or no file that can be read), `elsewhere` (not on the hub, not planned).
        move: bytes that `extract` moves, beyond headers that are kept here.
        checkpoint: bytes of the checkpoint's weight files.
        store: bytes of the artifact.
        seconds: roughly, to store and to score it; see `HOW`.
        note: why it is no `headers`.
        uri: where its weights are.
    """

    model: str
    state: str
    uri: str
    move: int | None = None
    checkpoint: int | None = None
    store: int | None = None
    seconds: float | None = None
    note: str = ""


def plan_models(rows: Sequence[Model], uris: Mapping[str, str], slots: int) -> list[Plan]:
    """What each row costs, in order.

    Args:
        rows: of models.tsv.
        uris: model -> its URI, pinned; of a series, that of its last checkpoint.
        slots: so many repositories are asked at a time.

    Raises:
        UsageError: an address is not of its form, or HF_ENDPOINT is no address.
    """
    sharing: dict[str, list[Model]] = {}
    for row in rows:
        sharing.setdefault(uris[row.model], []).append(row)

    def look(uri: str) -> dict[str, Plan]:
        address = on_hub(uri)
        if address is None:
            note = "not on the hub: its size is not asked for"
            return {row.model: Plan(row.model, "elsewhere", uri, note=note) for row in sharing[uri]}
        with survey(address) as found:
            return {row.model: _plan(row, uri, found) for row in sharing[uri]}

    answers = ask_each(look, list(sharing), slots, "plan")
    plans = [_repeated(_answered(row, uris[row.model], answers[uris[row.model]]), len(row.uris)) for row in rows]
    return [_noted(plan, "its adapter is not counted") if row.adapter else plan for row, plan in zip(rows, plans, strict=True)]


def _noted(plan: Plan, note: str) -> Plan:
    return replace(plan, note="; ".join(filter(None, [plan.note, note])))


def _repeated(plan: Plan, times: int) -> Plan:
    """The plan of a series, from that of its last checkpoint."""
    if times == 1:
        return plan
    sums = {name: value and value * times for name in ("move", "checkpoint", "store") for value in [getattr(plan, name)]}
    seconds = plan.seconds and round(START + (plan.seconds - START) * times, 1)
    return _noted(replace(plan, **sums, seconds=seconds), f"{times} checkpoints, each taken to be as large as the last")


def _answered(row: Model, uri: str, answer: dict[str, Plan] | QkgeomError) -> Plan:
    if isinstance(answer, AccessRefused):
        page = f"{public_endpoint()}/{on_hub(uri).partition('@')[0]}"
        return Plan(row.model, "gated", uri, note=f"accept the licence at {page}, and set HF_TOKEN")
    if isinstance(answer, ModelFault):
        return Plan(row.model, "unusable", uri, note=answer.what)
    return _estimate(row, uri, answer.what) if isinstance(answer, QkgeomError) else answer[row.model]


def _plan(row: Model, uri: str, found: Survey) -> Plan:
    try:
        if found.opened is not None:
            return _from_headers(row, uri, found, found.opened)
    except ModelFault as fault:
        return Plan(row.model, "unusable", uri, note=fault.what)
    away = sum(size or 0 for size in found.there.values())
    if any(name.endswith(_WHOLE) for name in (*found.here, *found.there)):
        return replace(_estimate(row, uri, "its file is moved whole", _size(found)), move=away)
    plan = _estimate(row, uri, "a torch file, whose directory is not read here", _size(found))
    return plan if plan.move is None else replace(plan, move=min(plan.move, away))


def _from_headers(row: Model, uri: str, found: Survey, opened: Fetched) -> Plan:
    layout, heads = layout_named(row.layout), heads_from(*(int(each) if each else None for each in (row.n_head, row.n_kv_head)))
    checkpoint = checkpoint_of(uri, opened, heads=heads)
    layers = find_layers(checkpoint, layout)
    store = sum(tensor.nbytes for layer in layers for tensor in tensors_to_store(checkpoint, layout, layer))
    move = sum(span.stop - span.start for span in spans_of([ranges_of(checkpoint, layer) for layer in layers]))
    seconds = _seconds(store, sum(map(_operations, layers)))
    return Plan(row.model, "headers", uri, move, _size(found), store, seconds)


def _estimate(row: Model, uri: str, note: str, size: int = 0) -> Plan:
    """From the row, and the checkpoint's size if it is known."""
    if not (row.n_params and row.qk_params):
        return Plan(row.model, "estimate", uri, checkpoint=size or None, note=f"{note}; no qk_params in models.tsv")
    n_params, n_qk = int(row.n_params), int(row.qk_params)
    width = size / n_params if size else 2 if n_params > 1e9 else 4
    stored = round(n_qk * width)
    d_model = (32 * n_qk) ** (1 / 3)  # d_model / 64 layers, each with 2 d_model^2 of them
    seconds = _seconds(stored, 2 * d_model * n_qk)
    return Plan(row.model, "estimate", uri, stored, size or round(n_params * width), stored, seconds, note)


def _size(found: Survey) -> int:
    return sum(found.here.values()) + sum(size or 0 for size in found.there.values())


def _operations(layer: Layer) -> float:
    """Float64 operations of `qkgeom.scores` for a layer."""
    d, r = layer.shape.d_model, layer.shape.n_kv_head * layer.shape.d_head
    return 2 * d * r * r + min(10 * d * r * r, 2 * d * d * r)


def _seconds(store: int, operations: float) -> float:
    return round(START + store / STORED + operations / FLOPS, 1)
