"""The structure-aware planner (PPA algorithms 3 to 5): grows a plan by the most valuable extension for its cost.

An *extension* is a set of tasks that completes a tree through a certain task: upwards a branch for each required
input, downwards a path to a sink, through living tasks wherever possible (``extensions``).  The densest
extension (fidelity gained per cost) is added until the budget is used or nothing helps.

Different from the paper: algorithm 3 lists the segments of each unit and connects them; here an extension is found
from each task along the streams.  That treats structured, full and mixed topologies alike, and so needs no cutting into
sub-topologies.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import Final

import numpy as np

from replicas.planning.extensions import Extensions
from replicas.planning.search import Growing, PlanningProblem, ReplicationPlan
from replicas.planning.topology import Ints

_LITTLE: Final = 1e-9
#: Growth of the value after which kinds are compared again.
_GROWN: Final = 1.01
#: A failure, by number, and a task that it takes away.
_Want = tuple[int, int]
#: A failure, and operators.
_Kind = tuple[int, tuple[int, ...]]


def structure_aware(problem: PlanningProblem) -> ReplicationPlan:
    """Returns the plan."""
    plan = np.zeros(problem.topology.tasks, np.bool_)
    for tasks in growth(problem):
        plan[tasks] = True
    return ReplicationPlan.of("structure-aware", problem, plan)


def growth(problem: PlanningProblem) -> Iterator[Ints]:
    """Yields the tasks of each extension that are not in an earlier one, in the order in which they are added."""
    finders = [Extensions(problem, failed) for failed in problem.failed]
    wanted = [(k, t) for k, failed in enumerate(problem.failed) for t in problem.candidates.tolist() if failed[t]]
    return _Growth(problem, problem.start(), finders).run(wanted)


class _Growth:
    """Extensions by density, in a heap for each *kind*: those of the same failure that touch the same operators.

    An addition to one part of a topology raises the value of every extension of another part, by the same factor within
    a kind.  So a heap holds densities without that factor, which is measured again on the best of the kind.
    """

    def __init__(self, problem: PlanningProblem, growing: Growing, finders: list[Extensions]) -> None:
        self._problem = problem
        self._growing = growing
        self._finders = finders
        self._extension: dict[_Want, Ints] = {}
        self._cost: dict[_Want, float] = {}
        self._holders: dict[int, set[_Want]] = {}
        self._version: dict[_Want, int] = {}
        self._heaps: dict[_Kind, list[tuple[float, _Want, int]]] = {}
        self._factor: dict[_Kind, float] = {}
        #: Per kind, density of its best extension at the last evaluation.
        self._best: dict[_Kind, float] = {}

    def run(self, wanted: list[_Want]) -> Iterator[Ints]:
        self._ask(wanted)
        asked_at = -1.0
        while True:
            if self._growing.value > asked_at * _GROWN:
                asked_at = self._growing.value
                for kind in self._heaps:
                    self._refresh(kind)
            if not self._best:
                return
            kind = max(self._best, key=self._best.__getitem__)
            if self._cost[self._heaps[kind][0][1]] > self._growing.left + _LITTLE:
                self._refresh(kind)  # others have used up its budget
                continue
            _, want, _ = heapq.heappop(self._heaps[kind])
            added = self._extension[want]
            added = added[~self._growing.plan[added]]
            for touched in {kind, *self._add(self._extension[want])}:
                self._refresh(touched)
            yield added

    def _refresh(self, kind: _Kind) -> None:
        """Puts the best extension within the budget on top of a heap."""
        heap = self._heaps[kind]
        self._best.pop(kind, None)
        while heap:
            stored, want, version = heap[0]
            fresh = 0.0
            if version == self._version[want] and self._cost[want] <= self._growing.left + _LITTLE:
                (value,) = self._growing.with_each([self._extension[want]])
                gain = float(value) - self._growing.value
                fresh = gain / self._cost[want] if gain > _LITTLE * self._growing.value else 0.0
            if fresh <= 0:
                heapq.heappop(heap)
                continue
            expected = -stored * self._factor[kind]
            if fresh >= expected * (1 - _LITTLE):
                self._factor[kind] *= fresh / expected
            else:
                heapq.heapreplace(heap, (-fresh / self._factor[kind], want, version))
            if heap[0][1] == want:
                self._best[kind] = fresh
                return

    def _add(self, tasks: Ints) -> set[_Kind]:
        """Adds tasks; returns the kinds that have new extensions."""
        self._growing.add(tasks)
        for finder, fed in zip(self._finders, self._growing.fed(), strict=True):
            finder.fed = fed
        touched = {want for task in tasks.tolist() for want in self._holders.get(task, ())}
        gone = {want for want in touched if self._growing.plan[want[1]]}
        for want in gone:
            self._version[want] += 1
        return self._ask(sorted(touched - gone))

    def _ask(self, wanted: list[_Want]) -> set[_Kind]:
        """Finds extensions and their values; the same set of tasks is evaluated once."""
        sets: dict[tuple[int, ...], list[_Want]] = {}
        for want in wanted:
            for task in self._extension.get(want, ()):
                self._holders[int(task)].discard(want)
            tasks = self._extension[want] = self._finders[want[0]].through(want[1])
            self._cost[want] = float(self._problem.cost[tasks].sum())
            self._version[want] = self._version.get(want, 0) + 1
            for task in tasks.tolist():
                self._holders.setdefault(task, set()).add(want)
            if self._cost[want] <= self._growing.left + _LITTLE:
                sets.setdefault(tuple(tasks.tolist()), []).append(want)
        values = self._growing.with_each([self._extension[same[0]] for same in sets.values()])
        kinds = set()
        for same, value in zip(sets.values(), values.tolist(), strict=True):
            gain = value - self._growing.value
            if gain <= 0:
                continue
            operators = np.unique(self._problem.topology.operator_of[self._extension[same[0]]])
            for want in same:
                kind = (want[0], tuple(operators.tolist()))
                density = gain / self._cost[want] / self._factor.setdefault(kind, 1.0)
                heapq.heappush(self._heaps.setdefault(kind, []), (-density, want, self._version[want]))
                kinds.add(kind)
        return kinds
