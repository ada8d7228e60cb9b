"""What the run would be: its settings, and the published models that it still has to fetch."""

from __future__ import annotations

from qkgeom.doctor.finding import Case
from qkgeom.errors import QkgeomError, UsageError
from qkgeom.registry import Model, read_models, select
from qkgeom.runs import Run, read_runs
from qkgeom.settings import Settings, read_settings


def settings_of(case: Case) -> Settings:
    """config.yaml with the preset of the case.

    Raises:
        UsageError: there is none, or it does not fit its schema.
    """
    import yaml

    path = case.folder / "config.yaml"
    try:
        config = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError("there is no config.yaml here", where=path.resolve(), fix="run in the project's folder") from error
    except (yaml.YAMLError, ValueError) as error:
        raise UsageError("config.yaml is no YAML", where=path, found=" ".join(str(error).split()), fix="mend it") from error
    if not isinstance(config, dict | None):
        raise UsageError(
            "config.yaml holds no knobs", where=path, found=repr(config)[:80], expected="NAME: VALUE", fix="mend it"
        )
    return read_settings({**(config or {}), **({"preset": case.preset} if case.preset else {})})


def models_of(settings: Settings) -> list[Model]:
    """Published models of the run, in the table's order.

    Raises:
        UsageError: a table is wrong, or no model is left.
    """
    return chosen(settings)[0]


def chosen(settings: Settings) -> tuple[list[Model], list[Run]]:
    """Published models of the run, and what it trains.

    Raises:
        UsageError: a table is wrong, or no model is left.
    """
    published, runs = read_models(), read_runs(settings.preset).values()
    trained = {model.model: (model, run) for run in runs for model in run.models(settings.preset)}
    everything = published | {name: model for name, (model, _) in trained.items()}
    models = select(everything, settings.preset, settings.only, settings.package_index)
    training = {trained[model.model][1].name: trained[model.model][1] for model in models if model.model in trained}
    return [model for model in models if model.model not in trained], list(training.values())


def to_fetch(case: Case, models: list[Model]) -> tuple[list[Model], dict[str, QkgeomError]]:
    """Those that results/ does not hold, pinned; and why others cannot be pinned, by id."""
    from qkgeom.lock import pinned, read_lock
    from qkgeom.planning import extracted

    pins, rows, wrong = read_lock(), [], {}
    for model in models:
        try:
            row = pinned(model, pins)
        except QkgeomError as error:
            wrong[model.model] = error
        else:
            rows += [] if extracted(row, case.folder / "results") else [row]
    return rows, wrong
