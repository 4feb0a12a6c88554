"""Decides which partitions move as load shifts.  Pure: samples and news come in, actions come out.

One move at a time is ordered.  When it has ended, the remaining ones are planned again under the latest loads.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from replicas.planning.balancing.actions import (
    Action,
    BalanceSettings,
    DrainNode,
    JoinSpare,
    MovePartition,
    NodeRoom,
    Refusal,
    StillFull,
)
from replicas.planning.balancing.cluster import BalancedCluster, BalancedNode, BalanceState
from replicas.planning.load import LoadHistory, LoadSample
from replicas.planning.prediction import PredictedMove, RefusedMove
from replicas.planning.shares import Running
from spe.stream.ids import PartitionId
from spe.stream.names import NodeId

#: Number of periods that a node must be beyond its cap, or the cluster idle, before anything is done.
PATIENCE: Final = 2
#: Excesses smaller than this share of a cap are ignored.
_LITTLE: Final = 1e-6


class Balancer:
    """Keeps nodes within their caps; see the module.

    Args:
      history, nodes, running, refused, exact: see :class:`BalancedCluster`.
      now: monotonic microseconds.
    """

    def __init__(
        self,
        history: LoadHistory,
        settings: BalanceSettings,
        nodes: Mapping[NodeId, NodeRoom],
        running: Running,
        now: int,
        *,
        refused: Refusal = lambda *_: None,
        exact: bool | None = None,
    ) -> None:
        self._cluster = BalancedCluster(history, settings, nodes, running, refused, exact)
        self._settings = settings
        self._refused = refused
        self._period_end = now + settings.period_us
        #: Something changed since the last evaluation.
        self._due = False
        #: Number of successive periods that each node was beyond a cap, and that all together were idle.
        self._full_for: dict[NodeId, int] = {}
        self._idle_for = 0
        self._draining: NodeId | None = None
        #: The move that is under way.
        self._order: MovePartition | None = None
        #: Nodes that were reported as full.
        self._told: set[NodeId] = set()

    @property
    def running(self) -> Running:
        return dict(self._cluster.running)

    @property
    def order(self) -> MovePartition | None:
        """The move that is under way."""
        return self._order

    def spares(self) -> list[NodeId]:
        """Returns living nodes that run nothing until they join."""
        return [id for id, node in self._cluster.nodes.items() if node.spare and node.alive]

    # --- news ---

    def knows(self, node: NodeId, room: NodeRoom) -> None:
        """Adds a new node; it does not answer yet."""
        self._cluster.nodes[node] = BalancedNode(room, spare=room.spare)

    def has(self, node: NodeId, room: NodeRoom) -> None:
        """Changes the room of a node."""
        self._cluster.nodes[node].room = room
        self._due = True

    def came(self, node: NodeId) -> None:
        """Notes that a node answers."""
        self._cluster.nodes[node].alive = self._due = True

    def went(self, node: NodeId) -> None:
        """Notes that a node no longer answers.  Its partitions may move again at once, where else they run."""
        self._cluster.nodes[node].alive = False
        self._full_for.pop(node, None)
        if self._draining == node:
            self._draining = None
        for partition in self._cluster.on(node):
            self._cluster.moved_at.pop(partition, None)

    def runs(self, partition: PartitionId, nodes: Iterable[NodeId]) -> None:
        """Notes other changes of a partition's nodes: a standby took over, or stands by again."""
        self._cluster.running[partition] = tuple(nodes)

    def rests(self, partition: PartitionId, now: int) -> None:
        """Notes a move made by others: the partition stays there for a while (L5)."""
        self._cluster.moved_at[partition] = max(now, self._cluster.moved_at.get(partition, now))

    def stands_aside(self, node: NodeId, spare: bool) -> None:
        """Notes that others gave a node its first partition, or took its last one."""
        self._cluster.nodes[node].spare = spare

    def sampled(self, partition: PartitionId, load: LoadSample, now: int) -> None:
        """Takes a measurement of a replica."""
        self._cluster.sampled(partition, load, now)

    def checkpointed(self, partition: PartitionId, node: NodeId, now: int | None) -> None:
        """Notes that a node holds a checkpoint taken now; None: it no longer holds any."""
        if now is None:
            self._cluster.checkpoints.pop((partition, node), None)
        else:
            self._cluster.checkpoints[partition, node] = now

    def moved(self, order: MovePartition, now: int) -> None:
        """Notes that a move is done.  An order that is not under way is ignored: the news came twice."""
        if order == self._order:
            self._order, self._due = None, True
            self._cluster.moved(order, now)

    def failed(self, order: MovePartition, now: int) -> None:
        """Notes that a move was dropped; it is not tried again soon, but another one of the partition may be."""
        if order == self._order:
            self._order, self._due = None, True
            self._cluster.failed_at[order.partition, order.target] = now

    # --- decisions ---

    def need(self, node: NodeId, now: int) -> tuple[float, float]:
        """Returns the cores and bytes that a node's partitions need, as far as known."""
        return self._cluster.need(node, now)

    def full(self, node: NodeId, hosted: Iterable[PartitionId], now: int) -> str | None:
        """Returns why a node has no room below its caps for these partitions; None if it has, as far as known."""
        known = [load for p in hosted if (load := self._cluster.load(p, now)) is not None]
        return self._cluster.over(node, sum(load.cpu for load in known), sum(load.memory for load in known))

    def predicted(self, partition: PartitionId, target: NodeId, now: int) -> PredictedMove | RefusedMove | None:
        """Predicts the duration of a move that is wanted for other reasons; None: not all loads are known."""
        return self._cluster.taking(partition, target, now, self._cluster.free(target, now))

    def proposed(self, now: int) -> tuple[list[MovePartition], list[StillFull]]:
        """Returns the moves, and the nodes that stay full, if all full nodes had been full for long enough."""
        beyond = sorted(self._cluster.beyond(now))
        if not beyond:
            return [], []
        state, _ = self._relieved(now)
        reason = self._described(beyond, now)
        orders = [self._ordered(*move, reason, now) for move in state.all()]
        return orders, [StillFull(n, self._cluster.obstacles(n, now)) for n in state.full]

    def tick(self, now: int) -> list[Action]:
        """Returns the actions to take now; call it about once per second, and after each end of a move."""
        if now >= self._period_end:
            self._end_period(now)
        if self._order is not None or not self._due:
            return []
        self._due = False
        if full := self._full(now):
            self._draining = None  # more load came: the node is needed
            return self._relieve(full, now)
        if self._draining is None and self._idle_for < PATIENCE:
            return []
        return self._drain(now)

    def _end_period(self, now: int) -> None:
        """Counts periods that nodes were full, and that all together were idle."""
        self._period_end += self._settings.period_us * ((now - self._period_end) // self._settings.period_us + 1)
        self._due = True
        heard, beyond = self._cluster.heard(now), self._cluster.beyond(now)
        self._told &= beyond
        for id in self._cluster.nodes:
            known = not heard.isdisjoint(self._cluster.on(id))
            self._full_for[id] = self._full_for.get(id, 0) + 1 if id in beyond and known else 0
        idle = len(heard) == len(self._cluster.running) and not beyond and self._cluster.idle(now)
        self._idle_for = self._idle_for + 1 if idle else 0

    def _full(self, now: int) -> list[NodeId]:
        """Returns nodes that were beyond a cap for long enough, and still are by the loads that run there."""
        beyond = self._cluster.beyond(now)
        return [n for n in self._cluster.members() if self._full_for.get(n, 0) >= PATIENCE and n in beyond]

    def _relieve(self, full: list[NodeId], now: int) -> list[Action]:
        reason = self._described(full, now)
        state, spare = self._relieved(now)
        actions: list[Action] = []
        if spare is not None:
            self._cluster.nodes[spare].spare = False
            actions.append(JoinSpare(spare, reason))
        return [*actions, *self._begin(state, reason, now), *self._complaints(state.full, now)]

    def _relieved(self, now: int) -> tuple[BalanceState, NodeId | None]:
        """Returns a distribution without full nodes; and the spare that helps most, if nothing fits without one."""
        members = self._cluster.members()
        state = self._cluster.solved(members, now)
        if not state.full:
            return state, None
        tried = [(spare, self._cluster.solved((*members, spare), now)) for spare in self.spares()]
        spare, other = min(tried, key=lambda trial: (trial[1].excess, trial[1].seconds), default=(None, state))
        return (other, spare) if other.excess < state.excess - _LITTLE else (state, None)

    def _drain(self, now: int) -> list[Action]:
        """Begins to drain the cheapest node, or continues; it is given up when the rest no longer fits."""
        began, members = self._draining is not None, self._cluster.members()
        candidates = [n for n in members if len(members) > 1 and (not began or n == self._draining)]
        tried = [(self._cluster.solved(members, now, leaving=node), node) for node in candidates]
        fitting = [(state.seconds, at) for at, (state, _) in enumerate(tried) if not state.full]
        if not fitting:
            self._draining = None
            return []
        state, node = tried[min(fitting)[1]]
        self._draining = node
        reason = f"load is below {self._settings.idle:g}, and fits without {node}"
        actions: list[Action] = [] if began else [DrainNode(node, reason)]
        orders = self._begin(state, f"{node} drains", now)
        if not orders:
            assert not self._cluster.on(node), "L8: a drained node runs nothing"
            self._cluster.nodes[node].spare, self._draining, self._idle_for = True, None, 0
        return [*actions, *orders]

    def _begin(self, state: BalanceState, reason: str, now: int) -> list[MovePartition]:
        """Orders the first of several moves; the others are planned again when it has ended."""
        if not (moves := state.all()):
            return []
        order = self._ordered(*moves[0], reason, now)
        self._check(order, now)
        self._order = order
        return [order]

    def _ordered(
        self, partition: PartitionId, source: NodeId, target: NodeId, free: float, reason: str, now: int
    ) -> MovePartition:
        predicted = self._cluster.predicted(partition, target, now, free)
        assert isinstance(predicted, PredictedMove), "L4: what cannot be moved is not ordered"
        return MovePartition(partition, source, target, predicted.seconds, predicted.source, reason)

    def _check(self, order: MovePartition, now: int) -> None:
        """Asserts the invariants of an order."""
        target, hosts = self._cluster.nodes[order.target], self._cluster.running[order.partition]
        assert self._order is None, "L5: one move at a time"
        assert target.alive, "L5: a target answers"
        assert not target.spare, "L8: a target has joined"
        assert order.target != self._draining, "L8: nothing moves to who is leaving"
        assert order.source in hosts, "L5: who leaves runs it"
        assert order.target not in hosts, "L5: two replicas are on two nodes"
        assert self._cluster.fits(order.partition, order.target, now), "L5: the target stays within its caps"
        assert self._cluster.rested(order.partition, now), "L5: a partition rests where it was moved to"
        assert self._refused(self._cluster.running, order.partition, order.target) is None, "M5: it keeps its X"

    # --- for people ---

    def _described(self, full: list[NodeId], now: int) -> str:
        """Describes how full the nodes beyond a cap are."""
        return ", ".join(filter(None, (self._cluster.over(node, *self._cluster.need(node, now)) for node in full)))

    def _complaints(self, full: list[NodeId], now: int) -> list[StillFull]:
        """Reports nodes that stay full, once; not while a partition of theirs rests, for it may still move."""
        stuck = [n for n in full if all(self._cluster.rested(p, now) for p in self._cluster.on(n))]
        reports = [StillFull(n, self._cluster.obstacles(n, now)) for n in stuck if n not in self._told]
        self._told |= {report.node for report in reports}
        return reports
