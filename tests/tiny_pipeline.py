"""A project whose pipeline has every stage and takes half a minute: two published models and one that is trained."""

from pathlib import Path

from project import Project

RUN = "mini.vit.s0"
TRAINING = """
training:
  runs_per_job: 1
  require_margins: false
  corpora: {{vocab_size: 400, longest: 20000}}
  defaults:
    {{dropout: 0.0, init_std: 0.07, batch: 4, accumulation: 1, steps: {steps}, learning_rate: 0.003, warmup: 2,
     weight_decay: 0.01, log_every: 2, save_every: {save_every}}}
  families:
    vit: {{d_model: 16, n_head: 2, length: 4, heldout_batches: 2}}
"""
TARGETS = [f"results/mini/{name}" for name in ("tables/symmetry_scores.csv", "figures/scores_language.pdf")]


def contents(folder: Path) -> dict[str, bytes]:
    """The bytes of all results: not of logs, benchmarks, lock files, states of training, and what a killed writer left."""
    files = [path.relative_to(folder) for path in sorted((folder / "results").rglob("*")) if path.is_file()]
    hidden = {path for path in files if any(part.startswith(".") for part in path.parts)}
    told = {path for path in files if {"logs", "benchmarks", "state"} & set(path.parts)}
    return {str(path): (folder / path).read_bytes() for path in files if path not in hidden | told}


def create(folder: Path, steps: int = 12, save_every: int = 6) -> Project:
    """The project, whose models are `tiny-enc`, `tiny-dec` and `RUN`."""
    project = Project.create(folder)
    project.write_runs("vit")
    project.append("workflow/presets/mini.yaml", TRAINING.format(steps=steps, save_every=save_every))
    return project
