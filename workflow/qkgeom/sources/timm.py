"""`timm:name`: weights that timm names, from their repository on the model hub.

timm.tsv, which `make timm-table` writes from timm itself, has the names and repositories; timm is not imported. The
first name of an architecture is the one that timm takes for the architecture alone.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path

from qkgeom.errors import ModelFault, UsageError
from qkgeom.sources import hub
from qkgeom.sources.base import Fetched
from qkgeom.sources.names import named, read_names

TABLE = Path(__file__).with_suffix(".tsv")


def require_form(address: str) -> None:
    """Raises a UsageError if an address is not of the form that `fetch` takes, whether or not timm has the name."""
    if "/" in address.partition("@")[0]:
        raise UsageError(
            "this is not a name of timm", found=address, expected="architecture.tag", fix="give a repository as hf:org/name"
        )
    hub.require_form(address)


def fetch(address: str, sha256: str | None = None) -> AbstractContextManager[Fetched]:
    """Opens the weights that timm would load; see `hub.fetch`.

    Args:
        address: `architecture.tag` or `architecture`, either with `@revision` of its repository.
        sha256: digest of the weight file.

    Raises:
        UsageError, ModelFault, TransientFault: see `hub_address` and `hub.fetch`.
    """
    return hub.fetch(hub_address(address), sha256)


def hub_address(address: str) -> str:
    """The same on the model hub: `org/name`, with the revision if one is given.

    Raises:
        ModelFault: timm has no such weights, or not on the hub.
    """
    name, at, revision = address.partition("@")
    repos: dict[str, str] = {}
    for each, row in read_names(TABLE).items():
        repos.setdefault(each.partition(".")[0], row["repo"])
        repos[each] = row["repo"]
    repo = named(repos, name, "timm", "correct the name, or give its repository on the hub as hf:org/name")
    if not repo:
        raise ModelFault(
            "timm has these weights at an address of its own, not on the model hub",
            where=f"timm:{name}",
            fix="fetch the file (`url` in timm.get_pretrained_cfg) and give it as file:PATH",
        )
    return f"{repo}{at}{revision}"
