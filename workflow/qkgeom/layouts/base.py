"""What a layout says, and four ways in which checkpoints store query and key weights.

A layout is declarative: patterns of tensor names, the attention shape from the config's fields, which rows of which
tensors are needed, and how these arrays become W_q and W_k of shape [d_model, head, d_head] (row-vector convention,
q = x W_q). torch's Linear stores [out, in], so most ways begin with a transpose.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from qkgeom.errors import ModelFault

ANY_PREFIX = r"(?:\w+\.)*?"  # the same tensor is `encoder...`, `bert.encoder...` or `0.model.encoder...`
# the language trunk only: towers of multimodal and encoder-decoder models carry the same endings
LANGUAGE_PREFIX = r"(?:(?!encoder|decoder|vision|visual|text_model|global_transformer|audio|wrapped|mask_)\w+\.)*?"


@dataclass(frozen=True)
class AttentionShape:
    """The sizes of one self-attention layer."""

    d_model: int
    n_head: int
    n_kv_head: int
    d_head: int

    @classmethod
    def multi_head(cls, d_model: int, n_head: int) -> AttentionShape:
        """Heads that share the width, each query head with a key head of its own."""
        return cls(d_model, n_head, n_head, d_model // n_head)


@dataclass(frozen=True)
class Need:
    """Rows of one tensor of a layer: the role it has in the layout's patterns, its whole shape, the rows wanted."""

    role: str
    shape: tuple[int, ...]
    rows: tuple[int, int] | None = None


@dataclass(frozen=True)
class Case:
    """A tiny real model on which the contract test proves a layout.

    Attributes:
        model: class in the library, e.g. `BertModel`, or a timm model name.
        config: its constructor's keywords (openai-whisper: its dimensions).
        library: `transformers`, `timm`, `whisper`, or `remote` for a class that checkpoints bring with them
            (tests/remote_models.py).
        inputs: `tokens`, `pixels`, `seq2seq` (tokens for both parts), `audio` (features, and tokens for the decoder), or
            a kind of tests/example_inputs.py.
    """

    model: str
    config: dict[str, object]
    library: str = "transformers"
    inputs: str = "tokens"


def field(config: Mapping[str, object], *names: str) -> int:
    """The first of `names` that the config states.

    Raises:
        ModelFault: it states none of them.
    """
    for name in names:
        value = config.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
    stated = {name: config[name] for name in names if name in config}
    raise ModelFault(
        f"the config does not state {names[0]}",
        found=stated or "nothing",
        expected="a positive whole number under " + " or ".join(names),
        fix="correct config.json" + ("" if stated else ", or say it with --n-head and --n-kv-head"),
    )


class Layout(ABC):
    """One architecture (or one part of it): names, shapes, and the way to W_q and W_k.

    Attributes:
        name: key in models.tsv and manifests.
        model_types: the `model_type` values of config.json (or timm architecture prefixes) that it reads.
        part: which stack of an architecture that has several, such as `encoder`, `decoder`, `vision` or `text`; else None.
        section: the part of the config that states this stack's sizes, such as `vision_config`; None for all of it.
        needs_config: whether the names alone do not say which layers there must be.
        tensors: role -> pattern of the tensor's name without prefix; `{N}` is the layer's number, and `{S}` its stage's.
        gguf: the same for GGUF files; empty if the layout does not read them.
        prefix: what may come before the pattern.
        optional: the roles that a checkpoint may lack.
        reads_values: whether the value weights lie between those of queries and keys, so that they are read too.
        computed: whether W_q and W_k are products of several weights; they are then computed and stored in float32.
        position: how positions enter (`rope`, `learned`, `relative`, `sinusoidal`, `convolutional`, `alibi`) unless the
            config says otherwise (`position_in`).
        cases: tiny real models for the contract test.
    """

    name: str
    model_types: tuple[str, ...]
    part: str | None = None
    section: str | None = None
    needs_config: bool = False
    tensors: dict[str, str]
    gguf: dict[str, str] = {}
    prefix: str = ANY_PREFIX
    optional: tuple[str, ...] = ()
    reads_values: bool = False
    computed: bool = False
    position: str = "learned"
    cases: tuple[Case, ...] = ()

    @property
    def file(self) -> Path:
        """The source file of this layout."""
        return Path(inspect.getfile(type(self)))

    def reads(self, config: Mapping[str, object]) -> bool:
        """Whether this layout is for the architecture that `config` names."""
        return config.get("model_type") in self.model_types

    def position_in(self, config: Mapping[str, object]) -> str:
        """How positions enter the attention; reported in the manifest, not part of W_qk."""
        return self.position

    def sizes(self, config: Mapping[str, object]) -> Mapping[str, object]:
        """The part of the config that states this stack's sizes.

        Raises:
            ModelFault: the config has no such section.
        """
        sizes = config if self.section is None else config.get(self.section)
        if not isinstance(sizes, Mapping):
            raise ModelFault(
                f"the config has no section {self.section}",
                found=sorted(config),
                expected=f"{self.section}, with the sizes of the part {self.part}",
                fix="correct config.json",
            )
        return sizes

    def n_layer(self, config: Mapping[str, object]) -> int:
        """Number of distinct self-attention layers that the checkpoint must hold."""
        return field(self.sizes(config), "num_hidden_layers", "n_layer", "n_layers", "num_layers")

    def numbers(self, config: Mapping[str, object]) -> Iterable[tuple[int, ...]]:
        """What stands for `{S}` and `{N}` in the names of each layer, in the order in which the layers are numbered."""
        return ((layer,) for layer in range(self.n_layer(config)))

    def n_surplus(self, config: Mapping[str, object]) -> int:
        """Number of layers after these that the checkpoint may hold too and that are no part of the model's depth."""
        return 0

    def shape(self, config: Mapping[str, object], layer: int) -> AttentionShape:
        """The sizes that the config states for a layer; layers are numbered 0, 1, 2, ... whatever their names say."""
        sizes = self.sizes(config)
        d_model = field(sizes, "hidden_size", "n_embd", "n_embed", "dim", "d_model")
        n_head = field(sizes, "num_attention_heads", "n_head", "n_heads", "num_heads")
        n_kv_head = n_head if sizes.get("num_key_value_heads") is None else field(sizes, "num_key_value_heads")
        d_head = sizes.get("head_dim") or d_model // n_head
        return AttentionShape(d_model, n_head, n_kv_head, int(d_head))

    @abstractmethod
    def infer(self, shapes: Mapping[str, tuple[int, ...]], n_head: int, n_kv_head: int) -> AttentionShape:
        """The sizes that follow from the tensors' shapes and the head counts, for a checkpoint without a config."""

    @abstractmethod
    def needs(self, shape: AttentionShape) -> dict[str, Need]:
        """What to read for a layer, by a key of the layout's choice."""

    @abstractmethod
    def split(self, arrays: Mapping[str, np.ndarray], shape: AttentionShape) -> tuple[np.ndarray, np.ndarray]:
        """W_q [d_model, n_head, d_head] and W_k [d_model, n_kv_head, d_head] from the arrays that were needed."""


def from_linear(weight: np.ndarray, d_head: int) -> np.ndarray:
    """A Linear weight [head * d_head, d_model] as [d_model, head, d_head]."""
    return weight.T.reshape(weight.shape[1], -1, d_head)


class SeparateLinear(Layout):
    """Roles `q` and `k`: two Linear weights, [n_head * d_head, d_model] and [n_kv_head * d_head, d_model]."""

    def infer(self, shapes, n_head, n_kv_head):
        return AttentionShape(shapes["q"][1], n_head, n_kv_head, shapes["q"][0] // n_head)

    def needs(self, shape):
        return {
            "q": Need("q", (shape.n_head * shape.d_head, shape.d_model)),
            "k": Need("k", (shape.n_kv_head * shape.d_head, shape.d_model)),
        }

    def split(self, arrays, shape):
        return from_linear(arrays["q"], shape.d_head), from_linear(arrays["k"], shape.d_head)


class FusedRows(Layout):
    """Role `qkv`: one Linear weight whose rows are all of Q, then all of K, then all of V."""

    def infer(self, shapes, n_head, n_kv_head):
        return AttentionShape(shapes["qkv"][1], n_head, n_kv_head, shapes["qkv"][0] // (n_head + 2 * n_kv_head))

    def needs(self, shape):
        q, k = shape.n_head * shape.d_head, shape.n_kv_head * shape.d_head
        whole = (q + 2 * k, shape.d_model)
        return {"q": Need("qkv", whole, (0, q)), "k": Need("qkv", whole, (q, q + k))}

    def split(self, arrays, shape):
        return from_linear(arrays["q"], shape.d_head), from_linear(arrays["k"], shape.d_head)


class FusedPerHead(Layout):
    """Role `qkv`: one Linear weight whose rows are, key head by key head, the queries that read it, then its k and v.

    With a key head for each query head that is [head, (q, k, v), d_head]; with one key head, all of Q, then K, then V.
    """

    reads_values = True

    def infer(self, shapes, n_head, n_kv_head):
        return AttentionShape(shapes["qkv"][1], n_head, n_kv_head, shapes["qkv"][0] // (n_head + 2 * n_kv_head))

    def needs(self, shape):
        return {"qkv": Need("qkv", ((shape.n_head + 2 * shape.n_kv_head) * shape.d_head, shape.d_model))}

    def split(self, arrays, shape):
        groups = arrays["qkv"].reshape(shape.n_kv_head, -1, shape.d_head, shape.d_model)
        queries = groups[:, :-2].reshape(shape.n_head, shape.d_head, shape.d_model)
        return queries.transpose(2, 0, 1), groups[:, -2].transpose(2, 0, 1)


class FusedConv1D(Layout):
    """Role `qkv`: one Conv1D weight, [in, out] already, whose columns are all of Q, then K, then V.

    Source: transformers/pytorch_utils.py, `Conv1D`.
    """

    reads_values = True

    def infer(self, shapes, n_head, n_kv_head):
        return AttentionShape(shapes["qkv"][0], n_head, n_head, shapes["qkv"][1] // (3 * n_head))

    def needs(self, shape):
        return {"qkv": Need("qkv", (shape.d_model, 3 * shape.n_head * shape.d_head))}

    def split(self, arrays, shape):
        blocks = arrays["qkv"].reshape(shape.d_model, 3, shape.n_head, shape.d_head)
        return blocks[:, 0], blocks[:, 1]
