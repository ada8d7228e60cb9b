"""How well jobs are sized: estimates of `qkgeom.sizing` against what Snakemake measured of a finished run.

    python bench/job_sizes.py results/mini

Snakemake looks at a job's memory at its start and then now and then, so that it misses the peak of jobs of a second or two
(they show less than Python alone takes); such are told and not compared.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import yaml

from qkgeom import sizing
from qkgeom.jobs import shared_scoring_jobs, trained_scoring_jobs, training_jobs
from qkgeom.registry import read_models
from qkgeom.runs import read_runs
from qkgeom.settings import read_settings
from qkgeom.training import sizing as training_sizing
from qkgeom.training.plans import plan_runs

PROJECT = Path(__file__).parents[1]
SEEN = 30  # MiB, less than Python with numpy takes: the job had just started when it was looked at


@dataclass(frozen=True)
class Sized:
    """A job: MiB and seconds, as estimated and as measured."""

    rule: str
    job: str
    memory: float
    max_rss: float
    estimated_seconds: float
    seconds: float

    @property
    def ratio(self) -> float:
        """Estimated over measured memory."""
        return self.memory / self.max_rss


def sized(results: Path, project: Path = PROJECT) -> list[Sized]:
    """The jobs of a finished run whose memory was seen.

    Args:
        results: the folder of its preset, with `benchmarks/`.
        project: where its config.yaml lies; the run had these knobs, and no GPU.
    """
    needs = dict(_needs(results.name, project))
    jobs = []
    for (rule, job), need in needs.items():
        path = results / "benchmarks" / rule / f"{job}.tsv"
        if path.exists():
            with path.open(newline="") as file:
                row = list(csv.DictReader(file, delimiter="\t"))[-1]
            measured = 0.0 if row["max_rss"] in ("-", "NA") else float(row["max_rss"])
            if measured > SEEN:
                jobs.append(Sized(rule, job, need.memory, measured, need.seconds, float(row["s"])))
    return jobs


def _needs(preset: str, project: Path) -> Iterator[tuple[tuple[str, str], sizing.Need]]:
    """Rule and first model of each job of a preset, as its benchmark is called, with what it was estimated to take."""
    settings = read_settings({**yaml.safe_load((project / "config.yaml").read_text()), "preset": preset})
    rows = {name: row for name, row in read_models().items() if preset in row.presets.split(",")}
    runs = read_runs(preset)
    plans = plan_runs(runs.values(), settings.training, "cpu")
    stacks = {name: sizing.published(row) for name, row in rows.items()}
    stacks |= {model.model: training_sizing.stack(plans[name]) for name, run in runs.items() for model in run.models(preset)}
    for name, stack in stacks.items():
        yield ("extract", name), sizing.extraction(stack)
    how = {"heads": settings.heads, "structure": settings.structure, "threads": settings.threads, "gpu": False}
    shared = [*trained_scoring_jobs(runs, settings), *shared_scoring_jobs(rows.values(), settings)]
    for models in [*shared, *([name] for name in rows if not any(name in each for each in shared))]:
        yield ("score", models[0]), sizing.together([sizing.scoring(stacks[name], **how) for name in models])
    for names in training_jobs(runs, settings):
        how = {"corpora": settings.training["corpora"], "threads": settings.threads, "gpu": False}
        yield ("train", names[0]), sizing.together([training_sizing.training(plans[name], **how) for name in names])


def main(folder: str) -> None:
    """Prints each job, and each rule's smallest and largest ratio."""
    jobs = sized(Path(folder))
    lines = [f"{'':46}{'MiB':>8}{'max_rss':>9}{'ratio':>7}{'seconds':>9}{'taken':>8}"]
    for each in jobs:
        name = f"{each.rule} {each.job}"
        lines.append(
            f"{name:46}{each.memory:8.0f}{each.max_rss:9.0f}{each.ratio:7.2f}{each.estimated_seconds:9.1f}{each.seconds:8.1f}"
        )
    for rule in dict.fromkeys(each.rule for each in jobs):
        ratios = [each.ratio for each in jobs if each.rule == rule]
        lines.append(f"{rule}: {len(ratios)} jobs seen, estimated / measured memory {min(ratios):.2f} to {max(ratios):.2f}")
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
