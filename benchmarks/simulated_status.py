"""Statuses of a large cluster that does not exist, for the dashboard: nodes die, links are cut, partitions move.

Time runs at any speed; equal seeds tell the same story.  Statuses have the types of real processes (spe.status).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from random import Random
from typing import Final

from replicas.local.process import Phase
from spe.config import load_text
from spe.figures.sight import Seen, Sight
from spe.plan.deploy import with_addresses
from spe.status import (
    ClientStatus,
    CoordinatorStatus,
    FaultStatus,
    HistogramStatus,
    InputStatus,
    LoadStatus,
    NodeStatus,
    ProcessStatus,
    ReplicaStatus,
    SettingsStatus,
    UnreachedStatus,
)
from spe.stream.ids import PartitionId, ReplicaId
from spe.stream.names import NodeState
from spe.stream.times import SECOND
from tests.support.statuses import a_channel, a_client, a_coordinator, a_move, a_node, a_replica, a_source, an_input

X_US: Final = 2 * SECOND
ALPHA: Final = 0.9
#: Each node is asked that often, in its own time.
ASKED_US: Final = 2 * SECOND
_CORRECTS_US: Final = 3 * SECOND
_RECOVERS_US: Final = 9 * SECOND
_BOUNDS: Final = (0.1, 0.5, 0.9, 1.0)


def config(nodes: int, partitions: int, sources: int = 4) -> str:
    """A query in three fragments, which have two fifths, two fifths and a fifth of the partitions."""
    first, last = max(1, partitions * 2 // 5), max(1, partitions - 2 * max(1, partitions * 2 // 5))
    names = [f"n{i + 1}" for i in range(nodes)]
    streams = [f"shop_{i + 1}" for i in range(sources)]
    generators = "\n".join(
        f"  {s}: {{from: {{generator: {{name: orders, rate: 9000, keys: 5000, seed: {i}, duration: 100000s}}}}}}"
        for i, s in enumerate(streams)
    )
    compute = "{orders: count(*), revenue: sum(price * qty)}"
    return f"""
cluster: market
bucket: 100ms
defaults: {{x: 2s, alpha: {ALPHA}}}
nodes: [{", ".join(names)}]
sources:
{generators}
query:
  orders: {{union: [{", ".join(streams)}]}}
  large: {{filter: {{from: orders, where: price * qty >= 10}}}}
  totals: {{aggregate: {{from: large, window: 1s, group_by: key, compute: {compute}}}}}
  minutes: {{aggregate: {{from: totals, window: 60s, group_by: key, compute: {{revenue: sum(revenue)}}}}}}
outputs: [minutes]
fragments:
  clean: {{operators: [orders, large], key: key, partitions: {first}, replicas: 2}}
  totals: {{operators: [totals], key: key, partitions: {first}, replicas: 2}}
  minutes: {{operators: [minutes], key: key, partitions: {last}, replicas: 2}}
coordinator: {{balance: 60s}}
clients: {{board: {{reads: [minutes]}}}}
"""


@dataclass(frozen=True)
class _Trouble:
    """A fault of a node: it is killed, or a source is cut off from it."""

    begin_us: int
    end_us: int
    nodes: frozenset[str]
    source: str = ""

    def __str__(self) -> str:
        length = f"for {(self.end_us - self.begin_us) // SECOND}s"
        some = ",".join(sorted(self.nodes)[:3])
        return f"cut source:{self.source} ↔ {some} {length}" if self.source else f"kill {some} {length}"


class SimulatedCluster:
    """The cluster as an observer sees it.

    Args:
      hours: for how long troubles are planned.
    """

    def __init__(self, nodes: int = 100, partitions: int = 1_000, *, seed: int = 1, hours: float = 2.0) -> None:
        self.plan, directory = load_text(config(nodes, partitions))
        addresses = {name: f"127.0.0.1:{20_000 + i}" for i, name in enumerate(directory.addresses())}
        self.directory = with_addresses(directory, addresses)
        self._random = Random(seed)
        self._troubles = list(self._planned(round(hours * 3600 * SECOND)))
        self._seen: dict[str, Seen] = {}
        self.begun_us = 1_700_000_000 * SECOND

    def _planned(self, until_us: int) -> Iterator[_Trouble]:
        nodes, sources, at = list(self.directory.nodes), list(self.plan.sources), 20 * SECOND
        while at < until_us:
            if self._random.random() < 0.6:
                hit = frozenset(map(str, self._random.sample(nodes, min(len(nodes), self._random.choice((1, 1, 2))))))
                yield _Trouble(at, at + self._random.randint(8, 25) * SECOND, hit)
            else:
                hit = frozenset(map(str, self._random.sample(nodes, max(1, len(nodes) // 8))))
                yield _Trouble(at, at + self._random.randint(6, 30) * SECOND, hit, self._random.choice(sources))
            at += self._random.randint(25, 70) * SECOND

    def sight(self, after_us: int) -> Sight:
        """The cluster so long after the sources began."""
        now = self.begun_us + after_us
        down = {n for t in self._near(after_us) if not t.source and t.begin_us <= after_us < t.end_us for n in t.nodes}
        for node, replicas in self._by_node.items():
            if node in down:
                self._seen.pop(node, None)
            elif (seen := self._seen.get(node)) is None or now - seen.at_us >= ASKED_US:
                self._seen[node] = Seen(self._node(node, replicas, after_us), now)
        for status in [*self._sources(after_us), self._client(after_us), self._coordinator(after_us)]:
            self._seen[status.name] = Seen(status, now)
        names = [*self._seen, *down]
        return Sight(
            title=f"{self.plan.cluster}   simulated",
            now_us=now,
            begun_us=self.begun_us,
            phases={name: Phase.KILLED if name in down else Phase.RUNNING for name in names},
            seen=self._seen,
            errors=dict.fromkeys(down, UnreachedStatus("silent", "cannot connect")),
            faults=[self._fault(t) for t in self._troubles if t.begin_us <= after_us][-40:],
        )

    @cached_property
    def _by_node(self) -> dict[str, list[ReplicaId]]:
        hosted: dict[str, list[ReplicaId]] = {str(node): [] for node in self.directory.nodes}
        for partition, nodes in self.directory.placement.items():
            for node in nodes:
                hosted[node].append(ReplicaId(partition.unit, partition.partition, node))
        return hosted

    def _near(self, after_us: int) -> list[_Trouble]:
        return [t for t in self._troubles if t.begin_us <= after_us < t.end_us + 30 * SECOND]

    def _fault(self, trouble: _Trouble) -> FaultStatus:
        begun, ended = self.begun_us + trouble.begin_us, self.begun_us + trouble.end_us
        length = trouble.end_us - trouble.begin_us
        return FaultStatus(
            fault=str(trouble), planned_us=begun, began_us=begun, ended_us=ended, for_us=length, errors=()
        )

    # --- the statuses ---

    def _state(self, node: str, after_us: int) -> tuple[NodeState, _Trouble | None]:
        for trouble in self._near(after_us):
            if node in trouble.nodes:
                since = after_us - trouble.end_us
                if trouble.source and after_us >= trouble.begin_us + ALPHA * X_US:
                    if since < 0:
                        return NodeState.UP_FAILURE, trouble
                    if since < _CORRECTS_US:
                        return NodeState.STABILIZATION, trouble
                elif not trouble.source and 0 <= since < _RECOVERS_US:
                    return NodeState.RECOVERING, trouble
        return NodeState.STABLE, None

    def _node(self, node: str, replicas: list[ReplicaId], after_us: int) -> NodeStatus:
        state, trouble = self._state(node, after_us)
        settings = SettingsStatus(x_us=X_US, alpha=ALPHA, during_failure="process", during_stabilization="process")
        statuses = (self._replica(id, *self._reached(id, state, trouble, after_us), after_us) for id in replicas)
        return replace(a_node(node, *statuses), settings=settings)

    def _reached(
        self, id: ReplicaId, state: NodeState, trouble: _Trouble | None, after_us: int
    ) -> tuple[NodeState, _Trouble | None]:
        """The state of a replica whose node or upstream node is in a state: a cut reaches its consumers too."""
        if state is NodeState.RECOVERING or self.plan.unit[id.unit].inputs[0].stream in self.plan.sources:
            return state, trouble
        states = [self._state(main, after_us) for main in self._mains(id)]
        return next((s for s in states if s[0] is not NodeState.RECOVERING and s[1]), (NodeState.STABLE, None))

    def _mains(self, id: ReplicaId) -> list[str]:
        """The main producer of each input."""
        channels = self.plan.unit[id.unit].channels_in(id.partition)
        return [
            f"source:{channel.stream}"
            if channel.stream in self.plan.sources
            else str(self.directory.placement[self.plan.maker_of(channel)][0])
            for channel in channels
        ]

    def _replica(self, id: ReplicaId, state: NodeState, trouble: _Trouble | None, after_us: int) -> ReplicaStatus:
        now = self.begun_us + after_us
        frontier = now - 300_000
        if trouble is not None and state in (NodeState.UP_FAILURE, NodeState.STABILIZATION):
            frontier = self.begun_us + trouble.begin_us
        rows = 40 + (id.partition * 7919) % 90
        waits = self._random.random() * 0.12
        load = LoadStatus(
            cpu=0.02 + rows / 4_000, memory_bytes=3 << 20, network_bytes=80_000, rows=rows, state_bytes=1 << 20
        )
        return a_replica(
            state,
            unit=id.unit,
            partition=id.partition,
            installed=state is not NodeState.RECOVERING,
            stable=rows * after_us // SECOND,
            tentative=rows if state is NodeState.UP_FAILURE else 0,
            frontier=frontier,
            tentative_frontier=now - 400_000,
            largest_slice=900,
            inputs=self._inputs(id, state, trouble, frontier, now),
            fill=self._random.random() * 0.08,
            held_bytes=rows * 1_000,
            load=load,
            load_age_us=SECOND,
            x_us=X_US,
            waiting_us=round(X_US * (ALPHA * 0.8 if state is NodeState.UP_FAILURE else waits)),
            x_used=HistogramStatus(bounds=_BOUNDS, counts=(9_000, 50, 2, 0, 0), sum=600.0, largest=0.88),
        )

    def _inputs(
        self, id: ReplicaId, state: NodeState, trouble: _Trouble | None, frontier: int, now: int
    ) -> tuple[InputStatus, ...]:
        inputs = []
        for channel, main in zip(self.plan.unit[id.unit].channels_in(id.partition), self._mains(id)):
            lost = trouble is not None and state is NodeState.UP_FAILURE and trouble.source == channel.stream
            late = trouble is not None and state is NodeState.UP_FAILURE and main in trouble.nodes
            inputs.append(
                an_input(
                    channel=str(channel),
                    main=None if lost else main,
                    position=now // SECOND,
                    frontier=frontier if lost or late else now - 200_000,
                )
            )
        return tuple(inputs)

    def _sources(self, after_us: int) -> Iterator[ProcessStatus]:
        for stream in self.plan.sources:
            frontier = self.begun_us + after_us - 150_000
            yield a_source(f"source:{stream}", last_id=9_000 * after_us // SECOND, frontier=frontier)

    def _client(self, after_us: int) -> ClientStatus:
        now = self.begun_us + after_us
        unit = self.plan.units[-1]
        channels = []
        for partition in range(unit.partitions):
            first, second = self.directory.placement[PartitionId(unit.id, partition)][:2]
            state, trouble = self._state(first, after_us)
            if state is not NodeState.RECOVERING:
                state, trouble = self._reached(ReplicaId(unit.id, partition, first), state, trouble, after_us)
            held = state in (NodeState.UP_FAILURE, NodeState.STABILIZATION)
            rate = 3 + partition % 9
            tentative = 0
            if held and trouble is not None:
                tentative = rate * max(0, min(after_us, trouble.end_us) - trouble.begin_us) // SECOND
            channels.append(
                a_channel(
                    channel=f"{unit.outputs[0]}/{partition}",
                    producer=str(second if state is NodeState.RECOVERING else first),
                    stable=rate * after_us // SECOND,
                    tentative=tentative,
                    switches=1,
                    position=rate * after_us // SECOND,
                    frontier=now - 600_000 if not held or trouble is None else self.begun_us + trouble.begin_us,
                    held=held and tentative > 0,
                    delay_us=240_000 + self._random.randint(0, 90_000),
                    delay_max_us=1_900_000,
                    last_arrival_us=now - 100_000,
                )
            )
        return replace(a_client(*channels), name="client:board")

    def _coordinator(self, after_us: int) -> CoordinatorStatus:
        """One partition moves every two minutes of its time."""
        moves = []
        for number in range(max(1, after_us // (120 * SECOND) - 8), after_us // (120 * SECOND) + 1):
            began = self.begun_us + number * 120 * SECOND
            age, took = after_us - number * 120 * SECOND, (6 + number % 5) * SECOND
            over = age >= took
            moves.append(
                a_move(
                    number=number,
                    partition=f"totals/{number % self.plan.units[1].partitions}",
                    source=f"n{1 + number % len(self.directory.nodes)}",
                    target=f"n{1 + (number + 3) % len(self.directory.nodes)}",
                    reason="balance",
                    phase="done" if over else "install",
                    began_us={"wait": began, **({"done": began + took} if over else {"install": began + SECOND})},
                    predicted_us=7 * SECOND,
                )
            )
        return a_coordinator(*moves)
