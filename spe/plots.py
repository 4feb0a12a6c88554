"""Plots of a few points: bars in a terminal, panels of lines and points in SVG.  Pure, without a library."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Final, NamedTuple

_BLOCKS: Final = " ▏▎▍▌▋▊▉"
_WIDTH: Final = 12
#: Size of a panel in a file, and margins around its lines.
_PANEL: Final = (420, 260)
_MARGIN: Final = (60, 40, 16, 40)  # left, top, right, bottom
#: Most panels side by side.
_ABREAST: Final = 4
#: Width of a number on the x axis.
_LABEL: Final = 22
#: Radius of a labelled point: its letter fits inside.
_RADIUS: Final = 11


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:g}"


class Colours(NamedTuple):
    """Colours of a panel.

    Attributes:
      lines: colours of lines, in order; labelled points have the first.
      paper: colour of the letters inside points.
    """

    ink: str
    axis: str
    grid: str
    paper: str
    lines: Sequence[str]


#: The colours of lines are distinct for the colour-blind, too (Okabe and Ito).
IN_FILES: Final = Colours(
    "black", "black", "#e4e4e4", "white", ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
)


@dataclass(frozen=True)
class Line:
    """A line of a plot.

    Attributes:
      ys: value at each x of the panel; None: no value.
      name: name in the legend; "" for none.
      dashed: a limit or an expectation, in the colour of the line before it.
    """

    ys: Sequence[float | None]
    name: str = ""
    dashed: bool = False


class LabelledPoint(NamedTuple):
    """A single point with a letter.

    Attributes:
      letter: letter inside the point.
      tip: tooltip.
    """

    x: float
    y: float
    letter: str
    tip: str


@dataclass(frozen=True)
class Panel:
    """A plot.

    Attributes:
      xs: x values of the lines, ascending, which label the axis; if empty, round numbers do.
      across: title of the x axis.
      x_text, y_text: format numbers.
    """

    title: str
    xs: Sequence[float] = ()
    lines: Sequence[Line] = ()
    across: str = "X, seconds"
    points: Sequence[LabelledPoint] = ()
    x_text: Callable[[float], str] = _number
    y_text: Callable[[float], str] = _number


def bars(values: Sequence[float]) -> list[str]:
    """Draws a bar for each value, relative to the largest; all texts have the same width."""
    largest = max(values, default=0) or 1
    texts = []
    for value in values:
        eighths = round(value / largest * _WIDTH * 8)
        text = "█" * (eighths // 8) + _BLOCKS[eighths % 8].strip()
        texts.append(f"{text:<{_WIDTH}}")
    return texts


def ticks(most: float) -> list[float]:
    """Returns about five round numbers above 0 up to ``most``."""
    rough = most / 5
    unit = 10 ** math.floor(math.log10(rough))
    step = next(n * unit for n in (1, 2, 5, 10) if n * unit >= rough)
    return [n * step for n in range(1, int(most / step * (1 + 1e-9)) + 1)]


def element(name: str, content: str = "", /, **attributes: str | float) -> str:
    """Makes an SVG element; ``content`` is SVG too.  Names of attributes have _ for -; numbers get one decimal."""
    parts = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(value if isinstance(value, str) else f"{value:.1f}")}"'
        for key, value in attributes.items()
    )
    return f"<{name}{parts}>{content}</{name}>\n" if content else f"<{name}{parts}/>\n"


def polyline(points: Iterable[tuple[float, float]], **attributes: str | float) -> str:
    """Draws a line through points, in the units of the drawing."""
    return element("polyline", points=" ".join(f"{x:.1f},{y:.1f}" for x, y in points), **attributes)


def svg(panels: Sequence[Panel]) -> str:
    """Returns an SVG file with the panels side by side, in rows of four."""
    width, height = _PANEL
    drawn = [
        element("g", draw(panel, _PANEL), transform=f"translate({at % _ABREAST * width},{at // _ABREAST * height})")
        for at, panel in enumerate(panels)
    ]
    rows = -(-len(panels) // _ABREAST)
    size = f'width="{width * min(len(panels), _ABREAST)}" height="{height * rows}"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="11">\n'
        f'<rect {size} fill="white"/>\n{"".join(drawn)}</svg>\n'
    )


def draw(panel: Panel, size: tuple[int, int], colours: Colours = IN_FILES) -> str:
    """Returns the elements of a panel of this size."""
    drawing = _Drawing(panel, size, colours)
    return "".join([*drawing.legend(), *drawing.axes(), *drawing.lines(), *drawing.points()])


class _Drawing:
    """Places and draws the elements of a panel."""

    def __init__(self, panel: Panel, size: tuple[int, int], colours: Colours) -> None:
        self._panel = panel
        self._colours = colours
        self._left, self._top, right, bottom = _MARGIN
        self._right, self._bottom = size[0] - right, size[1] - bottom
        ys = [y for line in panel.lines for y in line.ys if y is not None]
        self._x_most = max([*panel.xs, *(p.x * 1.1 for p in panel.points)], default=0.0) or 1.0
        self._y_most = max([*ys, *(p.y * 1.1 for p in panel.points)], default=0.0) or 1.0
        coloured, drawn = [], -1
        for line in panel.lines:
            drawn += not line.dashed or drawn < 0
            coloured.append((line, colours.lines[drawn % len(colours.lines)]))
        #: Lines with their colours; a dashed one has the colour of the line before it.
        self._coloured = coloured

    def axes(self) -> list[str]:
        """Draws both axes, with their numbers and the grid."""
        panel, left, right, top, bottom = self._panel, self._left, self._right, self._top, self._bottom
        parts = [self._text(left - 6, bottom, "end", "0")]
        for value in ticks(self._y_most):
            y = self._y(value)
            parts += [self._grid(left, right, y, y), self._text(left - 6, y + 4, "end", panel.y_text(value))]
        parts.append(self._text((left + right) / 2, bottom + 30, "middle", panel.across))
        if not panel.xs:
            parts += [self._grid(self._x(value), self._x(value), top, bottom) for value in ticks(self._x_most)]
        shown: list[float] = []
        for value in panel.xs or ticks(self._x_most):  # as many as fit
            if not shown or self._x(value) - self._x(shown[-1]) >= _LABEL:
                shown.append(value)
                parts.append(self._text(self._x(value), bottom + 14, "middle", panel.x_text(value)))
        path = f"M{left},{top}V{bottom}H{right}"
        return [*parts, element("path", d=path, fill="none", stroke=self._colours.axis)]

    def lines(self) -> list[str]:
        parts = []
        for line, colour in self._coloured:
            places = [(self._x(x), self._y(y)) for x, y in zip(self._panel.xs, line.ys, strict=True) if y is not None]
            style = {"stroke_dasharray": "4"} if line.dashed else {"stroke_width": "2"}
            parts.append(polyline(places, fill="none", stroke=colour, **style))
            if not line.dashed:
                parts += [element("circle", cx=x, cy=y, r="3", fill=colour) for x, y in places]
        return parts

    def points(self) -> list[str]:
        parts = []
        inside = {"text_anchor": "middle", "font_weight": "600", "pointer_events": "none"}
        for point in self._panel.points:
            x, y, tip = self._x(point.x), self._y(point.y), element("title", escape(point.tip))
            parts.append(element("circle", tip, cx=x, cy=y, r=_RADIUS, fill=self._colours.lines[0]))
            parts.append(element("text", escape(point.letter), x=x, y=y + 4.5, fill=self._colours.paper, **inside))
        return parts

    def legend(self) -> list[str]:
        """Draws the title, and the names of the lines in their colours."""
        spans = [
            element("tspan", f"{escape(line.name)}{' (dashed)' if line.dashed else ''}  ", fill=colour).rstrip()
            for line, colour in self._coloured
            if line.name
        ]
        at = {"x": str(self._left), "y": str(self._top - 6), "font_size": "10", "xml:space": "preserve"}
        title = self._text(self._left, self._top - 20, "start", self._panel.title)
        return [title, element("text", "".join(spans), **at)] if spans else [title]

    def _x(self, value: float) -> float:
        return self._left + value / self._x_most * (self._right - self._left)

    def _y(self, value: float) -> float:
        return self._bottom - value / self._y_most * (self._bottom - self._top)

    def _text(self, x: float, y: float, anchor: str, content: str) -> str:
        return element("text", escape(content), x=x, y=y, text_anchor=anchor, fill=self._colours.ink)

    def _grid(self, x1: float, x2: float, y1: float, y2: float) -> str:
        return element("line", x1=x1, x2=x2, y1=y1, y2=y2, stroke=self._colours.grid)
