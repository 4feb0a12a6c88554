"""Moves partitions automatically as loads shift (rules L4-L8).  Pure.

It connects the balancer, which decides, with the moves, which are carried out: the balancer learns which nodes run
which partitions and how moves end, and its decisions become orders like those of people.  It may compute for a second:
:meth:`tick` and :meth:`proposed` may run in another thread, while only :meth:`sampled` is called here.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from math import inf

from replicas.placement.deciders.move import Move, MovePhase
from replicas.placement.deciders.standby_placement import StandbyPlacement
from replicas.placement.view import ClusterView
from replicas.planning.balancing.actions import Action, BalanceSettings, MovePartition, NodeRoom, StillFull
from replicas.planning.balancing.balancer import Balancer
from replicas.planning.load import LoadHistory, LoadSample
from replicas.planning.prediction import PredictedMove, RefusedMove
from replicas.planning.shares import Running, SharesOfX
from spe.plan.directory import Directory, Role
from spe.plan.nodes import Node
from spe.plan.units import CHECKPOINT_US
from spe.stream.ids import PartitionId
from spe.stream.names import NodeId


class Balance:
    """Connects the balancer with the moves.

    Args:
      now: monotonic microseconds.
    """

    def __init__(self, view: ClusterView, now: int) -> None:
        self._view = view
        plan, directory = view.plan, view.directory
        self._plan = plan
        #: As of the last :meth:`learn`, like all below: a thread may be computing.
        self._directory = directory
        self._shares = SharesOfX(plan, directory)
        settings = directory.coordinator
        self.automatic = settings.balance_us is not None
        period_us = settings.balance_us or BalanceSettings().period_us
        history = LoadHistory()
        follows = settings.placement == "correlated"
        self._standbys = StandbyPlacement(plan, history, period_us, now) if follows else None
        self._balancer = Balancer(
            history,
            BalanceSettings(period_us, settings.cap, settings.idle),
            {n: _room(node_settings) for n, node_settings in directory.nodes.items()},
            directory.placement,
            now,
            refused=self._refused,
        )
        self._known = {n: _room(node_settings) for n, node_settings in directory.nodes.items()}
        self._alive: set[NodeId] = set()
        self._spare: dict[NodeId, bool] = {}
        self._held: set[tuple[PartitionId, NodeId]] = set()
        #: Partitions that run on other nodes than the directory says, and these nodes.
        self._elsewhere: dict[PartitionId, tuple[NodeId, ...]] = {}
        #: The move that the balancer has under way, and its order.
        self._open: tuple[MovePartition, Move] | None = None
        #: Moves whose end is known.
        self._over: set[int] = set()
        self._samples: list[tuple[PartitionId, LoadSample, int]] = []

    # --- news ---

    def sampled(self, partition: PartitionId, load: LoadSample, now: int) -> None:
        """Takes a load sample of a replica."""
        self._samples.append((partition, load, now))

    def learn(self, now: int, moves: Iterable[Move], wall_us: int) -> None:
        """Updates the balancer from the view.

        Args:
          moves: all known moves.
          wall_us: wall time, which moves use.
        """
        directory, running = self._view.directory, self._view.running()
        if directory is not self._directory:
            self._directory, self._shares = directory, SharesOfX(self._plan, directory)
        samples, self._samples = self._samples, []
        for partition, load, at in samples:
            self._balancer.sampled(partition, load, at)
        self._nodes(self._view.alive)
        self._elsewhere = {p: nodes for p, nodes in running.items() if set(nodes) != set(directory.placement[p])}
        for partition, nodes in running.items():
            self._balancer.runs(partition, nodes)
        self._checkpoints(set(self._view.held()), now)
        for move in moves:
            if move.over and move.number not in self._over:
                self._over.add(move.number)
                self._ended(move, now, wall_us)

    def _checkpoints(self, held: set[tuple[PartitionId, NodeId]], now: int) -> None:
        """Notes which nodes hold checkpoints; each is at most two intervals old."""
        for partition, node in held | self._held:
            age_us = 2 * self._directory.checkpoint_us.get(partition, CHECKPOINT_US)
            self._balancer.checkpointed(partition, node, now - age_us if (partition, node) in held else None)
        self._held = held

    def _nodes(self, alive: Collection[str]) -> None:
        hosts = {n for roles in self._directory.roles.values() for n in roles}
        for node in self._known.keys() - self._directory.nodes.keys():  # it has left
            del self._known[node]
            self._spare[node] = True
            self._balancer.stands_aside(node, True)
            self._balancer.went(node)
        for node, settings in self._directory.nodes.items():
            if node not in self._known:  # it has joined
                self._balancer.knows(node, _room(settings))
            elif _room(settings) != self._known[node]:  # it joined again with another capacity
                self._balancer.has(node, _room(settings))
            self._known[node] = _room(settings)
            if node in alive and node not in self._alive:
                self._balancer.came(node)
            elif node not in alive and node in self._alive:
                self._balancer.went(node)
            if (spare := node not in hosts) != self._spare.get(node):
                self._spare[node] = spare
                self._balancer.stands_aside(node, spare)
        self._alive = {n for n in self._directory.nodes if n in alive}

    def _ended(self, move: Move, now: int, wall_us: int) -> None:
        ended_us = now - max(0, wall_us - move.began_us.get(move.phase, wall_us))
        if self._open is not None and self._open[1] is move:
            order, self._open = self._open[0], None
            (self._balancer.moved if move.phase is MovePhase.DONE else self._balancer.failed)(order, now)
        elif move.phase is MovePhase.DONE and move.role is Role.ACTIVE:
            self._balancer.rests(move.partition, ended_us)

    # --- what to do ---

    def tick(self, now: int) -> list[Action]:
        """Returns the actions to take now."""
        return self._balancer.tick(now)

    def proposed(self, now: int) -> tuple[list[MovePartition], list[StillFull]]:
        """Returns the moves that the present loads call for, and the nodes that would stay full."""
        return self._balancer.proposed(now)

    def relocation(self, now: int) -> tuple[PartitionId, NodeId, NodeId] | None:
        """Returns a standby that is to move (partition, source, target); None: none, or not now."""
        if self._standbys is None or self._elsewhere:
            return None
        return self._standbys.relocation(now, self._directory, self._balancer.running, self._alive)

    def has_ordered(self, move: Move) -> bool:
        """Is a move an order of the balancer?"""
        return self._open is not None and self._open[1] is move

    def ordered(self, order: MovePartition, move: Move) -> None:
        """Notes that an order of the balancer became a move."""
        assert self._open is None, "L5: the balancer has one move under way"
        self._open = order, move

    def refused(self, order: MovePartition, now: int) -> None:
        """Notes that an order of the balancer was refused."""
        self._balancer.failed(order, now)

    def drained(self) -> list[NodeId]:
        """Returns nodes that the balancer drained, which run nothing and still stand by."""
        return [n for n in self._balancer.spares() if not self._spare[n] and not self._hosts_active(n)]

    # --- what is known ---

    def predicted(self, partition: PartitionId, target: NodeId, now: int) -> PredictedMove | RefusedMove | None:
        """Predicts how long the state of a move would take; None: not all loads are known."""
        return self._balancer.predicted(partition, target, now)

    def full(self, directory: Directory, partition: PartitionId, node: NodeId, now: int) -> str | None:
        """Returns why a node has no room below its cap for a partition; None: it has, as far as is known."""
        hosted = {partition, *(p for p, nodes in directory.placement.items() if node in nodes)}
        return self._balancer.full(node, hosted, now)

    def remarks(self, now: int) -> list[str]:
        """Describes how full each answering node is."""
        remarks = []
        for node in sorted(self._alive):
            settings = self._directory.nodes[node]
            cpu, memory = self._balancer.need(node, now)
            remarks.append(f"{node} needs {cpu:.2f} of {settings.capacity:g} cores and {memory / 1e6:.0f} MB")
        return remarks

    def _refused(self, running: Running, partition: PartitionId, target: NodeId) -> str | None:
        if (nodes := self._elsewhere.get(partition)) is not None:
            return f"{partition} runs on {', '.join(nodes) or 'no node'}, not as the directory says"
        return self._shares.refused(running, partition, target)

    def _hosts_active(self, node: NodeId) -> bool:
        return any(roles.get(node) is Role.ACTIVE for roles in self._directory.roles.values())


def _room(node: Node) -> NodeRoom:
    return NodeRoom(node.capacity, inf if node.memory is None else node.memory)
