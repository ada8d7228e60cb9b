"""What an extraction would move, store and compute, told without moving weights."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from qkgeom import artifacts
from qkgeom.checkpoint import heads_from
from qkgeom.dropping import dropped
from qkgeom.errors import AccessRefused, ModelFault, QkgeomError, TransientFault
from qkgeom.extraction import ranges_of, tensors_to_store
from qkgeom.layouts import layout_named
from qkgeom.locate import find_layers
from qkgeom.lora import adapted
from qkgeom.registry import Model
from qkgeom.sizing import ABSORBED, COMPUTED, FLOPS, START, STORED, operations
from qkgeom.sources import checkpoint_of, on_hub, split_uri, whole_file_of
from qkgeom.sources.base import choose_adapter
from qkgeom.sources.hub import Survey, survey
from qkgeom.sources.hub_faults import public_endpoint
from qkgeom.sources.hub_many import ask_each
from qkgeom.sources.local import survey_adapter
from qkgeom.sources.read_ahead import spans_of

AT_A_TIME = 4  # artifacts that are extracted or scored at a time
_WHOLE = (".gguf", ".safetensors")  # these are, if they could not be opened here
HOW = (
    "time: of one CPU core at 10 GFLOP/s in float64, 300 MB/s to the disk and 6 s to start a model, without the network; "
    "estimates: query and key parameters of models.tsv, at the checkpoint's bytes per parameter (if it is out of reach: "
    "4, above 1 B parameters 2), width as of 64 per layer; disk: artifacts, and files that move whole and stay in a cache; "
    f"with keep_weights: false, of the artifacts those that a figure shows and the {AT_A_TIME} largest others at a time; what "
    "results/models holds counts as it is, and an extraction that broke off as if it began anew"
)


@dataclass(frozen=True)
class Plan:
    """What a row of models.tsv costs.

    Attributes:
        model: its id.
        state: `extracted` (in results/models already), `headers` (read from the checkpoint's headers: exact), `estimate`
            (from the table), `gated` (this token may not read it), `unusable` (missing, or no file that can be read),
            `elsewhere` (not on the hub, and its size is not known).
        move: bytes that `extract` has to move still, beyond headers that are kept here.
        checkpoint: bytes of the checkpoint's weight files, and the adapter's.
        store: bytes of the artifact.
        whole: bytes of files that are moved whole and stay in a cache.
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
    whole: int = 0


def plan_models(rows: Sequence[Model], slots: int, results: Path = Path("results")) -> list[Plan]:
    """What each row costs, in order.

    Args:
        rows: of models.tsv, pinned. Of a series the last checkpoint is looked at.
        slots: so many repositories are asked at a time.
        results: the results folder; what it holds need not be moved.

    Raises:
        UsageError: an address is not of its form, or HF_ENDPOINT is no address.
    """
    here = {row.model: plan for row in rows if (plan := extracted(row, results))}
    sharing: dict[str, list[Model]] = {}
    for row in rows:
        if row.model not in here:
            sharing.setdefault(row.uris[-1], []).append(row)

    def look(uri: str) -> dict[str, Plan]:
        address = on_hub(uri)
        if address is None:
            return {row.model: _elsewhere(row, uri) for row in sharing[uri]}
        with survey(address) as found:
            return {row.model: _looked_at(row, uri, found) for row in sharing[uri]}

    answers = ask_each(look, list(sharing), slots, "plan")

    def answered(row: Model) -> Plan:
        uri = row.uris[-1]
        answer = answers[uri]
        return _repeated(_fault(row, uri, answer) if isinstance(answer, QkgeomError) else answer[row.model], len(row.uris))

    return [here.get(row.model) or answered(row) for row in rows]


def disk(plans: Sequence[Plan], kept: Sequence[str] | None = None) -> int:
    """Bytes on the disk once all is extracted and scored, or what is needed on the way if weights are dropped.

    Args:
        plans: of the models.
        kept: those whose weights are kept where the others' are dropped; None: all are kept.
    """
    sizes = {plan.model: plan.store or 0 for plan in plans}
    if kept is not None:
        others = sorted((size for model, size in sizes.items() if model not in kept), reverse=True)
        sizes = {model: sizes[model] for model in sizes.keys() & set(kept)} | dict(enumerate(others[:AT_A_TIME]))
    return sum(sizes.values()) + sum({plan.uri: plan.whole for plan in plans}.values())


def extracted(row: Model, results: Path) -> Plan | None:
    """The plan of a model that is here as the row, pinned, says it: of these checkpoints, and read with this layout."""
    folder = results / "models" / row.model
    try:
        manifest = artifacts.read_manifest(folder)
    except QkgeomError:
        return None
    if manifest["status"] != "ok" or manifest["layout"] != row.layout:
        return None
    entries = manifest["snapshots"]
    sources = {name: entry["source"] for name, entry in entries.items()}
    read = {name: (source["uri"], source.get("adapter", {}).get("uri", "")) for name, source in sources.items()}
    if read != {name: (uri, row.adapter) for name, uri in row.checkpoints.items()}:
        return None
    files = [folder / entry["file"] for entry in entries.values()]
    store = sum(file.stat().st_size for file in files if file.exists())
    layers = [layer for entry in entries.values() for layer in entry["layers"]]
    seconds = START + sum(_operations(*(layer[key] for key in ("d_model", "n_kv_head", "d_head"))) for layer in layers) / FLOPS
    scored = (folder / "scores.csv").exists()
    note = "weights dropped" if dropped(folder, manifest) else "" if scored else "not scored"
    size = sum(_bytes(source) + _bytes(source.get("adapter", {})) for source in sources.values())
    size = size or sum(entry["bytes"]["checkpoint"] for entry in entries.values())  # a wheel's files are not listed
    return Plan(row.model, "extracted", row.uris[-1], 0, size, store, 0.0 if scored else round(seconds, 1), note)


def _bytes(source: dict) -> int:
    """Bytes of a source's weight files, as its manifest has them."""
    return sum(file["bytes"] or 0 for name, file in source.get("files", {}).items() if not name.endswith(".json"))


def _elsewhere(row: Model, uri: str) -> Plan:
    """A model that is not on the hub: one file that is moved whole, or on this machine."""
    if split_uri(uri)[0] == "file":
        return Plan(row.model, "elsewhere", uri, 0, note="on this machine: nothing is moved")
    file = whole_file_of(uri)
    if file is None:
        return Plan(row.model, "elsewhere", uri, note="not on the hub: its size is not known before it is fetched")
    note = "its file is moved whole" if file.away else "its file is here already"
    return replace(_estimate(row, uri, note, file.size), move=file.away, whole=file.size)


def _repeated(plan: Plan, times: int) -> Plan:
    """The plan of a series, from that of its last checkpoint."""
    if times == 1:
        return plan
    sums = {name: value and value * times for name in ("move", "checkpoint", "store") for value in [getattr(plan, name)]}
    seconds = plan.seconds and round(START + (plan.seconds - START) * times, 1)
    note = "; ".join(filter(None, [plan.note, f"{times} checkpoints, each taken to be as large as the last"]))
    return replace(plan, **sums, seconds=seconds, whole=plan.whole * times, note=note)


def _fault(row: Model, uri: str, fault: QkgeomError, at: str | None = None) -> Plan:
    """The plan of a model that cannot be looked at, or whose adapter `at` cannot."""
    if isinstance(fault, AccessRefused):
        page = f"{public_endpoint()}/{on_hub(at or uri).partition('@')[0]}"
        return Plan(row.model, "gated", uri, note=f"accept the licence at {page}, and set HF_TOKEN")
    what = f"its adapter {at}: {fault.what}" if at else fault.what
    return Plan(row.model, "unusable", uri, note=what) if isinstance(fault, ModelFault) else _estimate(row, uri, what)


def _looked_at(row: Model, uri: str, found: Survey) -> Plan:
    if not row.adapter:
        return _plan(row, uri, found)
    try:
        with _surveyed_adapter(row.adapter) as adapter:
            return _plan(row, uri, found, adapter)
    except (ModelFault, TransientFault) as fault:
        return _fault(row, uri, fault, row.adapter)


@contextmanager
def _surveyed_adapter(uri: str) -> Iterator[Survey]:
    scheme, address = split_uri(uri)
    with survey(address, choose_adapter) if scheme == "hf" else survey_adapter(address) as found:
        yield found


def _plan(row: Model, uri: str, found: Survey, adapter: Survey | None = None) -> Plan:
    try:
        if found.opened is not None:
            return _from_headers(row, uri, found, adapter)
    except ModelFault as fault:
        return Plan(row.model, "unusable", uri, note=fault.what)
    away = found.away + (adapter.away if adapter else 0)
    if any(name.endswith(_WHOLE) for name in (*found.here, *found.there)):
        return replace(_estimate(row, uri, "its file is moved whole", found.size), move=away, whole=away)
    plan = _estimate(row, uri, "a torch file, whose directory is not read here", found.size)
    return plan if plan.move is None else replace(plan, move=min(plan.move + (adapter.away if adapter else 0), away))


def _from_headers(row: Model, uri: str, found: Survey, adapter: Survey | None) -> Plan:
    layout, heads = layout_named(row.layout), heads_from(*(int(each) if each else None for each in (row.n_head, row.n_kv_head)))
    checkpoint = checkpoint_of(uri, found.opened, heads=heads)
    if adapter and adapter.opened:
        checkpoint = adapted(checkpoint, checkpoint_of(row.adapter, adapter.opened), layout)
    layers = find_layers(checkpoint, layout)
    tensors = [tensor for layer in layers for tensor in tensors_to_store(checkpoint, layout, layer)]
    store = sum(tensor.nbytes for tensor in tensors)
    move = sum(span.stop - span.start for span in spans_of([ranges_of(checkpoint, layer) for layer in layers]))
    operations = sum(_operations(each.shape.d_model, each.shape.n_kv_head, each.shape.d_head) for each in layers)
    plan = Plan(row.model, "headers", uri, move, found.size, store, _seconds(store, operations))
    if adapter is None:
        return plan
    plan = replace(plan, checkpoint=found.size + adapter.size)
    if adapter.opened:
        return plan
    most = sum(tensor.nbytes // tensor.dtype.itemsize * max(tensor.dtype.itemsize, COMPUTED) for tensor in tensors)
    note = "its adapter is a torch file, whose directory is not read here: all of it is counted, for every weight"
    return replace(plan, state="estimate", move=move + adapter.away, store=most, seconds=_seconds(most, operations), note=note)


def _estimate(row: Model, uri: str, note: str, size: int = 0) -> Plan:
    """From the row, and the checkpoint's size if it is known."""
    if not (row.n_params and row.qk_params):
        return Plan(row.model, "estimate", uri, checkpoint=size or None, note=f"{note}; no qk_params in models.tsv")
    n_params, n_qk = int(row.n_params), int(row.qk_params)
    width = size / n_params if size else 2 if n_params > 1e9 else 4
    kept = round(n_qk * width)
    read = round(1.5 * kept) if layout_named(row.layout).reads_values else kept  # as many values as queries and keys
    computed = layout_named(row.layout).computed
    stored = COMPUTED * n_qk * (ABSORBED if computed else 1) if computed or row.adapter or uri.endswith(".gguf") else kept
    d_model = (32 * n_qk) ** (1 / 3)  # d_model / 64 layers, each with 2 d_model^2 of them
    seconds = _seconds(stored, d_model * n_qk / 2)
    return Plan(row.model, "estimate", uri, read, size or round(n_params * width), stored, seconds, note)


def _operations(d_model: int, n_kv_head: int, d_head: int) -> float:
    return operations(d_model, n_kv_head * d_head)


def _seconds(store: int, operations: float) -> float:
    return round(START + store / STORED + operations / FLOPS, 1)
