"""A cluster of a few nodes that follow directories and orders, a heartbeat at a time; its coordinator is the real one's
pure part.
"""

from __future__ import annotations

from collections.abc import Iterable
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import partial

from replicas.placement.activation import Activation
from replicas.placement.coordination import Coordination
from replicas.placement.coordinator import keep_chosen
from replicas.placement.lending import Lending, Lent
from replicas.placement.moves import Move, Moves
from spe.plan.directory import CONFIGURED, Directory, Role, Standbys, Version
from spe.plan.plan import Plan
from spe.stream.ids import PartitionId
from spe.stream.names import NodeId, NodeState, UnitId
from spe.wire.messages import OutputStatus
from tests.simulation.test_cluster import make_plan
from tests.support.plans import placed

A, B, C = (NodeId(n) for n in ("n1a", "n1b", "n1c"))
PARTITION = PartitionId(UnitId("u1"), 0)
#: A heartbeat, microseconds.
BEAT = 100_000
SOURCES = ("source:s0",)


def plan_of(replicas: Iterable[NodeId], standbys: Iterable[NodeId] = ()) -> tuple[Plan, Directory]:
    plan, directory = make_plan(1, replicas=3)
    standing_by = {PARTITION: Standbys(tuple(standbys), 1)} if standbys else {}
    return plan, placed(directory, {PARTITION: tuple(replicas)}, standing_by)


@dataclass
class FakeNode:
    """What one node does of the partition.

    Attributes:
      state: of its replica; None: it runs none.
      recovers: heartbeats until it is STABLE; None: a failure lasts.
      held: checkpoints, where it stands by.
      ahead_us: how much further than the others it is while STABLE.
    """

    directory: Directory
    state: NodeState | None = None
    recovers: int = 0
    frontier: int = 0
    held: int = 0
    ahead_us: int = 0
    alive: bool = True


@dataclass
class FakeCluster:
    """See the module.

    Attributes:
      stored: moves and directory as the coordinator's disk has them.
      lag: nodes that hear of no directory.
      full: nodes whose disk takes no checkpoint of what they run.
      recovery: heartbeats that an install takes.
      silent: nodes that run, and are cut off from the coordinator.
      lends: are roles that are lent taken back?
      budget: partitions whose standby runs all the time: the one that there is, or none.
    """

    plan: Plan
    configured: Directory
    now: int = 0
    recovery: int = 3
    budget: int = 0
    lends: bool = False
    lag: set[str] = field(default_factory=set)
    silent: set[str] = field(default_factory=set)
    full: set[str] = field(default_factory=set)
    story: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.stored: tuple[list[Move], Directory] = ([], self.configured)
        self.sources = dict.fromkeys(self.configured.addresses().keys() - self.configured.nodes.keys(), self.configured)
        self.nodes = {
            n: FakeNode(self.configured, NodeState.STABLE if n in self.configured.placement[PARTITION] else None)
            for n in self.configured.nodes
        }
        self.begin()

    def begin(self) -> None:
        """A coordinator begins, with what the disk has."""
        moves, self.directory = deepcopy(self.stored[0]), self.stored[1]
        self.coordination = Coordination(
            self.plan, self.directory, self.now, patience_us=2 * BEAT, recovery_us=8 * BEAT
        )
        self.moves = Moves(self.plan, self.directory, pause_us=BEAT, patience_us=20 * BEAT, known=moves)
        self.activation = Activation(
            self.plan,
            self.directory,
            self.budget,
            algorithm="structure-aware",
            margin=0.0,
            active=[PARTITION] * self.budget,
        )
        self._hear()

    def ask(self, source: NodeId, target: NodeId) -> Move:
        move = self.moves.ask(PARTITION, source, target, "asked for")
        self.stored = deepcopy(self.moves.all()), self.stored[1]
        self.moves.stored([move])
        return move

    def kill(self, node: NodeId) -> None:
        one = self.nodes[node]
        one.alive, one.state, one.held = False, None, 0

    def start(self, node: NodeId) -> None:
        one = self.nodes[node]
        one.alive = True
        if one.directory.roles[PARTITION].get(node) is Role.ACTIVE:
            one.state, one.recovers = NodeState.RECOVERING, self.recovery

    def beat(self, coordinator: bool = True, stores: bool = True) -> None:
        """One heartbeat.

        Args:
          coordinator: it is there; without it nothing is decided.
          stores: its disk takes what it is given.
        """
        self.now += BEAT
        self._nodes_go_on()
        if not coordinator:
            return
        self._hear()
        self._keep_chosen()
        self.coordination.bring(self.moves.wanted(), (), self.moves.leaving())
        for decision in self.coordination.decide(self.now):
            self._follow(decision.verb, decision.replica.node)
        change = self.moves.step(self.now, self.now)
        directory = self.directory
        if change is None and self.lends:
            moving = {move.partition for move in self.moves.open()}
            spared = partial(self.coordination.spared, now=self.now)
            taken_back = Lending(directory).step({}, spared, moving)
            assert not isinstance(taken_back, Lent)
            change = taken_back
        if change is not None:
            number = directory.version.number + 1
            directory = replace(change(directory), version=Version(max(1, self.now), number))
        if stores:
            self.stored = deepcopy(self.moves.all()), directory
            if change is not None:
                self.story.append(str([(str(n), r and str(r)) for n, r in change.roles]))
                self.directory = directory
                self.moves.redirect(directory)
                self.coordination.redirect(directory, self.now)
                self._keep_chosen()

    def _keep_chosen(self) -> None:
        keep_chosen(self.activation, self.coordination, self.moves, self.directory, self.moves.passing(), self.now)

    def _hear(self) -> None:
        for name, node in self.nodes.items():
            if not node.alive or name in self.silent:
                self.moves.lost(name)
                self.coordination.lost(name, self.now)
                continue
            outputs = [] if node.state is None else [_output(node.state, node.frontier)]
            held = {PARTITION: node.held} if node.held else {}
            if outputs and node.directory.roles[PARTITION].get(name) is Role.STANDBY:
                held = {PARTITION: int(name not in self.full)}
            self.moves.heard(name, outputs, held)
            self.moves.knows(name, node.directory.version)
            self.coordination.heard(name, outputs, self.now)
        for name, directory in self.sources.items():
            self.moves.heard(name, [])
            self.moves.knows(name, directory.version)

    def _nodes_go_on(self) -> None:
        for name in self.sources:
            if name not in self.lag:
                self.sources[name] = self.directory
        stable = any(n.state is NodeState.STABLE for n in self.nodes.values())
        for name, node in self.nodes.items():
            if not node.alive:
                continue
            if name not in self.lag and node.directory.version < self.directory.version:
                self._apply(name, node)
            if node.state is NodeState.RECOVERING:
                node.recovers -= 1
                if node.recovers <= 0:
                    node.state = NodeState.STABLE
            if node.state is NodeState.STABLE:
                node.frontier = self.now + node.ahead_us
            elif node.state is None and node.directory.roles[PARTITION].get(name) is Role.STANDBY and stable:
                node.held += 1

    def _apply(self, name: NodeId, node: FakeNode) -> None:
        node.directory = self.directory
        role = node.directory.roles[PARTITION].get(name)
        if role is None:
            node.state, node.held = None, 0
        elif role is Role.ACTIVE and node.state is None:
            node.state, node.recovers = NodeState.RECOVERING, self.recovery

    def _follow(self, verb: str, name: NodeId) -> None:
        node = self.nodes[name]
        if not node.alive or node.directory.roles[PARTITION].get(name) is not Role.STANDBY:
            return
        if verb == "install" and node.state is None:
            node.state, node.recovers, node.held = NodeState.RECOVERING, self.recovery, 0
        if verb == "retire":
            node.state = None
        self.story.append(f"{verb} {name}")

    # --- what is looked at ---

    def running(self) -> list[NodeId]:
        return sorted(n for n, node in self.nodes.items() if node.state is not None)

    def served(self) -> bool:
        return any(n.state is NodeState.STABLE for n in self.nodes.values())


def _output(state: NodeState, frontier: int) -> OutputStatus:
    return OutputStatus("s1", 0, state, False, 0, frontier, 0, 1, 0.0)


__all__ = ["BEAT", "CONFIGURED", "PARTITION", "A", "B", "C", "FakeCluster", "plan_of"]
