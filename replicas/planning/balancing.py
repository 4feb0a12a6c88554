"""The decisions of who moves where as load shifts (rules L5 to L9).  Pure: samples and news come in, actions come out.

One move at a time is ordered.  When it has ended, what is left to do is found anew under the latest loads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from math import inf
from typing import Final

import numpy as np

from replicas.planning.load import LoadHistory, LoadSample
from replicas.planning.prediction import PredictedMove, RefusedMove, Speeds, StateSource, predict
from replicas.planning.relief import ReliefProblem, relieve
from replicas.planning.shares import Running
from replicas.planning.topology import Ints
from spe.stream.ids import PartitionId
from spe.stream.names import NodeId
from spe.stream.times import SECOND

#: Periods that a node must be beyond its cap, or the cluster idle, before anything is done.
PATIENCE: Final = 2
#: Periods that a partition stays where it was moved to.
REST: Final = 3
#: A move's least time: a switch takes longer than nothing.
_SWITCH_S: Final = 0.01
_LITTLE: Final = 1e-6
#: Combinations that are refused for X, until a plan is taken as it is; every order is checked by itself.
_ROUNDS: Final = 20


@dataclass(frozen=True, slots=True)
class NodeRoom:
    """What a node offers.

    Attributes:
      capacity: cores.
      memory: bytes.
      spare: it runs nothing until others are full.
    """

    capacity: float = 1.0
    memory: float = inf
    spare: bool = False


@dataclass(frozen=True, slots=True)
class BalanceSettings:
    """When to move.

    Attributes:
      period_us: between two looks at the loads, monotonic microseconds.
      cap: share of a node's capacity and memory that may be used.
      idle: share of the cluster's capacity below which it is tried to do with one node fewer.
    """

    period_us: int = 30 * SECOND
    cap: float = 0.8
    idle: float = 0.3
    speeds: Speeds = field(default_factory=Speeds)


@dataclass(frozen=True, slots=True)
class MovePartition:
    """Action: a partition is to run on ``target`` in the place of ``source``.

    Attributes:
      seconds: predicted, until the target has caught up.
      state: where its state comes from.
      reason: for people.
    """

    partition: PartitionId
    source: NodeId
    target: NodeId
    seconds: float
    state: StateSource
    reason: str


@dataclass(frozen=True, slots=True)
class JoinSpare:
    """Action: a spare becomes a node as others."""

    node: NodeId
    reason: str


@dataclass(frozen=True, slots=True)
class DrainNode:
    """Action: all that a node runs moves off it, by the orders that follow; then it is a spare."""

    node: NodeId
    reason: str


@dataclass(frozen=True, slots=True)
class StillFull:
    """Action: tell people that a node cannot be brought within its caps, and why."""

    node: NodeId
    reason: str


Action = MovePartition | JoinSpare | DrainNode | StillFull
#: Why a node may not run a partition too, given who runs what; None: it may.
Refusal = Callable[[Running, PartitionId, NodeId], str | None]


@dataclass(slots=True)
class _Member:
    """What is known of a node.

    Attributes:
      full: periods in succession that it was beyond a cap.
      told: people know that it cannot be relieved.
    """

    room: NodeRoom
    alive: bool = False
    spare: bool = False
    full: int = 0
    told: bool = False


class Balancer:
    """See the module.

    Args:
      history: of all loads; samples go there.
      nodes: all of them, by id.  Each is taken for dead until it has come.
      running: nodes that run each partition.
      refused: who may not run what beside the rest, such as for its share of X.
      now: monotonic microseconds.
      exact: as ``relief.relieve`` has it.
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
        self._history = history
        self._settings = settings
        self._nodes = {id: _Member(room, spare=room.spare) for id, room in nodes.items()}
        self._running: dict[PartitionId, tuple[NodeId, ...]] = dict(running)
        self._refused = refused
        self._exact = exact
        self._period_end = now + settings.period_us
        #: Something changed since the last look.
        self._due = False
        #: Periods in succession that all nodes together were idle.
        self._idle = 0
        self._draining: NodeId | None = None
        #: The move that is under way; when each partition's last one ended, and which were tried in vain.
        self._order: MovePartition | None = None
        self._moved_at: dict[PartitionId, int] = {}
        self._failed_at: dict[tuple[PartitionId, NodeId], int] = {}
        self._known: tuple[int, dict[PartitionId, LoadSample | None]] = (-1, {})
        #: When the newest checkpoint of a partition that a node holds was taken.
        self._checkpoints: dict[tuple[PartitionId, NodeId], int] = {}

    @property
    def running(self) -> Running:
        return dict(self._running)

    @property
    def order(self) -> MovePartition | None:
        """The move that is under way."""
        return self._order

    def spares(self) -> list[NodeId]:
        """Nodes that run nothing until they join, those that are alive."""
        return [id for id, one in self._nodes.items() if one.spare and one.alive]

    # --- news ---

    def came(self, node: NodeId, room: NodeRoom | None = None) -> None:
        """A node answers; ``room`` is of one that was not known."""
        if node not in self._nodes:
            room = NodeRoom() if room is None else room
            self._nodes[node] = _Member(room, spare=room.spare)
        self._nodes[node].alive = self._due = True

    def went(self, node: NodeId) -> None:
        """A node does not answer any more.  What it ran may move again at once, wherever else it runs."""
        one = self._nodes[node]
        one.alive, one.full = False, 0
        if self._draining == node:
            self._draining = None
        for partition, hosts in self._running.items():
            if node in hosts:
                self._moved_at.pop(partition, None)

    def runs(self, partition: PartitionId, nodes: Iterable[NodeId]) -> None:
        """Others have changed who runs a partition: a standby took over, or stands by again."""
        self._running[partition] = tuple(nodes)
        self._known = (-1, {})

    def sampled(self, partition: PartitionId, load: LoadSample, now: int) -> None:
        """What a replica measured."""
        self._history.sample(partition, load, now)
        self._known = (-1, {})

    def checkpointed(self, partition: PartitionId, node: NodeId, now: int | None) -> None:
        """A node holds a checkpoint that was taken now; None: it holds none any more."""
        if now is None:
            self._checkpoints.pop((partition, node), None)
        else:
            self._checkpoints[partition, node] = now

    def moved(self, order: MovePartition, now: int) -> None:
        """A move is done.  An order that is not under way is ignored: the news came twice."""
        if order != self._order:
            return
        self._order, self._due = None, True
        self._moved_at[order.partition] = now
        others = tuple(n for n in self._running[order.partition] if n not in (order.source, order.target))
        self._running[order.partition] = (*others, order.target)
        self._checkpoints.pop((order.partition, order.target), None)

    def failed(self, order: MovePartition, now: int) -> None:
        """A move was dropped; it is not tried again soon, but another one of the partition may be."""
        if order == self._order:
            self._order, self._due = None, True
            self._failed_at[order.partition, order.target] = now

    # --- decisions ---

    def tick(self, now: int) -> list[Action]:
        """What to do now; to be called about once per second, and after each end of a move."""
        if now >= self._period_end:
            self._end_period(now)
        if self._order is not None or not self._due:
            return []
        self._due = False
        if self._full(now):
            self._draining = None  # more load came: the node is needed
            return self._relieve(now)
        if self._draining is None and self._idle < PATIENCE:
            return []
        return self._drain(now)

    def _end_period(self, now: int) -> None:
        """Counts periods that nodes were full, and that all together were idle."""
        self._period_end += self._settings.period_us * ((now - self._period_end) // self._settings.period_us + 1)
        self._due = True
        heard = {p for p in self._running if self._history.mean(p, now, self._settings.period_us) is not None}
        beyond = self._beyond(now)
        for id, one in self._nodes.items():
            own = {p for p, hosts in self._running.items() if id in hosts}
            one.full = one.full + 1 if id in beyond and own & heard else 0
            one.told = one.told and id in beyond
        members = self._members()
        capacity = sum(self._nodes[n].room.capacity for n in members)
        total = sum(load.cpu for p, _ in self._replicas(members) if (load := self._load(p, now)) is not None)
        idle = len(heard) == len(self._running) and not beyond and total < self._settings.idle * capacity
        self._idle = self._idle + 1 if idle else 0

    def _full(self, now: int) -> list[NodeId]:
        """Nodes that were beyond a cap for long enough, and still are, as far as what runs there tells."""
        beyond = self._beyond(now)
        return [n for n in self._members() if self._nodes[n].full >= PATIENCE and n in beyond]

    def _beyond(self, now: int) -> set[NodeId]:
        members = self._members()
        problem = self._problem(members, now, seconds=False)
        return {members[at] for at in problem.beyond(problem.home)}

    def _relieve(self, now: int) -> list[Action]:
        members = self._members()
        problem, where = self._solved(members, now)
        joined: list[Action] = []
        if problem.beyond(where):
            # Nothing fits: the spare that helps most joins.
            left = float(problem.excess(where).sum())
            tried = [(spare, *self._solved([*members, spare], now)) for spare in self.spares()]
            rated = [(float(p.excess(w).sum()), p.total(w), at) for at, (_, p, w) in enumerate(tried)]
            if rated and min(rated)[0] < left - _LITTLE:
                spare, problem, where = tried[min(rated)[2]]
                self._nodes[spare].spare = False
                members = [*members, spare]
                joined.append(JoinSpare(spare, self._said(self._full(now), now)))
        orders = self._first(problem, where, members, now, self._said(self._full(now), now))
        return [*joined, *orders, *self._complaints(problem, where, members, now)]

    def _drain(self, now: int) -> list[Action]:
        """Begins to drain the cheapest node, or goes on; what does not fit any more is given up."""
        began = self._draining is not None
        found: list[tuple[float, int, ReliefProblem, Ints]] = []
        members = self._members()
        for at, node in enumerate(members):
            if (began and node != self._draining) or len(members) < 2:
                continue
            problem, where = self._solved(members, now, leaving=node)
            if not problem.beyond(where):
                found.append((problem.total(where), at, problem, where))
        if not found:
            self._draining = None
            return []
        _, at, problem, where = min(found, key=lambda one: one[:2])
        node = self._draining = members[at]
        reason = f"load is below {self._settings.idle:g}, and fits without {node}"
        actions: list[Action] = [] if began else [DrainNode(node, reason)]
        orders = self._first(problem, where, members, now, f"{node} drains")
        if not orders:
            assert not any(node in hosts for hosts in self._running.values()), "L8: a drained node runs nothing"
            self._nodes[node].spare, self._draining, self._idle = True, None, 0
        return [*actions, *orders]

    def _first(
        self, problem: ReliefProblem, where: Ints, members: list[NodeId], now: int, reason: str
    ) -> list[MovePartition]:
        """The order to give of several moves: one that has room at once, if there is one, and then the shortest."""
        rated = []
        for replica, node in problem.moves(where):
            alone = problem.home.copy()
            alone[replica] = node
            rated.append((float(problem.excess(alone)[:, node].sum()), problem.seconds[replica, node], replica, node))
        if not rated:
            return []
        *_, replica, node = min(rated)
        partition, source = self._replicas(members)[replica]
        predicted = self._predicted(partition, members[node], now, self._free(members[node], now))
        assert isinstance(predicted, PredictedMove), "L4: what cannot be moved is not ordered"
        order = MovePartition(partition, source, members[node], predicted.seconds, predicted.source, reason)
        self._check(order, now)
        self._order = order
        return [order]

    def _check(self, order: MovePartition, now: int) -> None:
        """Invariants of an order."""
        target, hosts = self._nodes[order.target], self._running[order.partition]
        assert self._order is None, "L5: one move at a time"
        assert target.alive, "L5: a target answers"
        assert not target.spare, "L5: a target has joined"
        assert order.target != self._draining, "L8: nothing moves to who is leaving"
        assert order.source in hosts, "L5: who leaves runs it"
        assert order.target not in hosts, "L5: two replicas are on two nodes"
        assert self._rested(order.partition, now), "L7: a partition rests where it was moved to"
        assert self._refused(self._running, order.partition, order.target) is None, "L6: the target keeps its X"

    # --- the problem ---

    def _solved(self, members: list[NodeId], now: int, leaving: NodeId | None = None) -> tuple[ReliefProblem, Ints]:
        """The problem under the latest loads, and where each replica is to end.

        Moves that are refused together, for X, are excluded one set after the other.
        """
        problem = self._problem(members, now, leaving=leaving)
        where = relieve(problem, exact=self._exact)
        for _ in range(_ROUNDS):
            if (refused := self._refused_together(problem, where, members)) is None:
                break
            problem = replace(problem, together=(*problem.together, refused))
            where = relieve(problem, exact=self._exact)
        return problem, where

    def _refused_together(
        self, problem: ReliefProblem, where: Ints, members: list[NodeId]
    ) -> frozenset[tuple[int, int]] | None:
        running, replicas = dict(self._running), self._replicas(members)
        made: list[tuple[int, int]] = []
        for replica, node in problem.moves(where):
            partition, _ = replicas[replica]
            made.append((replica, node))
            if self._refused(running, partition, members[node]) is not None:
                return frozenset(move for move in made if move[1] == node)
            running[partition] = (*running[partition], members[node])
        return None

    def _problem(
        self, members: list[NodeId], now: int, *, leaving: NodeId | None = None, seconds: bool = True
    ) -> ReliefProblem:
        """Who runs where, and what each move would take.

        Args:
          leaving: a node that all are to leave, and nobody else is to move; None: whoever must.
        """
        replicas = self._replicas(members)
        partitions = {p: at for at, p in enumerate(self._running)}
        loads = [self._load(p, now) or LoadSample(0.0) for p, _ in replicas]
        rooms = [self._nodes[n].room for n in members]
        cap = self._settings.cap * np.array([[r.capacity for r in rooms], [r.memory for r in rooms]])
        need = np.array([[load.cpu for load in loads], [load.memory for load in loads]])
        if leaving is not None:  # counted, for a partition may need nothing and must leave all the same
            need = np.vstack([need, np.ones(len(replicas))])
            cap = np.vstack([cap, [0.0 if n == leaving else inf for n in members]])
        took = np.full((len(replicas), len(members)), inf)
        free = {n: self._free(n, now) for n in members} if seconds else {}
        for at, (partition, source) in enumerate(replicas if seconds else ()):
            if not self._rested(partition, now) or leaving not in (None, source):
                continue
            for node, target in enumerate(members):
                predicted = self._predicted(partition, target, now, free[target])
                if isinstance(predicted, PredictedMove):
                    took[at, node] = max(predicted.seconds, _SWITCH_S)
        return ReliefProblem(
            home=np.array([members.index(n) for _, n in replicas], np.intp),
            partition=np.array([partitions[p] for p, _ in replicas], np.intp),
            need=need,
            cap=cap,
            seconds=took,
        )

    def _predicted(
        self, partition: PartitionId, target: NodeId, now: int, free: float | None
    ) -> PredictedMove | RefusedMove:
        """A move to a node that has so much left over, whoever leaves."""
        failed_at = self._failed_at.get((partition, target))
        load = self._load(partition, now)
        if target in self._running[partition]:
            return RefusedMove(f"{target} runs it already")
        if failed_at is not None and now - failed_at < REST * self._settings.period_us:
            return RefusedMove("it failed a moment ago")
        if load is None or free is None:
            return RefusedMove("not all loads are known")
        if (reason := self._refused(self._running, partition, target)) is not None:
            return RefusedMove(reason)
        taken_at = self._checkpoints.get((partition, target))
        return predict(load, free, self._settings.speeds, None if taken_at is None else (now - taken_at) / SECOND)

    def _free(self, node: NodeId, now: int) -> float | None:
        """Cores that a node has left over; None: not all loads there are known."""
        hosted = [self._load(p, now) for p, hosts in self._running.items() if node in hosts]
        known = [load.cpu for load in hosted if load is not None]
        return self._nodes[node].room.capacity - sum(known) if len(known) == len(hosted) else None

    def _load(self, partition: PartitionId, now: int) -> LoadSample | None:
        """Of the latest period; of one that is silent, as far back as is known."""
        if self._known[0] != now:
            self._known = (now, {})
        known = self._known[1]
        if partition not in known:
            latest = self._history.mean(partition, now, self._settings.period_us)
            known[partition] = self._history.mean(partition, now) if latest is None else latest
        return known[partition]

    def _rested(self, partition: PartitionId, now: int) -> bool:
        moved_at = self._moved_at.get(partition)
        return moved_at is None or now - moved_at >= REST * self._settings.period_us

    def _members(self) -> list[NodeId]:
        return [id for id, one in self._nodes.items() if one.alive and not one.spare]

    def _replicas(self, members: list[NodeId]) -> list[tuple[PartitionId, NodeId]]:
        return [(p, n) for p, hosts in self._running.items() for n in hosts if n in members]

    # --- for people ---

    def _said(self, full: list[NodeId], now: int) -> str:
        """How full the nodes are that are beyond a cap."""
        found = []
        for node in full:
            own = [self._load(p, now) or LoadSample(0.0) for p, hosts in self._running.items() if node in hosts]
            room, cap = self._nodes[node].room, self._settings.cap
            cpu, memory = sum(load.cpu for load in own), sum(load.memory for load in own)
            if cpu > cap * room.capacity:
                found.append(f"{node} needs {cpu:.2f} of {cap * room.capacity:.2f} cores")
            if memory > cap * room.memory:
                found.append(f"{node} needs {memory / 1e6:.0f} of {cap * room.memory / 1e6:.0f} MB")
        return ", ".join(found)

    def _complaints(self, problem: ReliefProblem, where: Ints, members: list[NodeId], now: int) -> list[StillFull]:
        """What to tell of nodes that stay full, once; not while something of theirs rests, for then it may still go."""
        found = []
        over = problem.beyond(where)
        for at, node in enumerate(members):
            one = self._nodes[node]
            own = [p for p, hosts in self._running.items() if node in hosts]
            if at in over and not one.told and all(self._rested(p, now) for p in own):
                found.append(StillFull(node, self._why(own, members, now)))
            one.told = one.told or any(said.node == node for said in found)
        return found

    def _why(self, partitions: list[PartitionId], members: list[NodeId], now: int) -> str:
        """What keeps partitions from other nodes, each reason with the first that it holds for."""
        reasons: dict[str, str] = {}
        for target in members:
            free = self._free(target, now)
            for partition in (p for p in partitions if target not in self._running[p]):
                predicted = self._predicted(partition, target, now, free)
                why = predicted.reason if isinstance(predicted, RefusedMove) else "no room below the caps"
                reasons.setdefault(why, f"{partition} to {target}")
        return "; ".join(f"{what}: {why}" for why, what in reasons.items()) or "there is no other node"
