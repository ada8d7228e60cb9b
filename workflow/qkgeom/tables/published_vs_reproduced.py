"""What the paper gives for each of its models, against what this run found."""

from __future__ import annotations

import pandas as pd

from qkgeom.comparison import AGREES, NOT_PUBLISHED, compared
from qkgeom.rendering import Inputs
from qkgeom.tables._printing import two_decimals

PAPER = "Tables S1, S2"
CAPTION = (
    "Median symmetry and directionality (excess) over layers, as published and as found here, for every model of the paper. "
    "Tables S1 and S2 print them for the language models; those of the other models, and all quartiles (in the csv, which "
    "also says what each row rests on), are rounded from the scores that the authors released. Agrees: all medians and "
    "quartiles are those of the paper within the rounding of two decimals; differs: one is not, with the cause where the row "
    "is touched by a known defect of the published extraction; not reproduced here: the model is not part of this run, or "
    "was not scored. Published way: medians of the same weights read as the published code read them, or of the layers that "
    "it read, where that is another reading; = where both then agree with the paper."
)
GROUP = "language, encoder_decoder, vision, audio"
NEEDS = ("summary", "published")
USES = ("scores", "published_way")
TITLES = {"symmetry": "Symmetry", "directionality_excess": "Directionality (excess)"}


def table(inputs: Inputs) -> pd.DataFrame:
    """One row per model of the paper, see `comparison.compared`."""
    return compared(inputs)


def printed(table: pd.DataFrame) -> pd.DataFrame:
    """The medians, the published way and the verdict."""
    columns = {("", "Model"): table["model"]}
    for score, title in TITLES.items():
        columns[title, "Published"] = table[f"{score}_median_published"]
        columns[title, "Here"] = table[f"{score}_median_here"]
        columns[title, "Difference"] = table[f"{score}_difference"]
        agree = table["published_way"].map({AGREES: " ="}).fillna("")
        way = table[f"{score}_published_way"]
        columns[title, "Published way"] = [
            None if pd.isna(value) else two_decimals(value) + mark for value, mark in zip(way, agree, strict=True)
        ]
    reason = table["cause"].where(table["verdict"] != NOT_PUBLISHED, table["note"])
    columns["", "Verdict"] = table["verdict"] + (": " + reason).fillna("")
    return pd.DataFrame(columns)
