"""An experiment of a paper as a record: what is varied, what is measured, and how it is shown."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import log10
from pathlib import Path
from statistics import fmean, median
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.tables import show
from spe.plots import Line, Panel, svg

#: A point of an experiment: the varied columns, then the measured ones.  All rows of one experiment have equal keys.
Row = Mapping[str, Any]

#: Columns of which the worst of several runs counts; of all others it is the median.
_WORST: Final[Mapping[str, Callable[[Sequence[Any]], Any]]] = {"tentative": max, "came": min}
EXPERIMENTS: Final[dict[str, Experiment]] = {}


class Plot(NamedTuple):
    """A panel for each column in ``shown``, with a line for each value of the columns ``by``, over column ``x``.

    Attributes:
      by, shown: names of columns, with a space between; "ours/model" draws the second column dashed beside the first.
      where: a column and its value, or only the column: the rows that are drawn.  A row without an x never is.
    """

    x: str
    by: str
    shown: str
    where: tuple[str, Any] | None = None

    def panels(self, rows: Sequence[Row]) -> list[Panel]:
        drawn = [row for row in rows if row[self.x] is not None]
        if self.where is not None:
            drawn = [row for row in drawn if row[self.where[0]] == self.where[1]]
        return [self._panel(drawn, *column.split("/")) for column in self.shown.split() if drawn]

    def _panel(self, rows: Sequence[Row], column: str, model: str | None = None) -> Panel:
        xs = sorted({row[self.x] for row in rows})
        lines: list[Line] = []
        curves: dict[str, list[Row]] = {}
        for row in rows:
            curves.setdefault(", ".join(str(row[name]) for name in self.by.split()), []).append(row)
        for name, mine in curves.items():
            lines.append(Line([_mean(mine, self.x, x, column) for x in xs], name))
            if model is not None:
                lines.append(Line([_mean(mine, self.x, x, model) for x in xs], dashed=True))
        label = f"{self.x}; dashed: {model}" if model else self.x
        if isinstance(xs[0], str):
            return Panel(column, list(range(len(xs))), lines, ", ".join(xs))
        if xs[0] > 0 and xs[-1] > 50 * xs[0]:
            return Panel(column, [log10(x) for x in xs], lines, f"{label}; powers of ten")
        return Panel(column, xs, lines, label)


def _mean(rows: Sequence[Row], x: str, at: float, column: str) -> float | None:
    values = [row[column] for row in rows if row[x] == at and row[column] is not None]
    return fmean(values) if values else None


@dataclass(frozen=True)
class Experiment:
    """An experiment.

    Attributes:
      paper: and its section or figure.
      points: the varied columns of each row; takes whether only a few small runs are wanted.
      measure: (quick, **point) -> the measured columns, or rows of them; ``findings`` says what broke a promise, one or
        several; empty ones do not count.  The first line of its docstring is the title.
      plots: how the rows are drawn.
      runs: how often each point is measured where ``--runs`` does not say; None: once.
      tries: each of these runs is a row of its own; else a row has their medians.
    """

    name: str
    paper: str
    points: Callable[[bool], Iterable[Row]]
    measure: Callable[..., Row | Iterable[Row]]
    plots: Sequence[Plot] | Callable[[Sequence[Row]], list[Panel]]
    runs: int | None = None
    tries: bool = False

    @property
    def title(self) -> str:
        return f"{(self.measure.__doc__ or self.name).splitlines()[0].rstrip('.')} ({self.paper})"

    def rows(self, quick: bool, runs: int | None = None) -> Iterator[Row]:
        many = 1 if quick or self.runs is None else runs or self.runs
        for point in self.points(quick):
            measured = (_as_rows(self.measure(quick, **point)) for _ in range(many))
            if self.tries:
                yield from ({**point, "try": at, **_combined([row])} for at, (row,) in enumerate(measured, 1))
                continue
            for same in zip(*measured, strict=True):
                counted = {} if self.runs is None else {"runs": many}
                yield {**point, **counted, **_combined(same)}

    def panels(self, rows: Sequence[Row]) -> list[Panel]:
        if callable(self.plots):
            return self.plots(rows)
        return [panel for plot in self.plots for panel in plot.panels(rows)]


def experiment(
    name: str, paper: str, points: Callable[[bool], Iterable[Row]], *plots: Plot, **more: Any
) -> Callable[[Callable[..., Any]], Experiment]:
    """Makes an experiment of the function that measures it."""

    def record(measure: Callable[..., Any]) -> Experiment:
        EXPERIMENTS[name] = Experiment(name, paper, points, measure, more.pop("panels", plots), **more)
        return EXPERIMENTS[name]

    return record


def _as_rows(measured: Row | Iterable[Row]) -> Iterable[Row]:
    return (measured,) if isinstance(measured, Mapping) else measured


def _combined(rows: Sequence[Row]) -> Row:
    """The same point of several runs; a number that one of them does not have is not known."""
    combined: dict[str, Any] = {}
    for name in (name for name in rows[0] if name != "findings"):
        values = [row[name] for row in rows]
        if len(rows) == 1 or isinstance(values[0], str):
            combined[name] = values[0]
        else:
            combined[name] = None if None in values else _WORST.get(name, median)(values)
    findings = [row.get("findings", ()) for row in rows]
    every = [str(f) for of_run in findings for f in ([of_run] if isinstance(of_run, str) else of_run)]
    return combined | {"findings": "; ".join(filter(None, every))}


def sweep(**columns: Iterable[Any]) -> list[dict[str, Any]]:
    """Every combination of the columns' values; the last column changes fastest."""
    return [dict(zip(columns, values)) for values in product(*columns.values())]


def once(quick: bool) -> list[Row]:
    """A single point, with nothing varied."""
    return [{}]


def write(name: str, rows: Sequence[Row], panels: Sequence[Panel], folder: Path) -> list[Path]:
    """Writes ``NAME.parquet`` and ``NAME.svg``; returns their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    table, plot = folder / f"{name}.parquet", folder / f"{name}.svg"
    pq.write_table(pa.Table.from_pylist([dict(row) for row in rows]), table)
    plot.write_text(svg(panels), encoding="utf-8")
    return [table, plot]


def print_table(title: str, rows: Sequence[Row]) -> None:
    """Prints all columns but the findings, which follow the table."""
    head = [name for name in rows[0] if name != "findings"]
    show(title, head, [[_cell(row[name]) for name in head] for row in rows])
    for row in rows:
        if row["findings"]:
            print(f"{', '.join(_cell(row[name]) for name in head)}: {row['findings']}")


def _cell(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.3f}"
    return "-" if value is None else f"{value:,}" if isinstance(value, int) else str(value)
