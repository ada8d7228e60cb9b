"""`python -m qkgeom`."""

from qkgeom.cli import main

main()
