"""What a whole preset takes that is not there yet, its training runs included: jobs, hours and disk."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from qkgeom import sizing
from qkgeom.jobs import count_jobs
from qkgeom.planning import Plan, disk
from qkgeom.registry import Model
from qkgeom.rendering import specs
from qkgeom.runs import Run
from qkgeom.settings import Settings
from qkgeom.training import corpora
from qkgeom.training import sizing as training_sizing
from qkgeom.training.plans import Plan as Recipe
from qkgeom.training.plans import plan_runs

HERE = Path(__file__).parent
RENDERED = 10.0  # seconds of a figure, a table, `collect` or `check`
HOW = (
    f"hours: {training_sizing.RATES}; {sizing.RATES}; GPU-hours are those of scoring and training with `device: cuda`; disk: "
    "states are what runs hold besides while they train, all at a time; jobs are counted from nothing, hours and disk for what "
    "is not there yet"
)


@dataclass(frozen=True)
class Budget:
    """What a preset takes.

    Attributes:
        jobs: by rule, of a run that starts from nothing.
        node_hours: of all jobs without a GPU, one after another.
        gpu_hours: with `device: cuda`, of the jobs that then have a GPU.
        other_hours: with `device: cuda`, of the others.
        disk: bytes by what they are of: weights, runs, states, corpora.
    """

    jobs: Mapping[str, int]
    node_hours: float
    gpu_hours: float
    other_hours: float
    disk: Mapping[str, float]

    def record(self) -> dict[str, object]:
        """As `plan --json` tells it."""
        with_gpus = {"gpu_hours": self.gpu_hours, "node_hours": self.other_hours}
        totals = {"jobs": sum(self.jobs.values()), "disk": sum(self.disk.values())}
        return {**totals, "node_hours": self.node_hours, "with_gpus": with_gpus, "jobs_of": self.jobs, "disk_of": self.disk}

    def told(self) -> str:
        """As `plan` tells it on a terminal."""
        parts = ", ".join(f"{name} {size / 1e9:,.1f}" for name, size in self.disk.items())
        hours = f"{self.gpu_hours:,.1f} GPU-hours and {self.other_hours:,.1f} node-hours besides"
        return (
            f"{sum(self.jobs.values())} jobs; {self.node_hours:,.1f} node-hours without GPUs, or {hours}; "
            f"{sum(self.disk.values()) / 1e9:,.1f} GB of disk ({parts})"
        )


def budget(rows: Sequence[Model], plans: Sequence[Plan], runs: Mapping[str, Run], settings: Settings, results: Path) -> Budget:
    """What the preset takes.

    Args:
        rows: its published models.
        plans: theirs, see `planning.plan_models`.
        runs: of the preset.
        settings: of the run, whose `only` is left aside.
        results: the results folder.
    """
    shown = {name: specs(HERE / f"{name}s") for name in ("figure", "table")}
    jobs = count_jobs(rows, runs, settings, shown)
    rendered = sum(jobs[rule] for rule in (*shown, "collect", "check")) * RENDERED
    recipes = plan_runs(runs.values(), settings.training, settings.device)
    trained = {name: each for name, each in recipes.items() if not (results / "runs" / name / "done.json").exists()}
    corpora_left = _corpora_left(runs.values(), settings, results)
    everywhere = [sizing.extraction(sizing.published(row)) for row, plan in zip(rows, plans, strict=True) if _moves(plan)]
    everywhere += [sizing.extraction(training_sizing.stack(each)) for each in trained.values() for _ in each.family.layouts]
    everywhere += corpora_left
    cpu, gpu = (_seconds(rows, plans, trained, settings, on_gpu) for on_gpu in (False, True))
    other = sum(need.seconds for need in everywhere) + rendered
    return Budget(
        jobs=jobs,
        node_hours=round((cpu + other) / 3600, 1),
        gpu_hours=round(gpu / 3600, 1),
        other_hours=round(other / 3600, 1),
        disk={
            "weights": _weights_left(plans, settings) + sum(_stored(each) for each in trained.values()),
            "runs": sum(_kept(each, settings) for each in trained.values()),
            "states": sum(training_sizing.state_bytes(each, settings.training["corpora"]) for each in trained.values()),
            "corpora": sum(need.disk for need in corpora_left),
        },
    )


def _seconds(
    rows: Sequence[Model], plans: Sequence[Plan], trained: Mapping[str, Recipe], settings: Settings, gpu: bool
) -> float:
    """Of scoring and training."""
    how = {"heads": settings.heads, "structure": settings.structure, "threads": settings.threads, "gpu": gpu}
    stacks = [sizing.published(row) for row, plan in zip(rows, plans, strict=True) if plan.seconds != 0]
    stacks += [training_sizing.stack(each) for each in trained.values() for _ in each.family.layouts]
    scored = sum(sizing.scoring(stack, **how).seconds for stack in stacks)
    how = {"threads": settings.threads, "gpu": gpu}
    return scored + sum(
        training_sizing.training(each, settings.training["corpora"], **how).seconds for each in trained.values()
    )


def _corpora_left(runs: Sequence[Run], settings: Settings, results: Path) -> list[sizing.Need]:
    folder = results / settings.preset / "corpora"
    names = sorted({run.corpus for run in runs if run.corpus and not (folder / run.corpus / "corpus.json").exists()})
    return [training_sizing.corpus(settings.training["corpora"], corpora.kind_of(name) == "hub") for name in names]


def _moves(plan: Plan) -> bool:
    return plan.state != "extracted"


def _weights_left(plans: Sequence[Plan], settings: Settings) -> float:
    """Bytes of the published models' artifacts beyond those that are here."""
    kept = None if settings.keep_weights else [example.model for example in settings.examples.values()]
    return max(0, disk(plans, kept) - sum(plan.store or 0 for plan in plans if not _moves(plan)))


def _stored(recipe: Recipe) -> float:
    return len(recipe.family.layouts) * sizing.extraction(training_sizing.stack(recipe)).disk


def _kept(recipe: Recipe, settings: Settings) -> float:
    sizes = settings.training["corpora"]
    return training_sizing.kept_bytes(recipe, training_sizing.parameters(recipe, training_sizing.vocabulary(recipe, sizes)))
