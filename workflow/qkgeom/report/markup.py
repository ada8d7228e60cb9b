"""Pieces of the page: Markdown as HTML with accessible tables, and files as data URIs."""

from __future__ import annotations

import base64
import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from qkgeom.errors import QkgeomError

if TYPE_CHECKING:
    from markdown_it import MarkdownIt

KINDS = {
    "csv": "text/csv",
    "json": "application/json",
    "pdf": "application/pdf",
    "png": "image/png",
    "tex": "text/x-tex",
    "txt": "text/plain",
}
TITLE = re.compile(r"# (?P<name>\S+) \((?P<paper>.*)\)$")


def html(markdown: str, label: str = "table") -> str:
    """Markdown (CommonMark with tables) as HTML; its own HTML is shown as text.

    Args:
        markdown: the text.
        label: what its tables are, for those who do not see them.
    """
    return _markdown().render(markdown, {"label": label})


def caption(figure_md: str) -> tuple[str, str]:
    """What the `.md` beside a figure says: its number in the paper, and the caption.

    Raises:
        QkgeomError: it is not of the form that `qkgeom.figures.render` writes.
    """
    head, _, rest = figure_md.partition("\n")
    _, _, text = rest.lstrip("\n").partition("\n\n")  # after the picture
    if not (title := TITLE.match(head)) or not text.strip():
        expected = "a title `# <figure> (<number>)`, the picture, and a caption"
        raise QkgeomError("a figure's caption cannot be read", found=figure_md[:80], expected=expected, fix="draw it again")
    return title["paper"], text.strip()


def data_uri(path: Path) -> str:
    """A file as a URI that contains it.

    Raises:
        QkgeomError: it is not there.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise QkgeomError("a file of the report is missing", where=path, found=error, fix="run the pipeline again") from error
    return f"data:{KINDS[path.suffix[1:]]};base64,{base64.b64encode(content).decode()}"


def first_sentence(text: str) -> str:
    """Up to the first full stop or colon that a space follows."""
    return re.split(r"(?<=[.:])\s", text, maxsplit=1)[0].rstrip(".:") + "."


@cache
def _markdown() -> MarkdownIt:
    from markdown_it import MarkdownIt

    parser = MarkdownIt("commonmark", {"html": False}).enable("table")
    parser.add_render_rule("table_open", _table_open)
    parser.add_render_rule("table_close", lambda *_: "</table></div>\n")
    parser.add_render_rule("th_open", _th_open)
    return parser


def _table_open(renderer: object, tokens: list, index: int, options: object, env: dict) -> str:
    """A wide table scrolls in its box, which the keyboard reaches."""
    return f'<div class="scroll" tabindex="0" role="region" aria-label="{env["label"]}"><table>\n'


def _th_open(renderer: object, tokens: list, index: int, options: object, env: dict) -> str:
    style = tokens[index].attrGet("style")
    return f'<th scope="col"{f" style={chr(34)}{style}{chr(34)}" if style else ""}>'
