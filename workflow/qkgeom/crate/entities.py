"""The entities of a crate: files with their digests, software with its versions, actions with their times."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from datetime import datetime
from importlib.metadata import metadata
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rocrate.model.entity import Entity
    from rocrate.rocrate import ROCrate

TEXT = "text/plain"
FORMATS = {
    ".cff": "text/yaml",
    ".csv": "text/csv",
    ".html": "text/html",
    ".json": "application/json",
    ".md": "text/markdown",
    ".pdf": "application/pdf",
    ".png": "image/png",
    ".tex": "text/x-tex",
    ".tsv": "text/tab-separated-values",
    ".yaml": "application/yaml",
}


class Files:
    """Files below the results folder, each once, with its digest."""

    def __init__(self, crate: ROCrate, base: Path) -> None:
        self.crate, self.base = crate, base
        self.known: dict[str, Entity] = {}

    def place(self, path: Path) -> str:
        """Where a file of the results lies in the crate."""
        return f"results/{path.resolve().relative_to(self.base).as_posix()}"

    def add(self, path: Path) -> Entity:
        """The entity of a file."""
        place = self.place(path)
        if place not in self.known:
            self.known[place] = file(self.crate, path, place)
        return self.known[place]

    def matching(self, patterns: Iterable[str]) -> list[Entity]:
        """The entities of the files that fit, without hidden ones."""
        return [self.add(path) for each in patterns for path in sorted(self.base.glob(each)) if not path.name.startswith(".")]


def one_or_all(entities: list[Entity]) -> Entity | list[Entity]:
    """RO-Crate wants no list of one."""
    return entities[0] if len(entities) == 1 else entities


def action(crate: ROCrate, place: str, name: str, when: tuple[datetime, datetime], instrument: Entity, command: str) -> Entity:
    """What was done, when (beginning and end), and with what."""
    times = {"startTime": when[0].isoformat(timespec="seconds"), "endTime": when[1].isoformat(timespec="seconds")}
    done = {"name": name, "description": command, "actionStatus": "http://schema.org/CompletedActionStatus"}
    return crate.add_action(instrument, place, properties={"@type": "CreateAction", **done, **times})


def software(crate: ROCrate, package: str) -> Entity:
    """A package of the environment, under the address that it gives itself."""
    about = metadata(package)
    links = dict(line.split(", ", 1) for line in about.get_all("Project-URL") or ())
    named = {name.lower(): url for name, url in links.items()}
    address = about["Home-page"] or next(
        (named[name] for name in ("homepage", "repository", "source", "source code", "documentation") if name in named), ""
    )
    told = {"name": package, "softwareVersion": about["Version"], **({"url": address} if address else {})}
    return entity(crate, f"{address or '#'}#{package}-{about['Version']}".replace("##", "#"), "SoftwareApplication", **told)


def file(crate: ROCrate, path: Path, place: str) -> Entity:
    """A file with its digest, put at `place`."""
    content = path.read_bytes()
    told = {"name": path.name, "sha256": hashlib.sha256(content).hexdigest(), "contentSize": str(len(content))}
    return crate.add_file(path, place, properties={**told, "encodingFormat": FORMATS.get(path.suffix, TEXT)})


def entity(crate: ROCrate, place: str, kind: str, **told: object) -> Entity:
    """Something that is no file; `place` is its identifier."""
    from rocrate.model.contextentity import ContextEntity

    return crate.add(ContextEntity(crate, place, properties={"@type": kind, **told}))
