"""Plots of a few points: bars in a terminal, lines in an SVG file.  Pure, and without a library."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

_BLOCKS: Final = " ▏▎▍▌▋▊▉"
_WIDTH: Final = 12
#: Of a panel in the file, and the room around its lines.
_PANEL: Final = (420, 260)
_MARGIN: Final = (60, 34, 16, 40)  # left, top, right, bottom


@dataclass(frozen=True)
class Panel:
    """One plot.

    Attributes:
      xs: where; ascending.
      ys: what was found there.
      limits: what it may be there at most, dashed.
    """

    title: str
    xs: Sequence[float]
    ys: Sequence[float]
    limits: Sequence[float] | None = None


def bars(values: Sequence[float]) -> list[str]:
    """A bar for each value, the longest for the largest, all equally wide."""
    largest = max(values, default=0) or 1
    found = []
    for value in values:
        eighths = round(value / largest * _WIDTH * 8)
        text = "█" * (eighths // 8) + _BLOCKS[eighths % 8].strip()
        found.append(f"{text:<{_WIDTH}}")
    return found


def svg(panels: Sequence[Panel]) -> str:
    """The panels side by side, as the text of an SVG file."""
    width, height = _PANEL
    parts = [_panel(panel, at * width) for at, panel in enumerate(panels)]
    size = f'width="{width * len(panels)}" height="{height}"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="11">\n'
        f'<rect {size} fill="white"/>\n{"".join(parts)}</svg>\n'
    )


def _panel(panel: Panel, offset: int) -> str:
    left, top, right, bottom = _MARGIN
    width, height = _PANEL[0] - left - right, _PANEL[1] - top - bottom
    x_most = max(panel.xs) or 1.0
    y_most = max(*panel.ys, *(panel.limits or ()), 0.0) or 1.0

    def place(x: float, y: float) -> str:
        return f"{offset + left + x / x_most * width:.1f},{top + height - y / y_most * height:.1f}"

    def line(ys: Sequence[float], style: str) -> str:
        points = " ".join(place(x, y) for x, y in zip(panel.xs, ys, strict=True))
        return f'<polyline points="{points}" fill="none" {style}/>\n'

    def text(x: float, y: float, anchor: str, content: str) -> str:
        return f'<text x="{offset + x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(content)}</text>\n'

    axes = f"M{offset + left},{top}V{top + height}H{offset + left + width}"
    parts = [f'<path d="{axes}" fill="none" stroke="black"/>\n', text(left, top - 14, "start", panel.title)]
    if panel.limits is not None:
        parts.append(line(panel.limits, 'stroke="grey" stroke-dasharray="4"'))
    parts.append(line(panel.ys, 'stroke="#1f5fa8" stroke-width="2"'))
    for x, y in zip(panel.xs, panel.ys, strict=True):
        cx, cy = place(x, y).split(",")
        parts.append(f'<circle cx="{cx}" cy="{cy}" r="3" fill="#1f5fa8"/>\n')
        parts.append(text(float(cx) - offset, top + height + 14, "middle", f"{x:g}"))
    parts.append(text(left - 6, top + 4, "end", f"{y_most:.3g}"))
    parts.append(text(left - 6, top + height, "end", "0"))
    parts.append(text(left + width / 2, top + height + 30, "middle", "X, seconds"))
    return "".join(parts)
