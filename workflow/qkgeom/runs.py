"""runs.tsv: one row per training run. A run with one seed, in one preset, is one model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from qkgeom.errors import UsageError
from qkgeom.registry import Model
from qkgeom.rows import read_rows

RUNS = Path(__file__).parents[1] / "runs.tsv"
LAYOUTS = {"custom": "bert"}  # family -> the layout of its native checkpoints


@dataclass(frozen=True)
class Run:
    """A row of runs.tsv with one of its seeds, in one preset; the columns are described in the schema.

    Attributes:
        model: id of the trained model, and the folder of the run.
    """

    model: str
    run: str
    seed: int
    label: str
    family: str
    objective: str
    role: str
    corpus: str
    n_layer: int
    init: str

    def as_model(self, preset: str) -> Model:
        """The row that models.tsv would have for it."""
        return Model(
            model=self.model,
            label=self.label,
            uri=f"run:{self.model}",
            layout=LAYOUTS[self.family],
            group="training",
            role=self.role,
            objective=self.objective,
            presets=preset,
            verified="trained here",
        )


def read_runs(preset: str, path: Path = RUNS) -> dict[str, Run]:
    """The preset's runs, one per seed, by the id of the trained model.

    Raises:
        UsageError: a row does not fit the schema, or two rows share an id.
    """
    runs: dict[str, Run] = {}
    names: set[str] = set()
    for where, cells in read_rows(path, "runs"):
        seeds, presets = cells.pop("seeds").split(","), cells.pop("presets").split(",")
        if cells["run"] in names:
            raise UsageError(f"two rows have the id {cells['run']}", where=where, fix="give one of them another id")
        names.add(cells["run"])
        for seed in seeds if preset in presets else ():
            model = f"{preset}.{cells['run']}.s{seed}"
            runs[model] = Run(model=model, seed=int(seed), **{**cells, "n_layer": int(cells["n_layer"])})
    return runs
