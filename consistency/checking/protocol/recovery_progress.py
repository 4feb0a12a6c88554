"""A3: a replica that recovers makes progress: it finds a state, catches up, and serves.

Checked while it runs undisturbed and receives input.  If a state is in reach (a serving partner can be reached, or all
its inputs are sources, whose logs are never truncated)

* it has subscribed to its inputs within *recover* (``Bounds.recover_us``), for by then it has a state to continue from;
* it serves within *recover* and as long as the run has lasted, for there is no more than that to catch up with.

In that case, and whenever each input has elements,

* it serves within *settle* + X once it has all that its producers have, for then it had a state; if each slice of work
  takes a while, the input may have come at once, and it has that long for each bucket of it.

If an input is cut off, and another one has new elements (later than all that had been sent when the replica
subscribed), it serves within *settle* + X of those: due results are due, however much of its state is to be recomputed.

Standbys are left out, permanent and temporary ones; ``restored.py`` judges them.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from consistency.checking.bounds import Bounds, has_room
from consistency.checking.checked_run import CheckedRun
from consistency.checking.counters import Counters
from consistency.checking.finding import Finding
from consistency.checking.node_settings import InForce
from consistency.checking.schedule import FaultInterval, Paths, Reach, World, begun_by_moves, hosts_behind
from spe.plan.directory import Directory
from spe.plan.nodes import Policy
from spe.plan.plan import Plan
from spe.plan.timing import origins
from spe.stream.batch import Boundary
from spe.stream.history import History, Opened, Received, Sent, StateChanged
from spe.stream.ids import Channel, PartitionId
from spe.stream.names import Kind, NodeId, NodeState
from spe.stream.times import BEFORE_TIME, END_OF_TIME

_PROPERTY = "recovering"
#: Time between two checks whether a replica has caught up.
_LOOK_US = 100_000


def check_recovering(run: CheckedRun) -> Iterator[Finding]:
    """Yields findings of A3.

    Nothing is claimed if buffers have little room, for then a place in a log may be given up again and again; nor,
    except for the last rule, of a replica whose inputs are not in the history (real processes).
    """
    history, static, plan, directory, in_force, bounds, counters = run
    paths: dict[World, Paths] = {}
    spans = _Spans(_idle(history), _without_state(history, directory))
    places = [
        _Place(plan, directory, in_force, partition, node)
        for partition, nodes in directory.placement.items()
        for node in nodes
    ]
    begins = [s for place in places for s in _stretches(place, static, paths, spans, place.can_recover, counters)]
    goes_on = [s for place in places for s in _stretches(place, static, paths, spans, place.can_catch_up)]
    cut_off = [s for place in places for s in _stretches(place, static, paths, spans, place.can_give)]
    begins, goes_on, cut_off = ([s for s in stretches if s.is_long(bounds)] for stretches in (begins, goes_on, cut_off))
    if not goes_on and not cut_off:
        return
    if not has_room(plan):
        counters.add("recovering excused little room_us", sum(s.to_us - s.from_us for s in goes_on))
        return
    progress = _progress(history, {s.place.name for s in (*goes_on, *cut_off)})
    for stretch in begins:
        yield from _Judge(stretch, progress, plan, directory, bounds).finds_a_state(counters)
    for stretch in goes_on:
        yield from _Judge(stretch, progress, plan, directory, bounds).catches_up(paths)
    for stretch in cut_off:
        yield from _Judge(stretch, progress, plan, directory, bounds).gives_results(counters)


class _Place:
    """A replica, and the processes that it needs."""

    def __init__(
        self, plan: Plan, directory: Directory, in_force: InForce, partition: PartitionId, node: NodeId
    ) -> None:
        self.plan = plan
        self.directory = directory
        self.partition = partition
        self.node = node
        self.name = f"{partition}@{node}"
        self.x_us = in_force.longest_x_us(partition.unit, node)
        self.in_force = in_force
        self.inputs = plan.unit[partition.unit].channels_in(partition.partition)
        self.partners = [n for n in directory.placement[partition] if n != node]
        self.hosts = hosts_behind(plan, directory, Channel(plan.unit[partition.unit].outputs[0], partition.partition))
        self._suspends = in_force.directory.nodes[node].during_failure is Policy.SUSPEND
        self._reads_sources = all(channel.stream in plan.sources for channel in self.inputs)

    def can_recover(self, world: World, paths: Paths) -> bool:
        if self.node in world.down | world.unclear:
            return False
        reaches = [paths.channel(self.node, channel) for channel in self.inputs]
        if all(reach is Reach.NONE for reach in reaches):
            return False
        partner = any(
            n not in world.down and f"{self.partition}@{n}" not in world.recovering and paths.link(self.node, n)
            for n in self.partners
        )
        return partner or (self._reads_sources and Reach.NONE not in reaches)

    def can_catch_up(self, world: World, paths: Paths) -> bool:
        """Can it catch up once it has a state, wherever that came from?"""
        if self.can_recover(world, paths):
            return True
        if self.node in world.down | world.unclear:
            return False
        return all(paths.channel(self.node, channel) is not Reach.NONE for channel in self.inputs)

    def can_give(self, world: World, paths: Paths) -> bool:
        """Is it cut off from some input, and not from another one, whose rows it need not hold back for long?"""
        if self.node in world.down | world.unclear or self._suspends:
            return False
        reaches = [paths.channel(self.node, channel) for channel in self.inputs]
        return Reach.NONE in reaches and any(reach is not Reach.NONE for reach in reaches)


@dataclass(slots=True)
class _Stretch:
    """A time in which a replica recovers and can make progress, and nothing gets worse.

    Attributes:
      parts: (from, to, world).
    """

    place: _Place
    parts: list[tuple[int, int, World]] = field(default_factory=list)

    @property
    def from_us(self) -> int:
        return self.parts[0][0]

    @property
    def to_us(self) -> int:
        return self.parts[-1][1]

    def is_long(self, bounds: Bounds) -> bool:
        return self.to_us - self.from_us > min(self.place.x_us, bounds.settle_us)


def _stretches(
    place: _Place,
    static: Sequence[FaultInterval],
    paths: dict[World, Paths],
    spans: _Spans,
    gets_on: Callable[[World, Paths], bool],
    counters: Counters | None = None,
) -> Iterator[_Stretch]:
    stretch = _Stretch(place)
    for interval in static:
        recovers = place.name in interval.world.recovering and place.node not in interval.world.down
        recovers = recovers and not _meets(interval, spans.idle.get(place.name, ()))
        if recovers and counters is not None:
            counters.add("recovering_us", interval.to_us - interval.from_us)
        known = (
            paths.setdefault(interval.world, Paths(place.plan, place.directory, interval.world)) if recovers else None
        )
        able = known is not None and gets_on(spans.partners(interval), known)
        if recovers and not able and counters is not None:
            counters.add("recovering excused no way_us", interval.to_us - interval.from_us)
        worse = bool(interval.shaken & place.hosts)
        if stretch.parts and not worse:
            worse = not _relevant_part(place, interval.world).is_no_worse(_relevant_part(place, stretch.parts[-1][2]))
        if stretch.parts and (not able or worse):
            yield stretch
            stretch = _Stretch(place)
        if able:
            stretch.parts.append((interval.from_us, interval.to_us, interval.world))
    if stretch.parts:
        yield stretch


@dataclass(frozen=True, slots=True)
class _Spans:
    """Times of replicas, (from, to).

    Attributes:
      idle: when each stood by, or had no role.
      without_state: when each gave results, and may have had no state to give to a partner.
    """

    idle: Mapping[str, Sequence[tuple[int, int]]]
    without_state: Mapping[str, Sequence[tuple[int, int]]]

    def partners(self, interval: FaultInterval) -> World:
        """Returns a world in which replicas that may have no state to give count as recovering."""
        lacking = {replica for replica, spans in self.without_state.items() if _meets(interval, spans)}
        return replace(interval.world, recovering=interval.world.recovering | lacking) if lacking else interval.world


def _meets(interval: FaultInterval, spans: Sequence[tuple[int, int]]) -> bool:
    return any(interval.from_us < to_us and from_us < interval.to_us for from_us, to_us in spans)


def _without_state(history: History, directory: Directory) -> dict[str, list[tuple[int, int]]]:
    """Returns when each replica may have continued with tentative results during the replay of its log (G4)."""
    spans: dict[str, list[tuple[int, int]]] = {}
    logged = {f"{partition}@{node}" for partition in directory.logs for node in directory.placement.get(partition, ())}
    since: dict[str, int] = {}
    before: dict[str, NodeState] = {}
    for event in history:
        if not isinstance(event, StateChanged) or event.replica not in logged:
            continue
        replica, state = event.replica, event.state
        if state is NodeState.UP_FAILURE and before.get(replica) is NodeState.RECOVERING:
            since[replica] = event.at_us
        elif state in (NodeState.STABLE, NodeState.RECOVERING) and replica in since:
            spans.setdefault(replica, []).append((since.pop(replica), event.at_us))
        before[replica] = state
    for replica, from_us in since.items():
        spans.setdefault(replica, []).append((from_us, history.end_us + 1))
    return spans


def _idle(history: History) -> dict[str, list[tuple[int, int]]]:
    """Returns when each replica stood by, or had no role, (from, to)."""
    spans: dict[str, list[tuple[int, int]]] = {}
    since = dict.fromkeys(begun_by_moves(history), 0)
    for event in history:
        if isinstance(event, StateChanged):
            if (from_us := since.pop(event.replica, None)) is not None:
                spans.setdefault(event.replica, []).append((from_us, event.at_us))
            if not event.runs:
                since[event.replica] = event.at_us
    for replica, from_us in since.items():
        spans.setdefault(replica, []).append((from_us, history.end_us + 1))
    return spans


def _relevant_part(place: _Place, world: World) -> World:
    partners = {f"{place.partition}@{n}" for n in place.partners}
    return world.among(place.hosts, partners)


@dataclass(slots=True)
class _Progress:
    """Progress of replicas by a history: all as (time, value), in order.

    Attributes:
      begun: by replica: when it restarted.
      opened: by (replica, input): when it subscribed.
      frontiers: by (replica, input): stable boundaries as they came.
      sent: by source: boundaries as they were made available.
      came: by (replica, input): boundaries of either kind as they came.
    """

    subscriptions: bool = False
    begun: dict[str, list[int]] = field(default_factory=dict)
    opened: dict[tuple[str, Channel], list[int]] = field(default_factory=dict)
    frontiers: dict[tuple[str, Channel], tuple[list[int], list[int]]] = field(default_factory=dict)
    sent: dict[str, tuple[list[int], list[int]]] = field(default_factory=dict)
    came: dict[tuple[str, Channel], tuple[list[int], list[int]]] = field(default_factory=dict)


def _progress(history: History, replicas: set[str]) -> _Progress:
    progress = _Progress()
    for event in history:
        match event:
            case Received(at_us, consumer, channel, _, _, mode, Boundary(kind=kind, time=time)):
                if mode and consumer in replicas:
                    _append(progress.came.setdefault((consumer, channel), ([], [])), at_us, time)
                    if kind is Kind.STABLE:
                        _append(progress.frontiers.setdefault((consumer, channel), ([], [])), at_us, time)
            case Opened(at_us, consumer, channel, _, _, _, _, frontier):
                progress.subscriptions = True
                if consumer in replicas:
                    progress.opened.setdefault((consumer, channel), []).append(at_us)
                    _append(progress.frontiers.setdefault((consumer, channel), ([], [])), at_us, frontier)
            case StateChanged(at_us, replica, NodeState.RECOVERING) if replica in replicas:
                progress.begun.setdefault(replica, []).append(at_us)
            case Sent(at_us, channel, _, _, frontier):
                _append(progress.sent.setdefault(channel.stream, ([], [])), at_us, frontier)
    return progress


def _append(known: tuple[list[int], list[int]], at_us: int, frontier: int) -> None:
    known[0].append(at_us)
    known[1].append(frontier)


def _at(known: tuple[list[int], list[int]] | None, at_us: int) -> int:
    """Returns the last value up to a time."""
    if known is None:
        return BEFORE_TIME
    place = bisect_right(known[0], at_us)
    return known[1][place - 1] if place else BEFORE_TIME


class _Judge:
    """Judges a stretch."""

    def __init__(
        self, stretch: _Stretch, progress: _Progress, plan: Plan, directory: Directory, bounds: Bounds
    ) -> None:
        self._stretch = stretch
        self._place = stretch.place
        self._progress = progress
        self._plan = plan
        worst = max((world for _, _, world in stretch.parts), key=lambda w: (w.times_slower, w.late_us))
        bounds = bounds.among(_relevant_part(self._place, worst))
        waits = (
            6 if self._place.partition in directory.standbys else 2
        )  # a standby that runs upstream makes its state before this replica does
        self._recover_us = bounds.recover_us(len(self._place.partners)) + waits * self._place.x_us
        self._serve_us = bounds.settle_us + self._place.x_us
        self._bounds = bounds

    def finds_a_state(self, counters: Counters) -> Iterator[Finding]:
        stretch, place = self._stretch, self._place
        from_us, to_us = stretch.from_us, stretch.to_us
        counters.add("recoveries followed")
        counters.add("recovering followed_us", to_us - from_us)
        due_us = from_us + self._recover_us
        if due_us + from_us < to_us:
            yield self._finding(
                "a recovering replica serves in the end", due_us + from_us, "it could recover all along"
            )
        if not self._progress.subscriptions:
            return
        if due_us < to_us:
            missing = [c for c in place.inputs if not self._subscribed(c, due_us)]
            if missing:
                what = f"it has no state to go on from: it has not subscribed to {missing[0]}"
                yield self._finding("a recovering replica finds a state", due_us, what)

    def catches_up(self, paths: dict[World, Paths]) -> Iterator[Finding]:
        if not self._progress.subscriptions:
            return
        since: int | None = None
        for begin, end, world in self._stretch.parts:
            for at_us in range(begin, end, _LOOK_US):
                if not self._caught_up(at_us, paths[world]):
                    since = None
                    continue
                since = at_us if since is None else since
                if at_us - since > self._serve_us and at_us - since > self._serve_us + self._work_us(at_us):
                    what = f"it has what its producers have since {since / 1e6:.3f} s"
                    yield self._finding("a caught-up replica serves", at_us, what)
                    return

    def _work_us(self, at_us: int) -> int:
        """Returns the time to process all input since it restarted."""
        longest_us = 0
        for channel in self._place.inputs if self._bounds.turn_us else ():
            at, times = self._progress.frontiers.get((self._place.name, channel), ([], []))
            begin, end = bisect_left(at, self._begun_us()), bisect_right(at, at_us)
            if begin < end and times[begin] == BEFORE_TIME:
                begin = 0  # it begins with its first reads
            known = [time for time in times[begin:end] if BEFORE_TIME < time < END_OF_TIME]
            longest_us = max(longest_us, known[-1] - known[0]) if known else longest_us
        return self._bounds.work_us(longest_us)

    def gives_results(self, counters: Counters) -> Iterator[Finding]:
        """Checks that new elements of a connected input do not wait for another input, once the replica reads it."""
        since = min((at for c in self._place.inputs if (at := self._news(c)) is not None), default=None)
        if since is None:
            return
        counters.add("recoveries while cut off")
        if (due_us := max(since, self._stretch.from_us) + self._serve_us) < self._stretch.to_us:
            what = f"something new has come since {since / 1e6:.3f} s, and waits for an input that is cut off"
            yield self._finding("a subscribed replica gives results", due_us, what)

    def _news(self, channel: Channel) -> int | None:
        """Returns when an element came that was later than all that had been sent when the replica subscribed."""
        name, to_us = self._place.name, self._stretch.to_us
        if not self._subscribed(channel, to_us):
            return None
        opened = self._progress.opened[name, channel]
        opened_us = opened[bisect_right(opened, to_us) - 1]
        sent = max((_at(known, opened_us) for known in self._progress.sent.values()), default=BEFORE_TIME)
        at, times = self._progress.came.get((name, channel), ([], []))
        news = range(bisect_left(at, opened_us), bisect_left(at, to_us))
        return next((at[i] for i in news if sent < times[i] < END_OF_TIME), None)

    def _finding(self, rule: str, at_us: int, what: str) -> Finding:
        recovers = f"RECOVERING, and it could get on since {self._stretch.from_us / 1e6:.3f} s: {what}"
        return Finding(_PROPERTY, rule, at_us, self._place.name, recovers)

    def _subscribed(self, channel: Channel, at_us: int) -> bool:
        """Has it subscribed to all inputs since it restarted?"""
        opened = self._progress.opened.get((self._place.name, channel), [])
        return bisect_right(opened, at_us) > bisect_left(opened, self._begun_us())

    def _begun_us(self) -> int:
        """Returns when it restarted before the stretch."""
        begun = self._progress.begun.get(self._place.name, [])
        return begun[place - 1] if (place := bisect_right(begun, self._stretch.from_us)) else 0

    def _caught_up(self, at_us: int, paths: Paths) -> bool:
        """Has it everything of each connected input?  It need not wait for one that is cut off (T3)."""
        reaches = {channel: paths.channel(self._place.node, channel) for channel in self._place.inputs}
        return all(
            self._subscribed(channel, at_us) and (reach is Reach.TENTATIVE or self._has(channel, at_us))
            for channel, reach in reaches.items()
            if reach is not Reach.NONE
        )

    def _has(self, channel: Channel, at_us: int) -> bool:
        """Has it received everything that was sent so long ago that it must have arrived?"""
        allowed_us = (self._place.in_force.longest.bound_us(channel) or 0) + self._bounds.processing_us
        made = min(
            _at(self._progress.sent.get(s.stream), at_us - allowed_us) for s in origins(self._plan, channel.stream)
        )
        has = _at(self._progress.frontiers.get((self._place.name, channel)), at_us)
        return BEFORE_TIME < made <= has
