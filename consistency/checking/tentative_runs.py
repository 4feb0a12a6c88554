"""Tentative output of clients: the elements between two corrections, and up to where they are complete."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field

from spe.stream.batch import Batch, Boundary, Rows, Undo, concat_rows
from spe.stream.history import Delivered, History, ProcessUp
from spe.stream.ids import Channel
from spe.stream.names import Kind
from spe.stream.times import BEFORE_TIME, END_OF_TIME


@dataclass(slots=True)
class TentativeRun:
    """Tentative elements between two corrections.

    Attributes:
      low: time below which everything is stable.
      at: arrival of each element.
      batches, complete: of each element its rows, if any, and the time, exclusive, up to which everything has come.
      end_us: when it was undone.
    """

    low: int
    at: list[int] = field(default_factory=list)
    batches: list[Batch | None] = field(default_factory=list)
    complete: list[int] = field(default_factory=list)
    end_us: int = END_OF_TIME

    def add(self, at_us: int, element: Batch | Boundary) -> None:
        batch = element if isinstance(element, Batch) else None
        reach = element.time if isinstance(element, Boundary) else int(element.rows.time[-1])
        self.at.append(at_us)
        self.batches.append(batch)
        self.complete.append(max(reach, self.complete[-1] if self.complete else BEFORE_TIME))

    def until(self, at_us: int) -> tuple[Rows | None, int]:
        """Returns its rows before a time, and up to where they are complete."""
        count = bisect_left(self.at, at_us)
        rows = [b.rows for b in self.batches[:count] if b is not None]
        return concat_rows(rows) if rows else None, self.complete[count - 1] if count else BEFORE_TIME


def tentative_runs(history: History) -> dict[tuple[str, Channel], list[TentativeRun]]:
    runs: dict[tuple[str, Channel], list[TentativeRun]] = {}
    live: dict[tuple[str, Channel], TentativeRun] = {}
    stable: dict[tuple[str, Channel], int] = {}
    for event in history:
        if isinstance(event, ProcessUp):
            for key in [k for k in live if k[0] == event.host]:
                live.pop(key).end_us = event.at_us
        if not isinstance(event, Delivered):
            continue
        key, element = (event.consumer, event.channel), event.element
        if isinstance(element, Undo):
            if (run := live.pop(key, None)) is not None:
                run.end_us = event.at_us
        elif isinstance(element, Boundary) or (isinstance(element, Batch) and len(element)):
            if element.kind is Kind.STABLE:
                reach = element.time if isinstance(element, Boundary) else int(element.rows.time[-1]) + 1
                stable[key] = max(stable.get(key, BEFORE_TIME), reach)
                continue
            if key not in live:
                live[key] = TentativeRun(stable.get(key, BEFORE_TIME))
                runs.setdefault(key, []).append(live[key])
            live[key].add(event.at_us, element)
    return runs
