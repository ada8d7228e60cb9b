"""The paper's custom models as trained: their runs, scores and losses over steps, chosen and paired for figures and tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from qkgeom.errors import QkgeomError
from qkgeom.rendering import ROLES, Inputs

if TYPE_CHECKING:
    import pandas as pd

FAMILY = "custom"
# an embedded corpus and the one of the paper that it stands for; likewise the depths, in layers
CORPORA = {"reference": "wikipedia", "docstrings": "red_pajama", "descriptions": "jigsaw"}
DEPTHS = {"small": (2, 4), "middle": (4, 12), "large": (6, 24)}
RUN = ("model", "seed", "role", "corpus", "depth", "init", "steps", "status")
UNIT = ("corpus", "depth", "seed")  # what the two runs of a pair have in common
SCORES = ("symmetry", "directionality_excess")


def custom_runs(inputs: Inputs) -> pd.DataFrame:
    """One row per run of the custom models, columns `RUN`: by corpus, depth, role, initialisation and seed.

    Raises:
        QkgeomError: runs.csv cannot be read, has an unknown role, or has two runs that cannot be told apart.
    """
    runs = inputs.read("runs", [*RUN, "family"])
    runs = runs[runs["family"] == FAMILY]
    if strange := set(runs["role"]) - set(ROLES):
        raise QkgeomError("a training run has an unknown role", where=inputs.runs, found=strange, expected=ROLES)
    key = [*UNIT, "role", "init"]
    if len(same := runs[runs.duplicated(key, keep=False)]):
        raise QkgeomError(
            f"two training runs of family {FAMILY} cannot be told apart",
            where=inputs.runs,
            found=", ".join(same["model"]),
            expected=f"one per {', '.join(key)}",
            fix="give one of them another family in runs.tsv",
        )
    return in_order(runs, ["corpus", "depth", "role", "init", "seed"])[list(RUN)]


def in_order(table: pd.DataFrame, by: Sequence[str]) -> pd.DataFrame:
    """The rows sorted by some columns, corpora and roles in the paper's order."""
    ranks = {name: rank for rank, stood_for in enumerate(CORPORA.items()) for name in stood_for}
    keys = {"corpus": lambda names: names.map(ranks).fillna(len(ranks)), "role": lambda names: names.map(ROLES.index)}
    return table.sort_values(list(by), key=lambda column: keys.get(column.name, lambda same: same)(column), ignore_index=True)


def of_size(runs: pd.DataFrame, corpus: str, size: str) -> pd.DataFrame:
    """The runs on one corpus at one depth: of the embedded corpus or, without any, of the paper's.

    Args:
        runs: of `custom_runs`.
        corpus: key of `CORPORA`.
        size: key of `DEPTHS`.
    """
    embedded, published = (
        runs[(runs["corpus"] == name) & (runs["depth"] == depth)]
        for name, depth in zip((corpus, CORPORA[corpus]), DEPTHS[size], strict=True)
    )
    return published if embedded.empty else embedded


def layer_scores(inputs: Inputs, runs: pd.DataFrame) -> pd.DataFrame:
    """The scores of whole layers at every step of some runs: model, step, layer, then `SCORES`.

    Raises:
        QkgeomError: scores.csv cannot be read, or a snapshot of a run is not a step.
    """
    scores = inputs.read("scores", ["model", "snapshot", "layer", "head", *SCORES])
    scores = with_steps(scores[scores["model"].isin(runs["model"]) & (scores["head"] == "all")], inputs.scores)
    return scores.sort_values(["model", "step", "layer"], ignore_index=True)[["model", "step", "layer", *SCORES]]


def with_steps(table: pd.DataFrame, where: object) -> pd.DataFrame:
    """The rows with a column `step`, which is their snapshot as a number.

    Args:
        table: with the columns model and snapshot.
        where: for the message.

    Raises:
        QkgeomError: a snapshot is not a step.
    """
    import pandas as pd

    steps = pd.to_numeric(table["snapshot"], errors="coerce")
    if steps.isna().any():
        found = table.loc[steps.isna(), ["model", "snapshot"]].iloc[0].to_dict()
        raise QkgeomError("a snapshot taken in training is not a step", where=where, found=found)
    return table.assign(step=steps.astype("Int64"))


def over_layers(scores: pd.DataFrame) -> pd.DataFrame:
    """Median and quartiles over the layers that have a score, one row per model and step.

    Args:
        scores: of `layer_scores`.

    Returns:
        model, step, then `<score>_median, _q1, _q3`; quartiles by linear interpolation.
    """
    groups = scores.groupby(["model", "step"])
    quartiles = {"median": 0.5, "q1": 0.25, "q3": 0.75}
    columns = {f"{score}_{name}": groups[score].quantile(q) for score in SCORES for name, q in quartiles.items()}
    return groups.size().to_frame("n_layers").assign(**columns).reset_index()


def pairs(ones: pd.DataFrame, others: pd.DataFrame, names: Sequence[str], on: Sequence[str] = UNIT) -> pd.DataFrame:
    """Rows of two tables side by side; a row without a partner stays, with empty cells.

    Args:
        ones: with the columns `on`.
        others: likewise; the two have the same columns.
        names: endings of the columns of the first and of the second table.
        on: what partners have in common.
    """
    ones, others = (
        table.rename(columns={column: f"{column}_{name}" for column in table if column not in on})
        for table, name in zip((ones, others), names, strict=True)
    )
    return in_order(ones.merge(others, on=list(on), how="outer", validate="1:1"), on)
