"""Query and key weights as the paper's released code read them where that is not what the models multiply.

Used to compare with published numbers, and for nothing else: which published value goes back to which reading is in
docs/published.md. Four of its defects can be applied again, two of them to stored weights and two to the source:

- `grouped_heads`: query head h is paired with key head h mod n_kv_head instead of h // (n_head / n_kv_head).
- `no_transpose`: the product of two Linear weights [out, in] contracts the model's dimensions, so that its rows and
  columns are head features.
- `contiguous_thirds`: weights interleaved head by head are cut as if all of Q came first, then K, then V (and are not
  transposed either).
- `cross_attention`: of a decoder, the weights that read the text are taken for self-attention.

Source: the authors' repository, utils/funs.py, `get_M_fullmodel` and `get_M_shard`, attn_type `grouped-attention` and
`gpt-neox`; the notebook of MusicGen's decoder.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from qkgeom import artifacts
from qkgeom.checkpoint import Checkpoint
from qkgeom.device import choose_device
from qkgeom.dropping import pinned_uri, weights_of
from qkgeom.engine import Engine
from qkgeom.extraction import layer_weights, ranges_of
from qkgeom.layer_file import stream_layers
from qkgeom.layouts import layout_named
from qkgeom.layouts.base import AttentionShape, FusedPerHead, Layout
from qkgeom.layouts.deberta import Deberta
from qkgeom.layouts.gpt_neox import GptNeoX
from qkgeom.layouts.musicgen import MusicgenDecoder
from qkgeom.locate import find_layers
from qkgeom.scoring import Row, layer_rows, to_torch
from qkgeom.sources import open_checkpoint

if TYPE_CHECKING:
    import numpy as np
    import torch

    from qkgeom.streaming import Weights


def grouped_heads(W_q: torch.Tensor, W_k: torch.Tensor) -> Weights:
    """W_q as it is, and W_k [d_model, n_head, d_head] with key head h mod n_kv_head for query head h."""
    return W_q, W_k[:, [h % W_k.shape[1] for h in range(W_q.shape[1])]]


def no_transpose(W_q: torch.Tensor, W_k: torch.Tensor) -> Weights:
    """Both as stored by a Linear: [n_head * d_head, 1, d_model], one head whose inner dimension is the model's."""
    return tuple(W.reshape(W.shape[0], -1).T[:, None] for W in (W_q, W_k))


class _ContiguousThirds(FusedPerHead):
    """The first third of the rows for the query, the second for the key, both [d_model, 1, d_model]."""

    def split(self, arrays: Mapping[str, np.ndarray], shape: AttentionShape) -> tuple[np.ndarray, np.ndarray]:
        q, k = arrays["qkv"].reshape(3, -1, shape.d_model)[:2]
        return q[:, None], k[:, None]


class _ThirdsOfGptNeoX(_ContiguousThirds, GptNeoX):
    pass


class _ThirdsOfDeberta(_ContiguousThirds, Deberta):
    pass


class _CrossAttention(MusicgenDecoder):
    tensors = {role: name.replace("self_attn", "encoder_attn") for role, name in MusicgenDecoder.tensors.items()}


@dataclass(frozen=True)
class Way:
    """How the published code read a family.

    Attributes:
        defects: what is wrong with it, as in the column `defect` of published.tsv.
        change: from W_q and W_k as they are to those that were used; None where they do not suffice.
        layout: reads the source in their way, where W_q and W_k do not suffice.
    """

    defects: tuple[str, ...]
    change: Callable[[torch.Tensor, torch.Tensor], Weights] | None = None
    layout: Layout | None = None


GROUPED = Way(("grouped_heads",), change=grouped_heads)
UNTRANSPOSED = Way(("no_transpose",), change=no_transpose)
THIRDS = ("contiguous_thirds", "no_transpose")
WAYS: Mapping[str, Way] = {  # by layout
    "llama": GROUPED,
    "modernbert": UNTRANSPOSED,
    "phi3": UNTRANSPOSED,
    "gpt_neox": Way(THIRDS, layout=_ThirdsOfGptNeoX()),
    "deberta": Way(THIRDS, layout=_ThirdsOfDeberta()),
    "musicgen_decoder": Way(("cross_attention",), layout=_CrossAttention()),
}
EMULATED = frozenset(defect for way in WAYS.values() for defect in way.defects)


def way_of(layout: Layout, shape: AttentionShape) -> Way | None:
    """How the published code reads layers of this shape; None where it is right, or fails on them.

    Grouped queries are mispaired where there are several groups of several heads; the code fails where the heads do not
    make up the width, and on a fused weight with fewer key heads than query heads.
    """
    way = WAYS.get(layout.name)
    grouped = shape.n_kv_head < shape.n_head
    if way is None or shape.n_head * shape.d_head != shape.d_model or grouped != (way is GROUPED):
        return None
    return None if way is GROUPED and shape.n_kv_head == 1 else way


def way_of_artifact(manifest: Mapping) -> Way | None:
    """`way_of` an artifact's last snapshot; None for a model that was not extracted."""
    if manifest["status"] != "ok":
        return None
    first = _last(manifest)[1]["layers"][0]
    shape = AttentionShape(*(first[size] for size in ("d_model", "n_head", "n_kv_head", "d_head")))
    return way_of(layout_named(manifest["layout"]), shape)


def score_published(
    folder: Path,
    device: str = "auto",
    precision: str = "auto",
    progress: Callable[[Sequence], Iterator] = iter,
) -> list[Row]:
    """Scores the last snapshot of an artifact as the published code would have read it.

    Args:
        folder: the artifact.
        device: see `choose_device`.
        precision: `auto` or `float64`, see `score_layer`.
        progress: wraps the layers to show how far the work is.

    Returns:
        A row per layer with the columns of scores.csv, then `defects`, the words of published.tsv; its sizes are those
        of the product that the published code formed. No row where that code reads this architecture as it is.

    Raises:
        ModelFault, TransientFault: the weights, or where they do not suffice the source, cannot be read.
    """
    manifest = artifacts.read_manifest(folder)
    way = way_of_artifact(manifest)
    if way is None:
        return []
    snapshot, entry = _last(manifest)
    layers = [layer["layer"] for layer in entry["layers"]]
    engine, rows = Engine(precision=precision), []
    with published_weights(folder, manifest, way, choose_device(device)) as weights:
        for layer, (W_q, W_k) in zip(progress(layers), weights, strict=True):
            rows += layer_rows(manifest["model"], snapshot, layer, W_q, W_k, engine)
    return [{**row, "defects": ",".join(way.defects)} for row in rows]


@contextmanager
def published_weights(folder: Path, manifest: Mapping, way: Way, device: torch.device) -> Iterator[Iterator[Weights]]:
    """Gives W_q [rows, head, inner] and W_k of each layer of the last snapshot as the published code took them.

    The matrix it scored is the sum over heads of W_q,h W_k,h^T.

    Args:
        folder: the artifact.
        manifest: its manifest.
        way: of `way_of_artifact`.
        device: where they are wanted.

    Raises:
        ModelFault, TransientFault: as `score_published`.
    """
    snapshot, entry = _last(manifest)
    if way.layout:
        with open_checkpoint(pinned_uri(entry["source"]), architecture=entry["architecture"]) as checkpoint:
            yield _from_source(checkpoint, way.layout, device)
        return
    layers = [layer["layer"] for layer in entry["layers"]]
    with (
        weights_of(folder, manifest, snapshot) as place,
        closing(stream_layers(place / entry["file"], layers, device)) as stored,
    ):
        yield (way.change(*weights) for weights in stored)


def _from_source(checkpoint: Checkpoint, layout: Layout, device: torch.device) -> Iterator[Weights]:
    found = find_layers(checkpoint, layout)
    checkpoint.expect([ranges_of(checkpoint, layer) for layer in found])
    for layer in found:
        W_q, W_k, _ = layer_weights(checkpoint, layout, layer)
        yield to_torch(W_q, device), to_torch(W_k, device)


def _last(manifest: Mapping) -> tuple[str, Mapping]:
    """The last snapshot, which stands for the model, and its entry."""
    return list(manifest["snapshots"].items())[-1]
