"""Figures and tables by name: what each file says about itself, what it is given, and how it is written.

One file of `figures/` or `tables/` is one figure or table; names with a leading underscore are shared helpers. Four
literals at the top of a file (PAPER, CAPTION, GROUP, NEEDS) are read without importing it, so that a pipeline can plan
without matplotlib or pandas.
"""

from __future__ import annotations

import ast
import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from qkgeom.errors import QkgeomError, UsageError
from qkgeom.files import whole_file, write_text

if TYPE_CHECKING:
    import pandas as pd

ROLES = ("encoder", "decoder")  # trained bidirectionally, trained autoregressively
SOURCES = ("summary", "scores", "examples")  # what a figure or table may need
HERE = Path(__file__).parent


@dataclass(frozen=True)
class Spec:
    """What a figure or table says about itself.

    Attributes:
        name: the file's name without `.py`.
        file: the file.
        paper: its number in the paper, e.g. `Fig. 2b, c`.
        caption: one or two sentences for a reader.
        group: models of this `group` are shown.
        needs: what it is made from, out of `SOURCES`.
    """

    name: str
    file: Path
    paper: str
    caption: str
    group: str
    needs: tuple[str, ...]


@dataclass(frozen=True)
class Inputs:
    """What a figure or table is made from.

    Attributes:
        summary: summary.csv, one row per model.
        scores: scores.csv, one row per layer.
        examples: role -> an artifact's folder and one of its layers.
    """

    summary: Path | None = None
    scores: Path | None = None
    examples: Mapping[str, tuple[Path, int]] = field(default_factory=dict)

    def models(self, group: str) -> pd.DataFrame:
        """The scored models of a group: encoders, then decoders, each by size and name.

        Raises:
            QkgeomError: the summary cannot be read or lacks a column.
        """
        import pandas as pd

        text = ("model", "label", "role", "group")
        try:
            # pandas would take a model called "NA" for a missing value
            table = pd.read_csv(self.summary, dtype=dict.fromkeys(text, str), keep_default_na=False, na_values=[""])
            table = table.astype({"n_params": "Int64", "n_layers": "Int64"})
            table = table[(table["group"] == group) & table["symmetry_median"].notna()]
            table["label"] = table["label"].fillna(table["model"])
            ranks = table["role"].map(ROLES.index)
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise QkgeomError("a summary of scores cannot be read", where=self.summary, found=error) from error
        return table.assign(_rank=ranks).sort_values(["_rank", "n_params", "label"], ignore_index=True).drop(columns="_rank")


def specs(folder: Path) -> dict[str, Spec]:
    """The figures or tables of a folder by name, read without importing them.

    Raises:
        QkgeomError: a file lacks one of the four literals, or one is not a literal of its kind.
    """
    return {file.stem: _spec(file) for file in sorted(folder.glob("*.py")) if not file.name.startswith("_")}


def render_figure(name: str, inputs: Inputs, stem: Path) -> None:
    """Draws a figure as `stem`.pdf and .png, with the numbers it draws as .csv.

    The same inputs give the same bytes.

    Raises:
        UsageError: there is no such figure, or an input that it needs is not given.
        QkgeomError: an input is missing or unreadable.
    """
    import matplotlib

    from qkgeom.figures._style import RC

    module = _load("figures", name, inputs)
    numbers = module.numbers(inputs)
    _write_csv(numbers, stem)
    with matplotlib.rc_context():
        matplotlib.rcdefaults()  # a user's matplotlibrc must not change a published figure
        matplotlib.rcParams.update(RC)
        figure = module.draw(numbers)
        for ending, metadata in (("pdf", {"CreationDate": None}), ("png", {"Software": None})):
            with whole_file(_beside(stem, ending)) as temporary:
                figure.savefig(temporary, format=ending, metadata=metadata)


def render_table(name: str, inputs: Inputs, stem: Path) -> None:
    """Writes a table as `stem`.csv in full precision, and as printed in .tex and .md.

    Raises:
        UsageError: there is no such table, or an input that it needs is not given.
        QkgeomError: an input is missing or unreadable.
    """
    from qkgeom.tables._printing import latex, markdown

    module = _load("tables", name, inputs)
    table = module.table(inputs)
    _write_csv(table, stem)
    printed = module.printed(table)
    write_text(_beside(stem, "tex"), latex(printed, module.CAPTION, label=f"tab:{name}"))
    write_text(_beside(stem, "md"), markdown(printed, module.CAPTION))


def parse_examples(texts: Sequence[str]) -> dict[str, tuple[Path, int]]:
    """`ROLE=FOLDER:LAYER`, one per role, as the command line gives them.

    Raises:
        UsageError: a text is not of this form, or a role comes twice.
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
    return examples


def short_number(number: float) -> str:
    """A count in three digits: 22.7M, 1.24B."""
    rounded = float(f"{number:.3g}")
    for factor, unit in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "K")):
        if rounded >= factor:
            return f"{rounded / factor:g}{unit}"
    return f"{rounded:g}"


def _spec(file: Path) -> Spec:
    kinds: dict[str, Callable[[object], bool]] = {
        "PAPER": lambda value: isinstance(value, str),
        "CAPTION": lambda value: isinstance(value, str),
        "GROUP": lambda value: isinstance(value, str),
        "NEEDS": lambda value: isinstance(value, tuple) and set(value) <= set(SOURCES),
    }
    try:
        tree = ast.parse(file.read_text(encoding="utf-8"))
    except (SyntaxError, UnicodeDecodeError) as error:
        raise QkgeomError("a figure or table file is not Python", where=file, found=error) from error
    found: dict[str, object] = {}
    for statement in tree.body:
        if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
            try:
                found[statement.targets[0].id] = ast.literal_eval(statement.value)
            except (ValueError, TypeError):
                continue
    if wrong := [name for name, right in kinds.items() if name not in found or not right(found[name])]:
        raise QkgeomError(
            f"a figure or table file does not say its {', '.join(wrong)}",
            where=file,
            expected=f"PAPER, CAPTION, GROUP: literal strings; NEEDS: a literal tuple out of {', '.join(SOURCES)}",
        )
    return Spec(file.stem, file, *(found[name] for name in kinds))


def _load(kind: str, name: str, inputs: Inputs) -> ModuleType:
    known = specs(HERE / kind)
    if name not in known:
        raise UsageError(f"there is no such {kind[:-1]}", found=name, expected="one of " + ", ".join(known))
    for need in known[name].needs:
        if not getattr(inputs, need):
            option = "--example" if need == "examples" else f"--{need}"
            raise UsageError(f"{name} is made from {need}, and none is given", fix=f"give {option}")
    return importlib.import_module(f"qkgeom.{kind}.{name}")


def _write_csv(table: pd.DataFrame, stem: Path) -> None:
    write_text(_beside(stem, "csv"), table.to_csv(index=False, float_format="%.9g", lineterminator="\n"))


def _beside(stem: Path, ending: str) -> Path:
    return stem.with_name(f"{stem.name}.{ending}")  # a name may hold dots
