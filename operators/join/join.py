"""Equi-join of two streams within an interval or in the same window; inner and outer.

Both ports are merged by (time, port, order within the port).  Each tuple meets earlier tuples of the other side, so a
pair is made when its later tuple comes, and pairs leave in the order (later tuple, earlier tuple, window).  An outer
row without a match leaves at the last time at which a match was possible, after the pairs of that instant.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from operators import steps
from operators.columns import chosen, inverse
from operators.ids import IndexArray, Int64Array
from operators.join.match import LEFT, RIGHT, Dues, IntervalMatcher, Matcher, Pairs, WindowMatcher
from operators.join.runs import Side, SortedRun
from operators.join.steps import Probe, cut, portions
from operators.keys import KeyIndex, without_nulls
from operators.operator import StepwiseOperator
from operators.rejections import Refusals
from operators.steps import Steps
from operators.strings import KeptStrings
from operators.windows import Late, LateRejections
from spe.expressions import compile_predicate
from spe.query.operators.join import JoinKind, JoinSpec
from spe.stream.batch import Column, Rows, concat_rows
from spe.stream.schema import Schema
from spe.stream.times import BEFORE_TIME, END_OF_TIME


@dataclass(slots=True)
class _Due:
    """The entries ``start`` … ``stop`` − 1 of a run's dues, in order of (time, position)."""

    side: int
    run: SortedRun
    dues: Dues
    start: int
    stop: int

    def place(self, entry: int) -> tuple[int, int]:
        return int(self.dues.time[entry]), int(self.run.positions[self.dues.row[entry]])

    def first_after(self, place: tuple[int, int]) -> int:
        """Returns the first entry after a place."""
        time, position = place
        low, high = (int(i) for i in self.dues.time.searchsorted([time, time + 1]))
        low, high = max(low, self.start), max(min(high, self.stop), self.start)
        # Entries of one time are in order of position.
        while low < high:
            middle = (low + high) // 2
            if self.place(middle)[1] <= position:
                low = middle + 1
            else:
                high = middle
        return low


class Join(StepwiseOperator):
    """Runs a ``spe.query.operators.join.JoinSpec``."""

    def __init__(self, spec: JoinSpec, left: Schema, right: Schema, schema: Schema) -> None:
        self.schema = schema
        self._schemas = (left, right)
        self._key_columns = tuple([s.index(pair[i]) for pair in spec.on] for i, s in enumerate(self._schemas))
        self._key_types = [left[l_name].type for l_name, _ in spec.on]
        self._matcher: Matcher
        self._window = spec.window
        self._matcher = (IntervalMatcher if spec.window is None else WindowMatcher)(spec, left, right)
        self._where = None if spec.where is None else compile_predicate(spec.where, schema)
        self._where_columns = [] if self._where is None else [schema.index(name) for name in self._where.references]
        self._outer = (
            spec.kind in (JoinKind.LEFT, JoinKind.FULL),
            spec.kind in (JoinKind.RIGHT, JoinKind.FULL),
        )
        self.refusals = Refusals() if spec.rejects_late else None
        #: Number of processed rows of each port of this slice.
        self._taken = [0, 0]
        self._reset()

    def _reset(self) -> None:
        self._keys = KeyIndex(self._key_types)
        self._strings = KeptStrings()
        self._sides = tuple(Side(outer, self._matcher.flags_per_row) for outer in self._outer)
        #: End of the last step, and the number of processed rows.
        self._boundary = BEFORE_TIME
        self._position = 0
        #: End of the last step that dropped old rows.
        self._forgot = BEFORE_TIME
        #: During a restore, the oldest time that the restored state needs.
        self._restored_from: int | None = None
        self._late = Late()
        self._compact_at = steps.SPARE

    def work(self, ports: Sequence[Rows | None], boundary: int) -> Iterator[Rows | None]:
        if self._left is not None:
            yield from self._restored()
        assert boundary >= self._boundary, "U2: boundaries do not go back"
        self._taken = [0, 0]
        released: list[Rows] = []
        for number, (left, right, until) in enumerate(cut(ports[LEFT], ports[RIGHT], boundary)):
            for rows in itertools.chain([None] if number else [], self._advance((left, right), until)):
                if rows is not None:
                    released.append(rows)
                    continue
                if sum(map(len, released)) >= steps.RELEASED:
                    yield (yield from self._strings.given_back(concat_rows(released)))
                    released = []
                yield None
        if released:
            yield (yield from self._strings.given_back(concat_rows(released)))
        if self._strings.crowded:  # not before: released rows have ids
            runs = [run for side in self._sides for run in side.runs]
            recoded = yield from self._strings.compacted_rows([run.rows for run in runs])
            self._replace([run.recoded(rows) for run, rows in zip(runs, recoded)])

    def _advance(self, ports: tuple[Rows | None, Rows | None], boundary: int) -> Iterator[Rows | None]:
        """Does one step; yields sorted rows."""
        yield from self._keys.reserve(sum(len(rows) for rows in ports if rows is not None))
        new = yield from self._take_in(ports)
        if self._outer[LEFT] or self._outer[RIGHT]:
            yield from self._with_unmatched(self._pairs(new), boundary)
        else:
            yield from self._pairs(new)
        self._boundary = boundary
        for side in self._sides:
            before = len(side)
            yield from side.tidy(boundary)
            if len(side) < before:
                self._forgot = boundary
        yield from self._compact()

    def _take_in(self, ports: tuple[Rows | None, Rows | None]) -> Steps[tuple[SortedRun | None, SortedRun | None]]:
        """Adds the rows of both ports to the state, as one new run each."""
        new: list[SortedRun | None] = []
        count = sum(len(rows) for rows in ports if rows is not None)
        for side, rows in enumerate(ports):
            other = ports[1 - side]
            if rows is None or not len(rows):
                new.append(None)
                continue
            positions = np.arange(self._position, self._position + len(rows))
            if other is not None:
                positions += other.time.searchsorted(rows.time, side="left" if side == LEFT else "right")
            new.append((yield from self._new_run(side, rows, positions)))
        self._position += count
        return new[LEFT], new[RIGHT]

    def _new_run(self, side: int, rows: Rows, positions: Int64Array) -> Steps[SortedRun | None]:
        rejections = None if self.refusals is None else LateRejections(self.refusals, side, self._taken[side])
        index, spans = self._matcher.admit(side, rows, self._late, rejections)
        self._taken[side] += len(rows)
        if index is not None:
            rows, positions = rows.take(index), positions[index]
        columns = [rows.columns[i] for i in self._key_columns[side]]
        valid = without_nulls(columns)
        if valid is not None and not self._outer[side]:
            index = valid.nonzero()[0]
            rows, positions, spans, valid = rows.take(index), positions[index], spans.take(index), None
            columns = [rows.columns[i] for i in self._key_columns[side]]
        if not len(rows):
            return None
        keys = yield from self._keys.slots_in_portions(columns, len(rows))
        if valid is not None:
            keys = np.where(valid, keys, -1)
        adopted = yield from self._strings.adopt(rows)
        since = self._sides[1 - side].oldest()
        return (yield from self._sides[side].new_run(adopted, keys, positions, spans, since))

    def _pairs(self, new: tuple[SortedRun | None, SortedRun | None]) -> Iterator[Rows | None]:
        probes: list[Probe] = []
        for side, run in enumerate(new):
            if run is None:
                continue
            for other in self._sides[1 - side].runs:
                start, stop = other.probe(run.keys)
                if (stop > start).any():
                    probes.append(Probe(side, run, other, other is new[1 - side], start, stop))
        if not probes:
            return
        for number, (a, b) in enumerate(portions(probes)):
            if number:
                yield None
            if b - a > 1:
                yield from (yield from self._portion(probes, a, b))
            else:
                yield from self._pairs_of_one(probes, a)

    def _pairs_of_one(self, probes: list[Probe], position: int) -> Iterator[Rows | None]:
        """Yields the pairs of one later tuple, of which there may be many: from the oldest run to the newest."""
        for probe in probes:
            at = int(probe.new.positions.searchsorted(position))
            if at < len(probe.new) and probe.new.positions[at] == position:
                start, stop = int(probe.start[at]), int(probe.stop[at])
                for low, high in steps.portions(stop - start, steps.PAIRED):
                    if low:
                        yield None
                    part = replace(probe, start=probe.start.copy(), stop=probe.stop.copy())
                    part.start[at], part.stop[at] = start + low, start + high
                    _, rows = yield from self._piece(part, at, at + 1)
                    if len(rows):
                        yield rows

    def _portion(self, probes: list[Probe], first: int, last: int) -> Steps[list[Rows]]:
        """Returns the pairs whose later tuple has a position in [first, last), in order."""
        positions, pieces = [], []
        for probe in probes:
            a, b = (int(i) for i in probe.new.positions.searchsorted([first, last]))
            if a < b:
                places, rows = yield from self._piece(probe, a, b)
                if len(rows):
                    positions.append(places)
                    pieces.append(rows)
        if len(pieces) < 2:
            return pieces
        # Runs are probed from the oldest to the newest, so a stable sort keeps earlier partners first.
        order = np.concatenate(positions).argsort(kind="stable")
        return [concat_rows(pieces).take(order)]

    def _piece(self, probe: Probe, first: int, last: int) -> Steps[tuple[Int64Array, Rows]]:
        """Returns pairs of the probing rows first … last − 1: position of the later tuple, and joined rows."""
        start = probe.start[first:last]
        counts = probe.stop[first:last] - start
        rows = np.arange(first, last).repeat(counts)
        offsets = (start - (counts.cumsum() - counts)).repeat(counts)
        partners = probe.run.index.order.take(np.arange(len(rows)) + offsets)
        if probe.fresh:
            earlier = (probe.run.positions[partners] < probe.new.positions[rows]).nonzero()[0]
            rows, partners = rows[earlier], partners[earlier]
        left, right = (rows, partners) if probe.side == LEFT else (partners, rows)
        l_run, r_run = (probe.new, probe.run) if probe.side == LEFT else (probe.run, probe.new)
        l_spans, r_spans = l_run.spans.take(left), r_run.spans.take(right)
        time = probe.new.rows.time.take(rows)
        matches = self._matcher.matches(Pairs(l_spans, r_spans, probe.side == LEFT, time))
        pair, window = matches.pair, matches.window
        left, right, rows, time = left[pair], right[pair], rows[pair], time[pair]
        joined = self._joined(l_run.rows, r_run.rows, left, right, time, window)
        if self._where is not None and len(joined):
            looked_at = yield from self._strings.given_back(joined, self._where_columns)
            matching = self._where.mask(looked_at).nonzero()[0]
            if len(matching) < len(pair):
                joined, left, right, rows, pair = (
                    joined.take(matching),
                    left[matching],
                    right[matching],
                    rows[matching],
                    pair[matching],
                )
                window = None if window is None else window[matching]
        if len(joined):
            for side, run, index, spans in ((LEFT, l_run, left, l_spans), (RIGHT, r_run, right, r_spans)):
                if self._outer[side]:
                    run.mark(self._matcher.flags(index, spans.take(pair), window))
        return probe.new.positions[rows], joined

    def _joined(
        self, left: Rows, right: Rows, l_index: IndexArray, r_index: IndexArray, time: Int64Array,
        window: Int64Array | None,
    ) -> Rows:  # fmt: skip
        t_max = time
        if left.t_max is not left.time or right.t_max is not right.time:
            t_max = np.maximum(left.t_max.take(l_index), right.t_max.take(r_index))
        columns = [c.take(l_index) for c in left.columns] + [c.take(r_index) for c in right.columns]
        return Rows(time, t_max, (*columns, *self._window_columns(window)))

    def _window_columns(self, window: Int64Array | None) -> list[Column]:
        if self._window is None or window is None:
            return []
        return [Column(self._window.start(window)), Column(np.minimum(self._window.end(window), END_OF_TIME))]

    def _with_unmatched(self, pairs: Iterator[Rows | None], boundary: int) -> Iterator[Rows | None]:
        """Yields pairs, and outer rows that are due before ``boundary``, by time; of one instant pairs come first."""
        held: list[Rows] = []
        for rows in pairs:
            if rows is None:
                yield None
            else:
                held.append(rows)
        for number, alone in enumerate(self._unmatched(boundary)):
            if number:
                yield None
            if alone is None:
                continue
            # Pairs up to the last instant of these rows; more rows of this instant may follow, but no pairs.
            last, before = int(alone.time[-1]), []
            while held and held[0].time[0] <= last:
                rows = held.pop(0)
                at = int(rows.time.searchsorted(last, side="right"))
                before.append(rows.slice(0, at))
                if at < len(rows):
                    held.insert(0, rows.slice(at, len(rows)))
                    break
            together = concat_rows([*before, alone])
            yield together.take(together.time.argsort(kind="stable"))
        for rows in held:
            yield rows

    def _unmatched(self, boundary: int) -> Iterator[Rows | None]:
        """Yields outer rows that are due before ``boundary``, by (time, position), a bounded number at a time."""
        lists: list[_Due] = []
        for side in (LEFT, RIGHT):
            for run in self._sides[side].runs if self._outer[side] else ():
                dues = yield from run.dues(self._matcher)
                start, stop = (int(i) for i in dues.time.searchsorted([self._boundary, boundary]))
                if start < stop:
                    lists.append(_Due(side, run, dues, start, stop))
        while lists:
            long = [due for due in lists if due.start + steps.RELEASED < due.stop]
            last = min((due.place(due.start + steps.RELEASED - 1) for due in long), default=None)
            pieces, positions = [], []
            for due in lists:
                upto = due.stop if last is None else due.first_after(last)
                index, time, window = due.run.unmatched(due.dues, due.start, upto)
                due.start = upto
                if len(index):
                    pieces.append(self._alone(due.side, due.run.rows, index, time, window))
                    positions.append(due.run.positions[index])
            lists = [due for due in lists if due.start < due.stop]
            if pieces:
                rows = concat_rows(pieces)
                yield rows.take(np.lexsort((np.concatenate(positions), rows.time)))
            elif lists:
                yield None

    def _alone(self, side: int, rows: Rows, index: IndexArray, time: Int64Array, window: Int64Array | None) -> Rows:
        own = [c.take(index) for c in rows.columns]
        nothing = np.zeros(len(index), np.bool_)
        nulls = [Column(np.zeros(len(index), a.type.dtype), nothing) for a in self._schemas[1 - side]]
        t_max = time if rows.t_max is rows.time else np.maximum(time, rows.t_max.take(index))
        columns = own + nulls if side == LEFT else nulls + own
        return Rows(time, t_max, (*columns, *self._window_columns(window)))

    def _compact(self) -> Steps[None]:
        """Drops keys without references from runs, once there are many."""
        size = self._keys.size
        if size <= self._compact_at:
            return
        runs = [run for side in self._sides for run in side.runs]
        is_live = np.zeros(size + 1, np.bool_)  # the last entry is for rows without a key
        for run in runs:
            for start, stop in steps.portions(len(run), steps.INDEXED):
                if start:
                    yield
                is_live[run.keys[start:stop]] = True
        live = yield from chosen(is_live[:size])
        if 2 * len(live) < size:
            self._keys, slots = yield from self._keys.compacted(live)
            renumbered = yield from inverse(live, slots, size + 1)
            made = []
            for run in runs:
                made.append((yield from run.renumbered(renumbered)))
            self._replace(made)
        self._compact_at = 2 * self._keys.size + steps.SPARE

    def _replace(self, runs: list[SortedRun]) -> None:
        count = len(self._sides[LEFT].runs)
        self._sides[LEFT].runs, self._sides[RIGHT].runs = runs[:count], runs[count:]

    def snapshot(self) -> Mapping[str, Any]:
        self._finish_restore()
        return {
            "boundary": self._boundary,
            "position": self._position,
            "forgot": self._forgot,
            "late": self._late.state(),
            "keys": self._keys.snapshot(),
            "strings": self._strings.snapshot(),
            "sides": [[run.freeze() for run in side.runs] for side in self._sides],
        }

    def _restoring(self, state: Mapping[str, Any]) -> Steps[None]:
        self._reset()
        self._boundary = state["boundary"]
        self._position = state["position"]
        self._forgot = state["forgot"]
        self._late = Late(*state["late"])
        saved = [run for runs in state["sides"] for run in runs]
        if saved:
            reaches = [int(run["since"].min()) for run in saved if run["since"] is not None]
            self._restored_from = min([int(run["rows"].time[0]) for run in saved] + reaches)
        yield from self._strings.load(state["strings"])
        self._keys = yield from KeyIndex.restoring(self._key_types, state["keys"])
        self._compact_at = 2 * self._keys.size + steps.SPARE
        for side, runs in zip(self._sides, state["sides"]):
            for run in runs:
                side.runs.append((yield from SortedRun.restoring(run)))

    def counters(self) -> Mapping[str, int]:
        return self._late.counters()

    def oldest_needed(self) -> int | None:
        if self._left is not None:
            return self._restored_from
        return min((run.oldest_needed() for side in self._sides for run in side.runs), default=None)

    def clear(self, boundary: int) -> None:
        self._left = None
        self._reset()
        self._boundary = boundary

    def recount(self, counters: Mapping[str, int]) -> None:
        self._late = Late(**counters)

    def rewind(self, boundary: int) -> bool:
        self._boundary = boundary
        return self._forgot <= boundary
