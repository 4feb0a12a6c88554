"""A tentative result lacks only rows of unavailable inputs, and contains only rows that sources have sent.

A source is *sure* for a channel at a time when a live path leads from it to every replica that the results may come
from, and *out* when a path leads to none of them; a path counts once it has lasted as long as a switch may take.  Rows
of sure sources must be in the results, and rows of sources that are out cannot be:

* for filters, maps, unions and inner joins, where more input only adds results: each result that the rows of sure
  sources alone give is present, and each present result belongs to a run without failures;
* for time windows, outer joins and rankings: if each source is sure or out for as long as a window reaches back, the
  results are exactly those of a run without the sources that are out.

``Recompute`` returns the results of a part of the sources' rows.  Undecidable cases are counted as ``accuracy
unknown …``: count windows and operators of users, whose state remembers everything; channels behind a unit that holds
back each bucket (delay), for the next unit may wait for another input no longer; small buffers; sources that are
neither sure nor out.  A row that left its source so late that its bucket may have been released is not available input.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from consistency.checking.bounds import Bounds, has_room
from consistency.checking.checked_run import CheckedRun
from consistency.checking.counters import Counters
from consistency.checking.finding import Finding, show_row
from consistency.checking.node_settings import InForce
from consistency.checking.origins import Origin, Origins, SourceTimes, reaches_back_us, source_times
from consistency.checking.rows import Reference, among, only_adds, row_digests
from consistency.checking.schedule import FaultInterval, Paths, World, hosts_behind
from consistency.checking.tentative_runs import TentativeRun, tentative_runs
from spe.plan.delays import longest_path
from spe.plan.plan import Plan
from spe.plan.timing import origins
from spe.stream.batch import Int64Array, Rows
from spe.stream.ids import Channel
from spe.stream.names import StreamId
from spe.stream.times import BEFORE_TIME, END_OF_TIME

_PROPERTY = "accuracy"
#: Mask of the selected rows of each source, by id − 1.
Kept = Mapping[StreamId, npt.NDArray[np.bool_]]
Recompute = Callable[[Kept], Reference]
#: Size in bytes below which tentative rows may be dropped for lack of room (V6).
_LITTLE_SUFFIX = 1 << 20


def check_accuracy(run: CheckedRun, reference: Reference, recompute: Recompute | None) -> Iterator[Finding]:
    """Yields findings; without ``recompute``, lacking rows are not judged."""
    history, static, plan, directory, in_force, bounds, counters = run
    runs = tentative_runs(history)
    if not runs:
        return
    known: dict[bytes, Reference] = {}
    sent = source_times(history)
    for name, client in directory.clients.items():
        for channel in (Channel(s, p) for s in client.reads for p in range(plan.partitions_of(s))):
            mine = runs.get((f"client:{name}", channel), [])
            if not mine:
                continue
            counters.add("accuracy runs", len(mine))
            if only_adds(plan, channel.stream):
                yield from _invented(f"client:{name}", channel, mine, reference, counters)
            judge = _Judge(plan, in_force, f"client:{name}", channel, bounds, sent, counters)
            if why := judge.undecidable():
                counters.add(f"accuracy unknown {why}", len(mine))
            elif recompute is not None:
                yield from judge.judge(mine, static, recompute, known)


def _invented(
    client: str, channel: Channel, runs: Sequence[TentativeRun], reference: Reference, counters: Counters
) -> Iterator[Finding]:
    """Finds results that no run of the query over the sources' rows gives."""
    if channel not in reference:
        return
    right = row_digests(reference[channel][1])
    for run in runs:
        rows, _ = run.until(END_OF_TIME)
        if rows is None:
            continue
        counters.add("accuracy rows that were sent", len(rows))
        wrong = ~among(row_digests(rows), right)
        if wrong.any():
            place = int(wrong.argmax())
            ends = np.cumsum([0 if b is None else len(b) for b in run.batches])
            at_us = run.at[int(np.searchsorted(ends, place, side="right"))]
            what = f"{channel}: {show_row(rows, place)} is no result of rows that the sources have sent"
            yield Finding(_PROPERTY, "a tentative result is of rows that were sent", at_us, client, what)


@dataclass(frozen=True, slots=True)
class _Part:
    from_us: int
    to_us: int
    origin: Origin


class _Judge:
    """Judges one channel of a client."""

    def __init__(
        self,
        plan: Plan,
        in_force: InForce,
        client: str,
        channel: Channel,
        bounds: Bounds,
        sent: Mapping[StreamId, SourceTimes],
        counters: Counters,
    ) -> None:
        self._plan = plan
        self._directory = directory = in_force.giving
        self._in_force = in_force
        self._client = client
        self._channel = channel
        self._bounds = bounds
        self._sent = sent
        self._counters = counters
        self._hosts = hosts_behind(plan, directory, channel) | {client}
        self._sources = frozenset(s.stream for s in origins(plan, channel.stream))
        self._adds = only_adds(plan, channel.stream)
        self._reaches_us = reaches_back_us(plan, channel.stream)
        self._limit_us = (in_force.longest.bound_us(channel) or 0) + bounds.processing_us
        replicas = [
            (partition, n) for partition in directory.placement for n in directory.hosts(partition) if n in self._hosts
        ]
        self._alpha_x_us = in_force.shortest_alpha_x_us(replicas)

    def undecidable(self) -> str:
        """Returns why nothing can be claimed of the channel; "" where something can."""
        plan = self._plan
        if self._channel.stream in plan.sources or not self._sources <= self._sent.keys():
            return "sources"
        if not self._adds and self._reaches_us is None:
            return "operators that remember everything"
        if not has_room(plan) or plan.limits.suffix_bytes < _LITTLE_SUFFIX:
            return "little room"
        delays = self._in_force.delays(n for n in self._directory.nodes if n in self._hosts)
        return "delay before another unit" if delays and longest_path(plan, self._channel.stream) > 1 else ""

    def judge(
        self,
        runs: Sequence[TentativeRun],
        static: Sequence[FaultInterval],
        recompute: Recompute,
        known: dict[bytes, Reference],
    ) -> Iterator[Finding]:
        judged: set[int] = set()
        for period in self._periods(static):
            met = [
                (i, run)
                for i, run in enumerate(runs)
                if run.at[0] < period[-1].to_us and run.end_us > period[0].from_us
            ]
            spans = self._sure_spans(period) if self._adds else self._clear_spans(period)
            for span in spans if met else ():
                some = [(i, run) for i, run in met if run.end_us > span.from_us and run.at[-1] > span.from_us]
                if not some:
                    continue
                expected = self._expected(span, recompute, known)
                for i, run in some:
                    judged.add(i)
                    yield from self._compare(run, span, *expected)
        self._counters.add("accuracy runs judged", len(judged))
        self._counters.add("accuracy unknown sources come and go", len(runs) - len(judged))

    def _periods(self, static: Sequence[FaultInterval]) -> Iterator[list[_Part]]:
        """Yields times in which nothing gets worse, and the replicas that results may come from stay the same."""
        period: list[_Part] = []
        last: World | None = None
        replicas = {
            f"{partition}@{n}" for partition in self._directory.placement for n in self._directory.hosts(partition)
        }
        origins_of: dict[World, Origin] = {}
        for interval in static:
            world = interval.world.among(self._hosts, replicas)
            origin = origins_of.get(world)
            if origin is None:
                disturbed = world.late or world.busy or world.unknown or self._client in world.down
                paths = Origins(self._plan, Paths(self._plan, self._directory, world))
                origin = Origin() if disturbed else paths.channel(self._client, self._channel)
                origins_of[world] = origin
            worse = bool(interval.shaken & self._hosts) or (last is not None and not world.is_no_worse(last))
            last = world
            if period and (worse or origin.makers != period[-1].origin.makers):
                yield period
                period = []
            if origin.makers:
                period.append(_Part(interval.from_us, interval.to_us, origin))
        if period:
            yield period

    def _sure_spans(self, period: list[_Part]) -> Iterator[_Span]:
        """Yields one span: it begins when each source has become sure, and lasts to the end of the period."""
        settled = {
            source: at_us + self._bounds.settle_us
            for source in sorted(self._sources)
            if (at_us := _since(source, period)) is not None
        }
        end = period[-1].to_us
        settled = {source: at_us for source, at_us in settled.items() if at_us < end - self._limit_us}
        if settled:
            yield _Span(min(settled.values()), end, settled, frozenset())

    def _clear_spans(self, period: list[_Part]) -> Iterator[_Span]:
        """Yields times in which the same sources are sure, and all others out."""
        first = 0
        while first < len(period):
            origin, last = period[first].origin, first
            while last + 1 < len(period) and period[last + 1].origin == origin:
                last += 1
            out = self._sources - origin.some
            settled_us = period[first].from_us + self._bounds.settle_us
            if origin.sure | out == self._sources and settled_us < period[last].to_us - self._limit_us:
                sure = dict.fromkeys(sorted(origin.sure), settled_us)
                yield _Span(settled_us, period[last].to_us, sure, out, period[first].from_us)
            first = last + 1

    def _expected(self, span: _Span, recompute: Recompute, known: dict[bytes, Reference]) -> tuple[Rows, Int64Array]:
        """Returns results of sure rows, and times of rows that came too late to be in all of them."""
        selected: dict[StreamId, npt.NDArray[np.bool_]] = {}
        late = [np.empty(0, np.int64)]
        for source in self._plan.sources:
            sent = self._sent.get(source)
            if sent is None:
                selected[source] = np.zeros(0, np.bool_)
                continue
            counts = np.diff(sent.upto, prepend=0)
            if source in self._sources:
                chosen, missed = self._chosen(source, span)
                late.append(sent.reach[missed & (counts > 0)])
            else:
                chosen = np.zeros(len(counts), np.bool_)
            selected[source] = np.repeat(chosen, counts)
        key = b"".join(np.packbits(selected[source]).tobytes() + b"/" for source in self._plan.sources)
        if key not in known:
            self._counters.add("accuracy recomputed")
            known[key] = recompute(selected)
        return known[key][self._channel][1], np.concatenate(late)

    def _chosen(self, source: StreamId, span: _Span) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
        """Returns masks of a source's events: those that count, and those that came too late."""
        sent = self._sent[source]
        begun = np.full(len(sent.at), END_OF_TIME)
        for other in self._sources:
            begun = np.minimum(begun, self._sent[other].first_at(_floor(sent.low, self._plan.bucket_us)))
        in_time = sent.at - begun <= self._alpha_x_us - self._bounds.processing_us // 2
        if self._adds:
            from_us = span.sure.get(source, END_OF_TIME)
            return in_time & (sent.at >= from_us) & (sent.at < span.to_us - self._limit_us), ~in_time
        if source in span.out:
            return sent.at < span.since_us, np.zeros(len(sent.at), np.bool_)
        return np.ones(len(sent.at), np.bool_), ~in_time

    def _compare(self, run: TentativeRun, span: _Span, expected: Rows, late: Int64Array) -> Iterator[Finding]:
        rows, high = run.until(min(span.to_us, run.end_us))
        low = run.low
        if not self._adds:
            assert self._reaches_us is not None
            low = max(low, *(self._sent[s].high_at(span.from_us) for s in self._sources)) + 1 + self._reaches_us
            high = min(high, *(self._sent[s].over for s in span.sure), END_OF_TIME)
        mine = rows if rows is not None else expected.slice(0, 0)
        yield from self._differences(_within(mine, low, high), _within(expected, low, high), run, span, late)

    def _differences(
        self, mine: Rows, expected: Rows, run: TentativeRun, span: _Span, late: Int64Array
    ) -> Iterator[Finding]:
        kind = "rows" if self._adds else "results"
        self._counters.add(f"accuracy {kind} compared", len(expected))
        lacking = _more(expected, mine)
        surplus = _more(mine, expected) if not self._adds else np.zeros(0, np.bool_)
        for rows, wrong, why in (
            (expected, lacking, "is lacking"),
            (mine, surplus, "is not a result of what was available"),
        ):
            if not self._adds and wrong.any():
                wrong &= ~self._touched(rows.time, late)
            if wrong.any():
                place = int(wrong.argmax())
                at_us = next(a for a, c in zip(run.at, run.complete, strict=True) if c > int(rows.time[place]))
                sure = ", ".join(f"{s} since {at / 1e6:.3f} s" for s, at in span.sure.items())
                what = f"{self._channel}: {show_row(rows, place)} {why}; a live path led from {sure}"
                yield Finding(_PROPERTY, "only what was unavailable is lacking", at_us, self._client, what)
                return

    def _touched(self, times: Int64Array, late: Int64Array) -> npt.NDArray[np.bool_]:
        """Returns a mask of results that a late row may have contributed to."""
        assert self._reaches_us is not None
        late = np.sort(late)
        # Its time lies between the promise before it and the reach of its event.
        slack = self._plan.bucket_us + max(s.boundary_us + s.disorder_us for s in self._plan.sources.values())
        first = np.searchsorted(late, times - self._reaches_us - slack)
        return first < np.searchsorted(late, times + slack, side="right")


@dataclass(frozen=True, slots=True)
class _Span:
    """A time in which it is known from which sources results are computed.

    Attributes:
      from_us, to_us: when.
      sure: the sources that are sure, and since when (settled).
      out: the sources that are out.
      since_us: when they began to be out.
    """

    from_us: int
    to_us: int
    sure: Mapping[StreamId, int]
    out: frozenset[StreamId]
    since_us: int = 0


def _since(source: StreamId, parts: Sequence[_Part]) -> int | None:
    """Returns the time since which a source is sure without a break; None if it is not sure at the end."""
    since: int | None = None
    for part in parts:
        if source not in part.origin.sure:
            since = None
        elif since is None:
            since = part.from_us
    return since


def _within(rows: Rows, low: int, high: int) -> Rows:
    return rows.slice(*(int(i) for i in np.searchsorted(rows.time, (low, max(low, high)))))


def _more(rows: Rows, than: Rows) -> npt.NDArray[np.bool_]:
    """Returns a mask of rows that occur more often than in the others: the last ones of each kind."""
    digests, others = row_digests(rows), row_digests(than)
    values, place = np.unique(digests, return_inverse=True)
    there = np.searchsorted(np.sort(others), values, side="right") - np.searchsorted(np.sort(others), values)
    order = np.argsort(place, kind="stable")
    counts = np.bincount(place, minlength=len(values))
    rank = np.empty(len(digests), np.int64)
    rank[order] = np.arange(len(digests)) - np.repeat(np.cumsum(counts) - counts, counts)
    return rank >= there[place]


def _floor(times: Int64Array, step: int) -> Int64Array:
    return np.where(times > BEFORE_TIME, times // step * step, times)
