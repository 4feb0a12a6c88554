"""What an experiment leaves: rows in Parquet, a plot of them, a table on the screen."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.experiments.measures import Measured, measured
from benchmarks.experiments.model import Expected
from benchmarks.experiments.setup import Setup, scenario
from benchmarks.tables import show
from replicas.simulation.simulate import simulate
from spe.plots import Line, Panel, svg
from spe.stream.times import SECOND

#: One point of an experiment: what was set, what was measured, what was expected.  All rows of one have the same keys.
Row = Mapping[str, Any]


class Experiment(NamedTuple):
    """What a module of one experiment has, for those that share a module."""

    TITLE: str
    measure: Callable[[bool], Iterator[Row]]
    panels: Callable[[Sequence[Row]], list[Panel]]


#: Seconds of computing that one run may take.
CPU_S = 600.0


def play(setup: Setup) -> Measured:
    """One run, in virtual time."""
    return measured(setup, simulate(scenario(setup), cpu_s=CPU_S))


def beside(ours: Measured, model: Expected) -> Row:
    """Both measures of the paper with what the model says, and what was broken."""
    return {
        "delay_s": ours.delay_us / SECOND,
        "model_delay_s": model.delay_us / SECOND,
        "tentative": ours.tentative,
        "model_tentative": model.tentative,
        "tentative_off": None if not model.tentative else ours.tentative / model.tentative - 1,
        "outage_s": ours.outage_us / SECOND,
        "findings": "; ".join(ours.findings),
    }


def write(name: str, rows: Sequence[Row], panels: Sequence[Panel], folder: Path) -> list[Path]:
    """``NAME.parquet`` and ``NAME.svg``; returns where they are."""
    folder.mkdir(parents=True, exist_ok=True)
    table, plot = folder / f"{name}.parquet", folder / f"{name}.svg"
    pq.write_table(pa.Table.from_pylist([dict(row) for row in rows]), table)
    plot.write_text(svg(panels), encoding="utf-8")
    return [table, plot]


def print_table(title: str, rows: Sequence[Row]) -> None:
    """All columns but findings, which follow where there are any."""
    head = [name for name in rows[0] if name != "findings"]
    show(title, head, [[_cell(row[name]) for name in head] for row in rows])
    for row in rows:
        if row.get("findings"):
            print(f"{', '.join(_cell(row[name]) for name in head)}: {row['findings']}")


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.3f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def lines(
    rows: Sequence[Row], by: str, across: str, value: str, model: str | None = None, scale: float = 1.0
) -> list[Line]:
    """A line for each value of column ``by``, with the model's beside it, over the values of ``across``."""
    found: list[Line] = []
    xs = places(rows, across)
    for one in dict.fromkeys(row[by] for row in rows):
        mine = {row[across]: row for row in rows if row[by] == one}
        for column, name in ((value, str(one)), (model, "model")):
            if column is not None:
                values = [mine[x][column] if x in mine else None for x in xs]
                ys = [None if y is None else y * scale for y in values]
                found.append(Line(ys, name if column == value else "", dashed=column == model))
    return found


def beside_model(
    rows: Sequence[Row], by: str, across: str, label: str, shown: Sequence[tuple[str, str, str]]
) -> list[Panel]:
    """A panel for each (title, column, the model's column), with a line for each value of ``by``."""
    xs = places(rows, across)
    return [
        Panel(title, xs, lines(rows, by, across, value, model), f"{label}; dashed: model")
        for title, value, model in shown
    ]


def places(rows: Sequence[Row], across: str) -> list[float]:
    """The different values of a column, ascending."""
    return sorted({row[across] for row in rows})
