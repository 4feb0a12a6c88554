"""A balancer's knowledge of a cluster: distribution of partitions, latest loads, and the duration of each move."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf
from typing import Final

import numpy as np

from replicas.planning.balancing.actions import BalanceSettings, MovePartition, NodeRoom, Refusal
from replicas.planning.load import SAMPLE_US, LoadHistory, LoadSample
from replicas.planning.prediction import PredictedMove, RefusedMove, predict
from replicas.planning.relief import ReliefProblem, relieve
from replicas.planning.shares import Running
from replicas.planning.topology import Floats, Ints
from spe.stream.ids import PartitionId
from spe.stream.names import NodeId
from spe.stream.times import SECOND

#: Number of periods that a partition stays after a move, and that a failed move is not tried again.
REST: Final = 3
#: Minimum duration of a move.
_SWITCH_S: Final = 0.01
#: Number of combinations refused, for X or for their order, after which a plan without order is taken.
_ROUNDS: Final = 20
_ROUNDS_IN_TURN: Final = 5
#: Replicas times nodes up to which the program plans moves that wait for others.
_MOST_IN_TURN: Final = 150
#: Number of sets of moves without continuation after which the search for an order is given up.
_DEAD_ENDS: Final = 500
#: Share of a core that must be left over; share of a cap by which loads may differ.
_LITTLE: Final = 1e-6


@dataclass(slots=True)
class BalancedNode:
    """State of a node.

    Attributes:
      spare: it runs nothing until it joins.
    """

    room: NodeRoom
    alive: bool = False
    spare: bool = False


@dataclass(frozen=True)
class BalanceState:
    """A planned distribution, by indices of the problem.

    Attributes:
      members: nodes, in the order of the problem.
      replicas: (partition, node), in the order of the problem.
      where: node of each replica at the end.
      cores: of each node.
    """

    members: tuple[NodeId, ...]
    replicas: tuple[tuple[PartitionId, NodeId], ...]
    problem: ReliefProblem
    where: Ints
    cores: Floats

    @property
    def excess(self) -> float:
        """Total load beyond all caps."""
        return float(self.problem.excess(self.where).sum())

    @property
    def seconds(self) -> float:
        """Total duration of all moves."""
        return self.problem.total(self.where)

    @property
    def full(self) -> list[NodeId]:
        """Nodes that stay beyond a cap."""
        return [self.members[n] for n in self.problem.beyond(self.where)]

    def all(self) -> list[tuple[PartitionId, NodeId, NodeId, float]]:
        """Returns moves in their order: partition, source, target, and the cores then left over at the target."""
        order, moves = self.order or [], []
        for at, (replica, node) in enumerate(order):
            free = self.cores[node] - self.problem.load(self._after(order[:at]))[0, node]
            moves.append((*self.replicas[replica], self.members[node], float(free)))
        return moves

    @cached_property
    def order(self) -> list[tuple[int, int]] | None:
        """All moves (replica, node), each with room after the earlier ones (L4, L5); None: no order was found."""
        many = len(self.problem.moves(self.where))
        made: list[tuple[int, int]] = []
        ways, dead = [self._ways(made)], set[frozenset[tuple[int, int]]]()
        while len(made) < many:
            move = next(ways[-1], None)
            if move is None:
                if not made or len(dead) == _DEAD_ENDS:
                    return None
                dead.add(frozenset(made))
                made.pop()
                ways.pop()
            elif frozenset((*made, move)) not in dead:
                made.append(move)
                ways.append(self._ways(made))
        return made

    def _ways(self, made: list[tuple[int, int]]) -> Iterator[tuple[int, int]]:
        """Yields moves that have room below the caps, and can catch up, after those made; the shortest first."""
        load, seconds = self.problem.load(self._after(made)), self.problem.seconds
        room = (self.problem.cap - load) / self.problem.unit
        for replica, node in sorted(set(self.problem.moves(self.where)) - set(made), key=lambda m: (seconds[m], m)):
            need = self.problem.need[:, replica]
            fits = (need == 0) | (need / self.problem.unit[:, node] <= room[:, node] + _LITTLE)
            if fits.all() and (need[0] == 0 or self.cores[node] - load[0, node] - need[0] > _LITTLE):
                yield replica, node

    def _after(self, made: list[tuple[int, int]]) -> Ints:
        where = self.problem.home.copy()
        for replica, node in made:
            where[replica] = node
        return where


class BalancedCluster:
    """Loads and distribution of a cluster; see the module.

    Args:
      history: of all loads; samples go there.
      nodes: all of them, by id.  Each counts as dead until it answers.
      running: nodes that run each partition.
      refused: forbids a node to run a partition along with the rest, such as for its share of X.
      exact: as in ``relief.relieve``.
    """

    def __init__(
        self,
        history: LoadHistory,
        settings: BalanceSettings,
        nodes: Mapping[NodeId, NodeRoom],
        running: Running,
        refused: Refusal,
        exact: bool | None,
    ) -> None:
        self.history = history
        self.nodes = {id: BalancedNode(room, spare=room.spare) for id, room in nodes.items()}
        self.running: dict[PartitionId, tuple[NodeId, ...]] = dict(running)
        #: Time of the newest checkpoint of a partition that a node holds.
        self.checkpoints: dict[tuple[PartitionId, NodeId], int] = {}
        #: When each partition's last move ended, and which moves failed.
        self.moved_at: dict[PartitionId, int] = {}
        self.failed_at: dict[tuple[PartitionId, NodeId], int] = {}
        self._settings = settings
        #: Period of the latest load: a new replica has no sample yet.
        self._latest_us = max(settings.period_us, 2 * SAMPLE_US)
        self._refused = refused
        self._exact = exact
        #: Loads, and their time.
        self._known: tuple[int, dict[PartitionId, LoadSample | None]] = (-1, {})

    # --- news ---

    def sampled(self, partition: PartitionId, load: LoadSample, now: int) -> None:
        self.history.sample(partition, load, now)
        self._known = (-1, {})

    def moved(self, order: MovePartition, now: int) -> None:
        """Notes that the target runs the partition, and the source no longer does."""
        self.moved_at[order.partition] = now
        others = tuple(n for n in self.running[order.partition] if n not in (order.source, order.target))
        self.running[order.partition] = (*others, order.target)
        self.checkpoints.pop((order.partition, order.target), None)

    # --- what is known ---

    def members(self) -> tuple[NodeId, ...]:
        """Returns nodes that may run partitions."""
        return tuple(id for id, node in self.nodes.items() if node.alive and not node.spare)

    def on(self, node: NodeId) -> list[PartitionId]:
        return [p for p, hosts in self.running.items() if node in hosts]

    def load(self, partition: PartitionId, now: int) -> LoadSample | None:
        """Returns the load of the latest period; of a silent partition the last known one."""
        if self._known[0] != now:
            self._known = (now, {})
        known = self._known[1]
        if partition not in known:
            latest = self.history.mean(partition, now, self._latest_us)
            known[partition] = self.history.mean(partition, now) if latest is None else latest
        return known[partition]

    def need(self, node: NodeId, now: int) -> tuple[float, float]:
        """Returns CPU and memory of all known loads on a node."""
        known = [load for p in self.on(node) if (load := self.load(p, now)) is not None]
        return sum(load.cpu for load in known), sum(load.memory for load in known)

    def heard(self, now: int) -> set[PartitionId]:
        """Returns partitions that were not silent in the latest period."""
        return {p for p in self.running if self.history.mean(p, now, self._latest_us) is not None}

    def beyond(self, now: int) -> set[NodeId]:
        """Returns members that are beyond a cap."""
        members = self.members()
        problem = self._problem(members, now, seconds=False)
        return {members[at] for at in problem.beyond(problem.home)}

    def over(self, node: NodeId, cpu: float, memory: float) -> str | None:
        """Describes the part of a need beyond the caps of a node; None where nothing is."""
        room, cap = self.nodes[node].room, self._settings.cap
        texts = []
        if cpu > cap * room.capacity:
            texts.append(f"{node} needs {cpu:.2f} of {cap * room.capacity:.2f} cores")
        if memory > cap * room.memory:
            texts.append(f"{node} needs {memory / 1e6:.0f} of {cap * room.memory / 1e6:.0f} MB")
        return ", ".join(texts) or None

    def fits(self, partition: PartitionId, target: NodeId, now: int) -> bool:
        """Has a node room below its caps for a further partition?"""
        load, room = self.load(partition, now), self.nodes[target].room
        assert load is not None, "L4: what has no known load is not ordered"
        cpu, memory = self.need(target, now)
        cap = self._settings.cap + 2 * _LITTLE
        return (not load.cpu or cpu + load.cpu <= cap * room.capacity) and (
            not load.memory or memory + load.memory <= cap * room.memory
        )

    def idle(self, now: int) -> bool:
        """Is the load of all members together below ``idle``?"""
        members = self.members()
        total = sum(self.need(n, now)[0] for n in members)
        return total < self._settings.idle * sum(self.nodes[n].room.capacity for n in members)

    def rested(self, partition: PartitionId, now: int) -> bool:
        """May it be moved again?"""
        moved_at = self.moved_at.get(partition)
        return moved_at is None or now - moved_at >= REST * self._settings.period_us

    def predicted(
        self, partition: PartitionId, target: NodeId, now: int, free: float | None
    ) -> PredictedMove | RefusedMove:
        """Predicts a move to a node that has so many cores left over, whichever replica leaves."""
        failed_at = self.failed_at.get((partition, target))
        if target in self.running[partition]:
            return RefusedMove(f"{target} runs it already")
        if failed_at is not None and now - failed_at < REST * self._settings.period_us:
            return RefusedMove("it failed a moment ago")
        if (reason := self._refused(self.running, partition, target)) is not None:
            return RefusedMove(reason)
        taking = self.taking(partition, target, now, free)
        return RefusedMove("not all loads are known") if taking is None else taking

    def taking(
        self, partition: PartitionId, target: NodeId, now: int, free: float | None
    ) -> PredictedMove | RefusedMove | None:
        """Predicts the same regardless of other obstacles; None: not all loads are known."""
        load = self.load(partition, now)
        if load is None or free is None:
            return None
        taken_at = self.checkpoints.get((partition, target))
        return predict(load, free, self._settings.speeds, None if taken_at is None else (now - taken_at) / SECOND)

    def free(self, node: NodeId, now: int) -> float | None:
        """Returns the cores that a node has left over; None: not all loads there are known."""
        if any(self.load(p, now) is None for p in self.on(node)):
            return None
        return self.nodes[node].room.capacity - self.need(node, now)[0]

    def _free_last(self, partition: PartitionId, target: NodeId, now: int, free: float | None) -> float | None:
        """Returns cores left over for a partition now, or as the last one to come to a node within its cap."""
        if free is None or (load := self.load(partition, now)) is None:
            return free
        return max(free, (1 - self._settings.cap) * self.nodes[target].room.capacity + load.cpu)

    # --- what to do ---

    def solved(self, members: tuple[NodeId, ...], now: int, leaving: NodeId | None = None) -> BalanceState:
        """Returns the planned distribution under the latest loads.

        First with moves that could begin now; if a node stays full, also with moves that others make room for.
        Moves that are refused together, for X, or have no order, are excluded one set after the other.

        Args:
          leaving: a node that all replicas shall leave, and no others shall move; None: any may move.
        """
        state = self._planned(members, self._problem(members, now, leaving=leaving), _ROUNDS, self._exact)
        if leaving is None and state.full:
            exact = self._exact if len(state.replicas) * len(members) <= _MOST_IN_TURN else False
            other = self._planned(members, self._problem(members, now, in_turn=True), _ROUNDS_IN_TURN, exact)
            state = other if other.excess < state.excess - _LITTLE else state
        return state

    def _planned(
        self, members: tuple[NodeId, ...], problem: ReliefProblem, rounds: int, exact: bool | None
    ) -> BalanceState:
        replicas, cores = self._replicas(members), np.array([self.nodes[n].room.capacity for n in members])
        for _ in range(rounds):
            state = BalanceState(members, replicas, problem, relieve(problem, exact=exact), cores)
            refused = self._refused_together(state)
            if refused is None and state.order is not None:
                return state
            problem = replace(problem, together=(*problem.together, refused or frozenset(problem.moves(state.where))))
        state = replace(state, problem=problem, where=relieve(problem, exact=False))
        return replace(state, where=problem.home) if state.order is None else state

    def obstacles(self, node: NodeId, now: int) -> str:
        """Describes the obstacles for the partitions of a node, each reason with its first example."""
        reasons: dict[str, str] = {}
        for target in self.members():
            free = self.free(target, now)
            for partition in (p for p in self.on(node) if target not in self.running[p]):
                predicted = self.predicted(partition, target, now, free)
                why = predicted.reason if isinstance(predicted, RefusedMove) else "no room below the caps"
                reasons.setdefault(why, f"{partition} to {target}")
        return "; ".join(f"{what}: {why}" for why, what in reasons.items()) or "there is no other node"

    def _refused_together(self, state: BalanceState) -> frozenset[tuple[int, int]] | None:
        running = dict(self.running)
        made: list[tuple[int, int]] = []
        for replica, node in state.problem.moves(state.where):
            (partition, _), target = state.replicas[replica], state.members[node]
            made.append((replica, node))
            if self._refused(running, partition, target) is not None:
                return frozenset(move for move in made if move[1] == node)
            running[partition] = (*running[partition], target)
        return None

    def _replicas(self, members: tuple[NodeId, ...]) -> tuple[tuple[PartitionId, NodeId], ...]:
        return tuple((p, n) for p, hosts in self.running.items() for n in hosts if n in members)

    def _problem(
        self,
        members: tuple[NodeId, ...],
        now: int,
        *,
        leaving: NodeId | None = None,
        seconds: bool = True,
        in_turn: bool = False,
    ) -> ReliefProblem:
        """Args: as :meth:`solved`; ``seconds``: durations of moves count; ``in_turn``: moves that must
        wait for others are possible too.
        """
        replicas = self._replicas(members)
        partitions = {p: at for at, p in enumerate(self.running)}
        # An unknown load adds nothing; its node is no target (free).
        loads = [self.load(p, now) or LoadSample(0.0) for p, _ in replicas]
        rooms = [self.nodes[n].room for n in members]
        need = np.array([[load.cpu for load in loads], [load.memory for load in loads]])
        cap = self._settings.cap * np.array([[r.capacity for r in rooms], [r.memory for r in rooms]])
        if leaving is not None:  # counted, for a partition may need nothing and must leave all the same
            need = np.vstack([need, np.ones(len(replicas))])
            cap = np.vstack([cap, [0.0 if n == leaving else inf for n in members]])
        took = np.full((len(replicas), len(members)), inf)
        free = {n: self.free(n, now) for n in members} if seconds else {}
        for at, (partition, source) in enumerate(replicas if seconds else ()):
            if not self.rested(partition, now) or leaving not in (None, source):
                continue
            for node, target in enumerate(members):
                last = self._free_last(partition, target, now, free[target]) if in_turn else free[target]
                predicted = self.predicted(partition, target, now, last)
                if isinstance(predicted, PredictedMove):
                    took[at, node] = max(predicted.seconds, _SWITCH_S)
        return ReliefProblem(
            home=np.array([members.index(n) for _, n in replicas], np.intp),
            partition=np.array([partitions[p] for p, _ in replicas], np.intp),
            need=need,
            cap=cap,
            seconds=took,
        )
