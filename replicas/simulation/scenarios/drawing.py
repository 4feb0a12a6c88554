"""Draws single faults: the processes and links of a plan, durations, and kinds by their records."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random
from typing import Any, Final

from consistency.faults.kind import FaultDraw, FaultKind
from replicas.faults.model import processes_of
from replicas.simulation.scenarios.feature_set import Feature, Features
from spe.plan.describe import show_duration
from spe.plan.directory import COORDINATOR, Directory
from spe.plan.plan import Plan
from spe.stream.ids import Channel, PartitionId
from spe.stream.times import MILLISECOND, SECOND

_GRID_US: Final = 50 * MILLISECOND

#: A fault as in a fault file; ``at`` is in microseconds.
Entry = dict[str, Any]


def entry(at: int, kind: str, target: str | Sequence[str], for_us: int | None = None, **more: Any) -> Entry:
    """Returns a fault of a process, or of its links to all others."""
    return {"at": at, "kind": kind, "target": target, **_lasting(for_us), **more}


def link_entry(at: int, kind: str, a: str, b: str, for_us: int | None = None, **more: Any) -> Entry:
    """Returns a fault of a link."""
    return {"at": at, "kind": kind, "from": a, "to": b, **_lasting(for_us), **more}


def _lasting(for_us: int | None) -> Entry:
    return {} if for_us is None else {"for": show_duration(for_us)}


class Drawing:
    """Draws faults that begin within a time.

    Attributes:
      hosts, nodes, sources, clients: processes; ``servers``: nodes, and the coordinator if there are standbys.
      links: (producer, consumer) of every pair of processes with a common channel, and the coordinator's links.
      backed: partitions with standbys.
      short: nodes lack room for all standbys.
      retained: sources that delete the oldest part of their logs.
      waits: the heartbeat timeout, αX and X, microseconds.
    """

    def __init__(
        self, random: Random, plan: Plan, directory: Directory, from_us: int, to_us: int, features: Features
    ) -> None:
        self.random = random
        self.plan = plan
        self.directory = directory
        self.features = features
        self.from_us, self.to_us = from_us, to_us
        self.nodes = [str(n) for n in directory.nodes]
        self.sources = [f"source:{s}" for s in plan.sources]
        self.clients = [f"client:{c}" for c in directory.clients]
        self.hosts = processes_of(directory)
        self.links = _links(plan, directory)
        self.backed = sorted(directory.standbys)
        self.short = Feature.SHORTAGE in features and bool(self.backed)
        self.retained = [s for s, source in plan.sources.items() if source.retain is not None]
        self.servers = [*self.nodes, COORDINATOR] if self.backed else self.nodes
        node = next(iter(directory.nodes.values()))
        self.waits = (4 * plan.timing.heartbeat_us, node.alpha_x_us, node.x_us)
        around = [round(w * f) for w in self.waits for f in (0.5, 0.9, 1.1, 2.0)]
        self._lengths = [50 * MILLISECOND, *around, 4 * node.x_us, 8 * SECOND, 8 * SECOND]

    # --- times, microseconds ---

    def grid(self, us: float) -> int:
        return round(us) // _GRID_US * _GRID_US

    def length(self) -> int:
        """Returns a duration near those that the protocol waits for."""
        return self.grid(self.random.choice(self._lengths)) or _GRID_US

    def gap(self) -> int:
        return self.pause(50, 100, 300, 600, 1000, 2000)

    def pause(self, *choices_ms: int) -> int:
        """Returns one of some durations in milliseconds."""
        return self.random.choice(choices_ms) * MILLISECOND

    def moment(self, from_us: int | None = None, to_us: int | None = None) -> int:
        """Returns a time within the drawing's, or another range."""
        first = self.from_us if from_us is None else from_us
        return self.grid(self.random.randrange(first, self.to_us if to_us is None else to_us))

    # --- faults ---

    def of_kind(self, at: int, kind: FaultKind, draw: FaultDraw) -> Iterator[Entry]:
        """Yields a random fault as the record of its kind says."""
        if draw.among != ("links",):
            options = dict(self._options(draw))
            hosts = [host for group in options.pop("among", draw.among) for host in getattr(self, group)]
            target = {"target": self.random.choice(hosts)} if hosts else {}
            yield {"at": at, "kind": kind.name, **target, **_lasting(self._length_of(kind)), **options}
            return
        for a, b in self.random.sample(self.links, min(len(self.links), self.random.choice([1, 1, 2, 3]))):
            options = self._options(draw)
            yield link_entry(at, kind.name, a, b, self._length_of(kind), **options)

    def _options(self, draw: FaultDraw) -> Entry:
        return dict(self.random.choice(draw.options)) if draw.options else {}

    def _length_of(self, kind: FaultKind) -> int | None:
        return self.length() if "for" in kind.fields else None

    def input_failure(self, at: int) -> tuple[str, int, Entry]:
        """Returns a source, and a failure of it that is long enough to need a correction, with its length."""
        source, length = self.random.choice(self.sources), self.grid(2 * self.waits[2])
        return source, length, entry(at, "cut", source, length)

    def placed(self, partition: PartitionId, at: int, for_us: int | None = None) -> Iterator[Entry]:
        """Kills all nodes that run a partition."""
        for node in self.directory.placement[partition]:
            yield entry(at, "kill", str(node), for_us or self.length())

    def inputs_are_sources(self, partition: PartitionId) -> list[bool]:
        """Returns whether each input of a partition is a source."""
        channels = self.plan.unit[partition.unit].channels_in(partition.partition)
        return [channel.stream in self.plan.sources for channel in channels]


def _links(plan: Plan, directory: Directory) -> list[tuple[str, str]]:
    channels: list[tuple[Channel, Sequence[str]]] = [
        (c, directory.hosts(partition))
        for partition in directory.placement
        for c in plan.unit[partition.unit].channels_in(partition.partition)
    ]
    for client in directory.clients.values():
        read = [Channel(s, p) for s in client.reads for p in range(plan.partitions_of(s))]
        channels += [(channel, [f"client:{client.name}"]) for channel in read]
    pairs = [
        (str(p), h) for channel, hosts in channels for p in directory.producer_addresses(plan, channel) for h in hosts
    ]
    if directory.coordinated:
        pairs += [(COORDINATOR, host) for host in (*map(str, directory.nodes), *(f"source:{s}" for s in plan.sources))]
    return [pair for pair in dict.fromkeys(pairs) if pair[0] != pair[1]]
