"""qkgeom: the geometry of query-key weights, from checkpoints to the figures of arXiv 2502.10927."""

from typing import Any

__version__ = "0.1.0"
__all__ = ["score"]


def __getattr__(name: str) -> Any:
    """Loads `qkgeom.score` when it is asked for, so that the command line starts without it."""
    if name == "score":
        from qkgeom.api import score

        return score
    raise AttributeError(f"module 'qkgeom' has no attribute {name!r}")
