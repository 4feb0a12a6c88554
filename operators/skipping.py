"""An operator that skips rows, and reports them (U15).

With ``on_error: skip`` these are rows that it cannot process, and results that it cannot make; with ``on_late:
reject`` they are late rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from operators.operator import Operator
from operators.rejections import Refusals, RejectedRow, shown
from spe.stream.batch import Rows, concat_rows
from spe.stream.schema import Schema
from spe.stream.text_size import refusal, too_large

#: Number of rejections that a step reports.
_REPORTED: Final = 1 << 8
#: Names of the counters.
REJECTED: Final = "rejected"
REJECTED_RESULTS: Final = "rejected_results"


@dataclass(frozen=True, slots=True)
class Rejected:
    """A rejection, as known to the operator.

    Attributes:
      number: counts the rejected rows, or results, of the operator from 1.
      port: None for a result.
      row: its index among the rows of the port in the slice; for a result, among the rows released together.
    """

    number: int
    port: int | None
    row: int
    time: int
    values: Mapping[str, Any]
    reason: str


class Skipping(Operator):
    """Runs an operator, counts the rows that it rejects, and removes results with too much text.

    Args:
      operator: operator that reports rejected rows and results in ``operator.refusals``.
      inputs: schema of each port.
      skips: remove results with too much text.
    """

    def __init__(self, operator: Operator, inputs: Sequence[Schema], *, skips: bool = True) -> None:
        self._operator = operator
        self._skips = skips
        self._inputs = inputs
        self._refusals = Refusals() if operator.refusals is None else operator.refusals
        self._rows = self._results = 0
        self.schema = operator.schema
        self.takes_portions = operator.takes_portions
        #: Rejections since the last :meth:`take_rejected`.
        self.rejected: list[Rejected] = []
        #: Number of rows in earlier calls for the same slice.
        self._before = 0

    @property
    def operator(self) -> Operator:
        return self._operator

    def step(self, ports: Sequence[Rows | None], boundary: int) -> Rows | None:
        released = [rows for rows in self.work(ports, boundary) if rows is not None]
        return concat_rows(released) if released else None

    def work(self, ports: Sequence[Rows | None], boundary: int) -> Iterator[Rows | None]:
        for rows in self._operator.work(ports, boundary):
            yield rows if rows is None else self._without_rejected(rows)
        yield from self._count_rows(ports)
        self._before += 0 if ports[0] is None else len(ports[0])

    def take_rejected(self) -> list[Rejected]:
        """Returns the rejections since the last call; to be called after each slice."""
        taken, self.rejected, self._before = self.rejected, [], 0
        return taken

    def _without_rejected(self, rows: Rows) -> Rows | None:
        reasons = self._refusals.results
        large = too_large(rows.columns) if self._skips else {}
        if not reasons and not large:
            return rows
        reasons = {row: refusal(size) for row, size in large.items()} | reasons
        self._refusals.results = {}
        for row in sorted(reasons):
            self._results += 1
            values = shown(rows, self.schema, row)
            self.rejected.append(Rejected(self._results, None, row, int(rows.time[row]), values, reasons[row]))
        accepted = np.ones(len(rows), np.bool_)
        accepted[list(reasons)] = False
        return rows.select(accepted) if accepted.any() else None

    def _count_rows(self, ports: Sequence[Rows | None]) -> Iterator[None]:
        """Counts rejected rows in order of (time, port, place), which does not depend on slices."""
        refused, self._refusals.rows = self._refusals.rows, []
        placed: list[tuple[int, RejectedRow, Rows]] = []
        for rejected in refused:
            rows = ports[rejected.port]
            assert rows is not None
            placed.append((int(rows.time[rejected.row]), rejected, rows))
        placed.sort(key=lambda p: (p[0], p[1].port, p[1].row))  # stable: rejections of one row keep their order
        for number, (time, rejected, rows) in enumerate(placed):
            if number and number % _REPORTED == 0:
                yield
            self._rows += 1
            values = shown(rows, self._inputs[rejected.port], rejected.row)
            self.rejected.append(
                Rejected(self._rows, rejected.port, self._before + rejected.row, time, values, rejected.why())
            )

    def load(self) -> bool:
        return self._operator.load()

    def snapshot(self) -> Mapping[str, Any]:
        return {"rejected": (self._rows, self._results), "operator": self._operator.snapshot()}

    def _forget(self) -> None:
        """Drops rejections of an interrupted slice."""
        self.take_rejected()
        self._refusals.rows, self._refusals.results = [], {}

    def restore(self, state: Mapping[str, Any]) -> None:
        self._forget()
        self._rows, self._results = state["rejected"]
        self._operator.restore(state["operator"])

    def counters(self) -> Mapping[str, int]:
        return {**self._operator.counters(), REJECTED: self._rows, REJECTED_RESULTS: self._results}

    def oldest_needed(self) -> int | None:
        return self._operator.oldest_needed()

    def clear(self, boundary: int) -> None:
        self._operator.clear(boundary)

    def recount(self, counters: Mapping[str, int]) -> None:
        self._forget()  # they are known already
        self._rows, self._results = counters[REJECTED], counters[REJECTED_RESULTS]
        self._operator.recount({k: n for k, n in counters.items() if k not in (REJECTED, REJECTED_RESULTS)})

    def rewind(self, boundary: int) -> bool:
        return self._operator.rewind(boundary)
