"""P1: while a path is left, new results reach the client within kX; while a whole tree is left, they are stable.

For each static interval and each channel of a client: every tuple that enters the first SUnion of a path, once the
interval has lasted as long as a switch may take, must be *covered* at the client (by a tuple's t_max or a boundary of
either kind) kX + P after it entered.  No path, no claim; nor where something is disturbed in ways that say nothing of
paths.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from consistency.checking.bounds import Bounds, delay_us, has_room
from consistency.checking.counters import Counters
from consistency.checking.finding import Finding, show_row
from consistency.checking.schedule import Interval, Paths, Reach, World, hosts_behind
from spe.plan.plan import Plan, Policy
from spe.plan.review import needed_wait_us
from spe.stream.batch import Batch, Boundary
from spe.stream.history import Delivered, History, ProcessDown, Received, Sent, StateChanged
from spe.stream.ids import Channel
from spe.stream.names import Kind, NodeState
from spe.stream.times import BEFORE_TIME, END_OF_TIME

#: Seconds count as checked where something was due in them; their length, microseconds.
_SLOT_US = 100_000


@dataclass(slots=True)
class _Arrivals:
    """What entered at one place: when, and the largest time up to then; and the last boundary before the end."""

    at: list[int]
    high: list[int]
    boundary: int = BEFORE_TIME


@dataclass(slots=True)
class _Coverage:
    """How far a client's channel has come: at each time, the largest t_max or boundary so far."""

    at: list[int]
    high: list[int]

    def reach(self, at_us: int) -> int | None:
        place = bisect_right(self.at, at_us)
        return self.high[place - 1] if place else None


def check_availability(
    history: History, static: Sequence[Interval], plan: Plan, bounds: Bounds, counters: Counters
) -> Iterator[Finding]:
    """See the module; ``static``: the intervals of the history.  Yields findings of P1."""
    arrivals = _arrivals(history)
    covered, tentative = _coverage(history)
    if early := _early(history, plan, bounds):
        tentative = {k: [e for e in v if not any(a <= e.at_us < b for a, b in early)] for k, v in tentative.items()}
    paths: dict[World, Paths] = {}
    everyone = frozenset((*plan.nodes, *(f"source:{s}" for s in plan.sources), *(f"client:{c}" for c in plan.clients)))
    tight = not has_room(plan)
    # What a failure leaves is there until it is corrected, and where room is little it may fill it as long.
    calm = _calm(history, plan) if tight else []
    # What no checkpoint on disk holds is kept by upstream (A8): that alone can fill a small buffer.
    fills = tight and any(node.checkpoints.disk for node in plan.nodes.values())
    for name, client in plan.clients.items():
        host = f"client:{name}"
        for channel in (Channel(s, p) for s in client.reads for p in range(plan.partitions_of(s))):
            coverage = covered.get((host, channel), _Coverage([], []))
            hosts = hosts_behind(plan, channel) | {host}
            touched = everyone if tight else hosts  # where room is little, others can fill it
            for interval in _merged(static, touched, {str(c) for c in _replicas_behind(plan, channel)}):
                if host in interval.world.down or interval.world.disturbed:
                    continue
                one = paths.setdefault(interval.world, Paths(plan, interval.world))
                reach = one.channel(host, channel)
                suspends = _suspends(plan, hosts)
                divided = plan.partitions_of(channel.stream) > 1
                if reach is Reach.NONE:
                    counters.add("p1 no path_us", interval.to_us - interval.from_us)
                    continue
                if tight:
                    fails = fills or interval.world.down or interval.world.cut
                    begin_us = interval.to_us if fails else _first_calm(calm, interval)
                    counters.add("p1 little room_us", begin_us - interval.from_us)
                    if begin_us == interval.to_us:
                        continue
                    interval = replace(interval, from_us=begin_us)
                claim = _Claim(host, channel, interval, reach, bounds, delay_us(plan, channel), suspends, divided)
                places = {p for p in one.entries(host, channel) if p in arrivals} or {
                    ("", c) for _, c in one.entries(host, channel)
                }
                yield from claim.covered({p: arrivals[p] for p in places if p in arrivals}, coverage, counters)
                if reach is Reach.STABLE:
                    yield from claim.stable(tentative.get((host, channel), []), counters)


@dataclass(slots=True)
class _Claim:
    """What is promised of one channel in one interval."""

    client: str
    channel: Channel
    interval: Interval
    reach: Reach
    bounds: Bounds
    delay_us: int
    #: Nothing new comes while it is corrected.
    suspends: bool
    #: It is one of several partitions of its stream.
    divided: bool

    @property
    def _limit_us(self) -> int:
        return self.delay_us + self.bounds.processing_us

    def covered(
        self, arrivals: Mapping[tuple[str, Channel], _Arrivals], coverage: _Coverage, counters: Counters
    ) -> Iterator[Finding]:
        begin = self.interval.from_us + self.bounds.settle_us
        if self.suspends:
            begin += self.bounds.correct_us
        end = self.interval.to_us - self._limit_us
        slots: set[int] = set()
        late: Finding | None = None
        for (replica, source), entered in sorted(arrivals.items()):
            for place in range(bisect_right(entered.at, begin), bisect_right(entered.at, end)):
                at_us, high_us = entered.at[place], entered.high[place]
                if self.divided and replica and high_us > entered.boundary:
                    continue  # the last tuples of a stream that ends: only their own partition hears of their time
                slots.add(at_us // _SLOT_US)
                counters.add("p1 tuples due")
                reached = coverage.reach(at_us + self._limit_us)
                if (reached is None or reached < high_us) and (late is None or at_us + self._limit_us < late.at_us):
                    what = (
                        f"{self.channel}: a tuple of {source} with time {high_us} entered {replica or 'its source'} at "
                        f"{at_us / 1e6:.3f} s; {self._limit_us / 1e6:.3f} s later nothing covers it "
                        f"({'nothing came at all' if reached is None else f'covered up to {reached}'}); "
                        f"{self.reach.value} paths since {self.interval.from_us / 1e6:.3f} s"
                    )
                    late = Finding("P1", "results come within kX", at_us + self._limit_us, self.client, what)
        counters.add(f"p1 {self.reach.value}_us", len(slots) * _SLOT_US)
        if late is not None:
            yield late

    def stable(self, tentative: list[Delivered], counters: Counters) -> Iterator[Finding]:
        """With a whole tree nothing tentative comes, once what had been missing is corrected."""
        begin = self.interval.from_us + self.bounds.settle_us + self.bounds.correct_us + self._limit_us
        if begin >= self.interval.to_us:
            return
        counters.add("p1 only stable_us", self.interval.to_us - begin)
        times = [e.at_us for e in tentative]
        first = bisect_right(times, begin)
        if first < len(times) and times[first] < self.interval.to_us:
            event = tentative[first]
            assert isinstance(event.element, Batch)
            what = (
                f"{self.channel}: {show_row(event.element.rows, 0)} is tentative, though a whole tree is there since "
                f"{self.interval.from_us / 1e6:.3f} s"
            )
            yield Finding("P1", "stable where a tree is whole", event.at_us, self.client, what)


def _arrivals(history: History) -> dict[tuple[str, Channel], _Arrivals]:
    """Stable tuples by (replica, channel) that they came to; of sources also by ("", channel): made available."""
    found: dict[tuple[str, Channel], _Arrivals] = defaultdict(lambda: _Arrivals([], []))
    for event in history:
        if isinstance(event, Received):
            element = event.element
            if event.mode and isinstance(element, Boundary) and element.kind is Kind.STABLE:
                if element.time < END_OF_TIME:
                    found[event.consumer, event.channel].boundary = element.time
                continue
            if not event.mode or not isinstance(element, Batch) or element.kind is not Kind.STABLE or not len(element):
                continue
            key, high = (event.consumer, event.channel), element.rows.span()[2]
        elif isinstance(event, Sent) and event.high_us > -(2**62):
            key, high = ("", event.channel), event.high_us
        else:
            continue
        one = found[key]
        one.at.append(event.at_us)
        one.high.append(high)
    return dict(found)


def _early(history: History, plan: Plan, bounds: Bounds) -> list[tuple[int, int]]:
    """When results are ahead of their time: a source that ends closes its last windows, and other inputs are waited for
    until they come as far.  Where αX has no room for that, what comes then is tentative first."""
    windows = [getattr(o.spec, "window", None) for o in plan.query.operators]
    ahead_us = sum(w.size_us for w in windows if w is not None)
    alpha_x_us = min(plan.share(of.unit, n).alpha_x_us for of, nodes in plan.placement.items() for n in nodes)
    if not ahead_us or alpha_x_us >= ahead_us + max(needed_wait_us(plan, u)[1] for u in plan.units):
        return []
    over_us = ahead_us + bounds.settle_us
    return [(e.at_us, e.at_us + over_us) for e in history if isinstance(e, Sent) and e.frontier_us >= END_OF_TIME]


def _coverage(
    history: History,
) -> tuple[dict[tuple[str, Channel], _Coverage], dict[tuple[str, Channel], list[Delivered]]]:
    covered: dict[tuple[str, Channel], _Coverage] = defaultdict(lambda: _Coverage([], []))
    tentative: dict[tuple[str, Channel], list[Delivered]] = defaultdict(list)
    for event in history:
        if not isinstance(event, Delivered):
            continue
        key, element = (event.consumer, event.channel), event.element
        if isinstance(element, Batch) and len(element):
            high = int(np.maximum.reduce(element.rows.t_max))
            if element.kind is Kind.TENTATIVE:
                tentative[key].append(event)
        elif isinstance(element, Boundary):
            high = element.time
        else:
            continue
        one = covered[key]
        if not one.high or high > one.high[-1]:
            one.at.append(event.at_us)
            one.high.append(high)
    return dict(covered), dict(tentative)


def _merged(static: Sequence[Interval], hosts: frozenset[str], replicas: set[str]) -> Iterator[Interval]:
    """The intervals as they are for some processes: what happens elsewhere cuts nothing."""
    last: Interval | None = None
    for one in static:
        world = World(
            one.world.down & hosts,
            frozenset(link for link in one.world.cut if link[0] in hosts and link[1] in hosts),
            one.world.disturbed & hosts,
            one.world.recovering & replicas,
        )
        if last is not None and last.world == world and not one.shaken & hosts:
            last = Interval(last.from_us, one.to_us, world)
            continue
        if last is not None:
            yield last
        last = Interval(one.from_us, one.to_us, world)
    if last is not None:
        yield last


def _calm(history: History, plan: Plan) -> list[tuple[int, int]]:
    """When all replicas are STABLE."""
    replicas = {f"{of}@{node}" for of in plan.placement for node in plan.hosts(of)}
    unstable, since, found = set(replicas), history.end_us, list[tuple[int, int]]()
    for event in history:
        before = len(unstable)
        match event:
            case StateChanged(at_us, name, state) if name in replicas:
                (unstable.discard if state is NodeState.STABLE else unstable.add)(name)
            case ProcessDown(at_us, host):
                unstable |= {name for name in replicas if name.endswith(f"@{host}")}
            case _:
                continue
        if before and not unstable:
            since = at_us
        elif unstable and not before:
            found.append((since, at_us))
    return found if unstable else [*found, (since, history.end_us)]


def _first_calm(calm: Sequence[tuple[int, int]], interval: Interval) -> int:
    """The first time in an interval at which all is calm; its end where there is none."""
    for begin, end in calm:
        if end > interval.from_us:
            return min(max(begin, interval.from_us), interval.to_us)
    return interval.to_us


def _replicas_behind(plan: Plan, channel: Channel) -> Iterator[str]:
    if channel.stream in plan.sources:
        return
    unit = plan.producer[channel.stream]
    for of in plan.placement:
        if of.unit == unit.id and of.partition == channel.partition:
            yield from (f"{of}@{n}" for n in plan.hosts(of))
    for upstream in unit.channels_in(channel.partition):
        yield from _replicas_behind(plan, upstream)


def _suspends(plan: Plan, hosts: frozenset[str]) -> bool:
    return any(
        Policy.SUSPEND in (n.during_failure, n.during_stabilization) for n in plan.nodes.values() if n.id in hosts
    )
