"""What a row of runs.tsv and a preset say together: how one model is made and trained."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from fnmatch import fnmatch
from pathlib import Path

from qkgeom.errors import UsageError
from qkgeom.runs import Run, read_runs
from qkgeom.schemas import require_valid
from qkgeom.settings import read_preset
from qkgeom.training import families
from qkgeom.training.families.base import Family, Recipe
from qkgeom.training.schedule import Schedule, listed_steps

SUGGESTED = 3  # names that are told for one that there is not
SIZES = ("d_model", "n_head", "length", "dropout", "init_std")


@dataclass(frozen=True)
class Plan:
    """How one model is made and trained.

    Attributes:
        family: of the model.
        recipe: of the model before it is trained.
        schedule: of the training.
        corpus: name of the corpus, empty for a family that reads none.
        margin: by how much it has to beat the trivial baseline, in its metric's unit; None if it does not matter.
    """

    family: Family
    recipe: Recipe
    schedule: Schedule
    corpus: str
    margin: float | None


def plan_runs(runs: Iterable[Run], training: Mapping[str, object], device: str) -> dict[str, Plan]:
    """The plans by name of the run; see `plan_run`.

    Raises:
        UsageError: the preset trains an unknown family, or a run has no plan.
    """
    if unknown := set(training.get("families", {})) - set(families.names()):
        found, expected = ", ".join(sorted(unknown)), ", ".join(families.names())
        raise UsageError("a preset trains an unknown family", where="its `families`", found=found, expected=expected)
    return {run.name: plan_run(run, training, device) for run in runs}


def updates_of(run: Run, training: Mapping[str, object]) -> Mapping[str, object] | None:
    """What the preset says of the measurement of updates (`training: updates`), if it names this run."""
    updates = training.get("updates")
    named = updates and any(fnmatch(f"{run.run}.s{run.seed}", pattern) for pattern in updates["runs"])
    return updates if named else None


def plan_run(run: Run, training: Mapping[str, object], device: str) -> Plan:
    """The plan of one run.

    Args:
        run: row and seed.
        training: the part `training` of the preset.
        device: `cpu`, or `cuda`.

    Raises:
        UsageError: the preset has no sizes for this family, they do not fit the schema, or there is no such model.
    """
    family, where = families.load(run.family), f"the preset's training of {run.name}"
    own = training.get("families", {}).get(family.name)
    if own is None:
        expected = f"an entry {family.name} in `families`"
        raise UsageError("a preset does not say how a family is trained", where=where, expected=expected, fix="add it")
    settings = {**training["defaults"], **own}
    require_valid(settings, "training", where)
    recipe = Recipe(run.objective, run.init, run.n_layer, *(settings.pop(size) for size in SIZES), run.seed)
    try:
        family.require_buildable(recipe)
    except UsageError as error:
        raise UsageError(f"a run cannot be made: {error}", where=f"runs.tsv ({run.run}) and the preset's training") from error
    snapshots = listed_steps(settings.pop("snapshots", [0, settings["steps"]]))
    updates = updates_of(run, training)
    whole = listed_steps(updates["steps"]) if updates else ()
    schedule = Schedule(**settings, snapshots=snapshots, device=device, whole=whole)
    return Plan(family, recipe, schedule, run.corpus, run.margin if training["require_margins"] else None)


def plans_of(names: list[str], table: Path, presets: Path, device: str) -> dict[str, Plan]:
    """The plans of some runs of one preset by name, all made before the first is used.

    Args:
        names: of runs, `<preset>.<run>.s<seed>`.
        table: of training runs.
        presets: folder of the presets.
        device: `cpu`, or `cuda`.

    Raises:
        UsageError: there is no such run or preset, the runs are of several presets, or a run has no plan.
    """
    preset = names[0].partition(".")[0]
    if others := [name for name in names if name.partition(".")[0] != preset]:
        raise UsageError(
            "runs of one preset are planned at a time",
            where=", ".join(others),
            found=f"another preset than that of {names[0]}",
            expected=f"{preset}.<run>.s<seed>",
            fix="give the runs of each preset to a command of their own",
        )
    rows = read_runs(preset, table, presets)
    if unknown := [name for name in names if name not in rows]:
        close = [each for name in unknown for each in get_close_matches(name, rows, SUGGESTED)]
        raise UsageError(
            f"there is no such run: {', '.join(unknown)}",
            where=table,
            expected=f"one of the {len(rows)} runs of preset {preset}"
            + (f", such as {', '.join(dict.fromkeys(close))}" if close else ""),
            fix="name runs as <preset>.<run>.s<seed>",
        )
    training = read_preset(preset, presets).get("training")
    if training is None:
        raise UsageError("a preset says nothing of training", where=presets / f"{preset}.yaml", expected="a key `training`")
    return plan_runs([rows[name] for name in names], training, device)
