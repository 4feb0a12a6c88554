"""Quality of the tentative results of a plan: information loss, output fidelity, internal completeness.

Computed with the *remaining* share, 1 − loss: a tiny part of a huge output then still counts.  Many plans are
evaluated at once: arrays have a row per plan, a column per task.  (PPA section III, equations 1 to 4.)
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from replicas.planning.topology import Bools, Floats, Ints, PlannedOperator, StreamEdge, Topology

#: Maximum number of cells of an array.
_CELLS = 2_000_000


def losses(topology: Topology, alive: Bools) -> Floats:
    """Returns information loss of each task's output, 0 to 1.  ``alive``: [plans, tasks]; so is the result."""
    there = _Outputs(topology)
    there.update({at: alive[:, o.range] for at, o in enumerate(topology.operators)})
    parts = [np.broadcast_to(there.of(at), (len(alive), o.tasks)) for at, o in enumerate(topology.operators)]
    return np.asarray(1 - np.hstack(parts))


def fidelity(topology: Topology, alive: Bools) -> Floats:
    """Returns OF of each row: the remaining share of the sinks' output, by their weights (equation 4)."""
    there = _Outputs(topology)
    there.update({at: alive[:, o.range] for at, o in enumerate(topology.operators)})
    return np.asarray(np.broadcast_to(there.value(), len(alive)))


def completeness(topology: Topology, alive: Bools) -> Floats:
    """Returns IC of each row (Bellavista et al., EDBT 2014): the share of all tasks' work done, ignoring joins."""
    there = _Outputs(topology, joins=False)
    there.update({at: alive[:, o.range] for at, o in enumerate(topology.operators)})
    done, total = np.zeros(len(alive)), 0.0
    for at, operator in enumerate(topology.operators):
        load = operator.rate if not operator.inputs else np.sum([s.load for s in operator.inputs], axis=0)
        done += there.of(at) @ load
        total += float(load.sum())
    return done / total


class Running:
    """The fidelity of a growing plan: a change of a few tasks is evaluated only downstream of them.

    Args:
      alive: per task; by the plan and the failure.
    """

    def __init__(self, topology: Topology, alive: Bools) -> None:
        self._topology = topology
        self.alive = alive.copy()
        self._there = _Outputs(topology)
        self._there.update({at: self.alive[None, o.range] for at, o in enumerate(topology.operators)})
        self.value = float(self._there.value()[0])

    def means(self) -> list[float]:
        """Per operator, the remaining share of its output."""
        return [float(self._there.mean[at][0]) for at in range(len(self._topology.operators))]

    def fed(self) -> Bools:
        """Per task: it lives and gives output."""
        return np.asarray(np.concatenate([self._there.of(at)[0] > 0 for at in range(len(self._topology.operators))]))

    def set(self, tasks: Sequence[int] | Ints, alive: bool = True) -> None:
        """Adds or removes tasks permanently."""
        changed = np.asarray(tasks, np.int64)
        self.alive[changed] = alive
        operators = self._topology.operators
        touched = np.unique(self._topology.operator_of[changed]).tolist()
        self._there.update({at: self.alive[None, operators[at].range] for at in touched})
        self.value = float(self._there.value()[0])

    def values(self, changes: Sequence[Sequence[int] | Ints], alive: bool = True) -> Floats:
        """Returns OF after each of several changes on its own; nothing is changed."""
        values = np.empty(len(changes))
        groups: dict[tuple[int, ...], list[int]] = {}
        for at, tasks in enumerate(changes):
            touched = sorted(set(self._topology.operator_of[np.asarray(tasks, np.int64)].tolist()))
            groups.setdefault(tuple(touched), []).append(at)
        for operators, members in groups.items():
            columns = sum(self._topology.operators[o].tasks for o in operators)
            size = max(1, _CELLS // max(1, columns))
            for first in range(0, len(members), size):
                some = members[first : first + size]
                there = self._there.copy()
                there.update(self._changed(operators, [changes[m] for m in some], alive))
                values[some] = there.value()
        return values

    def _changed(
        self, operators: Sequence[int], changes: Sequence[Sequence[int] | Ints], alive: bool
    ) -> dict[int, Bools]:
        """Returns, by operator, the living tasks after each of several changes."""
        rows = np.repeat(np.arange(len(changes)), [len(c) for c in changes])
        tasks = np.concatenate([np.asarray(c, np.int64) for c in changes])
        operator_of = self._topology.operator_of[tasks]
        alive_by_operator = {}
        for at in operators:
            operator = self._topology.operators[at]
            living = np.repeat(self.alive[None, operator.range], len(changes), axis=0)
            living[rows[operator_of == at], tasks[operator_of == at] - operator.first] = alive
            alive_by_operator[at] = living
        return alive_by_operator


class _Outputs:
    """The remaining share of each operator's output, a row per plan; one row where all plans have the same.

    An operator whose inputs are all fully partitioned gives the same share of each living task's output: that *factor*
    and the living tasks determine it, and single tasks are computed only on demand.
    """

    def __init__(self, topology: Topology, *, joins: bool = True) -> None:
        self._topology = topology
        self._joins = joins
        self._factor: dict[int, Floats] = {}  # [plans, 1], or [plans, tasks]
        self._alive: dict[int, Bools] = {}  # [plans, tasks]
        self.mean: dict[int, Floats] = {}  # [plans]: of the operator's whole output

    def copy(self) -> _Outputs:
        """Returns an independent copy."""
        other = _Outputs(self._topology, joins=self._joins)
        other._factor, other._alive, other.mean = dict(self._factor), dict(self._alive), dict(self.mean)
        return other

    def of(self, operator: int) -> Floats:
        """Returns the shares of an operator's tasks: [plans, tasks], or one row."""
        return np.asarray(self._factor[operator] * self._alive[operator])

    def update(self, alive: Mapping[int, Bools]) -> None:
        """Sets the living tasks by operator; everything downstream follows."""
        self._alive.update(alive)
        changed = set(alive)
        for at, operator in enumerate(self._topology.operators):
            if at in alive or any(s.upstream in changed for s in operator.inputs):
                changed.add(at)
                self._factor[at] = self._of_inputs(operator)
                self.mean[at] = self._mean_of(at)

    def value(self) -> Floats:
        """Returns OF, [plans], or one."""
        parts = [worth * self.mean[at] for at, worth in self._topology.goal.items()]
        return np.asarray(np.clip(sum(parts), 0.0, 1.0))

    def _mean_of(self, at: int) -> Floats:
        operator, factor = self._topology.operators[at], self._factor[at]
        if factor.shape[1] == 1:
            return np.asarray(factor[:, 0] * (self._alive[at] @ operator.part))
        return np.asarray(self.of(at) @ operator.part)

    def _of_inputs(self, operator: PlannedOperator) -> Floats:
        """Applies rules 2 and 3: the output of living tasks from the remaining share of their inputs."""
        if not operator.inputs:
            return np.ones((1, 1))
        inputs = [self._received(s) for s in operator.inputs]
        if len(inputs) == 1:
            return inputs[0]
        if self._joins and operator.correlated:
            return functools.reduce(np.multiply, inputs)
        return functools.reduce(np.add, [i * part for i, part in zip(inputs, operator.input_parts, strict=True)])

    def _received(self, stream: StreamEdge) -> Floats:
        """Returns [plans, tasks], or [plans, 1] where all get the same (rule 1); a task without input loses nothing."""
        if stream.same:
            return self.mean[stream.upstream][:, None] if stream.sent.sum() > 0 else np.ones((1, 1))
        sent = self.of(stream.upstream)[:, stream.source] * stream.rate
        load = stream.load
        there = np.add.reduceat(sent, stream.starts, axis=1)
        return np.divide(there, load, out=np.ones_like(there), where=load > 0)


def as_masks(plans: Iterable[Iterable[int]], tasks: int) -> Bools:
    """Returns a row per set of tasks."""
    rows = [np.fromiter(plan, np.int64) for plan in plans]
    masks = np.zeros((len(rows), tasks), np.bool_)
    for at, row in enumerate(rows):
        masks[at, row] = True
    return masks
