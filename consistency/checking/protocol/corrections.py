"""When a replica may correct, when it must, and which partner serves in its place (R1, R4, R5, K5).

* R1: *Nothing is silent as a redo begins*: a silent input would make results tentative again at once.
* R5: *A replica that corrects by leave has a partner that serves*: when its partner is gone, or corrects or recovers
  itself, the replica continues with fresh results of its own.
* R3, R4, K5: *What has healed is corrected*: by a replica whose partners are dead, or have nothing to correct.

Nothing is claimed if buffers have little room, for then a redo begins to make some (R2); of processes that were
disturbed a moment ago; nor of a replica whose input is not in the history (real processes).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from consistency.checking.bounds import Bounds, has_room
from consistency.checking.checked_run import CheckedRun
from consistency.checking.counters import Counters
from consistency.checking.finding import Finding
from consistency.checking.node_settings import InForce
from consistency.checking.schedule import FaultInterval, World
from spe.plan.directory import Directory
from spe.plan.nodes import Policy
from spe.plan.plan import Plan
from spe.plan.timing import stall_us
from spe.stream.batch import Boundary
from spe.stream.history import Event, Note, Opened, ProcessDown, Received, StateChanged
from spe.stream.ids import Channel
from spe.stream.names import Kind, NodeState
from spe.stream.times import END_OF_TIME

_SERVING: Final = (NodeState.STABLE, NodeState.UP_FAILURE)
#: Number of elements of each input after which the history is assumed to have all input.
_KNOWN: Final = 5
#: Heartbeats until a replica knows its partner's state: four without an answer, and one with it.
_HEARTBEATS: Final = 6


@dataclass(slots=True)
class _Replica:
    """State of one replica.

    Attributes:
      stalls: per input, the silence after which R1 takes it for silent.
      arrived_us: per input, when an element came last, or may have; END_OF_TIME once it has ended.
      came: per input, number of elements.
      state_us: since when it is in its state.
      partner: the partner that it asked last.
      leans: it corrects by leave, and has had no fresh results since it began.
      spans: per input, the first and the last stable boundary that came since it failed.
      unserved_us: since when it corrects by leave, and its partner cannot replace it.
      correctable_us: since when it could correct, and no partner does.
    """

    name: str
    node: str
    x_us: int
    suspends: bool
    stalls: dict[Channel, int]
    partners: list[tuple[str, str]]
    arrived_us: dict[Channel, int] = field(default_factory=dict)
    came: Counter[Channel] = field(default_factory=Counter)
    state: NodeState = NodeState.RECOVERING
    state_us: int = 0
    partner: str = ""
    leans: bool = False
    spans: dict[Channel, tuple[int, int]] = field(default_factory=dict)
    unserved_us: int | None = None
    correctable_us: int | None = None

    @property
    def known(self) -> bool:
        """Does the history have all its input?"""
        return all(self.came[channel] >= _KNOWN for channel in self.stalls)


def check_corrections(run: CheckedRun) -> Iterator[Finding]:
    """Yields findings of R1, R3 to R5 and K5."""
    history, static, plan, directory, in_force, bounds, counters = run
    if not has_room(plan):
        return
    checker = _Checker(plan, directory, in_force, bounds, counters)
    ahead = iter(static)
    interval = next(ahead)
    for event in history:
        while event.at_us >= interval.to_us and (following := next(ahead, None)) is not None:
            yield from checker.judge(interval.to_us, interval.world)
            interval = following
            checker.changes(interval)
            yield from checker.judge(interval.from_us, interval.world)
        yield from checker.take(event, interval.world)
    yield from checker.judge(history.end_us, interval.world)


class _Checker:
    def __init__(self, plan: Plan, directory: Directory, in_force: InForce, bounds: Bounds, counters: Counters) -> None:
        self._plan = plan
        self._directory = directory
        self._bounds = bounds
        self._counters = counters
        self._notice_us = _HEARTBEATS * plan.timing.heartbeat_us + bounds.processing_us
        self._replicas = {
            f"{partition}@{node}": _Replica(
                f"{partition}@{node}",
                str(node),
                in_force.longest_x_us(partition.unit, node),
                directory.nodes[node].during_stabilization is Policy.SUSPEND,
                {c: stall_us(plan, c) for c in plan.unit[partition.unit].channels_in(partition.partition)},
                [(str(other), f"{partition}@{other}") for other in directory.hosts(partition) if other != node],
            )
            for partition in directory.placement
            for node in directory.hosts(partition)
        }
        #: Time until which nothing is claimed of a process: it is disturbed, or was a moment ago.
        self._shaken_us: dict[str, int] = {}

    def changes(self, interval: FaultInterval) -> None:
        """Takes a change of the world."""
        world = interval.world
        for host in world.disturbed | world.down:
            self._shaken_us[host] = interval.to_us + self._bounds.settle_us

    def take(self, event: Event, world: World) -> Iterator[Finding]:
        match event:
            case Received(at_us, consumer, channel, _, _, mode, element) if mode and consumer in self._replicas:
                replica = self._replicas[consumer]
                ended = False
                if isinstance(element, Boundary) and element.kind is Kind.STABLE:
                    ended = element.time >= END_OF_TIME
                    if not ended:
                        first, _ = replica.spans.get(channel, (element.time, 0))
                        replica.spans[channel] = first, element.time
                replica.came[channel] += 1
                replica.arrived_us[channel] = END_OF_TIME if ended else max(at_us, replica.arrived_us.get(channel, 0))
                return
            case Opened(at_us, consumer, channel, _, _, _, _, frontier) if consumer in self._replicas:
                replica = self._replicas[consumer]
                # The producer's answer counts, and is not in the history.
                soon_us = at_us + self._plan.timing.connect_us if frontier < END_OF_TIME else END_OF_TIME
                replica.arrived_us[channel] = max(soon_us, replica.arrived_us.get(channel, 0))
                return
            case Note(name="ask_partner", text=text):
                if (match_ := re.match(r"replica=(\S+) partner=(\S+)", text)) and match_[1] in self._replicas:
                    self._replicas[match_[1]].partner = match_[2]
                return
            case StateChanged(at_us, name, state, fresh) if name in self._replicas:
                yield from self._moved(self._replicas[name], at_us, state, fresh)
            case ProcessDown(at_us, host):
                for replica in self._replicas.values():
                    if replica.node == host:
                        self._forget(replica, at_us)
            case _:
                return
        yield from self.judge(event.at_us, world)

    def _forget(self, replica: _Replica, at_us: int) -> None:
        replica.state, replica.state_us, replica.leans = NodeState.RECOVERING, at_us, False
        replica.arrived_us.clear()
        replica.spans.clear()

    def _moved(self, replica: _Replica, at_us: int, state: NodeState, fresh: bool) -> Iterator[Finding]:
        before = replica.state
        if state is NodeState.RECOVERING:
            self._forget(replica, at_us)
            return
        if state is not before:
            replica.state, replica.state_us = state, at_us
            if state is NodeState.UP_FAILURE:
                replica.spans.clear()
        if state is NodeState.STABILIZATION and before is NodeState.UP_FAILURE:
            replica.leans = not fresh and not replica.suspends
            yield from self._begins(replica, at_us)
        replica.leans &= state is NodeState.STABILIZATION and not fresh

    def _begins(self, replica: _Replica, at_us: int) -> Iterator[Finding]:
        """Checks a redo that begins: no input may be silent (R1)."""
        if not replica.known or self._shaken_us.get(replica.node, 0) > at_us:
            return
        self._counters.add("redos checked for silent inputs")
        for channel, stall in replica.stalls.items():
            silent_us = at_us - replica.arrived_us.get(channel, at_us)
            if silent_us > stall + self._bounds.processing_us:
                what = f"it corrects, though nothing has come of {channel} for {silent_us / 1e6:.3f} s"
                yield Finding("steady", "nothing is silent as a redo begins", at_us, replica.name, what)

    def judge(self, now: int, world: World) -> Iterator[Finding]:
        """Yields findings of what has lasted too long by now."""
        for replica in self._replicas.values():
            yield from self._leaning(replica, now, world)
            yield from self._correctable(replica, now, world)

    def _leaning(self, replica: _Replica, now: int, world: World) -> Iterator[Finding]:
        """Checks that a replica whose partner stopped serving continues with its own results (R5)."""
        partner = next((r for n, r in replica.partners if n == replica.partner), None)
        served = (
            not replica.leans
            or partner is None
            or replica.node in world.down | world.disturbed
            or (
                replica.partner not in world.down
                and world.open(replica.node, replica.partner)
                and self._replicas[partner].state in _SERVING
            )
        )
        since, replica.unserved_us = replica.unserved_us, None if served else replica.unserved_us or now
        if since is None:
            self._counters.add("partners lost in a redo", not served)
        elif now - since > self._notice_us and self._shaken_us.get(replica.node, 0) <= now:
            what = f"it corrects by leave of {replica.partner}, which cannot stand in for it since {since / 1e6:.3f} s"
            yield Finding("turns", "a replica that corrects by leave has a serving partner", now, replica.name, what)
            replica.leans, replica.unserved_us = False, None

    def _correctable(self, replica: _Replica, now: int, world: World) -> Iterator[Finding]:
        """Checks that a replica corrects if it can and its partners are gone or need not (R3, R4, K5)."""
        could = (
            replica.known
            and replica.state is NodeState.UP_FAILURE
            and replica.node not in world.down | world.disturbed
            and all(self._stands_back(replica, n, r, world) for n, r in replica.partners)
            and self._are_whole(replica, world)
        )
        since, replica.correctable_us = replica.correctable_us, replica.correctable_us or now if could else None
        if since is None:
            self._counters.add("replicas that could correct", could)
            return
        due_us = self._bounds.settle_us + 2 * self._plan.timing.request_us + replica.x_us
        if now - since > due_us + self._work_us(replica):
            what = f"it is UP_FAILURE, though its inputs work since {since / 1e6:.3f} s"
            yield Finding("steady", "healed failures are corrected", now, replica.name, what)
            replica.correctable_us = None

    def _work_us(self, replica: _Replica) -> int:
        """Returns the time to process all input since it failed: a replica that suspends has not begun."""
        longest_us = max((last - first for first, last in replica.spans.values()), default=0)
        return self._bounds.work_us(longest_us)

    def _stands_back(self, replica: _Replica, node: str, partner: str, world: World) -> bool:
        """Is a partner gone, or can it grant leave?"""
        if node in world.disturbed:
            return False
        gone = node in world.down or not world.open(replica.node, node)
        return gone or self._replicas[partner].state in _SERVING

    def _are_whole(self, replica: _Replica, world: World) -> bool:
        return all(self._whole(replica.node, channel, world) for channel in replica.stalls)

    def _whole(self, node: str, channel: Channel, world: World) -> bool:
        """Is every producer of a channel either STABLE and reachable, or gone?

        So are those of its inputs: a producer with a longer X stays STABLE, and silent, while one of these is missing.
        """
        serving = 0
        for producer in self._directory.producer_addresses(self._plan, channel):
            if producer in world.disturbed:
                return False
            if producer in world.down or not world.open(node, producer):
                continue
            if channel.stream not in self._plan.sources:
                maker = self._replicas[f"{self._plan.maker_of(channel)}@{producer}"]
                if maker.state is not NodeState.STABLE or not self._are_whole(maker, world):
                    return False
            serving += 1
        return serving > 0
