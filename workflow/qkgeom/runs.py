"""runs.tsv: one row per training run. A run with one seed, in one preset, is one model, or two if it has two towers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from qkgeom.errors import UsageError
from qkgeom.registry import Model
from qkgeom.rows import read_rows
from qkgeom.settings import PRESETS
from qkgeom.training import families

RUNS = Path(__file__).parents[1] / "runs.tsv"
ROLES = {"encoder": ("encoder",), "decoder": ("decoder",), "encoder-decoder": ("encoder", "decoder")}
ROLE_OF = {"masked": "encoder", "autoregressive": "decoder"}  # objective -> the role it makes, where it decides


@dataclass(frozen=True)
class Run:
    """A row of runs.tsv with one of its seeds, in one preset; the columns are described in the schema.

    Attributes:
        name: `<preset>.<run>.s<seed>`, the folder of the run and the start of its models' ids.
    """

    name: str
    run: str
    seed: int
    label: str
    group: str
    family: str
    objective: str
    role: str
    n_layer: int
    init: str
    margin: float | None = None
    corpus: str = ""

    def models(self, preset: str) -> tuple[Model, ...]:
        """The rows that models.tsv would have for it, an encoder before its decoder."""
        roles = ROLES[self.role]
        return tuple(
            Model(
                model=self.name if len(roles) == 1 else f"{self.name}.{role}",
                label=self.label if len(roles) == 1 else f"{self.label}, {role}",
                uri=f"run:{self.name}",
                layout=layout,
                group=self.group,
                role=role,
                objective=self.objective,
                presets=preset,
                verified="trained here",
            )
            for role, layout in zip(roles, families.load(self.family).layouts, strict=True)
        )


def read_runs(preset: str, path: Path = RUNS, presets: Path = PRESETS) -> dict[str, Run]:
    """The preset's runs by name, one per seed.

    Raises:
        UsageError: a row does not fit the schema or its family, or two rows share an id.
    """
    runs: dict[str, Run] = {}
    names: set[str] = set()
    for where, cells in read_rows(path, "runs", presets):
        seeds, its_presets = cells.pop("seeds").split(","), cells.pop("presets").split(",")
        if cells["run"] in names:
            raise UsageError(f"two rows have the id {cells['run']}", where=where, fix="give one of them another id")
        names.add(cells["run"])
        _require_fit(cells, where)
        margin = float(cells["margin"]) if "margin" in cells else None
        values = {**cells, "n_layer": int(cells["n_layer"]), "margin": margin}
        for seed in seeds if preset in its_presets else ():
            name = f"{preset}.{cells['run']}.s{seed}"
            runs[name] = Run(name=name, seed=int(seed), **values)
    return runs


def _require_fit(cells: dict[str, str], where: str) -> None:
    try:
        family = families.load(cells["family"])
    except UsageError as error:
        raise UsageError(f"a row of the table of runs is wrong: {error}", where=where) from error
    if len(ROLES[cells["role"]]) != len(family.layouts):
        expected = "encoder-decoder" if len(family.layouts) == 2 else "encoder or decoder"
        raise UsageError(f"family {family.name} has another role", where=where, found=cells["role"], expected=expected)
    role = ROLE_OF.get(cells["objective"], cells["role"])
    if role != cells["role"]:
        found = f"role {cells['role']}, objective {cells['objective']}"
        raise UsageError("a role contradicts its objective", where=where, found=found, expected=f"role {role}")
    if family.reads_corpus != bool(cells.get("corpus")):
        expected = "a corpus" if family.reads_corpus else "an empty cell"
        found = cells.get("corpus", "none")
        raise UsageError(f"family {family.name} has another `corpus`", where=where, found=found, expected=expected)
