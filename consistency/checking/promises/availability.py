"""P1: while a path is left, new results reach the client within kX; while a whole tree is left, they are stable.

A *period* of a client's channel is a time in which a path exists all along: the world changes for the better only.
Every tuple that enters the first SUnion of a path, once the period has lasted as long as a switch may take, must be
*covered* at the client (by a tuple's t_max or a boundary of either kind) kX + P after it entered: later where links
are late or processes slow, by as much, and where the world has just changed for the better, since a consumer may turn
to a producer that has to wait for X itself.  So fresh results are required while a failure lasts and while it is
corrected.  ``_Excuses`` has the times at which nothing is claimed, and the reasons.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf

import numpy as np

from consistency.checking.bounds import Bounds, has_room
from consistency.checking.checked_run import CheckedRun
from consistency.checking.counters import Counters
from consistency.checking.finding import Finding, show_row
from consistency.checking.node_settings import InForce
from consistency.checking.schedule import FaultInterval, Paths, Reach, World, hosts_behind
from spe.plan.bound_changes import SharesInForce
from spe.plan.delays import longest_path
from spe.plan.directory import Directory, Role
from spe.plan.nodes import Policy
from spe.plan.plan import Plan
from spe.stream.batch import Batch, Boundary
from spe.stream.history import Delivered, History, Received, Sent
from spe.stream.ids import Channel
from spe.stream.names import Kind
from spe.stream.times import BEFORE_TIME, END_OF_TIME, floor_to

#: Length of the slots in which seconds count as checked if something was due in them, microseconds.
_SLOT_US = 100_000


@dataclass(slots=True)
class _Arrivals:
    """Arrivals at one place: when, and the largest time up to then; and the last boundary before the end."""

    at: list[int]
    high: list[int]
    boundary: int = BEFORE_TIME


@dataclass(slots=True)
class _Coverage:
    """Progress of a client's channel: at each time, the largest t_max or boundary so far.

    Attributes:
      last_us: the largest t_max of its stable tuples, of all times.
    """

    at: list[int]
    high: list[int]
    last_us: int = BEFORE_TIME

    def reach(self, at_us: int) -> int | None:
        place = bisect_right(self.at, at_us)
        return self.high[place - 1] if place else None


def check_availability(run: CheckedRun) -> Iterator[Finding]:
    """Yields findings of P1."""
    history, static, plan, directory, in_force, bounds, counters = run
    arrivals = _arrivals(history)
    covered, tentative = _coverage(history)
    excuses = _Excuses(plan, directory, in_force, counters)
    paths: dict[World, Paths] = {}
    for name, client in directory.clients.items():
        host = f"client:{name}"
        for channel in (Channel(s, p) for s in client.reads for p in range(plan.partitions_of(s))):
            claim = _Claim(plan, directory, in_force.longest, host, channel, bounds)
            for period in _periods(claim, static, paths, excuses):
                coverage = covered.get((host, channel), _Coverage([], []))
                yield from claim.covered(period, arrivals, coverage, paths, counters)
                yield from claim.stable(period, tentative.get((host, channel), []), counters)


@dataclass(frozen=True, slots=True)
class _Part:
    """A time in which the world of a channel stays the same, and the remaining paths."""

    from_us: int
    to_us: int
    world: World
    reach: Reach


#: Consecutive parts, each no worse than the one before: an existing path stays.
_Period = list[_Part]


@dataclass(frozen=True, slots=True)
class _Change:
    """A change for the better.

    Attributes:
      settled_us: the time by which every process has made use of it.
      due_us: the time by which elements that were on their way during the change must have come.
    """

    at_us: int
    settled_us: int
    due_us: int


class _Excuses:
    """Reasons why nothing is claimed at times.  Each excuse is counted, with the time that it excludes.

    down: there is no client.
    no path: no replica can get from the sources to the client, or those that could suspend results, or have not
      recovered yet (``recovering.py`` limits how long that may take).
    slow: a link has less capacity than its traffic, so lateness has no bound; and a consumer need not leave it, for
      elements still come.
    loss: lost frames are sent again after 0.2 s, 0.6 s, 1.4 s, …: no useful bound holds for all sends.
    lag: the application itself is behind.
    little room: if buffers are small and acknowledgements wait for disks, with checkpoints on disk (A8), checkpoint
      logs (G5) or clients that have sinks (A1), the elements stored for these alone can fill a buffer, and a full one
      blocks.  So it is from the first move on, since the node that takes over a role stores checkpoints on disk (M3).
      The same once all replicas and usable standbys of a partition have been down at once: no other can take their
      place, or only one without state (A2).
    apart: sources that are paced differently are further apart in tuple time than a bucket waits.
    any other kind: its effect is not known here.
    """

    def __init__(self, plan: Plan, directory: Directory, in_force: InForce, counters: Counters) -> None:
        self._counters = counters
        self._tight = not has_room(plan)
        disks = any(n.checkpoints.disk for n in directory.nodes.values()) or any(
            c.sinks for c in directory.clients.values()
        )
        #: Time since which acknowledgements have waited for disks, microseconds.
        self._fills_us = BEFORE_TIME if disks or directory.logs else in_force.moved_us()
        self._hosting = [
            frozenset(n for n, role in roles.items() if role is Role.ACTIVE or not directory.fills(n))
            for roles in directory.roles.values()
        ]
        #: Time since which a partition has been lost with all its standbys, microseconds.
        self._lost_us: float = inf
        hosts = (
            *directory.nodes,
            *(f"source:{s}" for s in plan.sources),
            *(f"client:{c}" for c in directory.clients),
        )
        self._everybody = frozenset(hosts)

    def concerned(self, hosts: frozenset[str]) -> frozenset[str]:
        """Returns the processes that can affect a channel of ``hosts``: with small buffers, others can fill them."""
        return self._everybody if self._tight else hosts

    def why(self, interval: FaultInterval, client: str) -> str:
        """Returns why nothing is claimed in an interval whatever the paths; "" where something may be."""
        if client in interval.world.down:
            return "down"
        if self._tight and any(hosts <= interval.world.down for hosts in self._hosting):
            self._lost_us = min(self._lost_us, interval.from_us)
        if self._tight and interval.to_us > min(self._fills_us, self._lost_us):
            return "little room"
        kinds = {kind for kind, _ in interval.world.unknown}
        if not self._tight:
            kinds.discard("full")  # a process with a full disk stores in memory instead
        return min(kinds, default="")

    def excuse(self, why: str, us: int) -> None:
        self._counters.add(f"p1 excused {why}_us", us)


def _periods(
    claim: _Claim, static: Sequence[FaultInterval], paths: dict[World, Paths], excuses: _Excuses
) -> Iterator[_Period]:
    """Yields the times in which a channel has a path all along."""
    period: _Period = []
    hosts = excuses.concerned(claim.hosts)
    for interval in _merged(static, hosts, claim.replicas):
        reach, why = Reach.NONE, excuses.why(interval, claim.client)
        if not why:
            known = paths.setdefault(interval.world, Paths(claim.plan, claim.directory, interval.world))
            reach = known.channel(claim.client, claim.channel)
        if reach is Reach.NONE:
            excuses.excuse(why or "no path", interval.to_us - interval.from_us)
        worse = interval.shaken or not (period and interval.world.is_no_worse(period[-1].world, claim.tolerated_us))
        if period and (reach is Reach.NONE or worse):
            yield period
            period = []
        if reach is not Reach.NONE:
            period.append(_Part(interval.from_us, interval.to_us, interval.world, reach))
    if period:
        yield period


class _Claim:
    """The promise for one channel."""

    def __init__(
        self,
        plan: Plan,
        directory: Directory,
        shares: SharesInForce,
        client: str,
        channel: Channel,
        bounds: Bounds,
    ) -> None:
        self.plan = plan
        self.directory = directory
        self.client = client
        self.channel = channel
        self.hosts = hosts_behind(plan, directory, channel) | {client}
        self.replicas = {str(c) for c in _replicas_behind(plan, directory, channel)}
        self._bounds = bounds
        #: Twice this delays a heartbeat and its answer, and four in vain are a failure.
        self.tolerated_us = 1.5 * plan.timing.heartbeat_us
        self._shares = shares
        #: The longest bound that was ever in force.
        self._delay_us = shares.bound_us(channel) or 0
        self._levels = longest_path(plan, channel.stream)
        nodes = [n for n in directory.nodes.values() if n.id in self.hosts]
        #: Policy suspend: no new results while a replica corrects.
        self._suspends = any(n.during_stabilization is Policy.SUSPEND for n in nodes)
        #: The channel is one of several partitions of its stream.
        self._divided = plan.partitions_of(channel.stream) > 1

    def _limit_us(self, world: World, at_us: int | None = None) -> int:
        """Returns kX + P, the limit of a result; for a tuple, by what is in force until its result has come (X5)."""
        processing_us = self._bounds.among(world).processing_us

        def late_us(delay_us: int) -> int:
            return round(delay_us * world.times_slower + self._levels * world.late_us) + processing_us

        if at_us is None or not self._shares.changes:
            return late_us(self._delay_us)
        return late_us(self._shares.entered_us(self.channel, at_us, late_us) or 0)

    def _changes(self, period: _Period) -> list[_Change]:
        """Returns changes for the better.  A consumer turns to a better producer, which may have to wait for X."""
        changes = []
        for part in period[1:]:
            bounds = self._bounds.among(part.world)
            settled_us = part.from_us + self._delay_us + bounds.resettle_us
            if self._suspends:
                settled_us += bounds.correct_us
            changes.append(_Change(part.from_us, settled_us, settled_us + self._limit_us(part.world)))
        return changes

    def covered(
        self,
        period: _Period,
        arrivals: Mapping[tuple[str, Channel], _Arrivals],
        coverage: _Coverage,
        paths: Mapping[World, Paths],
        counters: Counters,
    ) -> Iterator[Finding]:
        """Checks that every tuple that enters the first SUnion of a path is covered at the client in time."""
        bounds = self._bounds.among(period[0].world)
        begin = period[0].from_us + bounds.settle_us + (bounds.correct_us if self._suspends else 0)
        end = period[-1].to_us
        late: Finding | None = None
        changes = self._changes(period)
        for part in period:
            slots = set[int]()
            for replica, source, entered in _places(self, part, arrivals, paths):
                first, last = bisect_left(entered.at, max(begin, part.from_us)), bisect_left(entered.at, part.to_us)
                for at_us, high_us in zip(entered.at[first:last], entered.high[first:last], strict=True):
                    if self._divided and replica and high_us > entered.boundary:
                        continue  # the last tuples of a stream: only their partition learns their time
                    if (due_us := self._due_us(part, at_us, changes)) >= end:
                        continue
                    slots.add(at_us // _SLOT_US)
                    counters.add("p1 tuples due")
                    reached = coverage.reach(due_us)
                    if reached is not None and reached >= coverage.last_us and self._ends(entered, high_us):
                        continue  # no result is missing
                    if (reached is None or reached < high_us) and (late is None or due_us < late.at_us):
                        where = f"a tuple of {source} with time {high_us} entered {replica or 'its source'}"
                        late = self._uncovered(part, where, at_us, due_us, reached)
            counters.add(f"p1 {part.reach.value}_us", len(slots) * _SLOT_US)
            counters.add("p1 path_us", part.to_us - part.from_us)
            if part.world.late or part.world.busy:
                counters.add("p1 widened_us", len(slots) * _SLOT_US)
        if late is not None:
            yield late

    def _uncovered(self, part: _Part, where: str, at_us: int, due_us: int, reached: int | None) -> Finding:
        there = "nothing came at all" if reached is None else f"covered up to {reached}"
        what = (
            f"{self.channel}: {where} at {at_us / 1e6:.3f} s; {(due_us - at_us) / 1e6:.3f} s later nothing covers it "
            f"({there}); {part.reach.value} paths since {part.from_us / 1e6:.3f} s"
        )
        return Finding("P1", "results come within kX", due_us, self.client, what)

    def _due_us(self, part: _Part, at_us: int, changes: Sequence[_Change]) -> int:
        """Returns until when a tuple that entered at a time is to be covered."""
        due_us = at_us + self._limit_us(part.world, at_us)
        for change in changes:
            if at_us < change.settled_us and due_us > change.at_us:
                due_us = max(due_us, change.due_us)
        return due_us

    def _ends(self, entered: _Arrivals, high_us: int) -> bool:
        """Is this bucket closed by the end of the input alone, which starts no clock (B3)?"""
        return entered.boundary > BEFORE_TIME and high_us >= floor_to(entered.boundary, self.plan.bucket_us)

    def stable(self, period: _Period, tentative: list[Delivered], counters: Counters) -> Iterator[Finding]:
        """Checks that with a whole tree nothing tentative comes after the corrections."""
        for since_us, part in _whole(period):
            bounds = self._bounds
            work_us = bounds.in_turn * bounds.work_us(since_us)  # each may have all earlier input to correct
            begin = since_us + bounds.settle_us + max(bounds.correct_us, work_us) + self._limit_us(part.world)
            begin = max(begin, part.from_us)
            if begin >= part.to_us:
                continue
            counters.add("p1 only stable_us", part.to_us - begin)
            times = [e.at_us for e in tentative]
            first = bisect_right(times, begin)
            if first < len(times) and times[first] < part.to_us:
                event = tentative[first]
                assert isinstance(event.element, Batch)
                what = (
                    f"{self.channel}: {show_row(event.element.rows, 0)} is tentative, though a whole tree is there "
                    f"since {since_us / 1e6:.3f} s"
                )
                yield Finding("P1", "stable where a tree is whole", event.at_us, self.client, what)


def _whole(period: _Period) -> Iterator[tuple[int, _Part]]:
    """Yields parts with a whole tree, and since when; if anything is late, αX may be too short for it."""
    since: int | None = None
    for part in period:
        if part.reach is not Reach.STABLE or part.world.late or part.world.busy:
            since = None
            continue
        since = part.from_us if since is None else since
        yield since, part


def _places(
    claim: _Claim, part: _Part, arrivals: Mapping[tuple[str, Channel], _Arrivals], paths: Mapping[World, Paths]
) -> Iterator[tuple[str, Channel, _Arrivals]]:
    """Yields places where tuples enter that may come to the client; of real processes only the sources."""
    entries = set(paths[part.world].entries(claim.client, claim.channel))
    places = {p for p in entries if p in arrivals} or {("", channel) for _, channel in entries}
    for place in sorted(places):
        if place in arrivals:
            yield *place, arrivals[place]


def _arrivals(history: History) -> dict[tuple[str, Channel], _Arrivals]:
    """Returns stable tuples by (replica, channel) that received them; of sources also by ("", channel)."""
    arrivals: dict[tuple[str, Channel], _Arrivals] = defaultdict(lambda: _Arrivals([], []))
    for event in history:
        if isinstance(event, Received):
            element = event.element
            if event.mode and isinstance(element, Boundary) and element.kind is Kind.STABLE:
                if element.time < END_OF_TIME:
                    arrivals[event.consumer, event.channel].boundary = element.time
                continue
            if not event.mode or not isinstance(element, Batch) or element.kind is not Kind.STABLE or not len(element):
                continue
            key, high = (event.consumer, event.channel), element.rows.span()[2]
        elif isinstance(event, Sent) and event.high_us > -(2**62):
            key, high = ("", event.channel), event.high_us
        else:
            continue
        entered = arrivals[key]
        entered.at.append(event.at_us)
        entered.high.append(high)
    return dict(arrivals)


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
            else:
                covered[key].last_us = max(covered[key].last_us, high)
        elif isinstance(element, Boundary):
            high = element.time
        else:
            continue
        progress = covered[key]
        if not progress.high or high > progress.high[-1]:
            progress.at.append(event.at_us)
            progress.high.append(high)
    return dict(covered), dict(tentative)


def _merged(static: Sequence[FaultInterval], hosts: frozenset[str], replicas: set[str]) -> Iterator[FaultInterval]:
    """Yields intervals of some processes only: events elsewhere do not cut them."""
    last: FaultInterval | None = None
    for interval in static:
        world = interval.world.among(hosts, replicas)
        if last is not None and last.world == world and not interval.shaken & hosts:
            last = replace(last, to_us=interval.to_us)
            continue
        if last is not None:
            yield last
        last = FaultInterval(interval.from_us, interval.to_us, world, interval.shaken & hosts)
    if last is not None:
        yield last


def _replicas_behind(plan: Plan, directory: Directory, channel: Channel) -> Iterator[str]:
    if channel.stream in plan.sources:
        return
    unit = plan.producer[channel.stream]
    for partition in directory.placement:
        if partition.unit == unit.id and partition.partition == channel.partition:
            yield from (f"{partition}@{n}" for n in directory.hosts(partition))
    for upstream in unit.channels_in(channel.partition):
        yield from _replicas_behind(plan, directory, upstream)
