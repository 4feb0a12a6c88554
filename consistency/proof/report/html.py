"""Parts of a page: the document around its body, and tables.  Nothing comes from a network.  Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from html import escape
from importlib.resources import files
from typing import TypeVar

from consistency.proof.report.words import seconds

T = TypeVar("T")
#: Columns of a table: title, "r" for figures or "", and the cell of a row as HTML.
Columns = Sequence[tuple[str, str, Callable[[T], str]]]


def document(title: str, body: str) -> str:
    """Returns a whole HTML document around the body."""
    folder = files("consistency.proof.report")
    style, script = (folder.joinpath(name).read_text("utf-8") for name in ("style.css", "script.js"))
    hatch = (
        '<svg width="0" height="0" style="position:absolute" aria-hidden="true"><defs><pattern id="hatch" width="6" '
        'height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)"><rect width="2.5" height="6" '
        'style="fill:var(--idle)"/></pattern></defs></svg>'
    )
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{escape(title)}</title><style>\n{style}</style></head>\n<body>{hatch}<main>{body}"
        "<footer>Made by spe report. What each figure means: docs/reference/report.md.</footer></main>"
        f'<div class="tip"></div><script>\n{script}</script></body></html>\n'
    )


def table(columns: Columns[T], rows: Iterable[T], id_: str = "") -> str:
    head = "".join(f'<th class="{side}">{title}</th>' for title, side, _ in columns)
    lines = [
        "<tr>" + "".join(f'<td class="{side}">{cell(row)}</td>' for _, side, cell in columns) + "</tr>" for row in rows
    ]
    named = f' id="{id_}"' if id_ else ""
    return (
        f'<div class="scroll"><table{named}><thead><tr>{head}</tr></thead><tbody>{"".join(lines)}</tbody></table></div>'
    )


def card(columns: Columns[T], rows: Iterable[T], id_: str = "") -> str:
    """Returns a table in a frame of its own."""
    return f'<div class="card">{table(columns, rows, id_)}</div>'


def section(title: str, about: str, columns: Columns[T], rows: Sequence[T]) -> str:
    """Returns a heading, a paragraph and a table; nothing where there are no rows."""
    paragraph = f"<p class='sub'>{about}</p>" if about else ""
    return f"<h3>{title}</h3>{paragraph}{card(columns, rows)}" if rows else ""


def good(text: str) -> str:
    return f'<span class="ok">{text}</span>'


def bad(text: str) -> str:
    return f'<span class="no">{text}</span>'


def dim(text: str) -> str:
    return f'<span class="dim">{text}</span>'


def verdict_word(verdict: str) -> str:
    return f'<span class="word {verdict}">{verdict}</span>'


def duration(us: int | None) -> str:
    """Formats a duration; a dash where there is none."""
    return "–" if us is None else seconds(us)


def between(from_us: int | None, until_us: int | None) -> str:
    """Formats the time between two moments; a dash where one is missing."""
    return duration(None if from_us is None or until_us is None else until_us - from_us)
