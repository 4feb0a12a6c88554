"""Input of planning: operators, their tasks, and the rates between tasks without failures.

A *task* is a partition of an operator.  Operators come in topological order, and tasks are numbered through in the
order of their operators, so that everything about tasks is one array.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from spe.errors import ConfigError
from spe.plan.plan import Partitioning

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


class TopologyError(ConfigError):
    """Mistakes in a topology.

    Args:
      mistakes: (operator, its mistake); "" for the whole.
    """

    def __init__(self, mistakes: Sequence[tuple[str, str]]) -> None:
        super().__init__([f"{operator}: {message}" if operator else message for operator, message in mistakes])
        self.mistakes = tuple(mistakes)


@dataclass(frozen=True)
class OperatorDescription:
    """The description of an operator.

    Attributes:
      tasks: its parallelism.
      inputs: names of the operators that it reads, each with the partitioning between them.
      correlated: results need all inputs together, as in a join; else each input gives its own results.
      rates: output of each task, tuples per second; required for sources, else it follows from the inputs.
      selectivity: output per input, if rates are not given.
      shares: each task's part of a divided stream; even by default.
      weight: of a sink, against other sinks.
      fails: False for an operator that never fails and needs no replica (a source proxy with its durable log); or one
        value per task.
      output: its results are final; always so without readers.
    """

    name: str
    tasks: int
    inputs: Mapping[str, Partitioning]
    correlated: bool = False
    rates: Sequence[float] | None = None
    selectivity: float = 1.0
    shares: Sequence[float] | None = None
    weight: float = 1.0
    fails: bool | Sequence[bool] = True
    output: bool = False


@dataclass(frozen=True, eq=False)
class StreamEdge:
    """All substreams from one operator to the next.

    Attributes:
      upstream: index of the sending operator.
      sent: per task of the sender, tuples per second.
      shares: per task of the receiver, its part of a divided stream.
    """

    upstream: int
    partitioning: Partitioning
    sent: Floats
    shares: Floats

    @property
    def same(self) -> bool:
        """Does every receiver get the same mixture of all senders?  Then all lose the same."""
        return self.partitioning is Partitioning.FULL

    @cached_property
    def load(self) -> Floats:
        """Per task of the receiver, tuples per second."""
        if self.same:
            return np.asarray(self.sent.sum() * _parts(self.shares))
        return np.asarray(np.bincount(self.target, self.rate, len(self.shares)), np.float64)

    @cached_property
    def starts(self) -> Ints:
        """Start of each receiver in ``source``, ``target`` and ``rate``: all have at least one sender."""
        return np.flatnonzero(np.r_[True, np.diff(self.target) > 0])

    # Per substream, ordered by receiver.  Full partitioning has very many of them: they are computed on demand.

    @cached_property
    def source(self) -> Ints:
        """Task of the sender, counted within its operator."""
        return self._pairs[0]

    @cached_property
    def target(self) -> Ints:
        """Task of the receiver, counted within its operator."""
        return self._pairs[1]

    @cached_property
    def rate(self) -> Floats:
        """Tuples per second."""
        divided = self.partitioning in (Partitioning.FULL, Partitioning.SPLIT)
        weight = self.shares[self.target] if divided else np.ones(len(self.target))
        total = np.bincount(self.source, weight, len(self.sent))[self.source]
        part = np.divide(weight, total, out=np.zeros_like(weight), where=total > 0)
        return np.asarray(self.sent[self.source] * part)

    @cached_property
    def _pairs(self) -> tuple[Ints, Ints]:
        senders, receivers = len(self.sent), len(self.shares)
        if self.same:
            return np.tile(np.arange(senders), receivers), np.repeat(np.arange(receivers), senders)
        if self.partitioning is Partitioning.MERGE:
            return np.arange(senders), np.arange(senders) // (senders // receivers)
        return np.arange(receivers) // (receivers // senders), np.arange(receivers)


@dataclass(frozen=True, eq=False)
class PlannedOperator:
    """An operator with its place among the tasks: ``first`` to ``first + tasks``."""

    name: str
    first: int
    tasks: int
    correlated: bool
    fails: bool | Sequence[bool]
    output: bool
    weight: float
    inputs: tuple[StreamEdge, ...]
    #: Output of each task while nothing has failed, tuples per second.
    rate: Floats

    @property
    def range(self) -> slice:
        return slice(self.first, self.first + self.tasks)

    @cached_property
    def part(self) -> Floats:
        """Part of each task in the operator's whole output."""
        return _parts(self.rate)

    @cached_property
    def input_parts(self) -> list[Floats]:
        """Per input, its part of each task's total input; one number if it is the same for all tasks.

        Without any input, inputs have equal parts.
        """
        same = all(s.same for s in self.inputs)
        loads = np.array([s.sent.sum(keepdims=True) if same else s.load for s in self.inputs])
        total = loads.sum(axis=0)
        return list(np.divide(loads, total, out=np.full_like(loads, 1 / len(loads)), where=total > 0))


class Topology:
    """Operators in topological order.

    Args:
      specs: in any order.

    Raises:
      TopologyError: mistakes of each operator: unknown inputs, a cycle, a partitioning that does not fit
        the parallelism, rates that are missing or nowhere above zero.
    """

    def __init__(self, specs: Sequence[OperatorDescription]) -> None:
        ordered = _in_order(specs)
        index = {spec.name: at for at, spec in enumerate(ordered)}
        self.operators: list[PlannedOperator] = []
        problems: list[tuple[str, str]] = []
        first = 0
        for spec in ordered:
            problems += _misfits(spec, ordered, index)
            if problems:
                continue
            shares = np.ones(spec.tasks) if spec.shares is None else np.asarray(spec.shares, np.float64)
            streams = tuple(
                StreamEdge(index[name], kind, self.operators[index[name]].rate, shares)
                for name, kind in spec.inputs.items()
            )
            self.operators.append(
                PlannedOperator(
                    spec.name,
                    first,
                    spec.tasks,
                    spec.correlated,
                    spec.fails,
                    spec.output,
                    spec.weight,
                    streams,
                    _output(spec, streams),
                )
            )
            first += spec.tasks
        if not problems and not sum(float(o.rate.sum()) * o.weight for o in self.sinks):
            problems.append(("", "no sink has any output: all rates (or weights) are zero"))
        if problems:
            raise TopologyError(problems)

    @property
    def tasks(self) -> int:
        """Number of tasks."""
        last = self.operators[-1]
        return last.first + last.tasks

    @cached_property
    def sinks(self) -> list[PlannedOperator]:
        """Operators that give final results."""
        read = {s.upstream for o in self.operators for s in o.inputs}
        return [o for at, o in enumerate(self.operators) if o.output or at not in read]

    @cached_property
    def goal(self) -> dict[int, float]:
        """The sinks that OF averages, by index, with their parts; 1 together."""
        sinks = [o for o in self.sinks if o.rate.sum() * o.weight > 0]
        weights = sum(o.weight for o in sinks)
        return {int(self.operator_of[o.first]): o.weight / weights for o in sinks}

    @cached_property
    def operator_of(self) -> Ints:
        """Per task, the index of its operator."""
        return np.repeat(np.arange(len(self.operators)), [o.tasks for o in self.operators])

    @cached_property
    def fails(self) -> Bools:
        """Per task, whether it can fail at all."""
        return np.concatenate([np.broadcast_to(o.fails, o.tasks) for o in self.operators])

    @cached_property
    def reads(self) -> Bools:
        """[task, task]; the senders of each task."""
        reads_from = np.zeros((self.tasks, self.tasks), np.bool_)
        for operator in self.operators:
            for stream in operator.inputs:
                before = self.operators[stream.upstream]
                if stream.same:
                    reads_from[operator.range, before.range] = True
                else:
                    reads_from[stream.target + operator.first, stream.source + before.first] = True
        return reads_from

    def name_of(self, task: int) -> str:
        """``operator/partition``."""
        operator = self.operators[int(self.operator_of[task])]
        return f"{operator.name}/{task - operator.first}"


def _in_order(specs: Sequence[OperatorDescription]) -> list[OperatorDescription]:
    by_name = {spec.name: spec for spec in specs}
    if len(by_name) < len(specs):
        names = [s.name for s in specs]
        raise TopologyError(
            [(n, "there are two of this name") for n in sorted({n for n in names if names.count(n) > 1})]
        )
    unknown = [(s.name, f"reads {i!r}, which is no operator") for s in specs for i in s.inputs if i not in by_name]
    if unknown or not specs:
        raise TopologyError(unknown or [("", "a topology has at least one operator")])
    ordered: list[OperatorDescription] = []
    done: set[str] = set()
    while len(ordered) < len(specs):
        ready = [s for s in specs if s.name not in done and done >= s.inputs.keys()]
        if not ready:
            circle = [s.name for s in specs if s.name not in done]
            raise TopologyError([(circle[0], f"the topology has a cycle among {', '.join(circle)}")])
        ordered += ready
        done |= {s.name for s in ready}
    return ordered


def _misfits(
    spec: OperatorDescription, ordered: Sequence[OperatorDescription], index: Mapping[str, int]
) -> list[tuple[str, str]]:
    messages = []
    if spec.tasks < 1:
        messages.append(f"at least one task is needed, got {spec.tasks}")
    if not spec.inputs and spec.rates is None:
        messages.append("reads nothing, so the rates of its tasks must be given")
    for what, values in (("rates", spec.rates), ("shares", spec.shares)):
        if values is not None and (len(values) != spec.tasks or min(values) < 0):
            messages.append(f"{what} must be {spec.tasks} numbers of at least 0, got {list(values)}")
    if spec.weight < 0 or spec.selectivity < 0:
        messages.append(f"weight and selectivity are at least 0, got {spec.weight:g} and {spec.selectivity:g}")
    for name, kind in spec.inputs.items() if not messages else ():
        before = ordered[index[name]].tasks
        fits = {
            Partitioning.ONE_TO_ONE: before == spec.tasks,
            Partitioning.SPLIT: spec.tasks % before == 0,
            Partitioning.MERGE: before % spec.tasks == 0,
            Partitioning.FULL: True,
        }
        if not fits[kind]:
            messages.append(f"{kind} does not fit {before} tasks of {name} and {spec.tasks} here")
    return [(spec.name, message) for message in messages]


def _parts(amounts: Floats) -> Floats:
    """Returns parts of a whole; 0 of an empty one."""
    whole = amounts.sum()
    return np.asarray(amounts / whole if whole > 0 else np.zeros_like(amounts))


def _output(spec: OperatorDescription, streams: Sequence[StreamEdge]) -> Floats:
    """Returns a join's output: 0 if one side is empty (its effective input is a product)."""
    if spec.rates is not None:
        return np.asarray(spec.rates, np.float64)
    received = np.array([s.load for s in streams])
    there = (received > 0).all(axis=0) if spec.correlated else True
    return np.asarray(received.sum(axis=0) * spec.selectivity * there, np.float64)
