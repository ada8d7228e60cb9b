"""What the paper gives for each of its models beside what a run here found, with a verdict."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from qkgeom.collecting import read_scores
from qkgeom.published_values import DEFECTS, QUARTILES, SCORES, read_published
from qkgeom.rendering import Inputs

if TYPE_CHECKING:
    import pandas as pd

NUMBERS = tuple(f"{score}_{quartile}" for score in SCORES for quartile in QUARTILES)
LOSSES = ("train_loss_default", "train_loss_symmetric", "speed_up")
AGREES, DIFFERS, NOT_HERE, NOT_PUBLISHED = "agrees", "differs", "not reproduced here", "no published value"
WITHIN = 0.0055  # half a unit of the second decimal, which rounding takes, and a tenth of that for arithmetic


def compared(inputs: Inputs) -> pd.DataFrame:
    """One row per model of the paper, in the order of published.tsv.

    Args:
        inputs: the summary, and where given the scores of layers and of the published way to read weights.

    Returns:
        model, printed_as, table, role (of a model that is here), published_layers and n_layers; of each of `NUMBERS`
        `_published` and `_here`; of each score `_difference` of the medians, here less published, and
        `_published_way`, the median of the weights read as the published code read them (or of the layers that it
        read), where that differs from the right reading and was computed; defect, verdict, cause (of a difference, if it
        is known) and `published_way`, whether those medians agree with the published ones; source and note.

    Raises:
        QkgeomError: an input cannot be read.
        UsageError: published.tsv is not as its schema says.
    """
    table = _published(inputs, NUMBERS)
    table = table[table["table"] != "1"].drop(columns=list(LOSSES))
    here = inputs.read("summary", ["model", "role", "n_layers", *NUMBERS]).drop_duplicates("model", keep="last")
    here = here[here["symmetry_median"].notna()].rename(columns={name: f"{name}_here" for name in NUMBERS})
    table = table.merge(here, on="model", how="left")
    table["verdict"] = verdicts(table, NUMBERS)
    known = (table["verdict"] == DIFFERS) & (table["defect"] != "")
    table["cause"] = table["defect"].map(causes).where(known, "")
    for score in SCORES:
        table[f"{score}_difference"] = table[f"{score}_median_here"] - table[f"{score}_median_published"]
    ways = _published_way(inputs, table).rename(columns={score: f"{score}_published_way" for score in SCORES})
    table = table.merge(ways, on="model", how="left")
    table["published_way"] = _way_agrees(table)
    order = ["model", "printed_as", "table", "role", "published_layers", "n_layers"]
    order += [f"{name}_{side}" for name in NUMBERS for side in ("published", "here")]
    order += [f"{score}_{what}" for score in SCORES for what in ("difference", "published_way")]
    words = ["defect", "verdict", "cause", "published_way", "source", "note"]
    return _with_missing_words(table[[*order, *words]], ["model", "printed_as", "table", "role", *words])


def verdicts(table: pd.DataFrame, numbers: tuple[str, ...]) -> pd.Series:
    """`AGREES` where every published number is met within rounding, `DIFFERS` where one is not, or why there is no verdict.

    Args:
        table: with the columns `_published` and `_here` of the numbers.
        numbers: their names.
    """
    import numpy as np
    import pandas as pd

    published, here = (table[[f"{name}_{side}" for name in numbers]].to_numpy(float) for side in ("published", "here"))
    given = ~np.isnan(published)
    far = (given & ~(np.abs(here - published) <= WITHIN)).any(1)
    words = np.where(far, DIFFERS, AGREES).astype(object)
    words[np.isnan(here).all(1)] = NOT_HERE
    words[~given.any(1)] = NOT_PUBLISHED
    return pd.Series(words, index=table.index)


def published_losses(inputs: Inputs) -> pd.DataFrame:
    """The rows of the paper's Table 1: model (the run's id), printed_as, `LOSSES` with `_published`, source and note."""
    table = _published(inputs, LOSSES)
    table = table[table["table"] == "1"]
    words = ["model", "printed_as", "source", "note"]
    return _with_missing_words(table[["model", "printed_as", *(f"{name}_published" for name in LOSSES), *words[2:]]], words)


def _with_missing_words(table: pd.DataFrame, words: Sequence[str]) -> pd.DataFrame:
    """The table with its columns of words as such, a missing value for none."""
    return table.assign(**table[words].astype("str").replace("", None))


def _published(inputs: Inputs, numbers: tuple[str, ...]) -> pd.DataFrame:
    """published.tsv with these numbers as such, named `_published`."""
    import pandas as pd

    table = pd.DataFrame(read_published(inputs.published).values())
    table = table.assign(published_layers=pd.to_numeric(table.pop("n_layers"), errors="coerce").astype("Int64"))
    return table.assign(**{f"{name}_published": pd.to_numeric(table.pop(name)) for name in numbers})


def causes(defects: str) -> str:
    """What the words of a cell `defect` mean."""
    return "; ".join(DEFECTS[word] for word in defects.split(",") if word)


def _published_way(inputs: Inputs, table: pd.DataFrame) -> pd.DataFrame:
    """Medians over layers as the published code would have found them: model, then `SCORES`."""
    import pandas as pd

    ways = way_medians(inputs)
    few = table[table["defect"].map(lambda text: "missing_layers" in text) & table["n_layers"].notna()]
    if len(few) and inputs.scores:
        scores = inputs.read("scores", ["model", "layer", "head", *SCORES])
        read = scores.merge(few[["model", "published_layers"]], on="model")
        ways = pd.concat([ways, _medians(read[(read["layer"] < read["published_layers"]) & (read["head"] == "all")])])
    return ways[["model", *SCORES]]


def way_medians(inputs: Inputs) -> pd.DataFrame:
    """The medians over layers of the models that were read the published way: model, defects, then `SCORES`.

    Raises:
        QkgeomError: a file is not one of scores.
    """
    layers = read_scores(inputs.published_way)
    defects = layers.drop_duplicates("model").reindex(columns=["model", "defects"])
    return defects.merge(_medians(layers), on="model")


def _medians(layers: pd.DataFrame) -> pd.DataFrame:
    return layers.astype(dict.fromkeys(SCORES, float)).groupby("model")[list(SCORES)].median().reset_index()


def _way_agrees(table: pd.DataFrame) -> pd.Series:
    gaps = [(table[f"{score}_published_way"] - table[f"{score}_median_published"]).abs() for score in SCORES]
    computed = gaps[0].notna() & gaps[1].notna()
    near = (gaps[0] <= WITHIN) & (gaps[1] <= WITHIN)
    return near.map({True: AGREES, False: DIFFERS}).where(computed, "")
