"""Static intervals of a run: which processes could reach one another, and the remaining paths to each client.

A *world* is the state between two changes: which processes run, which links are open.  It follows from the faults of
the run, never from the engine's statements; the one exception is that a replica which has just begun counts from
the moment when it left RECOVERING (P3 and the checks at the end judge that it does).
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator, Set
from dataclasses import dataclass
from heapq import merge
from operator import attrgetter
from typing import Final

from consistency.checking.node_settings import InForce
from consistency.checking.source_skew import apart
from consistency.faults.kind import Effect
from consistency.faults.kinds import kind_of
from spe.plan.directory import Directory
from spe.plan.nodes import Policy
from spe.plan.plan import Plan
from spe.stream.history import (
    DirectoryApplied,
    Event,
    FaultBegan,
    FaultEnded,
    History,
    ProcessDown,
    ProcessUp,
    StateChanged,
)
from spe.stream.ids import Channel, PartitionId
from spe.stream.names import NodeId, NodeState

Link = tuple[str, str]


@dataclass(frozen=True, slots=True)
class World:
    """The state between two changes.

    Attributes:
      down: processes that do not run or make nothing new.
      cut: links that carry nothing, (from, to).
      recovering: replicas that hold nothing yet.
      late: microseconds by which links are late; a source whose clock is off, or its disk slow, is a link to itself.
      busy: how many times slower processes are.
      unknown: (kind of fault, link) of which nothing is claimed; a process is a link to itself.
    """

    down: frozenset[str] = frozenset()
    cut: frozenset[Link] = frozenset()
    recovering: frozenset[str] = frozenset()
    late: frozenset[tuple[Link, float]] = frozenset()
    busy: frozenset[tuple[str, float]] = frozenset()
    unknown: frozenset[tuple[str, Link]] = frozenset()

    @property
    def disturbed(self) -> frozenset[str]:
        """Processes that run and can be reached, and yet may be late."""
        links = [*(link for link, _ in self.late), *(link for _, link in self.unknown)]
        return frozenset([*(host for host, _ in self.busy), *(end for link in links for end in link)])

    @property
    def unclear(self) -> frozenset[str]:
        """Processes with unbounded lateness."""
        return frozenset(end for _, link in self.unknown for end in link)

    @property
    def late_us(self) -> float:
        """Lateness of the latest link."""
        return max((us for _, us in self.late), default=0.0)

    @property
    def times_slower(self) -> float:
        """Factor of the slowest process."""
        return max((times for _, times in self.busy), default=1.0)

    def among(self, hosts: frozenset[str], replicas: Set[str]) -> World:
        """Returns the part that concerns some processes and replicas."""
        return World(
            self.down & hosts,
            frozenset(link for link in self.cut if hosts.issuperset(link)),
            self.recovering & replicas,
            frozenset(entry for entry in self.late if hosts.issuperset(entry[0])),
            frozenset(entry for entry in self.busy if entry[0] in hosts),
            frozenset(entry for entry in self.unknown if hosts.issuperset(entry[1])),
        )

    def is_no_worse(self, before: World, tolerated_us: float = 0) -> bool:
        """Is nothing newly wrong?  Processes may be slower, and links late by ``tolerated_us``."""
        return (
            self.down <= before.down
            and self.cut <= before.cut
            and self.recovering <= before.recovering
            and (self.late <= before.late or self.late_us <= tolerated_us)
            and self.unknown <= before.unknown
        )

    def open(self, from_: str, to: str) -> bool:
        """Does a link carry in both directions?  (Over a one-way link no answer arrives.)"""
        return from_ == to or ((from_, to) not in self.cut and (to, from_) not in self.cut)


@dataclass(frozen=True, slots=True)
class FaultInterval:
    """A time in which the world stays the same; ``shaken``: processes that a fault disturbed as it began, even one that
    ended at once."""

    from_us: int
    to_us: int
    world: World
    shaken: frozenset[str] = frozenset()


def intervals(history: History, plan: Plan, directory: Directory, in_force: InForce) -> list[FaultInterval]:
    """Returns the whole run, last event included, cut where the world changes, or sources drift apart."""
    sweep = _Sweep(begun_by_moves(history) | never_began(history, directory, in_force.began_with))
    intervals_: list[FaultInterval] = []
    since, world, shaken = 0, sweep.world(), frozenset[str]()
    for event in merge(history, apart(history, plan, directory, in_force), key=attrgetter("at_us")):
        if not sweep.take(event):
            continue
        now, befallen = sweep.world(), _befallen(event)
        if now == world and not befallen:
            continue
        if event.at_us > since:
            intervals_.append(FaultInterval(since, event.at_us, world, shaken))
            shaken = frozenset()
        since, world, shaken = event.at_us, now, shaken | befallen
    return [*intervals_, FaultInterval(since, history.end_us + 1, world, shaken)]


def begun_by_moves(history: History) -> set[str]:
    """Returns replicas that a change of the directory brought to their nodes: until then they serve no consumer."""
    known: set[str] = set()
    replicas: set[str] = set()
    changed = False
    for event in history:
        if isinstance(event, DirectoryApplied):
            changed |= event.number > 0
        elif isinstance(event, StateChanged) and event.replica not in known:
            known.add(event.replica)
            if changed:
                replicas.add(event.replica)
    return replicas


def never_began(history: History, directory: Directory, configured: Directory) -> set[str]:
    """Returns replicas whose role was so short that their nodes never learned of it."""
    reported = {event.replica for event in history if isinstance(event, StateChanged)}
    came = (
        (partition, n)
        for partition in directory.roles
        for n in directory.hosts(partition)
        if n not in configured.hosts(partition)
    )
    return {f"{partition}@{n}" for partition, n in came} - reported


def _befallen(event: Event) -> frozenset[str]:
    if isinstance(event, FaultBegan) and effect_of(event) not in (Effect.LATE, Effect.BUSY):
        return frozenset(event.hosts) | {end for link in event.links for end in link}
    return frozenset()


class _Sweep:
    """Follows the events that change the world."""

    def __init__(self, recovering: Iterable[str]) -> None:
        self._stopped: set[str] = set()
        self._faults: dict[int, FaultBegan] = {}
        self._recovering = set(recovering)

    def take(self, event: Event) -> bool:
        """Takes an event; returns True if the world may have changed."""
        match event:
            case ProcessUp(_, host):
                self._stopped.discard(host)
            case ProcessDown(_, host):
                self._stopped.add(host)
            case FaultBegan():
                self._faults[event.number] = event
            case FaultEnded(_, number):
                self._faults.pop(number, None)
            case StateChanged(_, replica, state):
                if (replica in self._recovering) == (state is NodeState.RECOVERING):
                    return False
                (self._recovering.add if state is NodeState.RECOVERING else self._recovering.discard)(replica)
            case _:
                return False
        return True

    def world(self) -> World:
        down, cut = set(self._stopped), set[Link]()
        late, busy, unknown = set[tuple[Link, float]](), set[tuple[str, float]](), set[tuple[str, Link]]()
        for fault in self._faults.values():
            links = [*fault.links, *((host, host) for host in fault.hosts)]
            match effect_of(fault):
                case Effect.DOWN:
                    down.update(fault.hosts)
                case Effect.CUT:
                    cut.update(fault.links)
                case Effect.LATE:
                    late.update((link, fault.amount) for link in links)
                case Effect.BUSY:
                    busy.update((host, fault.amount) for host in fault.hosts)
                case Effect.DISTURBED:
                    unknown.update((fault.kind, link) for link in links)
        recovering = frozenset(self._recovering)
        return World(frozenset(down), frozenset(cut), recovering, frozenset(late), frozenset(busy), frozenset(unknown))


def effect_of(fault: FaultBegan) -> Effect:
    """Returns the effect of a fault on paths."""
    kind = kind_of(fault.kind)
    if kind.of_sources is not None and all(host.startswith("source:") for host in fault.hosts):
        return kind.of_sources
    return kind.by_change.get(fault.kind.partition(" ")[2], kind.effect)


class Reach(enum.Enum):
    """The best remaining path from the sources to a process."""

    NONE = "none"
    TENTATIVE = "tentative"
    STABLE = "stable"


class Paths:
    """The paths of one world."""

    def __init__(self, plan: Plan, directory: Directory, world: World) -> None:
        self._plan = plan
        self._directory = directory
        self._world = world
        self._known: dict[tuple[PartitionId, str], Reach] = {}
        late: dict[Link, float] = {}
        for link, us in world.late:
            late[link] = max(us, late.get(link, 0.0))
        #: Links whose answers come after more than three missed heartbeats (F3).
        self._too_late = {
            (a, b)
            for link in late
            for a, b in (link, link[::-1])
            if late.get((a, b), 0.0) + late.get((b, a), 0.0) > 3.5 * plan.timing.heartbeat_us
        }

    def link(self, from_: str, to: str) -> bool:
        """Is a link open, and are answers over it in time for heartbeats?  Else it counts as cut."""
        return self._world.open(from_, to) and (from_, to) not in self._too_late

    def channel(self, consumer_host: str, channel: Channel) -> Reach:
        """Returns the best that a consumer on a host can get of a channel."""
        return max((self._from(consumer_host, channel, p) for p in self.producers(channel)), key=_RANK.index)

    def through(self, consumer_host: str, channel: Channel, producer: str) -> bool:
        """Can a consumer on a host get anything of a channel from one of its producers?"""
        return self._from(consumer_host, channel, producer) is not Reach.NONE

    def producers(self, channel: Channel) -> list[str]:
        return list(self._directory.producer_addresses(self._plan, channel))

    def replica(self, partition: PartitionId, node: str) -> Reach:
        """Returns the best that a replica can make."""
        reach = self._known.get((partition, node))
        if reach is None:
            reach = self._known[partition, node] = self._replica(partition, node)
        return reach

    def entries(self, consumer_host: str, channel: Channel) -> Iterator[tuple[str, Channel]]:
        """Yields (replica, source channel) of every place where tuples for a consumer may enter; some repeat."""
        if channel.stream in self._plan.sources:
            return
        partition = self._plan.maker_of(channel)
        for node in self.producers(channel):
            if self._from(consumer_host, channel, node) is Reach.NONE:
                continue
            for upstream in self._plan.unit[partition.unit].channels_in(partition.partition):
                if upstream.stream in self._plan.sources:
                    if self.channel(node, upstream) is not Reach.NONE:
                        yield f"{partition}@{node}", upstream
                else:
                    yield from self.entries(node, upstream)

    def _from(self, consumer_host: str, channel: Channel, producer: str) -> Reach:
        world = self._world
        if producer in world.down or not world.open(consumer_host, producer):
            return Reach.NONE
        if channel.stream in self._plan.sources:
            return Reach.STABLE
        unit = self._plan.producer[channel.stream]
        return self.replica(PartitionId(unit.id, channel.partition), producer)

    def _replica(self, partition: PartitionId, node: str) -> Reach:
        if node in self._world.down or f"{partition}@{node}" in self._world.recovering:
            return Reach.NONE
        inputs = [self.channel(node, c) for c in self._plan.unit[partition.unit].channels_in(partition.partition)]
        if all(reach is Reach.STABLE for reach in inputs):
            return Reach.STABLE
        suspends = self._directory.nodes[NodeId(node)].during_failure is Policy.SUSPEND
        return Reach.NONE if suspends or all(reach is Reach.NONE for reach in inputs) else Reach.TENTATIVE


_RANK: Final = [Reach.NONE, Reach.TENTATIVE, Reach.STABLE]


def hosts_behind(plan: Plan, directory: Directory, channel: Channel) -> frozenset[str]:
    """Returns every process that contributes to a channel."""
    hosts = set(directory.producer_addresses(plan, channel))
    if channel.stream not in plan.sources:
        for upstream in plan.producer[channel.stream].channels_in(channel.partition):
            hosts |= hosts_behind(plan, directory, upstream)
    return frozenset(hosts)
