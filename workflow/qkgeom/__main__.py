"""`python -m qkgeom`. In a broken environment `doctor` works all the same, and every other verb says what is wrong."""

import sys


def main() -> None:
    """Runs the command line."""
    if sys.version_info < (3, 11):  # noqa: UP036  # an older one cannot even read the other modules
        found = f"{sys.version_info[0]}.{sys.version_info[1]} ({sys.executable})"
        sys.exit(f"error: Python 3.11 or 3.12 is needed\n  found:    {found}\n  do:       see docs/environments.md")
    try:
        from qkgeom.cli import main as run
    except ImportError as error:
        from qkgeom.doctor.bare import main as run_bare

        sys.exit(run_bare(error))
    run()


if __name__ == "__main__":
    main()
