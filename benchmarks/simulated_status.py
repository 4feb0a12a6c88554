"""Statuses of a large cluster that does not exist, for the dashboard: nodes die, links are cut, partitions move.

Time runs as fast as one likes; equal seeds tell the same story.  Statuses are of the types that real processes send
(spe.status), so that whoever takes these takes those.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import Final

from replicas.cli.view.view import Sight
from replicas.local.polling import Seen
from replicas.local.process import Phase
from spe.config import load_text
from spe.plan.deploy import with_addresses
from spe.plan.directory import COORDINATOR
from spe.status import (
    ActivationStatus,
    ChannelStatus,
    ClientStatus,
    CoordinatorStatus,
    FaultStatus,
    HistogramStatus,
    InputStatus,
    LoadStatus,
    MoveStatus,
    NodeStatus,
    ProcessStatus,
    ReplicaStatus,
    SettingsStatus,
    SourceLogStatus,
    SourceStatus,
)
from spe.stream.ids import PartitionId, ReplicaId
from spe.stream.names import NodeState

SECOND: Final = 1_000_000
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
    """Something that happens to a node: it is killed, or a source is cut off from it."""

    begin_us: int
    end_us: int
    nodes: frozenset[str]
    source: str = ""

    def __str__(self) -> str:
        length = f"for {(self.end_us - self.begin_us) // SECOND}s"
        some = ",".join(sorted(self.nodes)[:3])
        return f"cut source:{self.source} ↔ {some} {length}" if self.source else f"kill {some} {length}"


class SimulatedCluster:
    """What there is to see of it.

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
        """So long after the sources began."""
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
            errors=dict.fromkeys(down, "cannot connect"),
            faults=[self._fault(t) for t in self._troubles if t.begin_us <= after_us][-40:],
        )

    @property
    def _by_node(self) -> dict[str, list[ReplicaId]]:
        if not hasattr(self, "_hosted"):
            self._hosted: dict[str, list[ReplicaId]] = {str(node): [] for node in self.directory.nodes}
            for partition, nodes in self.directory.placement.items():
                for node in nodes:
                    self._hosted[node].append(ReplicaId(partition.unit, partition.partition, node))
        return self._hosted

    def _near(self, after_us: int) -> list[_Trouble]:
        return [t for t in self._troubles if t.begin_us <= after_us < t.end_us + 30 * SECOND]

    def _fault(self, one: _Trouble) -> FaultStatus:
        begun, ended = self.begun_us + one.begin_us, self.begun_us + one.end_us
        return FaultStatus(
            fault=str(one),
            planned_us=begun,
            began_us=begun,
            ended_us=ended,
            for_us=one.end_us - one.begin_us,
            errors=(),
        )

    # --- what each says ---

    def _state(self, node: str, after_us: int) -> tuple[NodeState, _Trouble | None]:
        for one in self._near(after_us):
            if node in one.nodes:
                since = after_us - one.end_us
                if one.source and after_us >= one.begin_us + ALPHA * X_US:
                    if since < 0:
                        return NodeState.UP_FAILURE, one
                    if since < _CORRECTS_US:
                        return NodeState.STABILIZATION, one
                elif not one.source and 0 <= since < _RECOVERS_US:
                    return NodeState.RECOVERING, one
        return NodeState.STABLE, None

    def _node(self, node: str, replicas: list[ReplicaId], after_us: int) -> NodeStatus:
        state, trouble = self._state(node, after_us)
        return NodeStatus(
            name=node,
            incarnation=1,
            settings=SettingsStatus(x_us=X_US, alpha=ALPHA, during_failure="process", during_stabilization="process"),
            spill=None,
            replicas=tuple(
                self._replica(one, *self._reached(one, state, trouble, after_us), after_us) for one in replicas
            ),
            standbys=(),
        )

    def _reached(
        self, id: ReplicaId, state: NodeState, trouble: _Trouble | None, after_us: int
    ) -> tuple[NodeState, _Trouble | None]:
        """A source that is cut off from a node reaches who reads that node."""
        if state is NodeState.RECOVERING or self.plan.unit[id.unit].inputs[0].stream in self.plan.sources:
            return state, trouble
        states = [self._state(main, after_us) for main in self._mains(id)]
        return next((one for one in states if one[0] is not NodeState.RECOVERING and one[1]), (NodeState.STABLE, None))

    def _mains(self, id: ReplicaId) -> list[str]:
        """Whom each input is read from."""
        channels = self.plan.unit[id.unit].channels_in(id.partition)
        return [
            f"source:{one.stream}"
            if one.stream in self.plan.sources
            else str(self.directory.placement[self.plan.maker_of(one)][0])
            for one in channels
        ]

    def _replica(self, id: ReplicaId, state: NodeState, trouble: _Trouble | None, after_us: int) -> ReplicaStatus:
        now = self.begun_us + after_us
        frontier = now - 300_000
        if trouble is not None and state in (NodeState.UP_FAILURE, NodeState.STABILIZATION):
            frontier = self.begun_us + trouble.begin_us
        rows = 40 + (id.partition * 7919) % 90
        waits = self._random.random() * 0.12
        return ReplicaStatus(
            unit=id.unit,
            partition=id.partition,
            state=state,
            fresh=False,
            installed=state is not NodeState.RECOVERING,
            missing=(),
            differs=(),
            skew=(),
            stable=rows * after_us // SECOND,
            tentative=rows if state is NodeState.UP_FAILURE else 0,
            suffix_bytes=0,
            frontier=frontier,
            tentative_frontier=now - 400_000,
            reconciliations=0,
            redone_rows=0,
            rebuilt_rows=0,
            largest_slice=900,
            inputs=self._inputs(id, state, trouble, frontier, now),
            fill=self._random.random() * 0.08,
            held_bytes=rows * 1_000,
            counters={},
            error=None,
            load=LoadStatus(
                cpu=0.02 + rows / 4_000, memory_bytes=3 << 20, network_bytes=80_000, rows=rows, state_bytes=1 << 20
            ),
            load_age_us=SECOND,
            x_us=X_US,
            waiting_us=round(X_US * (ALPHA * 0.8 if state is NodeState.UP_FAILURE else waits)),
            x_used=HistogramStatus(bounds=_BOUNDS, counts=(9_000, 50, 2, 0, 0), sum=600.0, largest=0.88),
        )

    def _inputs(
        self, id: ReplicaId, state: NodeState, trouble: _Trouble | None, frontier: int, now: int
    ) -> tuple[InputStatus, ...]:
        found = []
        for channel, main in zip(self.plan.unit[id.unit].channels_in(id.partition), self._mains(id)):
            lost = trouble is not None and state is NodeState.UP_FAILURE and trouble.source == channel.stream
            late = trouble is not None and state is NodeState.UP_FAILURE and main in trouble.nodes
            found.append(
                InputStatus(
                    channel=str(channel),
                    main=None if lost else main,
                    corrections=None,
                    position=now // SECOND,
                    frontier=frontier if lost or late else now - 200_000,
                    switches=1,
                    other_logs={},
                )
            )
        return tuple(found)

    def _sources(self, after_us: int) -> Iterator[ProcessStatus]:
        for stream in self.plan.sources:
            log = SourceLogStatus(
                identity="f00d",
                last_id=9_000 * after_us // SECOND,
                frontier=self.begun_us + after_us - 150_000,
                ended=False,
                note="",
                fault=None,
                malformed=0,
                refused_ahead=0,
                late=0,
                late_by_us=0,
            )
            yield SourceStatus(name=f"source:{stream}", incarnation=1, log=log)

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
                ChannelStatus(
                    channel=f"{unit.outputs[0]}/{partition}",
                    producer=str(second if state is NodeState.RECOVERING else first),
                    stable=rate * after_us // SECOND,
                    tentative=tentative,
                    undone=0,
                    switches=1,
                    position=rate * after_us // SECOND,
                    frontier=now - 600_000 if not held or trouble is None else self.begun_us + trouble.begin_us,
                    held=held and tentative > 0,
                    delay_us=240_000 + self._random.randint(0, 90_000),
                    delay_max_us=1_900_000,
                    gap_max_us=300_000,
                    stable_gap_max_us=400_000,
                    last_arrival_us=now - 100_000,
                    ended=False,
                )
            )
        return ClientStatus(name="client:board", incarnation=1, channels=tuple(channels), switches=())

    def _coordinator(self, after_us: int) -> CoordinatorStatus:
        """One partition moves every two minutes of its time."""
        moves = []
        for number in range(max(1, after_us // (120 * SECOND) - 8), after_us // (120 * SECOND) + 1):
            began = self.begun_us + number * 120 * SECOND
            age, took = after_us - number * 120 * SECOND, (6 + number % 5) * SECOND
            over = age >= took
            moves.append(
                MoveStatus(
                    number=number,
                    partition=f"totals/{number % self.plan.units[1].partitions}",
                    source=f"n{1 + number % len(self.directory.nodes)}",
                    target=f"n{1 + (number + 3) % len(self.directory.nodes)}",
                    role="active",
                    reason="balance",
                    phase="done" if over else "install",
                    why="",
                    began_us={"wait": began, **({"done": began + took} if over else {"install": began + SECOND})},
                    predicted_us=7 * SECOND,
                    state_from="partner",
                )
            )
        activation = ActivationStatus(budget=0, active=(), target=(), of=None)
        return CoordinatorStatus(
            name=COORDINATOR, incarnation=1, partitions=(), activation=activation, moves=tuple(moves)
        )
