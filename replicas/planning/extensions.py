"""Finds the tasks to add to a plan so that a certain task takes part in a complete tree."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from replicas.planning.search import PlanningProblem
from replicas.planning.topology import Bools, Floats, Ints, PlannedOperator, StreamEdge

_NEVER = np.inf


class Extensions:
    """Cheapest paths from each task up to sources and down to a sink, while a failure lasts.

    ``fed`` tasks are preferred, then those cheap to complete, then those with the highest rate.  Costs of paths are
    those of the beginning: a path through tasks added since is found because they are fed.

    Args:
      failed: per task.
    """

    def __init__(self, problem: PlanningProblem, failed: Bools) -> None:
        self._topology = problem.topology
        self._failed = failed
        self._cost = np.where(failed, problem.cost, 0.0)
        #: Per task: it lives and gives output.
        self.fed: Bools = np.zeros(self._topology.tasks, np.bool_)

    def through(self, task: int) -> Ints:
        """Returns the tasks to add, ascending; without those that live anyway."""
        wanted: set[int] = set()
        self._upwards(task, wanted)
        at = task
        while (below := self._receiver(at)) is not None:
            self._upwards(below, wanted)
            at = below
        return np.array(sorted(t for t in wanted if self._failed[t]), np.int64)

    def _upwards(self, task: int, wanted: set[int]) -> None:
        """Adds a task with its needs upstream: a branch in each input if it correlates them, else in one."""
        waiting = [task]
        while waiting:
            task_ = waiting.pop()
            if task_ in wanted or self.fed[task_]:
                continue
            wanted.add(task_)
            operator = self._topology.operators[int(self._topology.operator_of[task_])]
            best = [self._sender(operator, number, task_) for number in range(len(operator.inputs))]
            if operator.correlated:
                waiting += [sender for sender in best if sender is not None]
            elif senders := [s for s in best if s is not None]:
                waiting.append(min(senders, key=lambda s: (s not in wanted, *self._up_key(s))))

    def _sender(self, operator: PlannedOperator, number: int, task: int) -> int | None:
        """Returns the cheapest sender of an input; None: it has no input there."""
        stream = operator.inputs[number]
        if stream.same:
            order = self._up_order[stream.upstream]
            sender = order[int(np.argmax(self.fed[order]))] if len(order) else None  # the first task if none is fed
            return None if sender is None else int(sender)
        return min(self._senders[task][number], key=self._up_key, default=None)

    def _up_key(self, task: int) -> tuple[bool, float, float, int]:
        return (not self.fed[task], float(self._up[task]), -float(self._rate[task]), task)

    def _receiver(self, task: int) -> int | None:
        """Returns the next task to feed on the way down; None: this is a sink."""
        if int(self._topology.operator_of[task]) in self._topology.goal:
            return None
        near: list[int] = list(self._receivers[task])
        for operator in self._full_readers[int(self._topology.operator_of[task])]:
            order = self._down_order[operator]
            near.append(int(order[int(np.argmax(self.fed[order]))]))
        return min(near, key=lambda t: (not self.fed[t], self._down[t], -self._rate[t], t), default=None)

    @cached_property
    def _rate(self) -> Floats:
        return np.concatenate([o.rate for o in self._topology.operators])

    @cached_property
    def _up(self) -> Floats:
        """Per task, cost of a tree up to the sources, itself included, with nothing fed."""
        costs = self._cost.copy()
        for operator in self._topology.operators:
            if not operator.inputs:
                costs[operator.range][operator.rate <= 0] = _NEVER
                continue
            best = [self._cheapest(operator, stream, costs) for stream in operator.inputs]
            costs[operator.range] += np.sum(best, axis=0) if operator.correlated else np.min(best, axis=0)
        return costs

    def _cheapest(self, operator: PlannedOperator, stream: StreamEdge, up: Floats) -> Floats:
        before = up[self._topology.operators[stream.upstream].range]
        if stream.same:
            return np.full(operator.tasks, before.min())
        return np.asarray(np.minimum.reduceat(before[stream.source], stream.starts))

    @cached_property
    def _down(self) -> Floats:
        """Per task, cost of a path down to a sink, itself with its branches included."""
        costs = np.full(self._topology.tasks, _NEVER)
        for at in reversed(range(len(self._topology.operators))):
            operator = self._topology.operators[at]
            beyond = np.full(operator.tasks, 0.0 if at in self._topology.goal else _NEVER)
            for reader in self._topology.operators[at + 1 :]:
                for stream in reader.inputs:
                    if stream.upstream != at:
                        continue
                    after = costs[reader.range]
                    if stream.same:
                        beyond = np.minimum(beyond, after.min())
                    else:
                        np.minimum.at(beyond, stream.source, after[stream.target])
            costs[operator.range] = beyond + self._up[operator.range]
        return costs

    @cached_property
    def _up_order(self) -> list[Ints]:
        """Per operator, its tasks, the cheapest first."""
        return [self._ordered(operator, self._up) for operator in self._topology.operators]

    @cached_property
    def _down_order(self) -> list[Ints]:
        return [self._ordered(operator, self._down) for operator in self._topology.operators]

    def _ordered(self, operator: PlannedOperator, costs: Floats) -> Ints:
        tasks = np.arange(operator.first, operator.first + operator.tasks)
        return np.asarray(tasks[np.lexsort((tasks, -self._rate[operator.range], costs[operator.range]))])

    @cached_property
    def _full_readers(self) -> list[list[int]]:
        """Per operator, its fully partitioned readers."""
        readers: list[list[int]] = [[] for _ in self._topology.operators]
        for at, operator in enumerate(self._topology.operators):
            for stream in operator.inputs:
                if stream.same:
                    readers[stream.upstream].append(at)
        return readers

    @cached_property
    def _senders(self) -> list[list[list[int]]]:
        """Per task and input, its senders; empty where partitioning is full."""
        senders: list[list[list[int]]] = [
            [[] for _ in o.inputs] for o in self._topology.operators for _ in range(o.tasks)
        ]
        for source, target, number in self._substreams():
            senders[target][number].append(source)
        return senders

    @cached_property
    def _receivers(self) -> list[list[int]]:
        """Per task, its receivers; empty where partitioning is full."""
        receivers: list[list[int]] = [[] for _ in range(self._topology.tasks)]
        for source, target, _ in self._substreams():
            receivers[source].append(target)
        return receivers

    def _substreams(self) -> list[tuple[int, int, int]]:
        """(sender, receiver, number of the receiver's input)"""
        return [
            (source, target, number)
            for operator in self._topology.operators
            for number, stream in enumerate(operator.inputs)
            if not stream.same
            for source, target, rate in zip(
                (stream.source + self._topology.operators[stream.upstream].first).tolist(),
                (stream.target + operator.first).tolist(),
                stream.rate.tolist(),
                strict=True,
            )
            if rate > 0
        ]
