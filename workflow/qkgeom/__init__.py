"""qkgeom: the geometry of query-key weights, from checkpoints to the figures of arXiv 2502.10927."""

__version__ = "0.1.0"
