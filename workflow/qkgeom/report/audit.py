"""The verdict of `audit` on the run, if there is one."""

from __future__ import annotations

import json
from html import escape
from pathlib import Path

from qkgeom.errors import QkgeomError
from qkgeom.report.markup import html

RECORD, PAGE = "audit/audit.json", "audit/audit.md"
KINDS = ("models", "figures", "tables")


def audit_section(results: Path) -> str:
    """The audit's verdict, findings and notes as HTML; empty if the run was not audited.

    Args:
        results: `results/<preset>`.

    Raises:
        QkgeomError: the record cannot be read.
    """
    path = results / RECORD
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        verdict, findings = record["verdict"], record["findings"]
        audited = {kind: record[kind] for kind in KINDS}
        rows = [(each.get("model") or each["name"], each["verdict"], each["notes"]) for kind in KINDS for each in audited[kind]]
        cells = [(each["item"], each["found"], each["expected"], each["fix"]) for each in findings]
    except FileNotFoundError:
        return ""
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise QkgeomError("the record of the audit cannot be read", where=path, found=error, fix="audit again") from error
    counts = ", ".join(f"{kind}: {len(each)}" for kind, each in audited.items())
    link = f'<a href="{PAGE}"><code>{PAGE}</code></a>, beside this page'
    parts = [f"<p>Verdict: <strong>{escape(str(verdict))}</strong>; {counts}. The whole of it: {link}.</p>"]
    if cells:
        parts.append(html(_table(("Of", "Found", "Expected", "What to do"), cells), "findings of the audit"))
    parts.append("<details><summary>The verdict on each model, figure and table</summary>")
    lines = [(name, told, "; ".join(map(str, notes))) for name, told, notes in rows]
    parts.append(html(_table(("Of", "Verdict", "Notes"), lines), "verdicts of the audit") + "</details>")
    return "\n".join(parts)


def _table(header: tuple[str, ...], rows: list[tuple]) -> str:
    """Markdown; cells hold no line break and no bar."""
    lines = [header, ("---",) * len(header), *rows]
    return "\n".join(
        "| " + " | ".join(" ".join(str(cell).split()).replace("|", "\\|") for cell in line) + " |" for line in lines
    )
