"""Which jobs a run consists of: what shares a job, and what is drawn. Read by the workflow, and by `plan` to count them."""

from __future__ import annotations

import zlib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import cache

from qkgeom.published import EMULATED, WAYS
from qkgeom.published_values import read_published
from qkgeom.registry import Model
from qkgeom.rendering import Spec
from qkgeom.runs import Run
from qkgeom.settings import Settings
from qkgeom.sizing import is_small
from qkgeom.training.plans import updates_of


def training_jobs(runs: Mapping[str, Run], settings: Settings) -> list[list[str]]:
    """The runs in the table's order, so many in a job; whatever `only` says, so that a run's job is always the same."""
    names, size = list(runs), settings.training.get("runs_per_job", 1)
    return [names[first : first + size] for first in range(0, len(names), size)]


def measuring_jobs(runs: Mapping[str, Run], settings: Settings) -> list[list[str]]:
    """The runs whose weight updates are measured, in the table's order, so many in a job; as `training_jobs`."""
    names = [name for name, run in runs.items() if updates_of(run, settings.training)]
    size = settings.training.get("updates", {}).get("runs_per_job", 1)
    return [names[first : first + size] for first in range(0, len(names), size)]


def trained_scoring_jobs(runs: Mapping[str, Run], settings: Settings) -> list[list[str]]:
    """Models trained here, those of one training job together."""
    jobs = training_jobs(runs, settings)
    return [[model.model for name in names for model in runs[name].models(settings.preset)] for names in jobs]


def shared_scoring_jobs(models: Iterable[Model], settings: Settings) -> list[list[str]]:
    """Small published models that are scored together, in as many jobs as the preset says; none where it says nothing.

    A model's job is chosen by its name, so that a new row changes one job only. Where weights are dropped each model has a
    job of its own: then weights go soon, and none are fetched again for another model's sake.
    """
    jobs: dict[int, list[str]] = defaultdict(list)
    if settings.scoring_jobs and settings.keep_weights:
        for model in models:
            if is_small(model):
                jobs[zlib.crc32(model.model.encode()) % settings.scoring_jobs].append(model.model)
    return [jobs[number] for number in sorted(jobs)]


def read_published_way(models: Mapping[str, Model], settings: Settings) -> list[str]:
    """Models that are also read as the published code read them: the paper's that this touches, and those the preset names."""

    def chosen(name: str) -> bool:
        return name in _touched() or any(fnmatchcase(name, each) for each in settings.published_way)

    return [name for name, model in models.items() if model.layout in WAYS and chosen(name)]


@cache  # the workflow asks for each figure and table that needs it, wherever it lists them
def _touched() -> frozenset[str]:
    """The paper's models that were read another way, which can be emulated."""
    return frozenset(name for name, row in read_published().items() if EMULATED & set(row["defect"].split(",")))


def published_way_jobs(models: Mapping[str, Model], settings: Settings) -> list[list[str]]:
    """Models that are also read the published way, small ones of one layout together unless weights are dropped."""
    jobs: dict[str, list[str]] = defaultdict(list)
    for name in read_published_way(models, settings):
        together = settings.keep_weights and is_small(models[name])
        jobs[f"layout {models[name].layout}" if together else name].append(name)
    return list(jobs.values())


def drawn(spec: Spec, settings: Settings, models: Mapping[str, Model], runs: Iterable[Run]) -> bool:
    """Whether a figure or table has something to show of these models."""
    examples = settings.examples and all(example.model in models for example in settings.examples.values())
    if ("examples" in spec.needs and not examples) or (spec.knob and not getattr(settings, spec.knob)):
        return False
    measured = (run for run in runs if updates_of(run, settings.training))
    if "updates" in spec.needs and not any(model.model in models for run in measured for model in run.models(settings.preset)):
        return False
    if "published_way" in spec.needs and not read_published_way(models, settings):
        return False
    return any(model.group in spec.groups for model in models.values())


def count_jobs(
    published: Sequence[Model], runs: Mapping[str, Run], settings: Settings, specs: Mapping[str, Mapping[str, Spec]]
) -> dict[str, int]:
    """How many jobs each rule has when nothing is there yet, `all` among them, as Snakemake counts them.

    Args:
        published: models of the run that are not trained in it.
        runs: of the run's preset.
        settings: of the run.
        specs: figures and tables, by `figure` and `table`.
    """
    trained = [model for run in runs.values() for model in run.models(settings.preset)]
    models = {model.model: model for model in [*published, *trained]}
    shared = shared_scoring_jobs(published, settings)
    n_training, corpora = len(training_jobs(runs, settings)), {run.corpus for run in runs.values()} - {""}
    n_drawn = {
        rule: sum(drawn(spec, settings, models, runs.values()) for spec in each.values()) for rule, each in specs.items()
    }
    return {
        "tokenizer": int(bool(corpora)),
        "corpus": len(corpora),
        "train": n_training,
        "extract": len(models),
        "score": len(published) - sum(map(len, shared)) + len(shared) + n_training,
        "updates": len(measuring_jobs(runs, settings)),
        "published": len(published_way_jobs(models, settings)),
        **n_drawn,
        **dict.fromkeys(("collect", "audit", "report", "check", "all"), 1),
    }
