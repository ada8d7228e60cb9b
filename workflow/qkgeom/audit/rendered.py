"""Figures and tables: their files against their records, and their numbers made again from the collected tables."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from qkgeom import figures, tables
from qkgeom.audit.findings import Part
from qkgeom.audit.links import Digests, check_record
from qkgeom.audit.options import Options
from qkgeom.audit.tables import compare_tables, compare_texts
from qkgeom.errors import QkgeomError
from qkgeom.files import sha256_of
from qkgeom.provenance import OF_FILE, Record
from qkgeom.published_values import PUBLISHED, PUBLISHED_WAY, TRAJECTORIES
from qkgeom.rendering import MANIFEST, TABLES, Inputs, beside, load
from qkgeom.scratch import scratch_folder

KINDS: dict[str, ModuleType] = {"figure": figures, "table": tables}
PICTURES = (".pdf", ".png")


def names_in(folder: Path) -> list[str]:
    """The figures or tables of a folder that have a record, or a file without one."""
    files = [path for path in folder.glob("[!.]*.*") if path.is_file()]
    return sorted({path.name.removesuffix(OF_FILE) if path.name.endswith(OF_FILE) else path.stem for path in files})


def check_rendered(kind: str, name: str, preset: str, options: Options, digests: Digests) -> Part:
    """Checks one figure or table.

    Args:
        kind: `figure` or `table`.
        name: of it.
        preset: whose it is.
        options: with `sample` None, figures are drawn again too.
        digests: of files.
    """
    part, stem = Part(kind, name), options.results / preset / f"{kind}s" / name
    again = f"make it again: delete {beside(stem, 'csv')} and run snakemake"
    absent = dict.fromkeys(PICTURES if options.bundled else (), "not in a bundle")
    if options.bundled:
        absent[TRAJECTORIES] = "not in a bundle"
    path = beside(stem, "provenance.json")
    record = check_record(part, path, digests, again, lambda file: absent.get(Path(file).suffix) or absent.get(Path(file).name))
    if record and not part.findings:  # what is made from other inputs differs, as it must
        try:
            _make_again(part, kind, name, stem, record, options, again)
        except (QkgeomError, OSError, ValueError, KeyError, TypeError) as error:
            part.found(beside(stem, "csv"), "", f"it cannot be made again: {error}", "the same numbers", again)
    return part


def _make_again(part: Part, kind: str, name: str, stem: Path, record: Record, options: Options, again: str) -> None:
    inputs = _inputs(record, stem.parent)
    if weightless := [folder for folder, _ in inputs.examples.values() if not any(folder.glob("*.safetensors"))]:
        names = ", ".join(folder.name for folder in weightless)
        part.unchecked.append(f"its numbers are not made again: the weights of {names} are not here")
        return
    if inputs.published_trajectories and not (inputs.published_trajectories / TRAJECTORIES).is_file():
        part.unchecked.append(f"its numbers are not made again: {TRAJECTORIES} is not here")
        return
    if record.parameters.get("published", here := sha256_of(PUBLISHED)) != here:
        part.unchecked.append("its numbers are not made again: it was made with another published.tsv than the one here")
        return
    if kind == "figure" and (options.sample is not None or options.bundled):
        module = load(figures.__name__, name, inputs)
        compare_tables(part, beside(stem, "csv"), module.numbers(inputs), again)
        return
    with scratch_folder() as folder:
        KINDS[kind].render(name, inputs, folder / name)
        part.count("tables made anew")
        for ending in ("csv", "tex", "md"):
            if (made := beside(folder / name, ending)).exists():
                compare_texts(part, beside(stem, ending), made.read_text(encoding="utf-8"), again)
        for ending in ("pdf", "png") if kind == "figure" else ():
            _compare_pictures(part, beside(stem, ending), beside(folder / name, ending), record, again)


def _compare_pictures(part: Part, path: Path, made: Path, record: Record, again: str) -> None:
    from importlib.metadata import version

    here = {package: version(package) for package in record.versions if package in ("matplotlib", "numpy")}
    if any(record.versions[package] != number for package, number in here.items()):
        part.unchecked.append(f"{path.name} is not drawn again: matplotlib or numpy here has another version")
        return
    part.count("pictures drawn anew")
    if path.read_bytes() != made.read_bytes():
        part.found(path, "", "another picture", "the one that its numbers give", again)


def _inputs(record: Record, folder: Path) -> Inputs:
    """What a figure or table was made from, as its record says."""
    given = {Path(name).stem: folder / name for name in record.inputs if Path(name).stem in TABLES}
    folders = {Path(name).parent.name: (folder / name).parent for name in record.inputs if name.endswith(f"/{MANIFEST}")}
    examples = record.parameters.get("examples", {})
    return Inputs(
        **given,
        examples={role: (folders[each["model"]], each["layer"]) for role, each in examples.items()},
        published_way=[folder / name for name in record.inputs if Path(name).name == PUBLISHED_WAY],
        published_trajectories=next(
            ((folder / name).parent for name in record.inputs if Path(name).name == TRAJECTORIES), None
        ),
    )


def strays(rendered: list[Path], preset: Path) -> Iterator[tuple[str, str]]:
    """Kind and name of figures and tables that lie beside those of a run and are not of it."""
    stems = {path.with_suffix("") for path in rendered}
    for kind in KINDS:
        for name in names_in(preset / f"{kind}s"):
            if preset / f"{kind}s" / name not in stems:
                yield kind, name
