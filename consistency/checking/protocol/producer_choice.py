"""Stable preferred: no consumer stays with a failing producer, or without one, while a STABLE one can be reached.

Nothing is claimed of a STABLE replica that has lost an input: it has no new results, and is not preferred (F4).  If
buffers have little room, a full producer may have nothing more than a consumer has read of one that corrects and is
full, too: then nothing is claimed of consumers of a correcting replica.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from consistency.checking.bounds import Bounds, has_room
from consistency.checking.checked_run import CheckedRun
from consistency.checking.counters import Counters
from consistency.checking.finding import Finding
from consistency.checking.schedule import Paths, Reach, World
from spe.plan.directory import Directory
from spe.plan.plan import Plan
from spe.stream.history import (
    Closed,
    Event,
    FaultBegan,
    FaultEnded,
    Note,
    Opened,
    ProcessDown,
    ProcessUp,
    Promoted,
    StateChanged,
    host_of,
)
from spe.stream.ids import Channel
from spe.stream.names import NodeId, NodeState


def check_preferred(run: CheckedRun) -> Iterator[Finding]:
    """Yields findings of the rule: a better producer, reachable and STABLE all along, is chosen within *settle*.

    Nothing is claimed of a history without subscriptions.
    """
    history, static, plan, directory, _, bounds, counters = run
    if not any(isinstance(event, Opened) for event in history):
        return
    follow = _Follow(plan, directory, bounds, counters)
    ahead = iter(static)
    interval = next(ahead)
    for event in history:
        while event.at_us >= interval.to_us:
            interval = next(ahead)
        yield from follow.take(event, interval.world)
    yield from follow.judge(history.end_us, interval.world)


class _Follow:
    def __init__(self, plan: Plan, directory: Directory, bounds: Bounds, counters: Counters) -> None:
        self._plan = plan
        self._directory = directory
        self._bounds = bounds
        self._counters = counters
        #: A consumer of a replica in one of these states need not change.
        self._good = {NodeState.STABLE} if has_room(plan) else {NodeState.STABLE, NodeState.STABILIZATION}
        self._paths: tuple[World, Paths] | None = None
        self._states: dict[str, NodeState] = {}
        #: MAIN of each consumer and channel: generation and producer.
        self._feeds: dict[tuple[str, Channel], dict[int, tuple[str, str]]] = {}
        #: Since when a consumer could have had a better producer.
        self._since: dict[tuple[str, Channel, str], int] = {}
        self._slower = (World().late, World().busy)
        #: (consumer, producing replica) if the producer no longer has the elements that the consumer needs next (A2).
        self._evicted: set[tuple[str, str]] = set()
        self._inputs = [
            (f"{partition}@{node}", channel)
            for partition in directory.placement
            for node in directory.hosts(partition)
            for channel in plan.unit[partition.unit].channels_in(partition.partition)
        ] + [
            (f"client:{name}", Channel(s, p))
            for name, client in directory.clients.items()
            for s in client.reads
            for p in range(plan.partitions_of(s))
        ]
        self._producers = {
            channel: [(n, f"{plan.producer[channel.stream].id}/{channel.partition}@{n}") for n in nodes]
            for _, channel in self._inputs
            if channel.stream not in plan.sources and (nodes := directory.producer_addresses(plan, channel))
        }

    def take(self, event: Event, world: World) -> Iterator[Finding]:
        match event:
            case StateChanged(_, replica, state):
                self._states[replica] = state
                if state is NodeState.RECOVERING:
                    self._forget(replica)
                if state in (NodeState.RECOVERING, NodeState.STABLE):  # it needs only future tuples
                    self._evicted = {(c, r) for c, r in self._evicted if c != replica}
            case Opened(_, consumer, channel, producer, generation, mode):
                self._evicted -= {(consumer, r) for n, r in self._producers.get(channel, ()) if n == producer}
                self._feeds.setdefault((consumer, channel), {})[generation] = (mode, producer)
            case Promoted(_, consumer, channel, generation, mode):
                feeds = self._feeds.get((consumer, channel), {})
                if generation in feeds:
                    feeds[generation] = (mode, feeds[generation][1])
            case Closed(_, consumer, channel, generation):
                self._feeds.get((consumer, channel), {}).pop(generation, None)
            case ProcessUp(_, host):
                for consumer in {c for c, _ in self._feeds if host_of(c) == host}:
                    self._forget(consumer)
                for replica in [r for r in self._states if host_of(r) == host]:
                    del self._states[replica]  # it may stand by from now on, and then announces no state
            case Note(_, _, "evicted", text):
                self._evict(text)
            case FaultBegan() | FaultEnded() | ProcessDown():
                pass  # the world may have changed
            case _:
                return
        yield from self.judge(event.at_us, world)

    def _evict(self, note: str) -> None:
        """Handles ``note``: ``replica=… consumers=[…]``.  A STABLE consumer needs only new elements."""
        replica, _, consumers = note.removeprefix("replica=").partition(" consumers=")
        evicted = re.findall("'([^']+)'", consumers)
        self._evicted |= {(c, replica) for c in evicted if self._states.get(c) is not NodeState.STABLE}

    def _forget(self, consumer: str) -> None:
        for key in [k for k in self._feeds if k[0] == consumer]:
            del self._feeds[key]

    def judge(self, now: int, world: World) -> Iterator[Finding]:
        """Yields findings of what has lasted too long by now."""
        if self._paths is None or self._paths[0] is not world:
            self._paths = (world, Paths(self._plan, self._directory, world))
        paths = self._paths[1]
        if (world.late, world.busy) != self._slower:  # the allowed time has changed
            self._slower = (world.late, world.busy)
            self._since.clear()
        settle_us = self._bounds.among(world).settle_us
        for consumer, channel in self._inputs:
            host = host_of(consumer)
            ready = host not in world.down | world.unclear and (
                consumer == host or self._states.get(consumer, NodeState.RECOVERING) is not NodeState.RECOVERING
            )
            main = next((p for m, p in self._feeds.get((consumer, channel), {}).values() if m == "main"), None)
            for node, replica in self._producers.get(channel, ()):
                better = (
                    ready
                    and node not in world.down | world.unclear
                    and paths.link(host, node)
                    and self._states.get(replica) is NodeState.STABLE
                    and (consumer, replica) not in self._evicted
                    and self._state(channel, main) not in self._good
                    and paths.replica(self._plan.maker_of(channel), NodeId(node)) is Reach.STABLE
                )
                key = (consumer, channel, node)
                since = self._since.get(key)
                if since is not None and now - since > settle_us:
                    self._since.pop(key)
                    what = (
                        f"{channel}: {node} is STABLE and in reach since {since / 1e6:.3f} s, yet it "
                        f"{'reads nobody' if main is None else f'stays with {main}'}"
                    )
                    yield Finding("preferred", "a STABLE producer is taken", now, consumer, what)
                elif better and since is None:
                    self._since[key] = now
                    self._counters.add("better producers offered")
                elif not better and since is not None:
                    self._since.pop(key)

    def _state(self, channel: Channel, producer: str | None) -> NodeState | None:
        """Returns the state of a producer, if known; None also without a producer."""
        replica = next((r for n, r in self._producers[channel] if n == producer), "")
        return self._states.get(replica)
