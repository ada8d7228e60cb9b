"""`python -m qkgeom`. In a broken environment `doctor` works all the same, and every other verb says what is wrong."""

import sys


def main() -> None:
    """Runs the command line."""
    try:
        from qkgeom.cli import main as run
    except ImportError as error:
        from qkgeom.doctor.bare import main as run_bare

        sys.exit(run_bare(error))
    run()


if __name__ == "__main__":
    main()
