"""Aggregates per group over windows of tuple time or of a timestamp attribute.

State is one :class:`Cells` per pane.  A tumbling window is its pane; a sliding one is combined from its panes, oldest
first, when it ends: so sums do not depend on the batches of the input, and a pane that has passed is not written again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import numpy as np

from operators import steps
from operators.aggregate.calls import QUIET, Calls
from operators.aggregate.group_cells import Cells, check_found, check_replayed, forget_texts
from operators.aggregate.panes import PaneOperator, Panes
from operators.columns import chosen, consecutive, filled, inverse, picked, sorted_order, where
from operators.footprints import CellRecord, Footprints, LiveFootprints, Picked, PicksCells, Rewriting, Tree
from operators.ids import IndexArray, StringIds
from operators.keys import KeyIndex
from operators.rejections import Refusals
from operators.steps import Steps, portions
from operators.strings import KeptStrings
from operators.windows import Late, LateRejections, Selection, arrivals, first_time, saturated
from spe.expressions import compile_expression
from spe.query.operators.aggregate import AggregateSpec
from spe.query.windows import TimeWindow
from spe.stream.batch import Column, Rows, concat_columns
from spe.stream.schema import Schema

#: Number of panes that take rows, or of windows that end, after which a step yields, however few rows they have.
_MANY: Final = 64


@dataclass(slots=True)
class _Ended:
    """An ended window: its bounds, and per group, in order of first arrival, slot and results.

    ``failed`` has the places of groups without results, and the reasons.
    """

    start: int
    end: int
    slots: IndexArray
    results: list[Column]
    failed: dict[int, str]


def joined(columns: Sequence[Column]) -> Column:
    """Concatenates columns, with strings in a new dictionary."""
    if any(c.dictionary is not columns[0].dictionary for c in columns):
        strings = StringIds()
        columns = [strings.adopt(c) for c in columns]
    return concat_columns(columns)


class WindowAggregate(PaneOperator[Cells], PicksCells):
    """One row per window and group, at the window's end − 1, groups in order of first arrival.

    Args:
      spec: with a window of time.
      input_schema: schema of port 0.
      schema: schema of the output.
    """

    def __init__(self, spec: AggregateSpec, input_schema: Schema, schema: Schema) -> None:
        self.schema = schema
        assert isinstance(spec.window, TimeWindow)
        self._window = spec.window
        self._on = None if spec.window.on is None else input_schema.index(spec.window.on)
        self._group_by = [compile_expression(text, input_schema) for text in spec.group_by.values()]
        self.refusals = Refusals() if spec.rejects else None
        self._calls = Calls(spec.aggregates, input_schema, refusals=self.refusals if spec.skips else None)
        self._rejects_late = spec.rejects_late
        self._key_types = [e.type for e in self._group_by]
        self._is_logged = False
        self._reset()

    def _reset(self) -> None:
        self._keys = KeyIndex(self._key_types)
        self._strings = KeptStrings()
        # A partial without self: a reference cycle would be freed by the garbage collector only, much later.
        self._new_cells = partial(Cells, self._calls, self._strings, self._is_logged)
        self._panes = Panes(self._window, self._new_cells)
        #: Panes with footprints at the end of the last slice, and those of them with footprints that are not final.
        self._written: dict[int, Cells] = {}
        self._not_final: set[int] = set()
        #: G4: are rows before a commit being replayed?
        self._replays = False
        self._is_whole = True
        #: Number of processed rows.
        self._sequence = 0
        self._late = Late()
        self._compact_at = steps.SPARE

    def work(self, ports: Sequence[Rows | None], boundary: int) -> Iterator[Rows | None]:
        if self._left is not None:
            yield from self._restored()
        if self._replays:
            yield from self._replay(ports[0])
            return
        rows = ports[0]
        ended: list[_Ended] = []
        if rows is not None and len(rows):
            yield from self._keys.reserve(len(rows))
            slots = yield from self._keys.slots_in_portions(self._groups_of(rows), len(rows))
            arguments = self._calls.evaluate(rows)
            for number, (upto, pane, which) in enumerate(self._arrivals(rows), 1):
                if upto > self._panes.released:
                    yield from self._release(upto, ended)
                cells = self._panes.take(pane, first_time(rows, which))
                yield from cells.reserve(len(slots), self._keys.size)
                yield from self._take_in(cells, which, slots, arguments)
                if number % _MANY == 0:
                    yield None
            if self.refusals is not None:
                self.refusals.counted_from(self._sequence)
            self._sequence += len(rows)
        yield from self._release(boundary, ended)
        if ended:
            yield self._rows(ended)
            yield from self._tidy(boundary)
        yield from forget_texts(self._strings, self._panes.by_number.values())

    def _arrivals(self, rows: Rows) -> Iterator[tuple[int, int, Selection]]:
        rejections = None
        if self._rejects_late and self.refusals is not None:
            rejections = LateRejections(self.refusals, 0, self._sequence)
        return arrivals(self._window, rows, self._on, self._late, self._panes.released, rejections)

    @QUIET
    def _groups_of(self, rows: Rows) -> list[Column]:
        return [e.evaluate(rows) for e in self._group_by]

    def _take_in(self, cells: Cells, which: Selection, slots: IndexArray, arguments: list[Column]) -> Steps[None]:
        sequence: Any = self._sequence
        if isinstance(which, slice):
            count = which.stop - which.start
            sequence += which.start
            if count != len(slots):
                slots = slots[which]
                arguments = [c.slice(which.start, which.stop) for c in arguments]
        else:
            count, sequence, slots = len(which), sequence + which, slots[which]
            arguments = [c.take(which) for c in arguments]
        at = cells.cells_of(slots, self._keys.size, sequence)
        if not self._calls.needs_sequence:
            numbers = at
        elif isinstance(sequence, int):
            numbers = np.arange(sequence, sequence + count)
        else:
            numbers = sequence
        yield from cells.update_in_portions(at, arguments, numbers)

    def _replay(self, rows: Rows | None) -> Steps[None]:
        """G4: a replayed row from before the commit counts in an existing cell unless its footprint is later."""
        assert self._is_logged, "G4: rows come again to a state from a log only"
        if rows is None or not len(rows):
            return
        yield from self._keys.reserve(len(rows))
        slots = yield from self._keys.slots_in_portions(self._groups_of(rows), len(rows))
        arguments = self._calls.evaluate(rows)
        for _, pane, which in self._arrivals(rows):
            cells = self._panes.by_number.get(pane)
            if cells is None:
                continue
            index = np.arange(len(rows))[which]
            at = yield from cells.find(slots[index], self._keys.size)
            counted = ((at >= 0) & (rows.time[index] >= cells.written.take(at, mode="clip"))).nonzero()[0]
            index, at = index[counted], at[counted]
            if len(index):
                yield from cells.reserve(len(index), self._keys.size)
                some = [c.take(index) for c in arguments]
                yield from cells.update_in_portions(at, some, self._sequence + index)
        if self.refusals is not None:
            self.refusals.counted_from(self._sequence)
        self._sequence += len(rows)

    def _release(self, upto: int, ended: list[_Ended]) -> Iterator[Rows | None]:
        """Adds the windows that end by ``upto`` to ``ended``; yields rows when there are many."""
        for number, (begin, end, members) in enumerate(self._panes.release(upto), 1):
            cells, order = members[0], None
            if len(members) > 1:
                cells = yield from self._combined(members)
                if self._on is not None:
                    order = yield from sorted_order(cells.born)
            for start, stop in portions(cells.count, steps.RELEASED):
                if start:
                    yield self._rows(ended)
                    yield None
                    ended.clear()
                which = self._which(cells, start, stop, order)
                results = self._calls.results(cells.parts, which)
                ended.append(_Ended(begin, end, cells.slots[which], results, self._calls.failed(cells.parts)))
            if number % _MANY == 0:
                yield None

    def _combined(self, members: list[Cells]) -> Steps[Cells]:
        cells = Cells(self._calls, self._strings)
        table = yield from filled(self._keys.size, -1)
        for member in members:
            yield from cells.absorb(member, table)
        return cells

    def _which(self, cells: Cells, start: int, stop: int, order: IndexArray | None) -> slice | IndexArray:
        if order is not None:
            return order[start:stop]
        if self._window.panes == 1 and stop - start == cells.count:
            return slice(start, stop)  # it is not written any more
        return np.arange(start, stop)

    def _rows(self, ended: list[_Ended]) -> Rows:
        slots = ended[0].slots if len(ended) == 1 else np.concatenate([e.slots for e in ended])
        counts = [len(e.slots) for e in ended]
        ends = saturated([e.end for e in ended]).repeat(counts)
        starts = np.array([e.start for e in ended], np.int64).repeat(counts)
        time = ends - 1
        if self.refusals is not None:
            begins = np.cumsum([0, *counts]).tolist()
            self.refusals.results = {at + i: why for at, e in zip(begins, ended) for i, why in e.failed.items()}
        results = [joined(columns) for columns in zip(*[e.results for e in ended])]
        return Rows(time, time, (*self._keys.columns(slots), Column(starts), Column(ends), *results))

    def _tidy(self, boundary: int) -> Steps[None]:
        """Frees the lookup tables of panes that have passed, and keys that no pane has any more."""
        if self._on is None:
            for cells in self._panes.passed(boundary):
                cells.close()
        size, panes = self._keys.size, list(self._panes.by_number.values())
        if size <= self._compact_at:
            return
        is_live = np.zeros(size, np.bool_)
        for cells in panes:
            for start, stop in portions(cells.count, steps.INDEXED):
                if start:
                    yield
                is_live[cells.slots[start:stop]] = True
        live = yield from chosen(is_live)
        if 2 * len(live) < size:
            self._keys, slots = yield from self._keys.compacted(live)
            renumbered = yield from inverse(live, slots, size)
            for cells in panes:
                yield from cells.renumber(renumbered)
        self._compact_at = 2 * self._keys.size + steps.SPARE

    def snapshot(self) -> Mapping[str, Any]:
        self._finish_restore()
        return {
            "released": self._panes.released,
            "sequence": self._sequence,
            "late": self._late.state(),
            "since": list(self._panes.since.values()),
            "keys": self._keys.snapshot(),
            "strings": self._strings.snapshot(),
            "panes": [(number, cells.freeze()) for number, cells in self._panes.by_number.items()],
        }

    def _restoring(self, state: Mapping[str, Any]) -> Steps[None]:
        self._reset()
        self._sequence = state["sequence"]
        self._late = Late(*state["late"])
        panes = {number: self._new_cells() for number, _ in state["panes"]}
        self._panes.load(panes, state["since"], state["released"])
        yield from self._strings.load(state["strings"])
        self._keys = yield from KeyIndex.restoring(self._key_types, state["keys"])
        for cells, (_, saved) in zip(panes.values(), state["panes"]):
            yield from cells.load(saved)
        self._compact_at = 2 * self._keys.size + steps.SPARE
        self._has_written()

    # --- the checkpoint log ---

    def begin_log(self) -> None:
        self._is_logged = True
        self._reset()

    def _has_written(self) -> None:
        """Notes that the footprints of the present panes are in the log."""
        if self._is_logged:
            self._written = dict(self._panes.by_number)
            self._not_final = set(self._written)
            self._is_whole = not any(cells.logged for cells in self._written.values())

    def footprints(self, end: int, again: Rewriting) -> Steps[Footprints]:
        yield from self._restored()
        footprints, panes = Footprints(whole=self._is_whole), self._panes.by_number
        chosen_cells: list[tuple[int, IndexArray]] = []
        self._is_whole = False
        for number, cells in self._written.items():
            if panes.get(number) is not cells:
                footprints.replaced += yield from self._live(number, cells)
                self._not_final.discard(number)
        for number, cells in panes.items():
            is_final = self._on is None and self._panes.end(number) <= end
            final = yield from self._made_final(number, cells, is_final)
            old = final if len(final) else (yield from again.chosen(cells.written[: cells.logged]))
            new = yield from consecutive(cells.logged, cells.count)
            which = yield from picked([old, new], [None, None])
            if not len(which):
                continue
            footprints.replaced += yield from self._live(number, cells, old)
            chosen_cells.append((number, which))
            yield from cells.mark(which, end)
            footprints.count += len(which)
            footprints.rewritten += 0 if len(final) else len(old)
            if not is_final:
                footprints.not_final += len(which)
                self._not_final.add(number)
        yield from self.put(footprints, chosen_cells)
        for number, _ in chosen_cells:
            panes[number].wrote_all()
        self._written = dict(panes)
        return footprints

    def records(self, picked: Picked) -> Steps[list[Tree]]:
        yield from self._restored()
        records: list[Tree] = []
        for number, which in picked:
            cells = self._panes.by_number[number]
            for start, stop in portions(len(which), steps.INDEXED):
                if records:
                    yield
                records.append({"pane": number, **(yield from cells.footprint(which[start:stop], self._keys))})
        return records

    def _made_final(self, number: int, cells: Cells, is_final: bool) -> Steps[IndexArray]:
        """Returns cells with a footprint that is not final, of a pane that has passed: they are rewritten once."""
        if not is_final or number not in self._not_final:
            return np.empty(0, np.intp)
        self._not_final.discard(number)
        end = self._panes.end(number)
        return (yield from where(cells.logged, lambda start, stop: cells.written[start:stop] < end))

    def _live(self, number: int, cells: Cells, which: IndexArray | None = None) -> Steps[list[LiveFootprints]]:
        """Returns the footprints of these cells of a pane, or of all its cells if ``which`` is None, in parts."""
        parts: list[LiveFootprints] = []
        for start, stop in portions(cells.logged if which is None else len(which), steps.INDEXED):
            if start:
                yield
            times = cells.written[start:stop].copy() if which is None else cells.written[which[start:stop]]
            # With windows by an attribute, late rows may come.
            not_final = times < self._panes.end(number) if self._on is None else np.ones(len(times), np.bool_)
            parts.append(LiveFootprints(times, not_final))
        return parts

    def live_footprints(self) -> Steps[list[LiveFootprints]]:
        yield from self._restored()
        live: list[LiveFootprints] = []
        for number, cells in self._panes.by_number.items():
            live += yield from self._live(number, cells)
        return live

    def forget_footprints(self) -> Steps[None]:
        yield from self._restored()
        for cells in self._panes.by_number.values():
            yield from cells.unmark()
        self._written, self._not_final, self._is_whole = {}, set(), True

    def log_state(self) -> Tree:
        self._finish_restore()
        since = self._panes.since
        panes = [(number, since[number], cells.count) for number, cells in self._panes.by_number.items()]
        return {"sequence": self._sequence, "released": self._panes.released, "panes": panes}

    def reconstruct(self, state: Tree, start: Tree, logged: Sequence[CellRecord]) -> Steps[None]:
        self._left = None
        self._reset()
        self._sequence, self._replays = start["sequence"], True
        panes = {number: self._new_cells() for number, _, _ in state["panes"]}
        self._panes.load(panes, [since for _, since, _ in state["panes"]], state["released"])
        for number, _, count in state["panes"]:
            yield from panes[number].adopt(self._keys, [record for record in logged if record.tree["pane"] == number])
            check_found(panes[number].count, count, f"the pane that begins at {self._panes.end(number - 1)}")
        self._compact_at = 2 * self._keys.size + steps.SPARE
        self._has_written()

    def replays_on(self) -> None:
        self._replays = True

    def gave_up(self, state: Tree) -> None:
        self._finish_restore()
        self._sequence, self._replays = max(self._sequence, state["sequence"]), False

    def replayed(self, state: Tree) -> None:
        assert self._replays, "G4: a replay ends once"
        check_replayed(self._sequence, state)
        self._replays = False
