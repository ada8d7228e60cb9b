"""A finished run as it lies on the disk: its preset, models, figures and tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from qkgeom.artifacts import MANIFEST
from qkgeom.errors import QkgeomError, UsageError
from qkgeom.origins import rows_of
from qkgeom.registry import Model

CONFIG = Path("config.yaml")
KINDS = ("figures", "tables")


@dataclass(frozen=True)
class FinishedRun:
    """A run.

    Attributes:
        results: `results/<preset>`.
        preset: its name.
        rows: the models that the preset has, by id.
        artifacts: folders of the run's models.
        figures, tables: paths without ending.
    """

    results: Path
    preset: str
    rows: dict[str, Model]
    artifacts: list[Path]
    figures: list[Path]
    tables: list[Path]


def find_run(
    results: Path | None, artifacts: Sequence[Path] | None = None, rendered: Sequence[Path] | None = None
) -> FinishedRun:
    """The run in a folder.

    Args:
        results: `results/<preset>`; None for the preset that config.yaml names.
        artifacts: folders of its models; None for those of the preset that are there.
        rendered: a file of each of its figures and tables; None for all that are there.

    Raises:
        UsageError: there is no such preset or folder.
        QkgeomError: the folder holds no finished run.
    """
    results = results or Path("results") / default_preset()
    preset = results.resolve().name
    rows = rows_of(preset)
    if not (results / "collected/summary.csv").is_file():
        expected, fix = results / "collected/summary.csv", f"snakemake --cores 4 --config preset={preset}"
        raise QkgeomError("there is no finished run here", where=results, expected=expected, fix=fix)
    if artifacts is None:
        folders = [results.parent / "models" / name for name in rows]
        artifacts = [folder for folder in folders if (folder / MANIFEST).is_file()]
    if not artifacts:
        expected = f"the manifest of one of the {len(rows)} models of preset {preset}"
        raise QkgeomError("the run has no model", where=results.parent / "models", expected=expected, fix="run the pipeline")
    if rendered is None:
        rendered = [path for kind in KINDS for path in sorted(results.glob(f"{kind}/[!.]*.csv"))]
    stems = list(dict.fromkeys(path.with_suffix("") for path in rendered))
    of_kind = {kind: [stem for stem in stems if stem.parent.name == kind] for kind in KINDS}
    return FinishedRun(results, preset, rows, list(artifacts), **of_kind)


def default_preset() -> str:
    """The preset that config.yaml names.

    Raises:
        UsageError: there is no config.yaml here, or it names none.
    """
    import yaml

    try:
        return str(yaml.safe_load(CONFIG.read_text(encoding="utf-8"))["preset"])
    except FileNotFoundError as error:
        told = {"where": CONFIG.resolve(), "found": "no such file", "fix": "give results/<preset>"}
        raise UsageError("which run is not said", **told) from error
    except (yaml.YAMLError, KeyError, TypeError) as error:
        told = {"where": CONFIG.resolve(), "found": error, "fix": "give results/<preset>"}
        raise UsageError("config.yaml names no preset", **told) from error
