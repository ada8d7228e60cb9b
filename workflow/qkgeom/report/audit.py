"""The verdict of `audit` on the run, if there is one."""

from __future__ import annotations

import json
from collections.abc import Iterable
from html import escape
from pathlib import Path

from qkgeom.errors import QkgeomError
from qkgeom.report.markup import html

RECORD, PAGE = "audit/audit.json", "audit/audit.md"
KINDS = ("runs", "models", "collected", "figures", "tables")


def audit_section(results: Path, audited_files: Iterable[Path]) -> str:
    """The audit's verdict, findings and notes as HTML; empty if the run was not audited.

    Args:
        results: `results/<preset>`.
        audited_files: those that the audit is about; if one is newer than the audit, the verdict is not about it.

    Raises:
        QkgeomError: the record cannot be read.
    """
    path = results / RECORD
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        verdict, findings = record["verdict"], record["findings"]
        audited = {kind: record[kind] for kind in KINDS if kind in record}
        rows = [_row(kind, each) for kind, audits in audited.items() for each in audits]
        cells = [(each["where"], each["item"], each["found"], each["expected"], each["fix"]) for each in findings]
        newer = [file.name for file in audited_files if file.is_file() and file.stat().st_mtime > path.stat().st_mtime]
    except FileNotFoundError:
        return ""
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise QkgeomError("the record of the audit cannot be read", where=path, found=error, fix="audit again") from error
    counts = ", ".join(f"{kind}: {len(each)}" for kind, each in audited.items())
    link = f'<a href="{PAGE}"><code>{PAGE}</code></a>, beside this page'
    parts = [f"<p>Verdict: <strong>{escape(str(verdict))}</strong>; {counts}. The whole of it: {link}.</p>"]
    if newer:
        told = f"{len(newer)} files are newer than the audit, such as {escape(newer[0])}: the verdict is not about them."
        parts.append(
            f"<p><strong>{told}</strong> Audit again: <code>python -m qkgeom audit</code>, then write this page again.</p>"
        )
    if cells:
        parts.append(html(_table(("File", "Of", "Found", "Expected", "What to do"), cells), "findings of the audit"))
    parts.append("<details><summary>The verdict on each model, figure and table</summary>")
    header = ("Kind", "Of", "Verdict", "Checked", "Remarks")
    parts.append(html(_table(header, rows), "verdicts of the audit") + "</details>")
    return "\n".join(parts)


def _row(kind: str, audited: dict) -> tuple[str, ...]:
    checked = ", ".join(f"{what}: {count}" for what, count in audited["checked"].items())
    follows = ", ".join(audited.get("follows_from", ())[:3])
    remarks = [f"follows from {follows}: mend that first"] if follows else []
    remarks += map(str, [*audited["not_checked"], *audited["notes"]])
    return kind, audited["name"], audited["verdict"], checked, "; ".join(remarks)


def _table(header: tuple[str, ...], rows: list[tuple]) -> str:
    """Markdown; cells hold no line break and no bar."""
    lines = [header, ("---",) * len(header), *rows]
    return "\n".join(
        "| " + " | ".join(" ".join(str(cell).split()).replace("|", "\\|") for cell in line) + " |" for line in lines
    )
