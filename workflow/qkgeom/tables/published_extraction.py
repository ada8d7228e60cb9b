"""Models whose weights the paper's released code reads in another way, read in both."""

from __future__ import annotations

import pandas as pd

from qkgeom.comparison import causes, way_medians
from qkgeom.published_values import SCORES, read_published
from qkgeom.rendering import Inputs

PAPER = "none"
CAPTION = (
    "Median symmetry and directionality (excess) over layers of the same weights, as the models multiply them and as the "
    "paper's released code reads them (docs/published.md), with the published medians of models that the paper has. Where "
    "the published way gives the published value, the defect is its cause; where it does not, another one (random weights) "
    "or a newer revision of the model has a part in it."
)
GROUP = "language, encoder_decoder, vision, audio"
NEEDS = ("summary", "published_way", "published")
TITLES = {"symmetry": "Symmetry", "directionality_excess": "Directionality (excess)"}


def table(inputs: Inputs) -> pd.DataFrame:
    """One row per model that was read in both ways: both medians, those published, the defects."""
    medians = [f"{score}_median" for score in SCORES]
    here = inputs.read("summary", ["model", "label", "role", *medians]).drop_duplicates("model", keep="last")
    here = here.rename(columns={f"{score}_median": f"{score}_here" for score in SCORES})
    ways = way_medians(inputs).rename(columns={score: f"{score}_published_way" for score in SCORES})
    published = pd.DataFrame(read_published(inputs.published).values())[["model", *medians]]
    published = published.rename(columns={f"{score}_median": f"{score}_published" for score in SCORES})
    table = here.merge(ways, on="model").merge(published, on="model", how="left")
    values = [f"{score}_{side}" for score in SCORES for side in ("here", "published_way", "published")]
    table[values] = table[values].apply(pd.to_numeric)
    words = dict.fromkeys(["model", "label", "role", "defects"], "str")
    return table[["model", "label", "role", *values, "defects"]].astype(words)


def printed(table: pd.DataFrame) -> pd.DataFrame:
    """The table as printed."""
    columns = {("", "Model"): table["label"].fillna(table["model"])}
    for score, title in TITLES.items():
        for side, heading in (("here", "Here"), ("published_way", "Published way"), ("published", "Published")):
            columns[title, heading] = table[f"{score}_{side}"]
    columns["", "Defect"] = table["defects"].map(causes)
    if table.empty:
        return pd.DataFrame({column: ["no such model" if column[1] == "Model" else None] for column in columns})
    return pd.DataFrame(columns)
