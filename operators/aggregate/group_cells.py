"""A pane's cells: the state of the aggregates per group, in order of first arrival."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

import numpy as np

from operators import steps
from operators.aggregate.accumulators import Accumulator
from operators.aggregate.calls import QUIET, Calls
from operators.aggregate.text_accumulators import TextAccumulator
from operators.columns import Columns, Kind, chosen, filled, inverse, picked, sorted_order
from operators.footprints import UNWRITTEN, CellRecord, Tree
from operators.ids import IndexArray, Int64Array, alone
from operators.keys import KeyIndex
from operators.steps import Steps, finished, portions
from operators.strings import KeptStrings
from spe.errors import LogCorrupt
from spe.stream.batch import Column

#: Number of rows that are searched first for new groups.
_FIRST_ROWS: Final = 8_192


class Cells:
    """Accumulators of groups, each group in its own cell.

    Cells are numbered by first arrival, so "groups in order of first arrival" costs nothing.  All arrays are columns
    of one table, and so are shared with snapshots.

    Args:
      strings: the operator's texts, for all its cells.
      is_logged: store the time of each cell's newest footprint.
    """

    __slots__ = ("_calls", "_cell_of", "_columns", "_is_logged", "_reserving", "_strings", "parts")

    def __init__(self, calls: Calls, strings: KeptStrings, is_logged: bool = False) -> None:
        self._calls = calls
        self._strings = strings
        self._is_logged = is_logged
        self.parts: list[Accumulator] = calls.new_parts(strings)
        # The group's slot, and the sequence number of the row that made the cell.
        own: list[Kind] = [(np.intp, 0), (np.int64, 0), *([(np.int64, UNWRITTEN)] if is_logged else [])]
        self._columns = Columns([*own, *[k for p in self.parts for k in p.kinds.values()]])
        first = len(own)
        for part in self.parts:
            part.bind(self._columns, first)
            first += len(part.kinds)
        self._reserving = [p for p in self.parts if type(p).reserve is not Accumulator.reserve]
        #: slot -> cell, -1 for none; derived from the slots.
        self._cell_of: IndexArray | None = np.empty(0, np.intp)

    @property
    def count(self) -> int:
        return self._columns.count

    @property
    def slots(self) -> IndexArray:
        return self._columns.arrays[0][: self.count]

    @property
    def born(self) -> Int64Array:
        return self._columns.arrays[1][: self.count]

    @property
    def written(self) -> Int64Array:
        """Time of each cell's newest footprint, UNWRITTEN if there is none; only for logged cells."""
        return self._columns.arrays[2][: self.count]

    @property
    def logged(self) -> int:
        """The first cell without a footprint; none after it has one."""
        written = self.written
        return bisect_left(range(self.count), True, key=lambda cell: written[cell] == UNWRITTEN)

    def add(self, slots: IndexArray, born: Int64Array) -> IndexArray:
        """Adds empty cells for these slots; returns their numbers."""
        old = self._columns.add(len(slots))
        count = self.count
        self.slots[old:] = slots
        self.born[old:] = born
        for part in self.parts:
            part.grow(old, count)
        return np.arange(old, count)

    def reserve(self, rows: int, slot_count: int | None = None) -> Steps[None]:
        """Makes room for that many rows in :meth:`cells_of` and :meth:`update`, in portions.

        A few get room when they come.

        Args:
          slot_count: one past the largest slot; None: the cells of slots are not needed.
        """
        if max(self.count, slot_count or 0) > steps.INDEXED:
            yield from self._columns.reserve(rows)
            if slot_count is not None and (self._cell_of is None or len(self._cell_of) < slot_count):
                yield from self._find_cells(slot_count)
        for part in self._reserving:
            yield from part.reserve(rows)

    def _find_cells(self, slot_count: int) -> Steps[None]:
        slots, table = self.slots, (yield from filled(slot_count + slot_count // 2 + 8, -1))
        for start, stop in portions(len(slots), steps.INDEXED):
            if start:
                yield
            table[slots[start:stop]] = np.arange(start, stop)
        self._cell_of = table

    def cells_of(self, slots: IndexArray, slot_count: int, sequence: int | Int64Array) -> IndexArray:
        """Returns the cell of each row's slot, new ones in order of first appearance.

        Args:
          slots: shape (n,).
          slot_count: one past the largest slot.
          sequence: sequence numbers of the rows; an int is the first of consecutive ones.
        """
        table = self._cell_of
        if table is None or len(table) < slot_count:
            finished(self._find_cells(slot_count))
            table = self._cell_of
            assert table is not None
        cells = table.take(slots)
        if not len(cells) or cells.min() >= 0:
            return cells
        missing = (cells < 0).nonzero()[0]
        # In a new pane all groups are missing; after the first rows nearly all are known.
        self._add_missing(table, slots, missing[:_FIRST_ROWS], sequence)
        if len(missing) > _FIRST_ROWS:
            rest = missing[_FIRST_ROWS:]
            self._add_missing(table, slots, rest[table.take(slots.take(rest)) < 0], sequence)
        return table.take(slots)

    def _add_missing(
        self, table: IndexArray, slots: IndexArray, missing: IndexArray, sequence: int | Int64Array
    ) -> None:
        """Adds cells for the slots of these rows (ascending), none of which has one."""
        wanted = slots[missing]
        # Several rows may have one slot.  The last write stays, so rows are written in reverse: the first row stays.
        table[wanted[::-1]] = missing[::-1]
        rows = missing[table.take(wanted) == missing]
        new = slots[rows]
        table[new] = self.add(new, rows + sequence if isinstance(sequence, int) else sequence[rows])

    @QUIET
    def update(self, cells: IndexArray, arguments: Sequence[Column], sequence: Int64Array) -> None:
        self._columns.before_write(cells)
        self._calls.update(self.parts, cells, arguments, sequence)

    def update_in_portions(self, cells: IndexArray, arguments: Sequence[Column], sequence: Int64Array) -> Steps[None]:
        """Updates in portions if there are texts."""
        if not self._calls.texts:
            self.update(cells, arguments, sequence)
            return
        yield from self._strings.reserve(self._calls.texts * len(cells))
        for start, stop in portions(len(cells), steps.RELEASED):
            if start:
                yield
            some = [c.slice(start, stop) for c in arguments]
            self.update(cells[start:stop], some, sequence[start:stop])

    def absorb(self, other: Cells, table: IndexArray) -> Steps[None]:
        """Adds all of ``other``'s cells, in portions, as if its rows came after ours.  Our cells are in no snapshot.

        ``table`` maps slots to our cells, -1 for none; new cells are added to it.
        """
        mine = np.empty(other.count, np.intp)
        for start, stop in portions(other.count, steps.RELEASED):
            if start:
                yield
            slots, born = other.slots[start:stop], other.born[start:stop]
            cells = table.take(slots)
            new = (cells < 0).nonzero()[0]
            if len(new):
                yield from self._columns.reserve(len(new))
                cells[new] = self.add(slots[new], born[new])
                table[slots[new]] = cells[new]
            self.born[cells] = np.minimum(self.born[cells], born)
            for part in self._reserving:
                yield from part.reserve(stop - start)
            self._absorb_parts(other, slice(start, stop), cells)
            mine[start:stop] = cells
        for part, theirs in zip(self.parts, other.parts):
            yield from part.absorb_rest(theirs, mine)

    @QUIET
    def _absorb_parts(self, other: Cells, theirs: slice | IndexArray, mine: IndexArray) -> None:
        for part, its in zip(self.parts, other.parts):
            part.absorb(its, theirs, mine)

    @QUIET
    def _copy_parts(self, other: Cells, theirs: slice | IndexArray, mine: IndexArray) -> None:
        for part, its in zip(self.parts, other.parts):
            part.copy(its, theirs, mine)

    def selected(self, cells: IndexArray) -> Steps[Cells]:
        """Copies these cells only, in this order."""
        copy, mine = Cells(self._calls, self._strings, self._is_logged), (yield from filled(self.count, -1))
        for start, stop in portions(len(cells), steps.RELEASED):
            if start:
                yield
            some = cells[start:stop]
            yield from copy._columns.reserve(len(some))
            mine[some] = new = copy.add(self.slots[some], self.born[some])
            if self._is_logged:
                copy.written[new] = self.written[some]
            copy._copy_parts(self, some, new)
        for part, old in zip(copy.parts, self.parts):
            yield from part.absorb_rest(old, mine)
        return copy

    @property
    def texts(self) -> list[TextAccumulator]:
        """The parts with texts."""
        return [p for p in self.parts if isinstance(p, TextAccumulator)]

    def renumber(self, slots: IndexArray) -> Steps[None]:
        """Changes the groups' slots; ``slots[old]`` is the new one."""
        old = self.slots
        new = np.empty(self._columns.room, np.intp)
        for start, stop in portions(len(old), steps.INDEXED):
            if start:
                yield
            new[start:stop] = slots.take(old[start:stop])
        self._columns.replace(0, new)
        self._cell_of = None

    def close(self) -> None:
        """Frees data that can be derived again: no more rows are expected."""
        self._cell_of = None
        for part in self.parts:
            part.close()

    def freeze(self) -> Mapping[str, Any]:
        """Returns the state, by reference."""
        arrays = self._columns.freeze()
        parts, first = [], 2 + self._is_logged
        for part in self.parts:
            parts.append(part.freeze(arrays[first : first + len(part.kinds)]))
            first += len(part.kinds)
        written = {"written": arrays[2]} if self._is_logged else {}
        return {"slots": arrays[0], "born": arrays[1], **written, "parts": parts}

    def load(self, state: Mapping[str, Any]) -> Steps[None]:
        """Restores a frozen state, in portions."""
        self._cell_of = None
        pairs = list(zip(self.parts, state["parts"], strict=True))
        leaves = [leaf for part, saved in pairs for leaf in part.leaves(saved)]
        written = []
        if self._is_logged:  # the state may come from a process without a log
            written = [state.get("written", np.broadcast_to(np.int64(UNWRITTEN), len(state["slots"])))]
        yield from self._columns.load([state["slots"], state["born"], *written, *leaves])
        for part, saved in pairs:
            yield from part.load(saved)

    # --- the checkpoint log ---

    def footprint(self, cells: IndexArray, keys: KeyIndex) -> Steps[Tree]:
        """Copies the contents of these cells (ascending), with their keys, in portions."""
        slots = yield from picked([self.slots], [cells])
        named = yield from columns_alone(keys, slots)
        parts = []
        for part in self.parts:
            parts.append((yield from part.footprint(cells)))
        return {"keys": named, "born": (yield from picked([self.born], [cells])), "parts": parts}

    def mark(self, cells: IndexArray, end: int) -> Steps[None]:
        """Notes ``end`` as the time of the newest footprint of these cells, in portions."""
        for start, stop in portions(len(cells), steps.INDEXED):
            if start:
                yield
            self._columns.before_write(cells[start:stop])
            self.written[cells[start:stop]] = end

    def wrote_all(self) -> None:
        """Notes that all present cells have a footprint."""
        for part in self.parts:
            part.wrote_all()

    def unmark(self) -> Steps[None]:
        """Invalidates all footprints, in portions."""
        for start, stop in portions(self.count, steps.INDEXED):
            if start:
                yield
            self._columns.before_write(np.arange(start, stop))
            self.written[start:stop] = UNWRITTEN

    def find(self, slots: IndexArray, slot_count: int) -> Steps[IndexArray]:
        """Returns the cell of each row's slot, -1 if there is none."""
        if self._cell_of is None or len(self._cell_of) < slot_count:
            yield from self._find_cells(slot_count)
        assert self._cell_of is not None
        return self._cell_of.take(slots)

    def adopt(self, keys: KeyIndex, logged: Sequence[CellRecord]) -> Steps[None]:
        """Makes cells of the newest footprints without a newer closing, in the order of their first rows.

        Args:
          keys: gets the groups' keys.
          logged: footprints and closings, oldest first.
        """
        slots, sizes = [np.empty(0, np.intp)], []
        for record in logged:
            count = len(record.tree["born"])
            sizes.append(count)
            for start, stop in portions(count, steps.RELEASED):
                if start:
                    yield
                yield from keys.reserve(stop - start)
                columns = [c.slice(start, stop) for c in record.tree["keys"]]
                slots.append((yield from keys.slots_in_portions(columns, stop - start)))
        all_slots = yield from picked(slots, [None] * len(slots))
        newest = yield from filled(keys.size, -1)
        for start, stop in portions(len(all_slots), steps.INDEXED):
            if start:
                yield
            newest[all_slots[start:stop]] = np.arange(start, stop)  # of several, the last one stays
        closes = np.array([record.closes for record in logged], np.bool_).repeat(sizes)
        places = newest.take((yield from chosen(newest >= 0)))
        places = np.sort(places[~closes[places]])
        born = np.concatenate([np.empty(0, np.int64), *[record.tree["born"] for record in logged]]).take(places)
        places = places.take((yield from sorted_order(born)))
        yield from self._columns.reserve(len(places))
        cells = self.add(all_slots[places], np.sort(born))
        self.written[cells] = np.array([record.time for record in logged], np.int64).repeat(sizes)[places]
        cell_of = yield from inverse(places, cells, len(all_slots))
        first = 0
        for record, size in zip(logged, sizes):
            which = yield from chosen(cell_of[first : first + size] >= 0)
            for part, saved in zip(self.parts, record.tree["parts"]):  # a closing has none
                yield from part.adopt(saved, which, cell_of[first + which])
            first += size


def columns_alone(keys: KeyIndex, slots: IndexArray) -> Steps[list[Column]]:
    """Copies the keys of slots, without references to other keys, in portions."""
    columns = []
    for number in range(len(keys.types)):

        def some(start: int, stop: int, number: int = number) -> Column:
            return keys.column(number, slots[start:stop])

        columns.append((yield from alone(some, len(slots))))
    return columns


def forget_texts(strings: KeptStrings, all_cells: Collection[Cells]) -> Steps[None]:
    """Drops texts that no cell has any more, once there are many, or no cells."""
    if strings.crowded or (strings.count > steps.SPARE and not all_cells):
        parts = [part for cells in all_cells for part in cells.texts]
        made = yield from strings.compacted([part.ids for part in parts])
        for part, ids in zip(parts, made or ()):
            yield from part.renumber(ids)


def check_found(count: int, expected: int, what: str) -> None:
    """Raises LogCorrupt if a log lacks cells of a commit."""
    if count != expected:
        raise LogCorrupt(f"the checkpoint log has footprints of {count} groups of {what}, expected {expected}")


def check_replayed(sequence: int, state: Tree) -> None:
    """Raises LogCorrupt if the replayed rows differ from those up to a commit."""
    if sequence != state["sequence"]:
        raise LogCorrupt(f"replay ends with row {sequence}, the checkpoint log with row {state['sequence']}")
