"""Who could reach whom, and when: the static intervals of a run, and what each of them leaves of the paths to a client.

A *world* is what holds between two changes: which processes run, which links are open.  It is made of what was done to
the run, never of what the engine said about it; the one exception is that a replica which has just begun counts from
the moment when it left RECOVERING (that it does is for P3 and the quiet at the end to judge).
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


class Effect(enum.Enum):
    """What a fault does to the processes and links that it befalls, as far as paths go."""

    NONE = "other events tell, or nothing"
    DOWN = "its processes do nothing, or make nothing new"
    CUT = "its links carry nothing, or cannot be relied on to: a connection that breaks is not opened again"
    LATE = "what passes comes later by a known time"
    BUSY = "its processes are slower by a known factor"
    DISTURBED = "nobody can say how late what passes will be"


#: By kind; a kind that is not here is DISTURBED: no claim is made of what it touches.
EFFECTS: Final = {
    "kill": Effect.NONE,
    "power": Effect.NONE,
    "restart": Effect.NONE,
    "heal": Effect.NONE,
    "reset": Effect.NONE,
    "half-open": Effect.NONE,
    "lie": Effect.NONE,
    "wipe": Effect.NONE,
    "replan query": Effect.DOWN,
    "replan bucket": Effect.DOWN,
    "replan limits": Effect.NONE,
    "replan timing": Effect.NONE,
    "replan checkpoints": Effect.NONE,
    "flip": Effect.NONE,
    "freeze": Effect.DOWN,
    "stall": Effect.DOWN,
    "silence": Effect.DOWN,
    "cut": Effect.CUT,
    "refuse": Effect.CUT,
    "delay": Effect.LATE,
    "skew": Effect.LATE,
    "slow-disk": Effect.LATE,
    "busy": Effect.BUSY,
}
#: Faults of disks by which a checkpoint may be damaged, or gone.
LOSING: Final = ("flip", "lie", "wipe")

Link = tuple[str, str]


@dataclass(frozen=True, slots=True)
class World:
    """What holds between two changes.

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
        """Processes that run and are reached, and yet may be late."""
        links = [*(link for link, _ in self.late), *(link for _, link in self.unknown)]
        return frozenset([*(host for host, _ in self.busy), *(end for link in links for end in link)])

    @property
    def unclear(self) -> frozenset[str]:
        """Processes of which nobody can say how late they are."""
        return frozenset(end for _, link in self.unknown for end in link)

    @property
    def late_us(self) -> float:
        """How late the latest link is."""
        return max((us for _, us in self.late), default=0.0)

    @property
    def times_slower(self) -> float:
        """How much slower the slowest process is."""
        return max((times for _, times in self.busy), default=1.0)

    def among(self, hosts: frozenset[str], replicas: Set[str]) -> World:
        """The part of it that concerns some processes and replicas."""
        return World(
            self.down & hosts,
            frozenset(link for link in self.cut if hosts.issuperset(link)),
            self.recovering & replicas,
            frozenset(one for one in self.late if hosts.issuperset(one[0])),
            frozenset(one for one in self.busy if one[0] in hosts),
            frozenset(one for one in self.unknown if hosts.issuperset(one[1])),
        )

    def is_no_worse(self, before: World, tolerated_us: float = 0) -> bool:
        """Is nothing wrong that was not before?  Processes may be slower, and links late by ``tolerated_us``."""
        return (
            self.down <= before.down
            and self.cut <= before.cut
            and self.recovering <= before.recovering
            and (self.late <= before.late or self.late_us <= tolerated_us)
            and self.unknown <= before.unknown
        )

    def open(self, one: str, other: str) -> bool:
        """Does a link carry in both directions?  (Over a one-way link nobody hears an answer.)"""
        return one == other or ((one, other) not in self.cut and (other, one) not in self.cut)


@dataclass(frozen=True, slots=True)
class FaultInterval:
    """A time in which the world stays the same; ``shaken`` are those of whom a fault broke something as it began, even
    one that was over at once."""

    from_us: int
    to_us: int
    world: World
    shaken: frozenset[str] = frozenset()


def intervals(history: History, plan: Plan, directory: Directory, in_force: InForce) -> list[FaultInterval]:
    """The whole run, last event included, cut where the world changes, or sources come to be apart."""
    sweep = _Sweep(begun_by_moves(history) | never_began(history, directory, in_force.began_with))
    found: list[FaultInterval] = []
    since, world, shaken = 0, sweep.world(), frozenset[str]()
    for event in merge(history, apart(history, plan, directory, in_force), key=attrgetter("at_us")):
        if not sweep.take(event):
            continue
        now, befallen = sweep.world(), _befallen(event)
        if now == world and not befallen:
            continue
        if event.at_us > since:
            found.append(FaultInterval(since, event.at_us, world, shaken))
            shaken = frozenset()
        since, world, shaken = event.at_us, now, shaken | befallen
    return [*found, FaultInterval(since, history.end_us + 1, world, shaken)]


def begun_by_moves(history: History) -> set[str]:
    """Replicas that a change of the directory brought to their nodes: until then they serve nobody."""
    known: set[str] = set()
    found: set[str] = set()
    changed = False
    for event in history:
        if isinstance(event, DirectoryApplied):
            changed |= event.number > 0
        elif isinstance(event, StateChanged) and event.replica not in known:
            known.add(event.replica)
            if changed:
                found.add(event.replica)
    return found


def never_began(history: History, directory: Directory, configured: Directory) -> set[str]:
    """Replicas that got a role for so short a time that their nodes never heard of it."""
    told = {event.replica for event in history if isinstance(event, StateChanged)}
    came = ((of, n) for of in directory.roles for n in directory.hosts(of) if n not in configured.hosts(of))
    return {f"{of}@{n}" for of, n in came} - told


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
        """Takes an event; True if the world may have changed."""
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
    """What a fault does to paths."""
    sources = all(host.startswith("source:") for host in fault.hosts)
    match fault.kind:
        case "skew" | "slow-disk" if not sources:
            return Effect.NONE  # only sources use the time of day, and wait for their disks
        case "full" if sources:
            return Effect.DOWN  # a source sends nothing that it could not log
    return EFFECTS.get(fault.kind, Effect.DISTURBED)


class Reach(enum.Enum):
    """What is left of the paths from the sources to somebody."""

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
        #: Over these an answer comes when more than three heartbeats have been missed (F3).
        self._too_late = {
            (a, b)
            for link in late
            for a, b in (link, link[::-1])
            if late.get((a, b), 0.0) + late.get((b, a), 0.0) > 3.5 * plan.timing.heartbeat_us
        }

    def link(self, one: str, other: str) -> bool:
        """Is a link open, and are answers over it in time for heartbeats?  Else it is as good as cut."""
        return self._world.open(one, other) and (one, other) not in self._too_late

    def channel(self, consumer_host: str, channel: Channel) -> Reach:
        """The best that a consumer on a host can get of a channel."""
        return max((self._from(consumer_host, channel, p) for p in self.producers(channel)), key=_RANK.index)

    def through(self, consumer_host: str, channel: Channel, producer: str) -> bool:
        """Can a consumer on a host get something of a channel from one of its producers?"""
        return self._from(consumer_host, channel, producer) is not Reach.NONE

    def producers(self, channel: Channel) -> list[str]:
        return list(self._directory.producer_addresses(self._plan, channel))

    def replica(self, of: PartitionId, node: str) -> Reach:
        """The best that a replica can make."""
        found = self._known.get((of, node))
        if found is None:
            found = self._known[of, node] = self._replica(of, node)
        return found

    def entries(self, consumer_host: str, channel: Channel) -> Iterator[tuple[str, Channel]]:
        """(replica, source channel) of every place where tuples enter that may come to a consumer; some repeatedly."""
        if channel.stream in self._plan.sources:
            return
        of = self._plan.maker_of(channel)
        for node in self.producers(channel):
            if self._from(consumer_host, channel, node) is Reach.NONE:
                continue
            for upstream in self._plan.unit[of.unit].channels_in(of.partition):
                if upstream.stream in self._plan.sources:
                    if self.channel(node, upstream) is not Reach.NONE:
                        yield f"{of}@{node}", upstream
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

    def _replica(self, of: PartitionId, node: str) -> Reach:
        if node in self._world.down or f"{of}@{node}" in self._world.recovering:
            return Reach.NONE
        inputs = [self.channel(node, c) for c in self._plan.unit[of.unit].channels_in(of.partition)]
        if all(reach is Reach.STABLE for reach in inputs):
            return Reach.STABLE
        suspends = self._directory.nodes[NodeId(node)].during_failure is Policy.SUSPEND
        return Reach.NONE if suspends or all(reach is Reach.NONE for reach in inputs) else Reach.TENTATIVE


_RANK: Final = [Reach.NONE, Reach.TENTATIVE, Reach.STABLE]


def hosts_behind(plan: Plan, directory: Directory, channel: Channel) -> frozenset[str]:
    """Every process that has a part in a channel."""
    found = set(directory.producer_addresses(plan, channel))
    if channel.stream not in plan.sources:
        for upstream in plan.producer[channel.stream].channels_in(channel.partition):
            found |= hosts_behind(plan, directory, upstream)
    return frozenset(found)
