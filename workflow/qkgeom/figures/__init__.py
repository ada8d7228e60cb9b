"""One file per figure: PAPER, CAPTION, GROUP, NEEDS, `numbers(inputs)` and `draw(numbers)`; nothing else names it."""

from __future__ import annotations

from pathlib import Path

from qkgeom.files import whole_file, write_csv, write_text
from qkgeom.rendering import Inputs, beside, load, write_provenance

# no dates, no versions: the same inputs give the same bytes
METADATA = {"pdf": {"CreationDate": None, "Producer": None}, "png": {"Software": None}}
NOT_THERE = "none"  # PAPER of a figure that the paper lacks
CAPTION_KEY = {"pdf": "Subject", "png": "Description"}


def render(name: str, inputs: Inputs, stem: Path) -> None:
    """Draws a figure as `stem`.pdf and .png, with the numbers it draws as .csv and its caption as .md.

    The record of how they were made comes last (`qkgeom.provenance`).

    Raises:
        UsageError: there is no such figure, or an input that it needs is not given.
        QkgeomError: an input is missing or unreadable.
    """
    import matplotlib

    from qkgeom.figures._style import RC

    module = load(__name__, name, inputs)
    numbers = module.numbers(inputs)
    write_csv(beside(stem, "csv"), numbers)
    title = f"{name} ({'not in the paper' if module.PAPER == NOT_THERE else module.PAPER})"
    write_text(beside(stem, "md"), f"# {title}\n\n![{name}]({stem.name}.png)\n\n{module.CAPTION}\n")
    with matplotlib.rc_context():
        matplotlib.rcdefaults()  # a user's matplotlibrc must not change a figure
        matplotlib.rcParams.update(RC)
        figure = module.draw(numbers)
        for ending, metadata in METADATA.items():
            with whole_file(beside(stem, ending)) as temporary:
                told = {**metadata, "Title": title, CAPTION_KEY[ending]: module.CAPTION}
                figure.savefig(temporary, format=ending, metadata=told)
    write_provenance("figure", name, inputs, stem, ("csv", "md", *METADATA), ("matplotlib", "numpy", "pandas"))
