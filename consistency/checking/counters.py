"""Counts what was checked, and the situations of a run: a checker that saw nothing has proved nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from spe.text_table import text_table

#: (row, column) of a coverage table, e.g. (state, event).
Cell = tuple[str, str]


class Counters:
    """Sums over any number of runs.

    Attributes:
      amounts: amount of each check; seconds are counted in microseconds under names that end in ``_us``.
      events: (state of a replica, event) -> how often.
      faults: (kind of fault, its victim as it began) -> how often: the state of a replica, the phase of a move, or
        the progress of a standby.
    """

    def __init__(self) -> None:
        self.amounts: Counter[str] = Counter()
        self.events: Counter[Cell] = Counter()
        self.faults: Counter[Cell] = Counter()

    def add(self, name: str, amount: int = 1) -> None:
        self.amounts[name] += amount

    def situations(self) -> set[str]:
        """Returns the names of all situations, however frequent."""
        cells = [*self.events, *self.faults]
        return {f"{row} × {column}" for row, column in cells} | {n for n in self.amounts if not n.endswith("_us")}

    def merge(self, other: Counters) -> None:
        self.amounts.update(other.amounts)
        self.events.update(other.events)
        self.faults.update(other.faults)


def show_table(table: Mapping[Cell, int]) -> list[str]:
    """Formats a table as lines of text, rows and columns in order of name."""
    rows, columns = sorted({r for r, _ in table}), sorted({c for _, c in table})
    if not rows:
        return []
    lines = [["", *rows], *([c, *(str(table.get((r, c), 0)) for r in rows)] for c in columns)]
    return text_table(lines, right=range(1, len(rows) + 1))
