"""The timeline: rows of inline SVG over one axis of wall time.  Pure.

A plot is 1000 units wide whatever the window is (``preserveAspectRatio="none"``), so its width needs no script; text is
HTML next to it or over it.  Marks carry ``data-a``, ``data-b`` (from, until, in units) and ``data-tip``, which the
page's script shows under the pointer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from html import escape
from typing import Final

from consistency.proof.report.model import Accuracy, FaultSpan, OutputReport, Report, Span, Track, WindowAccuracy
from consistency.proof.report.words import count, seconds
from spe.plots import element, polyline

WIDTH: Final = 1000
_THIN: Final = 14
_BARS: Final = 74
_LINES: Final = 62
#: Maximum number of measures drawn of one output.
_MOST_LINES: Final = 4

STATES: Final = {
    "STABLE": "STABLE",
    "UP_FAILURE": "UP_FAILURE: results are tentative",
    "STABILIZATION": "STABILIZATION: correcting",
    "RECOVERING": "RECOVERING: starting, serves nobody",
    "down": "down",
}


def timeline(report: Report) -> str:
    """Returns the whole figure: faults, replicas, then the output of each client."""
    draw = _Drawing(max(1, report.duration_us))
    rows = [draw.faults(report.faults)]
    rows += [draw.track(track) for track in report.replicas]
    for at, output in enumerate(report.outputs):
        rows.append(draw.group(output, at, report.faults))
    return (
        f'<figure class="timeline" data-seconds="{report.duration_us / 1e6:.6f}">{"".join(rows)}{draw.axis()}'
        '<div class="cross"></div><div class="span-select"></div>'
        '<button class="unzoom" hidden>whole run</button></figure>'
    )


class _Drawing:
    """Rows that share one scale."""

    def __init__(self, duration_us: int) -> None:
        self._duration_us = duration_us

    def x(self, at_us: int) -> float:
        """Returns units from the left, within the plot."""
        return round(min(max(at_us, 0), self._duration_us) / self._duration_us * WIDTH, 2)

    def faults(self, faults: Sequence[FaultSpan]) -> str:
        marks = [self._box(span, "fault", span.name, 2, _THIN - 4) for span in faults]
        return self._row("thin", "<b>faults</b>", "fault", _THIN, "".join(marks))

    def track(self, track: Track) -> str:
        marks = [self._box(s, f"s-{s.name}", STATES.get(s.name, s.name), 0, _THIN) for s in track.spans]
        return self._row("thin", escape(track.name), track.name, _THIN, "".join(marks))

    def group(self, output: OutputReport, number: int, faults: Sequence[FaultSpan]) -> str:
        """Returns the rows of one output: received tuples, delay and accuracy."""
        group = f"output-{number}"
        shade = "".join(self._box(s, "shade", "", 0, 500) for s in faults)
        head = (
            f'<div class="row head" data-group="{group}"><div class="label"><b>{escape(output.title)}</b></div></div>'
        )
        parts = [head, self._received(output, group, shade)]
        if any(b.delay_max_us is not None for b in output.bins):
            parts.append(self._delay(output, group, shade))
        if output.accuracy is not None and output.accuracy.windows:
            parts.append(self._accuracy(output.accuracy, group, shade))
        return "".join(parts)

    def axis(self) -> str:
        marks = "".join(
            f'<span style="left:{n * 20}%">{self._duration_us / 1e6 * n / 5:.0f} s</span>' for n in range(6)
        )
        return f'<div class="row"><div class="label">since sources began</div><div class="axis">{marks}</div></div>'

    # --- one kind of row each ---

    def _received(self, output: OutputReport, group: str, shade: str) -> str:
        most = max((max(b.stable + b.tentative, b.undone) for b in output.bins), default=0) or 1

        def high(n: int, room: float) -> float:
            """Returns the height by square root: a correction brings the tuples of minutes in one moment."""
            return math.sqrt(n / most) * room

        below = any(b.undone for b in output.bins)
        base = _BARS * (0.7 if below else 1)
        marks = [shade, _level("base", base)]
        for bin_ in output.bins:
            left, right = self.x(bin_.at_us), self.x(bin_.at_us + output.bin_us)
            wide = max(right - left - 0.6, 0.6)
            whole, stable = high(bin_.stable + bin_.tentative, base - 6), high(bin_.stable, base - 6)
            for kind, top, tall in (
                ("stable", base - stable, stable),
                ("tentative", base - whole, whole - stable),
                ("undone", base, high(bin_.undone, _BARS - base)),
            ):
                if tall:
                    marks.append(_rect(kind, left, wide, top, tall))
            texts = [f"{count(n)} {what}" for n, what in ((bin_.stable, "stable"), (bin_.tentative, "tentative")) if n]
            texts += [f"{count(bin_.undone)} undone"] if bin_.undone else []
            if texts:
                marks.append(self._tip(bin_.at_us, bin_.at_us + output.bin_us, ", ".join(texts)))
        label = f"received<br>per {seconds(output.bin_us)}"
        return self._row("tall", label, "received", _BARS, "".join(marks), group, [(2, "", f"{count(most)} (√ scale)")])

    def _delay(self, output: OutputReport, group: str, shade: str) -> str:
        bound = output.delay.bound_us
        most = max(bound, *(b.delay_max_us or 0 for b in output.bins)) * 1.12

        def y(value: float) -> float:
            return round(_LINES - max(0.0, value) / most * (_LINES - 2), 1)

        points = [(b.at_us + output.bin_us // 2, b.delay_max_us) for b in output.bins if b.delay_max_us is not None]
        marks = [shade, _level("limit", y(bound))]
        marks.append(self._line(points, y, "m0"))
        marks += [
            self._tip(b.at_us, b.at_us + output.bin_us, f"{seconds(b.delay_max_us)} after its time")
            for b in output.bins
            if b.delay_max_us is not None
        ]
        allowed = f"allowed: {'kX' if output.k > 1 else 'X'} = {seconds(bound)}"
        levels = [(y(bound) + 1, "", allowed)]
        return self._row("tall", "delay of<br>new tuples", "delay", _LINES, "".join(marks), group, levels)

    def _accuracy(self, accuracy: Accuracy, group: str, shade: str) -> str:
        shares = [m for m in accuracy.measures if not m.startswith("error")][:_MOST_LINES]
        windows = [w for w in accuracy.windows if w.at_us is not None]

        def y(value: float) -> float:
            return round(_LINES - 3 - value * (_LINES - 8), 1)

        marks = [shade, _level("base", y(1))]
        for at, name in reversed(list(enumerate(shares))):
            points = [(w.at_us or 0, w.measures[name]) for w in windows if w.measures.get(name) is not None]
            marks.append(self._line(points, y, f"m{at}"))
            marks += [self._dot(at_us, y(value or 0), f"m{at}") for at_us, value in points]
        for window in windows:
            at_us = window.at_us or 0
            marks.append(self._tip(at_us, at_us + max(self._duration_us // 150, 1), measures_text(window)))
        levels = [(y(1) + 1, "left", "1"), (_LINES - 16, "left", "0")]
        names = " ".join(f'<i class="text-m{at}">{escape(name)}</i>' for at, name in enumerate(shares))
        return self._row("tall", f"accuracy of tentative<br>{names}", "accuracy", _LINES, "".join(marks), group, levels)

    # --- marks ---

    def _box(self, span: Span, kind: str, text: str, top: float, high: float) -> str:
        until = self._duration_us if span.until_us is None else span.until_us
        left, right = self.x(span.from_us), self.x(until)
        wide = max(right - left, 1.2)
        return _rect(kind, left, wide, top, high, **(_about(left, left + wide, text) if text else {}))

    def _line(self, points: Iterable[tuple[int, float | None]], y: Callable[[float], float], kind: str) -> str:
        placed = [(self.x(at), y(value)) for at, value in points if value is not None]
        return polyline(placed, class_=f"line {kind}") if placed else ""

    def _dot(self, at_us: int, y: float, kind: str) -> str:
        """Returns a short stroke: the plot is stretched, which would distort a circle."""
        return _rect(f"dot {kind}", max(self.x(at_us) - 1.5, 0), 3, y - 2, 4)

    def _tip(self, from_us: int, until_us: int, text: str) -> str:
        """Returns an invisible mark that shows a value under the pointer."""
        left, right = self.x(from_us), max(self.x(until_us), self.x(from_us) + 1)
        return element("g", **_about(left, right, text))

    def _row(
        self,
        kind: str,
        label: str,
        name: str,
        height: int,
        marks: str,
        group: str = "",
        levels: Sequence[tuple[float, str, str]] = (),
    ) -> str:
        """Returns a label and a plot; ``levels`` are (pixels from the top, class, text)."""
        shown = "".join(
            f'<span class="level {side}" style="top:{top:.0f}px">{escape(text)}</span>' for top, side, text in levels
        )
        belongs = f' data-group="{group}"' if group else ""
        return (
            f'<div class="row {kind}" data-name="{escape(name, quote=True)}"{belongs}>'
            f'<div class="label" title="{escape(name, quote=True)}">{label}</div><div class="plot">'
            f'<svg class="plot" role="img" aria-label="{escape(name, quote=True)}" viewBox="0 0 {WIDTH} {height}" '
            f'height="{height}" data-height="{height}" preserveAspectRatio="none">{marks}</svg>{shown}</div></div>'
        )


def _rect(kind: str, left: float, wide: float, top: float, tall: float, **more: str) -> str:
    return element("rect", class_=kind, x=f"{left:.2f}", width=f"{wide:.2f}", y=top, height=tall, **more)


def _level(kind: str, y: float) -> str:
    """Returns a line across the whole plot."""
    return element("line", class_=kind, x1="0", x2=str(WIDTH), y1=y, y2=y)


def _about(left: float, right: float, text: str) -> dict[str, str]:
    """Returns the attributes of a mark that the page's script reads."""
    return {"data_a": f"{left:.2f}", "data_b": f"{right:.2f}", "data_tip": text}


def measures_text(window: WindowAccuracy) -> str:
    """Describes a window's measures in words."""
    shown = ", ".join(f"{name} {'–' if v is None else f'{v:.3f}'}" for name, v in window.measures.items())
    return f"{shown} ({count(window.tentative)} of {count(window.truth)}, at {window.time})"
