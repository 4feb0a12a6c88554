"""How good the tentative results of a plan are: information loss, output fidelity, internal completeness.

Many plans are evaluated at once: arrays have a row per plan, a column per task.  (PPA section III, equations 1 to 4.)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from replicas.planning.topology import Bools, Floats, Ints, Operator, Stream, Topology

#: Cells of the largest array that is made at a time.
_CELLS = 4_000_000


def losses(topology: Topology, alive: Bools) -> Floats:
    """Information loss of each task's output, 0 to 1.  ``alive``: [plans, tasks]; so is the result."""
    loss = np.ones(alive.shape)
    for operator in topology.operators:
        loss[:, operator.range] = _loss(topology, operator, loss, alive[:, operator.range], correlated=True)
    return loss


def fidelity(topology: Topology, alive: Bools) -> Floats:
    """OF of each row: the share of the sinks' output that is there, by their weights (equation 4)."""
    return _of_sinks(topology, losses(topology, alive))


def completeness(topology: Topology, alive: Bools) -> Floats:
    """IC of each row (Bellavista et al., EDBT 2014): the share of all tasks' work that is done, joins not respected."""
    loss = np.ones(alive.shape)
    done, total = np.zeros(len(alive)), 0.0
    for operator in topology.operators:
        mine = alive[:, operator.range]
        loss[:, operator.range] = _loss(topology, operator, loss, mine, correlated=False)
        load = sum((_load(operator, s) for s in operator.inputs), np.zeros(operator.tasks))
        if not operator.inputs:
            load = operator.rate
        done += ((1 - loss[:, operator.range]) * load).sum(axis=1)
        total += float(np.sum(load))
    return done / total


class Running:
    """The fidelity of a plan that grows: what is asked about a few tasks looks only at what lies downstream of them.

    Args:
      alive: per task; what the plan and the failure leave.
    """

    def __init__(self, topology: Topology, alive: Bools) -> None:
        self._topology = topology
        self.alive = alive.copy()
        self._loss = losses(topology, alive[None, :])
        self.value = float(_of_sinks(topology, self._loss)[0])

    def set(self, tasks: Sequence[int] | Ints, alive: bool = True) -> None:
        """Tasks come or go for good."""
        self.alive[np.asarray(tasks, np.int64)] = alive
        (self.value,), self._loss = self._changed([tasks], alive)

    def values(self, changes: Sequence[Sequence[int] | Ints], alive: bool = True) -> Floats:
        """OF for each of several changes on its own; nothing is changed."""
        found = np.empty(len(changes))
        groups: dict[frozenset[int], list[int]] = {}
        for at, tasks in enumerate(changes):
            touched = frozenset(self._topology.operator_of[np.asarray(tasks, np.int64)].tolist())
            groups.setdefault(touched, []).append(at)
        size = max(1, _CELLS // self._topology.tasks)
        for members in groups.values():
            for first in range(0, len(members), size):
                some = members[first : first + size]
                found[some], _ = self._changed([changes[m] for m in some], alive)
        return found

    def _changed(self, changes: Sequence[Sequence[int] | Ints], alive: bool) -> tuple[Floats, Floats]:
        topology = self._topology
        rows = np.repeat(np.arange(len(changes)), [len(c) for c in changes])
        tasks = np.concatenate([np.asarray(c, np.int64) for c in changes]) if len(rows) else np.empty(0, np.int64)
        touched = topology.downstream[np.unique(topology.operator_of[tasks])].any(axis=0)
        living = np.repeat(self.alive[None, :], len(changes), axis=0)
        living[rows, tasks] = alive
        loss = np.repeat(self._loss, len(changes), axis=0)
        for at, operator in enumerate(topology.operators):
            if touched[at]:
                loss[:, operator.range] = _loss(topology, operator, loss, living[:, operator.range], correlated=True)
        return _of_sinks(topology, loss), loss


def _loss(topology: Topology, operator: Operator, loss: Floats, alive: Bools, *, correlated: bool) -> Floats:
    """Rules 2 and 3: of the output of an operator's tasks, from the losses of what they read."""
    if not operator.inputs:
        return np.where(alive, 0.0, 1.0)
    if correlated and operator.correlated:
        there = np.ones(alive.shape)
        for stream in operator.inputs:
            lost, rate = _received(topology, operator, stream, loss)
            there *= 1 - lost / _positive(rate)
        return np.where(alive, 1 - there, 1.0)
    lost, total = np.zeros(alive.shape), np.zeros(operator.tasks)
    for stream in operator.inputs:
        more, rate = _received(topology, operator, stream, loss)
        lost += more
        total += rate
    return np.where(alive, lost / _positive(total), 1.0)


def _received(topology: Topology, operator: Operator, stream: Stream, loss: Floats) -> tuple[Floats, Floats]:
    """(Σ λ·IL, Σ λ) of an input stream of each task (rule 1)."""
    sender = topology.operators[stream.upstream]
    sent = loss[:, sender.range]
    total = _load(operator, stream)
    if stream.same:
        mean = sent @ (sender.rate / _positive(sender.rate.sum()))
        return mean[:, None] * total, total
    starts = np.flatnonzero(np.r_[True, np.diff(stream.target) > 0])
    lost = np.zeros((len(loss), operator.tasks))
    lost[:, stream.target[starts]] = np.add.reduceat(sent[:, stream.source] * stream.rate, starts, axis=1)
    return lost, total


def _load(operator: Operator, stream: Stream) -> Floats:
    """Per task of the receiver, tuples per second of one input stream."""
    return np.asarray(np.bincount(stream.target, stream.rate, operator.tasks), np.float64)


def _positive(rate: Floats) -> Floats:
    """Rates to divide by: what has no input loses nothing."""
    return np.where(rate > 0, rate, 1.0)


def _of_sinks(topology: Topology, loss: Floats) -> Floats:
    weights = sum(o.weight for o in topology.sinks if o.rate.sum())
    found = np.zeros(len(loss))
    for sink in topology.sinks:
        total = sink.rate.sum()
        if total:
            found += sink.weight / weights * (1 - loss[:, sink.range] @ sink.rate / total)
    return np.clip(found, 0.0, 1.0)


def as_masks(plans: Iterable[Iterable[int]], tasks: int) -> Bools:
    """A row per set of tasks."""
    rows = [np.fromiter(plan, np.int64) for plan in plans]
    masks = np.zeros((len(rows), tasks), np.bool_)
    for at, row in enumerate(rows):
        masks[at, row] = True
    return masks
