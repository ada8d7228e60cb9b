"""Tables as printed, by pandas: LaTeX with booktabs, and Markdown."""

from __future__ import annotations

import pandas as pd

MISSING = "--"
LEFT = ("Role", "Model", "Corpus", "Claim", "Verdict", "Defect", "Token")  # columns of words; all others are set to the right
LONG = 40  # rows; a longer table must be able to break over pages
_SPECIAL = {ord(character): f"\\{character}" for character in "&%$#_{}"}


def two_decimals(value: float) -> str:
    """A score as the paper prints it; never `-0.00`."""
    return f"{round(value, 2) + 0.0:.2f}"


def latex(printed: pd.DataFrame, caption: str, label: str) -> str:
    """A LaTeX table that needs the packages booktabs, and longtable for a long one.

    Args:
        printed: columns of text or of floats, with two levels of names.
        caption: plain text.
        label: to refer to it.
    """
    numeric = printed.select_dtypes("number").columns
    style = printed.style.hide(axis="index").format_index(escape="latex", axis="columns")
    style = style.format(escape="latex", na_rep=MISSING)
    style = style.format(
        lambda value: f"${two_decimals(value)}$", subset=list(numeric), na_rep=MISSING
    )  # a minus, not a hyphen
    floating = {"environment": "table", "position": "htbp", "position_float": "centering"}
    if len(printed) <= LONG:  # inside a longtable these commands would be an error
        style = style.set_table_styles(
            [{"selector": "footnotesize", "props": ":{}"}, {"selector": "setlength", "props": ":{\\tabcolsep}{3pt}"}]
        )
    needs = "% needs the packages booktabs and longtable\n" if len(printed) > LONG else "% needs the package booktabs\n"
    return needs + style.to_latex(
        hrules=True,
        column_format="".join("l" if column[1] in LEFT else "r" for column in printed),
        multicol_align="c",
        caption=caption.translate(_SPECIAL),
        label=label,
        **({"environment": "longtable"} if len(printed) > LONG else floating),
    )


def markdown(printed: pd.DataFrame, caption: str) -> str:
    """A Markdown table under its caption."""
    numeric = set(printed.select_dtypes("number").columns)
    cells = printed.map(lambda value: value if isinstance(value, str) else two_decimals(value), na_action="ignore")
    cells = cells.astype(object).fillna(MISSING)
    cells.columns = [" ".join(part for part in column if part) for column in cells.columns]
    align = ["right" if column in numeric else "left" for column in printed]
    return f"{caption}\n\n{cells.to_markdown(index=False, disable_numparse=True, colalign=align)}\n"
