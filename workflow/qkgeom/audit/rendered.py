"""Figures and tables: their files against their records, and their numbers made again from the collected tables."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType

from qkgeom import figures, tables
from qkgeom.audit.findings import Part
from qkgeom.audit.links import Digests, check_record, only_outputs, without_detours
from qkgeom.audit.options import Options
from qkgeom.audit.tables import compare_tables, compare_texts
from qkgeom.errors import QkgeomError
from qkgeom.provenance import OF_FILE, Record
from qkgeom.rendering import Inputs, beside, load
from qkgeom.scratch import scratch_folder

KINDS: dict[str, ModuleType] = {"figure": figures, "table": tables}
PICTURES = (".pdf", ".png")


def names_in(folder: Path) -> list[str]:
    """The figures or tables of a folder that have a record, or a file without one."""
    files = [path for path in folder.glob("[!.]*.*") if path.is_file()]
    return sorted({path.name.removesuffix(OF_FILE) if path.name.endswith(OF_FILE) else path.stem for path in files})


def rendered_before(preset: Path) -> list[tuple[str, str]]:
    """Kind and name of the figures and tables of a preset's last audit, which the pipeline's names one by one."""
    try:
        last = json.loads((preset / "audit" / "audit.json").read_text(encoding="utf-8"))
        return [(kind, part["name"]) for kind in KINDS for part in last[f"{kind}s"]]
    except (OSError, ValueError, KeyError, TypeError):
        return []  # there was none


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

    def absent(file: str) -> str | None:  # what lies outside the results folder is the repository's, or the user's own
        left_out = Path(file).suffix in PICTURES or not _within(stem.parent / file, options.results)
        return "not in a bundle" if options.bundled and left_out else None

    if not any(stem.parent.glob(f"{name}.*")):
        part.found(stem, "", f"no such {kind}", "one, as the run or the last audit lists it", "run snakemake: it is made again")
        return part
    record = check_record(part, beside(stem, "provenance.json"), digests, again, absent)
    if record and only_outputs(part, stem, record):  # what is made from other inputs differs, as it must
        known = len(part.findings)
        try:
            _make_again(part, kind, name, stem, record, options, again)
        except (QkgeomError, OSError, ValueError, KeyError, TypeError) as error:
            part.found(beside(stem, "csv"), "", f"it cannot be made again: {error}", "the same numbers", again)
        if len(part.findings) > known and (wrong := _wrong_weights(record, stem.parent, digests)):
            del part.findings[known:]
            part.follows += wrong
    return part


def _wrong_weights(record: Record, folder: Path, digests: Digests) -> list[str]:
    """Weights with findings of their own among those of a figure's examples, whose record names the manifests only."""
    examples = [without_detours(folder / name).parent for name in record.inputs if name.endswith("/manifest.json")]
    files = [file for example in examples for file in sorted(example.glob("*.safetensors"))]
    return [file.as_posix() for file in files if file.resolve() in digests.wrong]


def _make_again(part: Part, kind: str, name: str, stem: Path, record: Record, options: Options, again: str) -> None:
    inputs = _inputs(record, stem.parent)
    if weightless := [folder for folder, _ in inputs.examples.values() if not any(folder.glob("*.safetensors"))]:
        names = ", ".join(folder.name for folder in weightless)
        part.unchecked.append(f"its numbers are not made again: the weights of {names} are not here")
        return
    if missing := [name for name in record.inputs if not (stem.parent / name).exists()]:
        part.unchecked.append(f"its numbers are not made again: {', '.join(missing)} is not here")
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
    if path.exists() and path.read_bytes() != made.read_bytes():
        part.found(path, "", "another picture", "the one that its numbers give", again)


def _within(path: Path, folder: Path) -> bool:
    return path.resolve().is_relative_to(folder.resolve())


def _inputs(record: Record, folder: Path) -> Inputs:
    """What a figure or table was made from, as its record says."""
    files = {need: [folder / name for name in names] for need, names in record.parameters["inputs"].items()}
    return Inputs.from_files(files, record.parameters["layers"])
