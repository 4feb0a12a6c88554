"""A fragment that writes a checkpoint log, crashes at any slice, and is made again from the log and its input."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np

from operators.aggregate.count_windows import CountAggregate
from operators.aggregate.group_cells import Cells
from operators.aggregate.time_windows import WindowAggregate
from operators.footprints import LiveFootprints
from operators.fragment import Fragment
from operators.fragment_log import FragmentLog, LoggedSlice
from operators.keyed import KeyedHost
from operators.steps import finished
from operators.sunion.chunk import Chunk
from operators.sunion.slice import Slice
from replicas.checkpoint.extent import Extent, counted
from spe.plan.plan import InputStream, Unit
from spe.query.declaration import OperatorSpec
from spe.query.query import QueryOperator
from spe.stream.batch import Column, Rows
from spe.stream.names import Kind, StreamId, UnitId
from spe.stream.schema import Schema
from spe.stream.strings import StringPool
from spe.stream.times import BEFORE_TIME, END_OF_TIME
from spe.wire.state import decode_state, encode_state
from tests.support.operators import Tuple, plain


def unit_of(specs: Mapping[str, OperatorSpec], schemas: Mapping[str, Schema]) -> Unit:
    """Operators by name, in topological order; all of them are outputs."""
    known = {StreamId(name): schema for name, schema in schemas.items()}
    inputs = tuple(InputStream(name, schema, 1, None) for name, schema in known.items())
    operators = []
    for name, spec in specs.items():
        known[StreamId(name)] = schema = spec.output_schema([known[i] for i in spec.inputs])
        operators.append(QueryOperator(StreamId(name), spec, schema))
    return Unit(UnitId("u"), "f", inputs, tuple(operators), tuple(o.name for o in operators), partitions=1)


class Written(NamedTuple):
    """A slice in the log: its end, its records as bytes, and the state as it was then."""

    end: int
    records: bytes
    commit: bytes
    digest: Any
    live: Counter[tuple[int, bool]]


class LoggedRun:
    """Feeds a unit slice by slice and logs it.

    Args:
      ports: the tuples of each input.
      rewrites: slice -> (below, most), what is written anew at its end.
    """

    def __init__(
        self,
        unit: Unit,
        ports: Sequence[Sequence[Tuple]],
        rewrites: Callable[[int, Extent], tuple[int, int]] = lambda end, extent: (BEFORE_TIME, 0),
    ) -> None:
        self.unit = unit
        self.ports = ports
        self.rewrites = rewrites
        self.fragment = Fragment(unit)
        self.log = FragmentLog(unit, self.fragment)
        self.extent = Extent()
        self.written: list[Written] = []
        self.previous = BEFORE_TIME
        self.met: Counter[str] = Counter()

    def slice(self, end: int) -> list[list[Tuple]]:
        """One slice, and its records; what each output releases."""
        released = given(self.fragment, self.unit, self.ports, self.previous, end)
        self.previous = end
        self._write(end)
        return released

    def _write(self, end: int) -> None:
        below, most = self.rewrites(end, self.extent)
        made = finished(self.log.slice_log(end, below, most))
        records = encode_state({"closings": made.closings, "footprints": made.all_footprints()})
        self.met["closings"] += bool(made.closings)
        self.met["rewritten"] += most > 0 and any(len(part.times) for part in made.replaced)
        if made.complete:
            self.extent = Extent()
        extent = self.extent
        extent.held = made.oldest_row
        extent.commit(end, made.written, self._rows(end), made.not_final)
        live = live_of(self.log)
        if made.whole and not made.complete:
            extent.recount(*counted(extent.ends, [live]))
        else:
            extent.replace(*counted(extent.ends, made.replaced))
        self.met["final footprints"] += not live.not_final.all()
        expected = Counter(zip(live.times.tolist(), live.not_final.tolist()))
        assert extent.counts() == {
            time: (n, sum(c for (t, open_), c in expected.items() if t == time and open_))
            for time, n in Counter(live.times.tolist()).items()
        }
        self.met["with keys"] += any("cells" in tree for trees in made.footprints.values() for tree in trees)
        commit = encode_state(made.commit)
        self.written.append(Written(end, records, commit, digest(self.fragment), expected))

    def _rows(self, end: int) -> int:
        return sum(bisect_left(port, end, key=itemgetter(0)) for port in self.ports)

    def remade(self, cuts: Sequence[int] = ()) -> tuple[Fragment, FragmentLog]:
        """The fragment as it was, from the log and input that is cut at other times; checks that it is the same."""
        first, begin = self.extent.needs(), self.extent.replay_from()
        kept = [w for w in self.written if w.end >= first]  # what the log is cut below is not read
        last, start = kept[-1], next(w for w in kept if w.end == begin)
        slices = []
        for one in kept:
            tree = decode_state(one.records)
            slices.append(LoggedSlice(one.end, tree["closings"], tree["footprints"]))
        fragment = Fragment(self.unit)
        log = FragmentLog(self.unit, fragment)
        commit = decode_state(last.commit)
        finished(log.reconstruct(commit, decode_state(start.commit), begin, slices))
        ends = [begin, *sorted(c for c in cuts if begin < c < last.end), last.end]
        self.met["rows replayed"] += self._rows(last.end) > self._rows(begin)
        self.met["several slices replayed"] += len(ends) > 2
        for before, end in pairwise(ends):
            released = given(fragment, self.unit, self.ports, before, end)
            for declared, rows in zip(self.unit.operators, released):
                assert not rows or declared.spec.logged not in ("cells",), "nothing is let out"
        log.replayed(commit, last.end)
        assert not fragment.take_rejections()
        assert digest(fragment) == last.digest
        live = live_of(log)
        assert Counter(zip(live.times.tolist(), live.not_final.tolist())) == last.live
        return fragment, log

    def crash(self, cuts: Sequence[int] = ()) -> None:
        """Goes on with the fragment that is made again."""
        self.fragment, self.log = self.remade(cuts)


def live_of(log: FragmentLog) -> LiveFootprints:
    """The footprints that count, in one part."""
    return LiveFootprints(*map(np.concatenate, zip(*finished(log.live()), strict=True)))


def given(fragment: Fragment, unit: Unit, ports: Sequence[Sequence[Tuple]], begin: int, end: int) -> list[list[Tuple]]:
    parts: list[list[Rows]] = []
    chunks: list[list[tuple[int, Chunk]]] = []
    pool = StringPool()
    pool.current().encode([f"other {i}" for i in range(end % 5)])  # other codes
    for at, (declared, port) in enumerate(zip(unit.inputs, ports, strict=True)):
        first, last = (bisect_left(port, time, key=itemgetter(0)) for time in (begin, end))
        rows = port[first:last]
        made = Rows.from_tuples(declared.schema, [t[0] for t in rows], [t[1] for t in rows], pool)
        parts.append([made] if rows else [])
        chunks.append([(at, Chunk(made, first + 1, None, begin, 0))] if rows else [])
    return [tuples_of(rows) for rows in fragment.step(Slice(parts, end, Kind.STABLE, begin, chunks))]


def tuples_of(rows: Rows | None) -> list[Tuple]:
    if rows is None:
        return []
    values = [tuple(plain(v) for v in row) for row in rows.to_tuples()]
    return list(zip(rows.time.tolist(), values, strict=True))


def whole_run(unit: Unit, ports: Sequence[Sequence[Tuple]], ends: Sequence[int]) -> list[list[Tuple]]:
    """What a run without a log or a crash releases, per output."""
    fragment = Fragment(unit)
    out: list[list[Tuple]] = [[] for _ in unit.outputs]
    for begin, end in pairwise([BEFORE_TIME, *ends]):
        for rows, more in zip(out, given(fragment, unit, ports, begin, end), strict=True):
            rows += more
    return out


def digest(fragment: Fragment) -> Any:
    """What its operators hold, as values: without slots, ids and codes, which differ between processes."""
    found: list[Any] = [sorted(fragment.counters().items())]
    for operator in fragment.operators.values():
        inner = getattr(operator, "operator", operator)
        inner = getattr(inner, "host", inner)
        if isinstance(inner, WindowAggregate):
            panes = inner._panes
            found.append((inner._sequence, panes.released, dict(panes.since)))
            found += [(number, _groups(cells, inner)) for number, cells in sorted(panes.by_number.items())]
        elif isinstance(inner, CountAggregate):
            live = finished(inner._live())
            found.append((inner._sequence, _groups(finished(inner._cells.selected(live)), inner)))
        elif isinstance(inner, KeyedHost):
            found.append((inner.previous, [repr(item) for item in inner._by_key.items()], inner.log_state()))
    return found


def _groups(cells: Cells, operator: WindowAggregate | CountAggregate) -> list[Any]:
    """Group, when it began, and what is held of it; in the order of the beginnings."""
    which = np.arange(cells.count)
    keys = [c.to_list() for c in operator._keys.columns(cells.slots)]
    held = finished(cells.footprint(which, operator._keys))["parts"]
    values: list[list[Any]] = []
    for part in held:
        for name, entries in part.items():
            if name in ("values", "places") and "places" in part:
                continue
            values.append([plain(v) for v in (entries.to_list() if isinstance(entries, Column) else list(entries))])
        if "places" in part:
            pairs = list(zip(part["places"].tolist(), map(plain, part["values"].to_list())))
            values.append([sorted(repr(v) for place, v in pairs if place == at) for at in range(cells.count)])
    rows = zip(cells.born.tolist(), *keys, *values)
    return sorted((repr(row) for row in rows), key=lambda text: int(text[1 : text.index(",")]))


__all__ = ["END_OF_TIME", "LoggedRun", "unit_of", "whole_run"]
