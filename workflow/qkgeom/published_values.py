"""published.tsv: what the paper gives for its models and training runs, and which of its extraction's defects touch them."""

from __future__ import annotations

from pathlib import Path

from qkgeom.errors import UsageError
from qkgeom.rows import read_rows
from qkgeom.schemas import schema

PUBLISHED = Path(__file__).parents[1] / "published.tsv"
SCORES = ("symmetry", "directionality_excess")  # those of the paper's figures and tables
QUARTILES = ("median", "q1", "q3")
DEFECTS = {  # the word in the column `defect` -> what it means; the evidence is in docs/published.md
    "grouped_heads": "grouped queries: query heads are paired with other heads' keys",
    "contiguous_thirds": "a fused weight that is interleaved head by head is cut into thirds",
    "no_transpose": "fused weights are not transposed, so that rows and columns are head features",
    "random_weights": "the model was built from its config, without its trained weights",
    "cross_attention": "cross-attention is taken for the decoder's self-attention",
    "missing_layers": "the last layers are left out",
}


def read_published(path: Path = PUBLISHED) -> dict[str, dict[str, str]]:
    """The rows by model (or training run), in order; a cell that the table leaves empty is "".

    Raises:
        UsageError: a row does not fit the schema, or two rows have one model.
    """
    empty = dict.fromkeys(schema("published")["properties"], "")
    rows: dict[str, dict[str, str]] = {}
    for where, cells in read_rows(path, "published"):
        if cells["model"] in rows:
            raise UsageError(f"two rows are about {cells['model']}", where=where, fix="remove one of them")
        rows[cells["model"]] = {**empty, **cells}
    return rows
