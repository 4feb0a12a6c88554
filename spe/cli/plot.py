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
_MARGIN: Final = (60, 40, 16, 40)  # left, top, right, bottom
#: Panels beside each other, at most.
_ABREAST: Final = 4
#: Of the lines, one after the other, told apart by the colour-blind as well (Okabe and Ito).
_COLOURS: Final = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
#: Room that the number of a mark on the x axis takes.
_LABEL: Final = 22


@dataclass(frozen=True)
class Line:
    """One line of a plot.

    Attributes:
      ys: what was found at each x of the panel; None: nothing.
      name: for the legend; "" needs none.
      dashed: a limit or an expectation, in the colour of the line before it.
    """

    ys: Sequence[float | None]
    name: str = ""
    dashed: bool = False


@dataclass(frozen=True)
class Panel:
    """One plot.

    Attributes:
      xs: where; ascending.
      across: what ``xs`` are.
    """

    title: str
    xs: Sequence[float]
    lines: Sequence[Line]
    across: str = "X, seconds"


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
    """The panels side by side, as the text of an SVG file; more than four in rows below each other."""
    width, height = _PANEL
    rows = [panels[at : at + _ABREAST] for at in range(0, len(panels), _ABREAST)]
    parts = []
    for down, row in enumerate(rows):
        drawn = "".join(_panel(panel, at * width) for at, panel in enumerate(row))
        parts.append(f'<g transform="translate(0,{down * height})">\n{drawn}</g>\n' if down else drawn)
    size = f'width="{width * max(map(len, rows), default=0)}" height="{height * len(rows)}"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="11">\n'
        f'<rect {size} fill="white"/>\n{"".join(parts)}</svg>\n'
    )


def _panel(panel: Panel, offset: int) -> str:
    left, top, right, bottom = _MARGIN
    width, height = _PANEL[0] - left - right, _PANEL[1] - top - bottom
    x_most = max(panel.xs) or 1.0
    y_most = max((y for line in panel.lines for y in line.ys if y is not None), default=0.0) or 1.0

    def place(x: float, y: float) -> tuple[float, float]:
        return offset + left + x / x_most * width, top + height - y / y_most * height

    def text(x: float, y: float, anchor: str, content: str, colour: str = "black") -> str:
        where = f'x="{offset + x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}"'
        return f"<text {where}>{escape(content)}</text>\n"

    axes = f"M{offset + left},{top}V{top + height}H{offset + left + width}"
    parts = [f'<path d="{axes}" fill="none" stroke="black"/>\n', text(left, top - 20, "start", panel.title)]
    drawn = -1
    for line in panel.lines:
        drawn += not line.dashed or drawn < 0
        colour = _COLOURS[drawn % len(_COLOURS)]
        found = [place(x, y) for x, y in zip(panel.xs, line.ys, strict=True) if y is not None]
        points = " ".join(f"{x:.1f},{y:.1f}" for x, y in found)
        style = 'stroke-dasharray="4"' if line.dashed else 'stroke-width="2"'
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" {style}/>\n')
        if not line.dashed:
            parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>\n' for x, y in found]
    parts += _legend(panel, offset + left, top - 6)
    shown: list[float] = []
    for x in panel.xs:  # as many as there is room for
        if not shown or (x - shown[-1]) / x_most * width >= _LABEL:
            shown.append(x)
            parts.append(text(place(x, 0)[0] - offset, top + height + 14, "middle", f"{x:g}"))
    parts.append(text(left - 6, top + 4, "end", f"{y_most:.3g}" if y_most < 1000 else f"{y_most:,.0f}"))
    parts.append(text(left - 6, top + height, "end", "0"))
    parts.append(text(left + width / 2, top + height + 30, "middle", panel.across))
    return "".join(parts)


def _legend(panel: Panel, x: float, y: float) -> list[str]:
    """Names of the lines in their colours, one behind the other."""
    spans, drawn = [], -1
    for line in panel.lines:
        drawn += not line.dashed or drawn < 0
        if line.name:
            colour = _COLOURS[drawn % len(_COLOURS)]
            spans.append(f'<tspan fill="{colour}">{escape(line.name)}{" (dashed)" if line.dashed else ""}  </tspan>')
    return (
        [f'<text x="{x:.1f}" y="{y:.1f}" font-size="10" xml:space="preserve">{"".join(spans)}</text>\n']
        if spans
        else []
    )
