"""All scores of a run in one table, and their summary per model and snapshot."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from qkgeom import null, untrained
from qkgeom.errors import QkgeomError
from qkgeom.registry import Model
from qkgeom.runs import Run
from qkgeom.scoring import COLUMNS, SCORES

if TYPE_CHECKING:
    import pandas as pd

logger = logging.getLogger(__name__)
DESCRIPTION = ("label", "group", "role", "n_params", "same_as")  # of models.tsv, so that a figure needs no other file
RUN_COLUMNS = (
    *("model", "run", "seed", "label", "group", "role", "objective", "family"),
    *("corpus", "depth", "init", "steps", "status", "heldout_loss", "metric", "value", "baseline", "gain", "margin"),
)
STATISTICS = {"median": 50, "q1": 25, "q3": 75}  # percentiles, numpy's default interpolation


def read_scores(paths: Sequence[Path]) -> pd.DataFrame:
    """The rows of several models' scores.csv, in the order given; of a series the heads of the last snapshot only.

    A figure shows no others, and a long series has very many.

    Raises:
        QkgeomError: a file is not a scores.csv.
    """
    import pandas as pd

    kinds = {"model": str, "snapshot": str, "head": str, "n_row_outliers": "Int64", "n_col_outliers": "Int64"}
    kinds |= {"top_rows": str, "top_cols": str}  # lists of indices
    tables = []
    for path in paths:
        # pandas would take a model called "NA" for a missing value
        table = pd.read_csv(path, dtype=kinds, keep_default_na=False, na_values=[""])
        if tuple(table.columns[: len(COLUMNS)]) != COLUMNS:
            raise QkgeomError("this is not a table of scores", where=path, found=list(table.columns), expected=list(COLUMNS))
        if len(table):
            tables.append(table[(table["head"] == "all") | (table["snapshot"] == table["snapshot"].iloc[-1])])
    return pd.concat(tables, ignore_index=True) if tables else pd.DataFrame(columns=list(COLUMNS))


def with_sizes(models: Sequence[Model], records: Mapping[str, Mapping[str, object]]) -> list[Model]:
    """Models trained here with their number of parameters, from the record of their run (by URI)."""
    return [
        replace(each, n_params=str(records[each.uri]["n_params"] or "")) if each.uri in records else each for each in models
    ]


def summarise(scores: pd.DataFrame, models: Sequence[Model]) -> pd.DataFrame:
    """One row per model and snapshot: number of layers, median and quartiles over the layers that have a score.

    Args:
        scores: rows of scores.csv, heads included or not.
        models: the run's models, in the order wanted.

    Returns:
        model, snapshot, n_layers, `<score>_median`, `_q1`, `_q3`, n_scored (layers that have a score), untrained_p,
        verdict, `<score>_null_low`, `_null_high` (central 95 % of a random layer), then what models.tsv says of the model.
    """
    import numpy as np
    import pandas as pd

    layers = scores[scores["head"] == "all"]
    names = [f"{score}_{statistic}" for score in SCORES for statistic in STATISTICS]
    bands = [f"{score}_null_{end}" for score in SCORES for end in ("low", "high")]
    rows = []
    for model in models:
        of_model = layers[layers["model"] == model.model]
        for snapshot, table in of_model.groupby("snapshot", sort=False):
            values = {score: table[score].dropna().to_numpy(float) for score in SCORES}
            numbers = {
                f"{score}_{statistic}": np.percentile(values[score], percent) if values[score].size else np.nan
                for score in SCORES
                for statistic, percent in STATISTICS.items()
            }
            described = {key: getattr(model, key) for key in DESCRIPTION}
            counts = {"n_layers": len(table), "n_scored": int(table["symmetry"].notna().sum())}
            p = untrained.p_value(table)
            tested = {"untrained_p": p, "verdict": untrained.verdict(p)} | _null_bands(table)
            rows.append({"model": model.model, "snapshot": snapshot, **counts, **numbers, **tested, **described})
    tested = ["n_scored", "untrained_p", "verdict", *bands]
    return pd.DataFrame(rows, columns=["model", "snapshot", "n_layers", *names, *tested, *DESCRIPTION])


def _null_bands(layers: pd.DataFrame) -> dict[str, float]:
    """The central 95 % of each score of one random layer, in the median over the layers' shapes."""
    import numpy as np

    shapes = null.shapes(layers)
    ends = {score: null.interval(score, *shapes) for score in SCORES}
    return {f"{s}_null_{end}": float(np.median(both[k])) for s, both in ends.items() for k, end in enumerate(("low", "high"))}


def read_losses(folders: Sequence[Path]) -> pd.DataFrame:
    """The loss curves of training runs: model, step, split, loss."""
    import pandas as pd

    columns = {"model": str, "step": "Int64", "split": str, "loss": float}
    tables = [pd.read_csv(folder / "losses.csv", dtype=columns) for folder in folders]
    return pd.concat(tables, ignore_index=True) if tables else pd.DataFrame(columns=list(columns))


def read_record(folder: Path) -> dict[str, object]:
    """How a training run ended, see `qkgeom.training.one_run`."""
    return json.loads((folder / "done.json").read_text(encoding="utf-8"))


def describe_runs(runs: Sequence[tuple[Run, Path]], preset: str) -> pd.DataFrame:
    """One row per trained model (an encoder-decoder is two): what runs.tsv says of its run, and how it ended.

    Args:
        runs: each with its folder.
        preset: whose runs these are.

    Returns:
        `RUN_COLUMNS`: `metric` is `loss` (nats per target) or `accuracy`, held-out; `gain` is by how much `value` beats
        the trivial `baseline`, and `margin` what it has to be; empty if the run diverged.
    """
    import pandas as pd

    rows = []
    for run, folder in runs:
        record = read_record(folder)
        described = {**vars(run), "depth": run.n_layer, **record.get("measured", {})}
        described |= {key: record[key] for key in ("steps", "status", "heldout_loss")}
        for model in run.models(preset):
            each = {**described, "model": model.model, "label": model.label, "role": model.role}
            rows.append({column: each.get(column) for column in RUN_COLUMNS})
    return pd.DataFrame(rows, columns=list(RUN_COLUMNS))
