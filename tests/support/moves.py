"""A cluster of a few nodes that follow directories and orders, a heartbeat at a time; its coordinator is the real one's
pure part.
"""

from __future__ import annotations

from collections.abc import Iterable
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import partial

from replicas.placement.deciders.activation import Activation
from replicas.placement.deciders.install import Goals, InstallDecider
from replicas.placement.deciders.lending import Lending, Lent
from replicas.placement.deciders.move import Move
from replicas.placement.deciders.move_orders import MoveOrders
from replicas.placement.deciders.moves import Moves
from replicas.placement.view import ClusterView
from spe.plan.directory import CONFIGURED, Directory, Role, Standbys, Version
from spe.plan.plan import Plan
from spe.stream.ids import PartitionId
from spe.stream.names import NodeId, NodeState, UnitId
from spe.wire.messages.feeds import OutputStatus
from tests.simulation.test_cluster import make_plan
from tests.support.placement_world import answer
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
        self.view = ClusterView(self.plan, self.directory, self.now, recovery_us=8 * BEAT)
        self.install = InstallDecider(self.view, patience_us=2 * BEAT)
        self.orders = MoveOrders(self.view, known=moves)
        self.moves = Moves(self.view, self.orders, pause_us=BEAT, patience_us=20 * BEAT)
        self.activation = Activation(
            self.view,
            self.budget,
            algorithm="structure-aware",
            margin=0.0,
            active=[PARTITION] * self.budget,
        )
        self._hear()

    def ask(self, source: NodeId, target: NodeId) -> Move:
        move = self.orders.ask(PARTITION, source, target, "asked for")
        self.stored = deepcopy(self.orders.all()), self.stored[1]
        self.orders.stored([move])
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
        self.moves.look()
        self.activation.follow(self.moves.passing())
        chosen = self.activation.wanted()
        self.install.aim(Goals(chosen, self.moves.wanted(), (), self.moves.leaving()), self.now)
        for decision in self.install.decide(self.now):
            self._follow(decision.verb, decision.replica.node)
        change = self.moves.step(self.now, self.now, chosen)
        directory = self.directory
        if change is None and self.lends:
            moving = {move.partition for move in self.orders.open()}
            spared = partial(self.install.spared, now=self.now)
            taken_back = Lending(self.view).step({}, spared, moving)
            assert not isinstance(taken_back, Lent)
            change = taken_back
        if change is not None:
            number = directory.version.number + 1
            directory = replace(change(directory), version=Version(max(1, self.now), number))
        if stores:
            self.stored = deepcopy(self.orders.all()), directory
            if change is not None:
                self.story.append(str([(str(n), r and str(r)) for n, r in change.roles]))
                self.directory = directory
                self.view.redirect(directory, self.now)

    def _hear(self) -> None:
        for name, node in self.nodes.items():
            if not node.alive or name in self.silent:
                self.view.lost(name, self.now)
                continue
            outputs = [] if node.state is None else [_output(node.state, node.frontier)]
            held = {PARTITION: node.held} if node.held else {}
            if outputs and node.directory.roles[PARTITION].get(name) is Role.STANDBY:
                held = {PARTITION: int(name not in self.full)}
            self.view.heard(name, answer(outputs, held), self.now)
        for name in self.sources:
            self.view.heard(name, answer([]), self.now)
        followed = {name: node.directory for name, node in self.nodes.items()}
        self.view.versions = {name: one.version for name, one in {**followed, **self.sources}.items()}

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
