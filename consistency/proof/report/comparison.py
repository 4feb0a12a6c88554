"""Compares runs: one table, and delay against tentative tuples in one plot.  Pure."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Final

from consistency.proof.report.html import Columns, card, document, duration, verdict_word
from consistency.proof.report.model import Report
from consistency.proof.report.words import count, seconds, share
from spe.plots import Colours, LabelledPoint, Panel, draw, element
from spe.text_table import text_table

_SIZE = (760, 340)
_COLOURS = Colours("var(--soft)", "var(--line)", "var(--line)", "var(--card)", ("var(--stable)",))


def comparison(reports: Sequence[Report]) -> str:
    """Returns the page."""
    columns: Columns[tuple[str, str, Report]] = [
        ("", "", lambda row: f"<b>{row[0]}</b>"),
        ("run", "", lambda row: escape(row[1])),
        ("verdict", "", lambda row: verdict_word(row[2].verdict)),
        *((title, side, lambda row, cell=cell: escape(cell(row[2]))) for title, side, cell in _COLUMNS),
    ]
    rows = zip(_letters(len(reports)), _names(reports), reports)
    body = (
        f'<p class="eyebrow">{len(reports)} runs</p><h1>Runs side by side</h1>'
        '<p class="sub">DPC minimises the tentative tuples subject to a delay below X: better is further down and '
        "further left. Each run at its longest delay of a new tuple and its number of tentative tuples, over all its "
        "outputs.</p>"
        f'<div class="card">{_plot(reports)}</div>'
        f"<h2>The figures</h2>{card(columns, rows, 'runs')}"
    )
    return document("Runs side by side", body)


def comparison_text(reports: Sequence[Report]) -> list[str]:
    """Returns the same table for the terminal."""
    names = _names(reports)
    titles = ["run", "verdict", *(title for title, _, _ in _COLUMNS)]
    lines = [
        titles,
        *([name, str(r.verdict), *(cell(r) for _, _, cell in _COLUMNS)] for name, r in zip(names, reports)),
    ]
    return text_table(lines)


#: Title, "r" for figures, and text.
_COLUMNS: Final[Columns[Report]] = (
    ("X", "", lambda r: r.settings.x),
    ("α", "", lambda r: r.settings.alpha),
    ("policy", "", lambda r: r.settings.policies),
    ("reconcile", "", lambda r: r.settings.reconcile),
    ("replicas", "r", lambda r: str(r.settings.replicas)),
    ("longest delay", "r", lambda r: seconds(_delay(r))),
    ("of allowed", "r", lambda r: seconds(max((o.delay.bound_us for o in r.outputs), default=0))),
    ("tentative", "r", lambda r: count(_tentative(r))),
    ("right as they were", "r", lambda r: _right(r)),
    ("longest gap", "r", lambda r: seconds(max((o.gaps.any_us for o in r.outputs), default=0))),
    ("heal to correction", "r", lambda r: _healing(r)),
)


def _tentative(report: Report) -> int:
    return sum(o.tentative.count for o in report.outputs)


def _right(report: Report) -> str:
    tentative = _tentative(report)
    return share(sum(o.tentative.right for o in report.outputs) / tentative) if tentative else "–"


def _healing(report: Report) -> str:
    return duration(max((o.healing.took_us for o in report.outputs if o.healing.took_us is not None), default=None))


def _names(reports: Sequence[Report]) -> list[str]:
    """Returns the names of the runs; their folders where two have the same name."""
    names = [r.name for r in reports]
    return [r.folder if names.count(r.name) > 1 else r.name for r in reports]


def _letters(n: int) -> list[str]:
    return [chr(ord("A") + i) if i < 26 else str(i + 1) for i in range(n)]


def _delay(report: Report) -> int | None:
    return max((o.delay.max_us for o in report.outputs if o.delay.max_us is not None), default=None)


def _plot(reports: Sequence[Report]) -> str:
    """Plots delay to the right and tentative tuples upwards; letters name the runs."""
    points = []
    for letter, name, report in zip(_letters(len(reports)), _names(reports), reports):
        delay, tentative = _delay(report), _tentative(report)
        if delay is not None:
            tip = f"{name}: {seconds(delay)}, {count(tentative)} tentative"
            points.append(LabelledPoint(delay, tentative, letter, tip))
    panel = Panel(
        title="tentative tuples",
        across="longest delay of a new tuple",
        points=points,
        x_text=lambda us: seconds(round(us)),
        y_text=lambda n: count(round(n)),
    )
    width, height = _SIZE
    return element(
        "svg",
        draw(panel, _SIZE, _COLOURS),
        viewBox=f"0 0 {width} {height}",
        style=f"width:100%;max-width:{width}px;display:block;margin:0 auto;font-size:12.5px",
        role="img",
        aria_label="delay against tentative tuples",
    )
