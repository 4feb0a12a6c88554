"""The structure-aware planner (PPA algorithms 3 to 5): grows a plan by what gives most for its cost.

Operators that are joined by other than full partitioning form a *part*: inside it what belongs together follows the
streams.  Between parts partitioning is full, so that a living task of one part serves all of the next, and parts are
chosen for independently.  An *extension* is a set of tasks that completes a tree inside a part; the first plan takes
one from every part, later steps the densest (value per cost) of all.

Different from the paper: an extension is found from each task along the streams, by the largest share and the fewest
new tasks, where algorithm 3 lists the segments of each unit and connects them; values are asked again only for
extensions that share a task with what was added, and for those that come out on top.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from functools import cached_property

import numpy as np

from replicas.planning.search import Growing, Plan, Problem
from replicas.planning.topology import Ints, Topology

_LITTLE = 1e-12


def structure_aware(problem: Problem) -> Plan:
    """See the module."""
    growing = problem.start()
    extensions = _Extensions(problem)
    if (first := _first(problem, extensions)) is not None:
        growing.add(first)
        _grow(problem, growing, extensions)
    return Plan.of("structure-aware", problem, growing.plan)


def parts_of(topology: Topology) -> list[list[int]]:
    """Operators in parts, each in topological order: full partitioning lies between parts only."""
    part = list(range(len(topology.operators)))

    def root(at: int) -> int:
        while part[at] != at:
            at = part[at]
        return at

    for at, operator in enumerate(topology.operators):
        for stream in operator.inputs:
            single = min(operator.tasks, topology.operators[stream.upstream].tasks) == 1
            if not stream.same or single:
                part[root(stream.upstream)] = root(at)
    found: dict[int, list[int]] = {}
    for at in range(len(part)):
        found.setdefault(root(at), []).append(at)
    return list(found.values())


class _Extensions:
    """For each task what must be added so that it takes part in a tree of its part."""

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self.topology = problem.topology
        self.parts = parts_of(self.topology)
        part_of = {operator: at for at, part in enumerate(self.parts) for operator in part}
        self._part = np.array([part_of[o] for o in self.topology.operator_of.tolist()])

    def through(self, task: int, plan: np.ndarray) -> Ints:
        """Tasks that are new to a plan, with which ``task`` completes a tree of its part."""
        wanted: set[int] = set()
        self._upwards(task, plan, wanted)
        at = task
        while below := self._receivers[at]:
            at = min(below, key=lambda pair: (not plan[pair[0]], -pair[1], pair[0]))[0]
            self._upwards(at, plan, wanted)
        new = [t for t in wanted if not plan[t] and self.topology.fails[t]]
        return np.array(sorted(new), np.int64)

    def _upwards(self, task: int, plan: np.ndarray, wanted: set[int]) -> None:
        """A task with what it needs before it: a branch in each input if it correlates them, else in one."""
        waiting = [task]
        while waiting:
            one = waiting.pop()
            if one in wanted:
                continue
            wanted.add(one)
            streams = self._senders[one]
            operator = self.topology.operators[int(self.topology.operator_of[one])]
            if not operator.correlated and streams:
                pairs = [pair for stream in streams for pair in stream]
                if len(streams) < len(operator.inputs) and not any(p[0] in wanted or plan[p[0]] for p in pairs):
                    continue  # what comes from another part will do
                streams = [pairs]
            for stream in streams:
                if any(source in wanted for source, _ in stream):
                    continue
                waiting.append(min(stream, key=lambda pair: (not plan[pair[0]], -pair[1], pair[0]))[0])

    @cached_property
    def _senders(self) -> list[list[list[tuple[int, float]]]]:
        """Per task and input stream from the same part, (sender, rate)."""
        found: list[list[list[tuple[int, float]]]] = [[] for _ in range(self.topology.tasks)]
        for source, target, rate, stream in self._substreams():
            lists = found[target]
            while len(lists) <= stream:
                lists.append([])
            lists[stream].append((source, rate))
        return [[pairs for pairs in lists if pairs] for lists in found]

    @cached_property
    def _receivers(self) -> list[list[tuple[int, float]]]:
        """Per task, (receiver in the same part, rate)."""
        found: list[list[tuple[int, float]]] = [[] for _ in range(self.topology.tasks)]
        for source, target, rate, _ in self._substreams():
            found[source].append((target, rate))
        return found

    def _substreams(self) -> Iterable[tuple[int, int, float, int]]:
        for operator in self.topology.operators:
            for number, stream in enumerate(operator.inputs):
                first = self.topology.operators[stream.upstream].first
                if self._part[first] != self._part[operator.first]:
                    continue
                for source, target, rate in zip(
                    (stream.source + first).tolist(), (stream.target + operator.first).tolist(), stream.rate.tolist()
                ):
                    if rate > 0:
                        yield source, target, rate, number

    def tasks_of(self, part: int) -> Ints:
        return np.flatnonzero(self._part == part)


def _first(problem: Problem, extensions: _Extensions) -> Ints | None:
    """An extension of every part: the best ones that the budget pays for together; None: it pays for no tree."""
    topology = problem.topology
    nothing = np.zeros(topology.tasks, np.bool_)
    chosen: list[list[tuple[float, float, Ints]]] = []
    for part in range(len(extensions.parts)):
        tasks = extensions.tasks_of(part)
        options = _unique([extensions.through(task, nothing) for task in tasks.tolist()])
        others = np.ones(topology.tasks, np.bool_)
        others[tasks] = ~topology.fails[tasks]
        values = Growing(Problem(topology, 0), others).with_each(options)
        chosen.append(_frontier(options, values, problem))
    at = [len(frontier) - 1 for frontier in chosen]
    while sum(f[i][0] for f, i in zip(chosen, at, strict=True)) > problem.budget:
        cheaper = [p for p, i in enumerate(at) if i > 0]
        if not cheaper:
            return None
        part = min(cheaper, key=lambda p: _regret(chosen[p][at[p]], chosen[p][at[p] - 1]))
        at[part] -= 1
    return np.unique(np.concatenate([f[i][2] for f, i in zip(chosen, at, strict=True)]))


def _frontier(options: Sequence[Ints], values: np.ndarray, problem: Problem) -> list[tuple[float, float, Ints]]:
    """(cost, value, tasks) of those that no other is cheaper and better than, by cost."""
    costs = [float(problem.cost[tasks].sum()) for tasks in options]
    found: list[tuple[float, float, Ints]] = []
    for at in sorted(range(len(options)), key=lambda i: (costs[i], -values[i])):
        if not found or values[at] > found[-1][1] + _LITTLE:
            found.append((costs[at], float(values[at]), options[at]))
    return found


def _regret(now: tuple[float, float, Ints], then: tuple[float, float, Ints]) -> float:
    """Value lost per cost saved."""
    return (now[1] - then[1]) / (now[0] - then[0])


def _grow(problem: Problem, growing: Growing, extensions: _Extensions) -> None:
    """Adds the densest extension until none fits, or none gives anything."""
    open_tasks = [t for t in problem.candidates.tolist() if not growing.plan[t]]
    wants: dict[int, Ints] = {}
    holders: dict[int, set[int]] = {}
    version = dict.fromkeys(open_tasks, 0)
    heap: list[tuple[float, int, int]] = []

    def ask(tasks: list[int]) -> None:
        for task in tasks:
            for other in wants.get(task, np.empty(0, np.int64)).tolist():
                holders[other].discard(task)
            wants[task] = extensions.through(task, growing.plan)
            for other in wants[task].tolist():
                holders.setdefault(other, set()).add(task)
            version[task] += 1
        push(tasks)

    def push(tasks: list[int]) -> None:
        if not tasks:
            return
        different = {tuple(wants[t].tolist()): t for t in tasks}
        found = growing.with_each([wants[t] for t in different.values()])
        values, now = dict(zip(different, found.tolist(), strict=True)), growing.value
        for task in tasks:
            value = values[tuple(wants[task].tolist())]
            cost = float(problem.cost[wants[task]].sum())
            heapq.heappush(heap, (-(float(value) - now) / cost, task, version[task]))

    ask(open_tasks)
    while heap:
        density, task, asked = heapq.heappop(heap)
        if growing.plan[task] or asked != version[task]:
            continue
        if float(problem.cost[wants[task]].sum()) > growing.left + _LITTLE:
            continue
        version[task] += 1
        (value,) = growing.with_each([wants[task]])
        fresh = -(float(value) - growing.value) / float(problem.cost[wants[task]].sum())
        if fresh >= -_LITTLE:
            continue
        if heap and fresh > heap[0][0] + _LITTLE and fresh > density + _LITTLE:
            heapq.heappush(heap, (fresh, task, version[task]))
            continue
        added = wants[task]
        growing.add(added)
        ask(sorted({h for t in added.tolist() for h in holders.get(t, ()) if not growing.plan[h]}))


def _unique(options: Iterable[Ints]) -> list[Ints]:
    return list({tuple(tasks.tolist()): tasks for tasks in options}.values())
