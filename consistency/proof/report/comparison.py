"""Runs side by side: one table, and delay against tentative tuples in one plot.  Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from consistency.proof.report.model import Report
from consistency.proof.report.page import document, table
from consistency.proof.report.words import count, seconds, share
from spe.text_table import text_table

_SIZE = (760, 340)
_MARGIN = (64, 20, 20, 46)  # left, top, right, bottom


def comparison(reports: Sequence[Report]) -> str:
    """The page."""
    names = _names(reports)
    rows = [
        [
            f"<b>{letter}</b>",
            escape(name),
            f'<span class="word {r.verdict}">{r.verdict}</span>',
            *(escape(cell) for cell in _cells(r)),
        ]
        for letter, name, r in zip(_letters(len(reports)), names, reports)
    ]
    columns = [("", ""), ("run", ""), ("verdict", ""), *((title, side) for title, side in _COLUMNS)]
    body = (
        f'<p class="eyebrow">{len(reports)} runs</p><h1>Runs side by side</h1>'
        '<p class="sub">DPC minimises the tentative tuples subject to a delay below X: better is further down and '
        "further left. Each run at its longest delay of a new tuple and its number of tentative tuples, over all its "
        "outputs.</p>"
        f'<div class="card">{_plot(reports)}</div>'
        f'<h2>The figures</h2><div class="card">{table("runs", columns, rows)}</div>'
    )
    return document("Runs side by side", body)


def comparison_text(reports: Sequence[Report]) -> list[str]:
    """For the terminal."""
    names = _names(reports)
    titles = ["run", "verdict", *(title for title, _ in _COLUMNS)]
    lines = [titles, *([name, str(r.verdict), *_cells(r)] for name, r in zip(names, reports))]
    return text_table(lines)


_COLUMNS = (
    ("X", ""),
    ("α", ""),
    ("policy", ""),
    ("reconcile", ""),
    ("replicas", "r"),
    ("longest delay", "r"),
    ("of allowed", "r"),
    ("tentative", "r"),
    ("right as they were", "r"),
    ("longest gap", "r"),
    ("heal to correction", "r"),
)


def _cells(report: Report) -> list[str]:
    s, outputs = report.settings, report.outputs
    tentative = sum(o.tentative.count for o in outputs)
    right = sum(o.tentative.right for o in outputs)
    took = [o.healing.took_us for o in outputs if o.healing.took_us is not None]
    return [
        s.x,
        s.alpha,
        s.policies,
        s.reconcile,
        str(s.replicas),
        seconds(_delay(report)),
        seconds(max((o.delay.bound_us for o in outputs), default=0)),
        count(tentative),
        share(right / tentative) if tentative else "–",
        seconds(max((o.gaps.any_us for o in outputs), default=0)),
        seconds(max(took)) if took else "–",
    ]


def _names(reports: Sequence[Report]) -> list[str]:
    """Of the runs; by their folders where two have the same name."""
    names = [r.name for r in reports]
    return [r.folder if names.count(r.name) > 1 else r.name for r in reports]


def _letters(n: int) -> list[str]:
    return [chr(ord("A") + i) if i < 26 else str(i + 1) for i in range(n)]


def _delay(report: Report) -> int | None:
    return max((o.delay.max_us for o in report.outputs if o.delay.max_us is not None), default=None)


def _ticks(most: float) -> list[float]:
    """Round numbers up to ``most``, about five of them."""
    rough = most / 5
    unit = 10 ** math.floor(math.log10(rough))
    step = next(n * unit for n in (1, 2, 5, 10) if n * unit >= rough)
    return [n * step for n in range(1, int(most / step) + 1)]


def _text(x: float, y: float, anchor: str, content: str) -> str:
    style = "font-size:12.5px;fill:var(--soft)"
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" style="{style}">{escape(content)}</text>'


def _plot(reports: Sequence[Report]) -> str:
    """Delay to the right, tentative tuples upwards; the runs by their letters."""
    (width, height), (left, top, right, bottom) = _SIZE, _MARGIN
    points = [
        (letter, name, delay, sum(o.tentative.count for o in r.outputs))
        for letter, name, r in zip(_letters(len(reports)), _names(reports), reports)
        if (delay := _delay(r)) is not None
    ]
    x_most = max([d for _, _, d, _ in points], default=0) * 1.1 or 1
    y_most = max([n for _, _, _, n in points], default=0) * 1.1 or 1

    def x(value: float) -> float:
        return left + value / x_most * (width - left - right)

    def y(value: float) -> float:
        return height - bottom - value / y_most * (height - top - bottom)

    parts = [f'<path d="M{left},{top}V{height - bottom}H{width - right}" fill="none" stroke="var(--line)"/>']
    for at in _ticks(x_most):
        parts.append(f'<line x1="{x(at):.1f}" x2="{x(at):.1f}" y1="{top}" y2="{height - bottom}" class="base"/>')
        parts.append(_text(x(at), height - bottom + 17, "middle", seconds(round(at))))
    for up in _ticks(y_most):
        parts.append(f'<line x1="{left}" x2="{width - right}" y1="{y(up):.1f}" y2="{y(up):.1f}" class="base"/>')
        parts.append(_text(left - 7, y(up) + 4, "end", count(round(up))))
    parts.append(_text((left + width - right) / 2, height - 8, "middle", "longest delay of a new tuple"))
    parts.append(_text(left + 6, top + 8, "start", "tentative tuples"))
    for letter, name, delay, tentative in points:
        parts.append(
            f'<circle cx="{x(delay):.1f}" cy="{y(tentative):.1f}" r="11" fill="var(--stable)"><title>{escape(name)}: '
            f"{seconds(delay)}, {count(tentative)} tentative</title></circle>"
            f'<text x="{x(delay):.1f}" y="{y(tentative) + 4.5:.1f}" text-anchor="middle" pointer-events="none" '
            f'style="font-size:12.5px;font-weight:600;fill:var(--card)">{letter}</text>'
        )
    return (
        f'<svg viewBox="0 0 {width} {height}" style="width:100%;max-width:{width}px;display:block;margin:0 auto" '
        f'role="img" aria-label="delay against tentative tuples">{"".join(parts)}</svg>'
    )
