"""What every figure and table says about itself, and what it is given; `figures` and `tables` render them.

One file of `figures/` or `tables/` is one figure or table; names with a leading underscore are shared helpers. Literals
at the top of a file (PAPER, CAPTION, GROUP, NEEDS, and where wanted USES, KNOB) are read without importing it, so that a
pipeline can plan without matplotlib or pandas.
"""

from __future__ import annotations

import ast
import importlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from qkgeom.digests import code_digest
from qkgeom.errors import QkgeomError, UsageError
from qkgeom.provenance import OF_FOLDER, named_from, write_record
from qkgeom.published_trajectories import require_file
from qkgeom.published_values import PUBLISHED

if TYPE_CHECKING:
    import pandas as pd

ROLES = ("encoder", "decoder")  # trained bidirectionally, trained autoregressively
TABLES = {"summary": "summary of scores", "scores": "table of scores", "losses": "table of losses", "runs": "table of runs"}
FILES = ("published", "published_way", "published_trajectories", "updates")  # what it may be made from besides; see `Inputs`
SOURCES = (*TABLES, "examples", *FILES)  # what a figure or table may need
TEXT = (
    "model",
    "label",
    "role",
    "group",
    "same_as",
    "snapshot",
    "head",
    "split",
    "family",
    "corpus",
    "init",
    "status",
    "verdict",
    "run",
    "objective",
    "metric",
    "top_rows",
    "top_cols",
    "quantity",
    "basis",
    "side",
    "panel",
    "text",
)
INTEGERS = ("layer", "token", "step", "until", "resample", "steps", "seed", "depth")  # and all that start with n_
MANIFEST = "manifest.json"  # of an artifact; artifacts.py is not imported, since few figures depend on it
HERE = Path(__file__).parent


@dataclass(frozen=True)
class Spec:
    """What a figure or table says about itself.

    Attributes:
        name: the file's name without `.py`.
        file: the file.
        paper: its number in the paper, e.g. `Fig. 2b, c`.
        caption: one or two sentences for a reader.
        groups: models of these groups are shown; GROUP separates them by commas.
        needs: what it is made from, out of `SOURCES`.
        uses: what it can do without, likewise.
        knob: it is only made where this knob of config.yaml is on; empty for always.
    """

    name: str
    file: Path
    paper: str
    caption: str
    groups: tuple[str, ...]
    needs: tuple[str, ...]
    uses: tuple[str, ...] = ()
    knob: str = ""


@dataclass(frozen=True)
class Inputs:
    """What a figure or table is made from.

    Attributes:
        summary: summary.csv, one row per model and snapshot.
        scores: scores.csv, one row per snapshot and layer.
        examples: role -> an artifact's folder and one of its layers.
        losses: losses.csv, one row per training run, step and split.
        runs: runs.csv, one row per training run.
        published: published.tsv, what the paper gives.
        published_way: scores of models read as the paper's released code read them, one file per model.
        published_trajectories: the user's copy of the authors' training trajectories, see `qkgeom.published_trajectories`.
        updates: folders of the runs whose weight updates were measured.
    """

    summary: Path | None = None
    scores: Path | None = None
    examples: Mapping[str, tuple[Path, int]] = field(default_factory=dict)
    losses: Path | None = None
    runs: Path | None = None
    published: Path = PUBLISHED
    published_way: Sequence[Path] = ()
    published_trajectories: Path | None = None
    updates: Sequence[Path] = ()

    def read(self, need: str, columns: Sequence[str]) -> pd.DataFrame:
        """Columns of one of the tables; an empty cell is a missing value.

        Args:
            need: one of `TABLES`.
            columns: those wanted.

        Raises:
            QkgeomError: the table cannot be read or lacks a column.
        """
        import pandas as pd

        path, what = getattr(self, need), TABLES[need]
        kinds = {name: _kind(name) for name in columns}
        try:
            # pandas would take a model called "NA" for a missing value
            table = pd.read_csv(path, dtype=kinds, keep_default_na=False, na_values=[""])
        except (OSError, ValueError, TypeError) as error:
            raise QkgeomError(f"a {what} cannot be read", where=path, found=error, fix="collect it again") from error
        if missing := [name for name in columns if name not in table]:
            raise QkgeomError(f"a {what} lacks columns", where=path, expected=", ".join(missing))
        return table[list(columns)]

    def files(self, spec: Spec) -> dict[str, list[Path]]:
        """The files that a figure or table is made from, by what `spec` calls them; `from_files` is the way back."""
        given = {
            **{name: [path] for name in (*TABLES, "published") if (path := getattr(self, name))},
            "examples": [folder / MANIFEST for folder, _ in self.examples.values()],
            "published_way": list(self.published_way),
            "published_trajectories": [require_file(self.published_trajectories)] if self.published_trajectories else [],
            "updates": [path for folder in self.updates for path in sorted((folder / "updates").glob("*.csv"))],
        }
        return {need: given[need] for need in (*spec.needs, *spec.uses) if given.get(need)}

    @classmethod
    def from_files(cls, files: Mapping[str, Sequence[Path]], layers: Mapping[str, int]) -> Inputs:
        """What `files` was given.

        Args:
            files: its answer.
            layers: role -> layer of the examples, in their order.
        """
        folders = [path.parent for path in files.get("examples", ())]
        return cls(
            **{name: files[name][0] for name in (*TABLES, "published") if name in files},
            examples={role: (folder, layer) for folder, (role, layer) in zip(folders, layers.items(), strict=True)},
            published_way=files.get("published_way", ()),
            published_trajectories=next((path.parent for path in files.get("published_trajectories", ())), None),
            updates=list(dict.fromkeys(path.parents[1] for path in files.get("updates", ()))),
        )

    def measured(self, table: str, columns: Sequence[str]) -> pd.DataFrame:
        """Columns of one of the tables of measured updates, those of all runs that have it, in the order given.

        Args:
            table: `updates`, `resamples`, `growth`, `tokens` or `terms` (`qkgeom.theory.one_run`).
            columns: those wanted.

        Raises:
            QkgeomError: a table cannot be read or lacks a column.
        """
        import pandas as pd

        kinds = {name: _kind(name) for name in columns}
        parts = [pd.DataFrame(columns=list(columns)).astype(kinds)]
        for path in (folder / "updates" / f"{table}.csv" for folder in self.updates):
            if not path.exists():  # of a run that did not end well
                continue
            try:
                part = pd.read_csv(path, dtype=kinds, keep_default_na=False, na_values=[""], usecols=list(columns))
            except (OSError, ValueError, TypeError) as error:
                expected = ", ".join(columns)
                fix = "measure it again with `updates`"
                told = "a table of measured updates cannot be read"
                raise QkgeomError(told, where=path, found=error, expected=expected, fix=fix) from error
            parts.append(part[list(columns)])
        return pd.concat([part for part in parts if len(part)] or parts, ignore_index=True)

    def models(self, group: str, columns: Sequence[str]) -> pd.DataFrame:
        """The scored models of a group, each by its last snapshot; see `snapshots`."""
        table = self.snapshots(group, list(dict.fromkeys([*columns, "model"])))
        return table.drop_duplicates("model", keep="last", ignore_index=True)[list(columns)]

    def verdicts(self) -> pd.Series:
        """The verdict on the last snapshot of each model (`untrained.verdict`), by model.

        Raises:
            QkgeomError: the summary cannot be read or lacks a column.
        """
        table = self.read("summary", ["model", "verdict"])
        return table.drop_duplicates("model", keep="last").set_index("model")["verdict"]

    def snapshots(self, group: str, columns: Sequence[str]) -> pd.DataFrame:
        """The scored snapshots of a group's models, a model's in their order: encoders, then decoders, by size and name.

        Of models with the same weights, the first of models.tsv.

        Args:
            group: value of the summary's column of this name.
            columns: those wanted.

        Raises:
            QkgeomError: the summary cannot be read, lacks a column, or has a role that is none.
        """
        needed = dict.fromkeys([*columns, "model", "label", "role", "group", "n_params", "symmetry_median", "same_as"])
        table = self.read("summary", list(needed))
        table = table[(table["group"] == group) & table["symmetry_median"].notna()]
        if strange := set(table["role"]) - set(ROLES):
            raise QkgeomError("a summary of scores has an unknown role", where=self.summary, found=strange, expected=ROLES)
        each = table.drop_duplicates("model")
        firsts = each.loc[~each["same_as"].fillna(each["model"]).duplicated(), "model"]
        table = table[table["model"].isin(firsts)]
        table = table.assign(label=table["label"].fillna(table["model"]), rank=table["role"].map(ROLES.index))
        return table.sort_values(["rank", "n_params", "label"], kind="stable", ignore_index=True)[list(columns)]


def specs(folder: Path) -> dict[str, Spec]:
    """The figures or tables of a folder by name, read without importing them.

    Raises:
        QkgeomError: a file lacks one of the four literals, or one is not a literal of its kind.
    """
    return {file.stem: _spec(file) for file in sorted(folder.glob("*.py")) if not file.name.startswith("_")}


def load(package: str, name: str, inputs: Inputs) -> ModuleType:
    """The module of a figure or table that can be made from `inputs`.

    Args:
        package: `qkgeom.figures` or `qkgeom.tables`.
        name: of the figure or table.
        inputs: what is given.

    Raises:
        UsageError: there is none of this name, or an input that it needs is not given.
    """
    known = specs(HERE / package.rpartition(".")[2])
    if name not in known:
        raise UsageError(f"no {package.rpartition('.')[2][:-1]} is called {name!r}", expected="one of " + ", ".join(known))
    for need in known[name].needs:
        if not getattr(inputs, need):
            option = "--example" if need == "examples" else f"--{need.replace('_', '-')}"
            raise UsageError(f"{name} is made from {need}, and none is given", fix=f"give {option}")
    return importlib.import_module(f"{package}.{name}")


def code_of(kind: str, name: str, spec: Spec) -> str:
    """Digest of the code that makes one figure or table, not the others'.

    Args:
        kind: `figure` or `table`.
        name: of the figure or table.
        spec: what it says of itself.
    """
    reads_weights = ["containers.safetensors"] if "examples" in spec.needs else []
    return code_digest(f"verbs.{kind}", f"{kind}s.{name}", *reads_weights)


def write_provenance(kind: str, name: str, inputs: Inputs, stem: Path, endings: Sequence[str], packages: Sequence[str]) -> None:
    """Writes the record of a figure or table, its last file; for the first arguments see `code_of`.

    Args:
        kind: see there.
        name: see there.
        inputs: what it was made from.
        stem: path of its files without ending.
        endings: of its files.
        packages: those that made it.
    """
    spec = specs(HERE / f"{kind}s")[name]
    files = inputs.files(spec)
    layers = {role: layer for role, (_, layer) in inputs.examples.items()} if "examples" in files else {}
    roles = {need: [named_from(stem.parent, file) for file in given] for need, given in files.items()}
    write_record(
        beside(stem, OF_FOLDER),
        kind,
        [file for given in files.values() for file in given],
        [beside(stem, ending) for ending in endings],
        code_of(kind, name, spec),
        packages,
        parameters={kind: name, "inputs": roles, "layers": layers},
    )


def beside(stem: Path, ending: str) -> Path:
    """`stem`.`ending`, also where the stem's name holds dots."""
    return stem.with_name(f"{stem.name}.{ending}")


def parse_examples(texts: Sequence[str]) -> dict[str, tuple[Path, int]]:
    """`ROLE=FOLDER:LAYER`, one per role, as the command line gives them.

    Raises:
        UsageError: a text is not of this form, a role comes twice, or the folder holds no artifact.
    """
    examples: dict[str, tuple[Path, int]] = {}
    for text in texts:
        role, _, place = text.partition("=")
        folder, _, layer = place.rpartition(":")
        if role not in ROLES or role in examples or not folder or not layer.isdecimal():
            raise UsageError(
                "an example of a layer is not understood",
                found=text,
                expected=f"ROLE=FOLDER:LAYER, the role once each of {', '.join(ROLES)}, the layer counted from 0",
            )
        examples[role] = Path(folder), int(layer)
    for place, _ in examples.values():
        if not (place / MANIFEST).is_file():
            fix = "extract the model first, or correct the folder"
            raise UsageError("an example's folder holds no artifact", where=place, expected=f"{MANIFEST} in it", fix=fix)
    return examples


def short_number(number: float) -> str:
    """A count in three digits: 22.7M, 1.24B."""
    rounded = float(f"{number:.3g}")
    for factor, unit in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "K")):
        if rounded >= factor:
            return f"{rounded / factor:g}{unit}"
    return f"{rounded:g}"


def _kind(column: str) -> str:
    if column in TEXT:
        return "str"
    return "Int64" if column in INTEGERS or column.startswith("n_") else "float64"


def _spec(file: Path) -> Spec:
    try:
        tree = ast.parse(file.read_text(encoding="utf-8"))
    except (SyntaxError, ValueError) as error:
        raise QkgeomError("a figure or table file is not Python", where=file, found=error) from error
    found: dict[str, object] = {}
    for statement in tree.body:
        if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
            with suppress(ValueError, TypeError):  # not a literal
                found[statement.targets[0].id] = ast.literal_eval(statement.value)
    found = {"USES": (), "KNOB": "", **found}
    wrong = [name for name in ("PAPER", "CAPTION", "GROUP", "KNOB") if not isinstance(found.get(name), str)]
    for name in ("NEEDS", "USES"):
        needs = found.get(name)
        if not isinstance(needs, tuple) or any(need not in SOURCES for need in needs) or (name == "NEEDS" and not needs):
            wrong.append(name)
    if wrong:
        raise QkgeomError(
            f"a figure or table file does not say its {', '.join(wrong)}",
            where=file,
            expected=f"PAPER, CAPTION, GROUP, KNOB: literal strings; NEEDS, USES: literal tuples out of {', '.join(SOURCES)}",
        )
    groups = tuple(group.strip() for group in found["GROUP"].split(","))
    return Spec(file.stem, file, found["PAPER"], found["CAPTION"], groups, found["NEEDS"], found["USES"], found["KNOB"])
