"""Which node keeps the checkpoints of which partition (rules L2, L3).

A partition that gets more load is moved off a full node.  A node that holds its checkpoint takes it soonest; so a
checkpoint belongs where load falls while its partition's rises.  What a checkpoint *costs* on a node is the mean load
of its partition times the correlation of that load with the node's; the sum over all checkpoints is to be small (Madsen
and Zhou, CIKM 2015).  A standby is what holds checkpoints of a partition on a node.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final, NamedTuple

import numpy as np

from replicas.planning.layout import LEVELS, Place
from replicas.planning.load import LoadHistory, correlations
from replicas.planning.program import solver
from replicas.planning.shares import Running, SharesOfX
from replicas.planning.topology import Bools, Floats, Ints
from spe.stream.ids import PartitionId
from spe.stream.names import NodeId

#: In the place of a node: the checkpoint has none.
NO_NODE: Final = -1
_LITTLE: Final = 1e-9


@dataclass(frozen=True)
class CheckpointProblem:
    """What is to be placed, and where it may be.

    Attributes:
      cost: of each checkpoint on each node, [checkpoints, nodes].
      allowed: where each may be, [checkpoints, nodes].
      load: mean load of each checkpoint's partition, [checkpoints].
      of: which partition each is of, [checkpoints].
      apart: which may not be on one node, [checkpoints, checkpoints], symmetric: those of one partition, and more.
      delta: by how much the load of a node's checkpoints may differ from the mean over nodes.
    """

    cost: Floats
    allowed: Bools
    load: Floats
    of: Ints
    apart: Bools
    delta: float = np.inf

    @property
    def most(self) -> float:
        """Load of the checkpoints that a node may have."""
        return float(self.load.sum() / self.cost.shape[1] + self.delta)

    @cached_property
    def neighbours(self) -> Sequence[Ints]:
        """Per checkpoint, those that may not be on its node."""
        return [np.flatnonzero(row) for row in self.apart]

    def score(self, places: Ints) -> float:
        """Sum of costs; the lower the better."""
        placed = np.flatnonzero(places != NO_NODE)
        return float(self.cost[placed, places[placed]].sum())

    def loads(self, places: Ints) -> Floats:
        """Load of the checkpoints of each node."""
        placed = places != NO_NODE
        return np.bincount(places[placed], self.load[placed], self.cost.shape[1]).astype(np.float64)

    def holds(self, places: Ints) -> bool:
        """Is every checkpoint where it may be?  ``delta`` is not looked at."""
        placed = np.flatnonzero(places != NO_NODE)
        same = places[:, None] == places[None, :]
        met = (self.apart & same)[np.ix_(placed, placed)].any()
        return bool(self.allowed[placed, places[placed]].all() and not met)


def baseline(problem: CheckpointProblem, random: np.random.Generator) -> Ints:
    """Each checkpoint on any node where it may be: what others are compared with."""
    return _drawn(problem, random, len(problem.load))


def even(problem: CheckpointProblem, random: np.random.Generator) -> Ints:
    """The same, with equally many on each node as far as that is possible."""
    return _drawn(problem, random, -(-len(problem.load) // problem.cost.shape[1]))


def _drawn(problem: CheckpointProblem, random: np.random.Generator, most: int) -> Ints:
    """Drawn one by one; where all nodes have ``most``, one that is there goes elsewhere if it can."""
    places = np.full(len(problem.load), NO_NODE)

    def able(checkpoint: int) -> list[int]:
        taken = places[problem.neighbours[checkpoint]]
        return [n for n in random.permutation(len(problem.allowed[checkpoint])).tolist() if may(checkpoint, n, taken)]

    def may(checkpoint: int, node: int, taken: Ints) -> bool:
        return bool(problem.allowed[checkpoint, node]) and node not in taken

    def room(checkpoint: int) -> list[int]:
        return [n for n in able(checkpoint) if (places == n).sum() < most]

    for checkpoint in random.permutation(len(places)).tolist():
        nodes = able(checkpoint)
        if not nodes:
            continue
        if not (free := room(checkpoint)):
            there = [(n, other) for n in nodes for other in np.flatnonzero(places == n).tolist()]
            elsewhere = next(((n, other, to[0]) for n, other in there if (to := room(other))), None)
            if elsewhere is not None:
                node, other, places[other] = elsewhere
                free = [node]
        places[checkpoint] = free[0] if free else min(nodes, key=lambda n: int((places == n).sum()))
    return places


def correlated(problem: CheckpointProblem) -> Ints:
    """The regret heuristic, about nodes · checkpoints · log checkpoints steps.

    The checkpoint goes next whose second-best node is worse than its best by most.  Of nodes that are equally good for
    it the one with the least checkpoint load takes it.  A node that would get more than ``most`` is passed over.  What
    fits nowhere comes last, and goes where the checkpoint load is least.
    """
    return _Regret(problem).run()


class _Regret:
    def __init__(self, problem: CheckpointProblem) -> None:
        many, nodes = problem.cost.shape
        self._problem = problem
        self._places = np.full(many, NO_NODE)
        self._loads = np.zeros(nodes)
        #: Where those that have no place yet may still go.
        self._allowed = problem.allowed.copy()
        #: Nodes of each checkpoint, the best first, and how many of them it has passed over.
        self._order = np.argsort(problem.cost, axis=1, kind="stable")
        self._passed = [0] * many
        #: By regret, the largest first; of several entries of a checkpoint the one that is in ``_regret`` counts.
        self._heap: list[tuple[float, int]] = []
        self._regret = [0.0] * many

    def run(self) -> Ints:
        for checkpoint in range(len(self._regret)):
            self._push(checkpoint)
        while self._heap:
            regret, checkpoint = heapq.heappop(self._heap)
            if self._places[checkpoint] != NO_NODE or -regret != self._regret[checkpoint]:
                continue
            equal = self._equal(checkpoint)
            room = [n for n in equal if self._fits(checkpoint, n)]
            if not equal:
                room = self._emptiest(checkpoint)
            if room:
                node = min(room, key=lambda n: (self._loads[n], n))
                self._places[checkpoint] = node
                self._loads[node] += self._problem.load[checkpoint]
                self._allowed[self._problem.neighbours[checkpoint], node] = False
                for other in self._problem.neighbours[checkpoint].tolist():
                    self._push(other)
            elif equal:
                self._passed[checkpoint] = 1 + int(np.flatnonzero(self._order[checkpoint] == equal[-1])[0])
                self._push(checkpoint)
        return self._places

    def _push(self, checkpoint: int) -> None:
        two = [float(self._problem.cost[checkpoint, n]) for n, _ in zip(self._left(checkpoint), range(2))]
        self._regret[checkpoint] = two[1] - two[0] if len(two) == 2 else np.inf if two else -np.inf
        heapq.heappush(self._heap, (-self._regret[checkpoint], checkpoint))

    def _left(self, checkpoint: int) -> Iterator[int]:
        """Where it may still go, the best first."""
        nodes = self._order[checkpoint, self._passed[checkpoint] :].tolist()
        return (n for n in nodes if self._allowed[checkpoint, n])

    def _equal(self, checkpoint: int) -> list[int]:
        """The best nodes that are left, all equally good."""
        costs, left = self._problem.cost[checkpoint], list(self._left(checkpoint))
        return [n for n in left if costs[n] <= costs[left[0]] + _LITTLE]

    def _fits(self, checkpoint: int, node: int) -> bool:
        return bool(self._loads[node] + self._problem.load[checkpoint] <= self._problem.most + _LITTLE)

    def _emptiest(self, checkpoint: int) -> list[int]:
        able = np.flatnonzero(self._allowed[checkpoint]).tolist()
        return sorted(able, key=lambda n: (self._loads[n], self._problem.cost[checkpoint, n]))[:1]


class Relocation(NamedTuple):
    """A checkpoint that is to lie elsewhere, by indices of the problem; ``source`` may be NO_NODE."""

    checkpoint: int
    source: int
    target: int


def relocations(problem: CheckpointProblem, now: Ints, epsilon: float) -> list[Relocation]:
    """Moves of checkpoints, the best gain first, until the score is at most ``epsilon`` above the heuristic's (L3).

    First come those that lie where they may not, or nowhere.
    """
    goal = correlated(problem)
    places = now.copy()
    for checkpoint in np.flatnonzero(places != NO_NODE).tolist():
        if not problem.allowed[checkpoint, places[checkpoint]]:
            places[checkpoint] = NO_NODE
    goal = _alike(problem, places, goal)
    found: list[Relocation] = []
    while True:
        differ = np.flatnonzero((places != goal) & (goal != NO_NODE))
        # Two that may not meet change places in two steps: the second waits until the first has gone.
        free = [k for k in differ.tolist() if not (places[problem.neighbours[k]] == goal[k]).any()] or differ.tolist()
        lost = [k for k in free if places[k] == NO_NODE]
        if not lost and (not free or problem.score(places) <= problem.score(goal) + epsilon + _LITTLE):
            return found
        gains = [
            (np.inf if places[k] == NO_NODE else problem.cost[k, places[k]]) - problem.cost[k, goal[k]] for k in free
        ]
        moved = free[int(np.argmax(gains))]
        found.append(Relocation(moved, int(now[moved]), int(goal[moved])))
        places[moved] = goal[moved]


def _alike(problem: CheckpointProblem, places: Ints, goal: Ints) -> Ints:
    """The goal, with copies of one partition exchanged so that as many as possible stay: a copy is like the other."""
    goal = goal.copy()
    for checkpoint in range(len(goal)):
        for other in problem.neighbours[checkpoint].tolist():
            if problem.of[checkpoint] == problem.of[other] and goal[other] == places[checkpoint] != goal[checkpoint]:
                goal[checkpoint], goal[other] = goal[other], goal[checkpoint]
    return goal


def best(problem: CheckpointProblem, seconds: float = 10.0) -> Ints | None:
    """The placement with the least score, or the best that is found in time.

    None: no placement of all keeps to ``delta``.

    Raises:
      ConfigError: SciPy is not installed.
    """
    from scipy.sparse import csr_array

    optimize = solver()
    many, nodes = problem.cost.shape
    loads, mean = problem.load, problem.load.sum() / nodes
    rows: list[tuple[list[int], list[float], float, float]] = []  # variables, factors, from, to
    for checkpoint in range(many):
        own = [checkpoint * nodes + n for n in range(nodes)]
        rows.append((own, [1.0] * nodes, *((1.0, 1.0) if problem.allowed[checkpoint].any() else (0.0, 0.0))))
    for node in range(nodes):
        own = [k * nodes + node for k in range(many)]
        if np.isfinite(problem.delta):
            rows.append((own, loads.tolist(), mean - problem.delta, mean + problem.delta))
        pairs = zip(*np.nonzero(np.triu(problem.apart)), strict=True)
        rows += [([int(k) * nodes + node, int(j) * nodes + node], [1.0, 1.0], 0.0, 1.0) for k, j in pairs]
    at = np.repeat(np.arange(len(rows)), [len(row[0]) for row in rows])
    matrix = csr_array(
        (np.concatenate([row[1] for row in rows]), (at, np.concatenate([row[0] for row in rows]))),
        shape=(len(rows), many * nodes),
    )
    result = optimize.milp(
        problem.cost.ravel(),
        integrality=np.ones(many * nodes),
        bounds=optimize.Bounds(0, problem.allowed.ravel().astype(float)),
        constraints=optimize.LinearConstraint(matrix, [row[2] for row in rows], [row[3] for row in rows]),
        options={"time_limit": seconds, "mip_rel_gap": 0.0},
    )
    if result.x is None:
        return None
    chosen = result.x.reshape(many, nodes)
    return np.where(chosen.max(axis=1) > 0.5, chosen.argmax(axis=1), NO_NODE)


def checkpoint_problem(
    history: LoadHistory,
    now: int,
    checkpoints: Sequence[PartitionId],
    running: Mapping[PartitionId, Collection[NodeId]],
    nodes: Mapping[NodeId, Place],
    *,
    delta: float = np.inf,
    shares: SharesOfX | None = None,
) -> CheckpointProblem:
    """The problem under the loads that were measured.

    Args:
      now: monotonic microseconds.
      checkpoints: the partition of each; one that is there twice gets two, on two nodes.
      running: nodes that run each partition; they may not keep its checkpoints.
      nodes: all nodes, and the domains that fail together; a checkpoint shares as few as possible with who runs its
        partition, the widest before all.
      shares: of X.  Where one would be too short (L6) no checkpoint is put, and no two are that would make it so.
    """
    names = list(nodes)
    on = {n: [p for p, hosts in running.items() if n in hosts] for n in names}
    partitions = list(dict.fromkeys(checkpoints))
    means = {p: history.mean(p, now) for p in partitions}
    load = np.array([0.0 if (mean := means[p]) is None else mean.cpu for p in checkpoints])
    own = np.array([history.series(p, now) for p in checkpoints])
    of_nodes = np.array([history.together(on[n], now) for n in names])
    hosts = {p: tuple(n) for p, n in running.items()}
    may = {p: _may(p, hosts, nodes, shares) for p in partitions}
    apart = {p: {p} if shares is None else {p, *_divide(p, partitions, hosts, names, shares)} for p in partitions}
    not_together = np.array([[q in apart[p] for q in checkpoints] for p in checkpoints])
    return CheckpointProblem(
        cost=load[:, None] * correlations(own, of_nodes),
        allowed=np.array([may[p] for p in checkpoints]),
        load=load,
        of=np.array([partitions.index(p) for p in checkpoints]),
        apart=(not_together | not_together.T) & ~np.eye(len(checkpoints), dtype=np.bool_),
        delta=delta,
    )


def _may(
    partition: PartitionId, running: Running, nodes: Mapping[NodeId, Place], shares: SharesOfX | None
) -> list[bool]:
    """Per node, whether a checkpoint may lie there."""
    hosts = running.get(partition, ())
    able = [n for n in nodes if n not in hosts]
    if shares is not None:
        able = [n for n in able if shares.refused(running, partition, n) is None]
    shared = {n: _shared(n, hosts, nodes) for n in able}
    least = min(shared.values(), default=())
    return [shared.get(n) == least for n in nodes]


def _divide(
    partition: PartitionId, others: Sequence[PartitionId], running: Running, nodes: Sequence[NodeId], shares: SharesOfX
) -> list[PartitionId]:
    """Others that with this one make a share of X too short on some node, and neither does alone."""
    found = []
    for other in shares.neighbours(partition) & set(others):
        for node in nodes:
            beside = {**running, other: (*running.get(other, ()), node)}
            if not shares.refused(running, partition, node) and shares.refused(beside, partition, node):
                found.append(other)
                break
    return found


def _shared(node: NodeId, hosts: Collection[NodeId], nodes: Mapping[NodeId, Place]) -> tuple[int, ...]:
    """How many hosts are in a node's domain, the widest domain first."""

    def domain(of: NodeId, level: str) -> str:
        return nodes[of].domains.get(level, of) if of in nodes else of

    return tuple(sum(domain(node, level) == domain(h, level) for h in hosts) for level in reversed(LEVELS))
