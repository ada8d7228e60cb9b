"""Places that weights come from. A URI's scheme names the module that fetches it."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

from qkgeom.checkpoint import Checkpoint, Heads, open_files, read_config
from qkgeom.containers import Container
from qkgeom.errors import ModelFault, UsageError
from qkgeom.sources.base import WEIGHTS, Fetched, WholeFile, choose_adapter

__all__ = ["Fetched", "checkpoint_of", "on_hub", "open_adapter", "open_checkpoint", "snapshots_of", "whole_file_of"]

# scheme -> module of this folder with `require_form(address)` and a context manager `fetch(address, sha256) -> Fetched`, or,
# for a series of checkpoints, with `snapshots(address) -> [(snapshot, URI)]`
SCHEMES = {
    "file": "local",
    "hf": "hub",
    "pypi": "package_index",
    "run": "run",
    "timm": "timm",
    "whisper": "whisper",
}
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[\w.-]+)?(@[\w./-]+)?", re.ASCII)


def split_uri(uri: str) -> tuple[str, str]:
    """Scheme and address of a URI; an existing path is `file:`, a bare hub id is `hf:`.

    Raises:
        UsageError: it is none of these.
    """
    scheme, colon, address = uri.partition(":")
    if colon and scheme in SCHEMES and address:
        return scheme, address
    if uri and _exists(uri):
        return "file", uri
    if not colon and not uri.startswith((".", "/")) and not uri.endswith(WEIGHTS) and _HUB_ID.fullmatch(uri):
        return "hf", uri
    raise UsageError(
        "this is neither a URI nor an existing path",
        found=uri or "an empty string",
        expected="hf:org/name@revision, timm:name, whisper:size, pypi:package==version/path, file:path, run:name, a path, "
        "or a bare hub id",
    )


def require_form(uri: str) -> None:
    """Checks a URI as far as that goes without looking at what it names.

    Raises:
        UsageError: it is none, or its address is not of its scheme's form.
    """
    _source(uri).require_form(split_uri(uri)[1])


def _exists(path: str) -> bool:
    try:
        return Path(path).exists()
    except OSError:  # a name too long, or a folder that may not be entered
        return False


def source_module(uri: str) -> str:
    """Name of the module that fetches `uri`, e.g. `qkgeom.sources.hub`."""
    return f"{__name__}.{SCHEMES[split_uri(uri)[0]]}"


def _source(uri: str) -> ModuleType:
    return importlib.import_module(source_module(uri))


def on_hub(uri: str) -> str | None:
    """Where on the model hub a URI's weights are, `org/name` with the revision if one is given; None if elsewhere.

    Raises:
        UsageError, ModelFault: see `split_uri` and the source.
    """
    scheme, address = split_uri(uri)
    if scheme == "hf":
        return address
    source = _source(uri)
    return source.hub_address(address) if hasattr(source, "hub_address") else None


def whole_file_of(uri: str) -> WholeFile | None:
    """The file that is moved whole for a URI, where its source can tell its size beforehand.

    Raises:
        UsageError, ModelFault, TransientFault: see `split_uri` and the source.
    """
    source = _source(uri)
    return source.whole_file(split_uri(uri)[1]) if hasattr(source, "whole_file") else None


def snapshots_of(uri: str) -> list[tuple[str, str]]:
    """The snapshots of a model in order, each with the URI of its checkpoint; a published checkpoint has one, `final`.

    Raises:
        UsageError, ModelFault: see `split_uri` and the source.
    """
    source = _source(uri)
    return source.snapshots(split_uri(uri)[1]) if hasattr(source, "snapshots") else [("final", uri)]


@contextmanager
def open_checkpoint(
    uri: str, *, sha256: str | None = None, architecture: str | None = None, heads: Heads | None = None
) -> Iterator[Checkpoint]:
    """Fetches what `uri` names and opens it; files that were only fetched for this are gone afterwards.

    Args:
        uri: see `split_uri`.
        sha256: digest of the fetched file, where the source has one file (a wheel, a checkpoint file).
        architecture: the `model_type` that a missing config.json would state.
        heads: head counts that a missing config.json would state.

    Raises:
        ModelFault: permanent: missing, gated, damaged, or no config and no `architecture`.
        TransientFault: the source cannot be reached now.
    """
    with _source(uri).fetch(split_uri(uri)[1], sha256) as fetched:
        yield checkpoint_of(uri, fetched, architecture, heads)


def split_adapter_uri(uri: str) -> tuple[str, str]:
    """Scheme and address of an adapter's URI: `hf:org/name@revision`, a bare hub id, or a folder (`file:path`, a path).

    Raises:
        UsageError: it is none of these.
    """
    scheme, address = split_uri(uri)
    if scheme not in ("hf", "file"):
        expected = "hf:org/name@revision, or a folder on this machine"
        raise UsageError("adapters are not read from there", found=uri, expected=expected)
    require_form(uri)
    return scheme, address


@contextmanager
def open_adapter(uri: str) -> Iterator[Checkpoint]:
    """Opens a PEFT adapter; what its adapter_config.json says is the checkpoint's config.

    Raises:
        UsageError: see `split_adapter_uri`.
        ModelFault: permanent: missing, gated, damaged, or no adapter.
        TransientFault: the source cannot be reached now.
    """
    _, address = split_adapter_uri(uri)
    with _source(uri).fetch(address, choose=choose_adapter) as fetched:
        yield checkpoint_of(uri, fetched)


def checkpoint_of(uri: str, fetched: Fetched, architecture: str | None = None, heads: Heads | None = None) -> Checkpoint:
    """A checkpoint whose files are here, or open; see `open_checkpoint`."""
    where = open_files(fetched.weights, fetched.index)
    config = _config(fetched, where, architecture)
    if heads is None and fetched.config is None and not any(each.config for each in where.values()):
        raise _no_config(uri, architecture)
    return Checkpoint(uri, config, where, fetched.origin, fetched.expect, fetched.moved, heads)


def _config(fetched: Fetched, where: Mapping[str, Container], architecture: str | None) -> dict[str, object]:
    """config.json, else what the files say of themselves (GGUF), with the architecture that the user stated."""
    embedded = next((container.config for container in where.values()), {})
    config = read_config(fetched.config) if fetched.config else dict(embedded)
    return config | ({"model_type": architecture} if architecture else {})


def _no_config(uri: str, architecture: str | None) -> ModelFault:
    unknown, options = ("its heads are", "") if architecture else ("its architecture and heads are", "--architecture, ")
    return ModelFault(
        f"the checkpoint has no config.json, so {unknown} unknown",
        where=uri,
        expected="a config.json beside the weights",
        fix=f"put one there, or say {options}--n-head and --n-kv-head",
    )
