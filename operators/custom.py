"""Base classes for operators and aggregates of your own.

Both are named in a query by import path, ``package.module:Class``, and must be importable on every machine that runs
or checks the query.  Whatever they do has to be a function of their input in its order and nothing else: no clock, no
randomness, no ``hash()``, no iteration over sets.  Replicas run the same code on the same rows and must come to the
same bits.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from operators.accumulators import Accumulator, Cells
from operators.ids import IndexArray, Int64Array
from operators.operator import Operator
from spe.batch import Column, Rows
from spe.schema import AttributeType, Schema
from spe.times import BEFORE_TIME


class CustomOperator(Operator):
    """An operator of your own; see ``operators.operator`` for the contract of ``step``.

    A subclass defines ``output_schema`` and ``step``.  One with state also defines ``snapshot`` and ``restore``: the
    snapshot must never change afterwards, so write to copies of what it refers to, and consists of dict, list, tuple,
    int, float, str, bool, None, bytes, NumPy arrays, Column, Rows and StringDictionary.  Undo/redo keeps that snapshot
    unless the subclass defines ``oldest_needed`` and ``clear`` as well, and ``recount`` if it counts something.

    Args:
      inputs: schema of each port.
      arguments: what the query gives under ``arguments``; of your own choosing.
    """

    def __init__(self, inputs: Sequence[Schema], **arguments: Any) -> None:
        self.inputs = tuple(inputs)
        self.schema = self.output_schema(inputs, **arguments)

    @classmethod
    @abstractmethod
    def output_schema(cls, inputs: Sequence[Schema], **arguments: Any) -> Schema:
        """The schema of the output.  Raises ValueError, saying what is wrong with inputs or arguments."""

    def oldest_needed(self) -> int | None:
        return None if type(self).snapshot is Operator.snapshot else BEFORE_TIME


class Aggregator(ABC):
    """An aggregate function of your own, one state per group and window.

    States are plain values (see :class:`CustomOperator`) and are never changed in place: ``add`` and ``merge`` return
    new ones, or the same one when nothing changed.  However rows are cut into calls, the result must be the same:
    ``add(add(s, a), b)`` equals ``add(s, a followed by b)``.  Nulls are left out; a group of nothing but nulls has
    the state that ``create`` returns.
    """

    #: Type of what ``result`` returns (None becomes null), by name or as an AttributeType.
    returns: ClassVar[AttributeType | str]

    @classmethod  # noqa: B027 - any type suits unless a subclass says otherwise
    def check(cls, argument: AttributeType) -> None:
        """Raises ValueError when the argument's type does not suit; any type suits by default."""

    @abstractmethod
    def create(self) -> Any:
        """The state of nothing."""

    @abstractmethod
    def add(self, state: Any, values: npt.NDArray[Any]) -> Any:
        """The state with ``values`` added, in order: int64 (timestamps too), float64, bool, or object for strings."""

    @abstractmethod
    def merge(self, state: Any, later: Any) -> Any:
        """The state of the rows of ``state`` followed by those of ``later`` (sliding windows are put together so)."""

    @abstractmethod
    def result(self, state: Any) -> Any:
        """The aggregate's value, or None for null."""


class UserAccumulator(Accumulator):
    """Runs an :class:`Aggregator`: one call of ``add`` per cell that a batch touches."""

    def __init__(self, aggregator: Aggregator) -> None:
        self._aggregator = aggregator
        self._states: list[Any] = []

    def grow(self, used: int, wanted: int) -> None:
        missing = wanted - len(self._states)
        if missing > 0:
            self._states.extend([self._aggregator.create() for _ in range(missing)])

    def update(self, cells: IndexArray, column: Column, sequence: Int64Array) -> None:
        if not len(cells):
            return
        order = cells.argsort(kind="stable")
        ordered = cells[order]
        cuts = (ordered[1:] != ordered[:-1]).nonzero()[0] + 1
        values: npt.NDArray[Any] = column.values[order]
        if column.dictionary is not None:
            strings = column.dictionary.strings
            texts = np.empty(len(values), np.object_)
            texts[:] = [strings[c] for c in values.tolist()]
            values = texts
        touched = ordered[np.concatenate([[0], cuts])]
        for cell, part in zip(touched.tolist(), np.split(values, cuts)):
            self._states[cell] = self._aggregator.add(self._states[cell], part)

    def absorb(self, other: UserAccumulator, theirs: Cells, mine: IndexArray) -> None:
        states = other._states[theirs] if isinstance(theirs, slice) else [other._states[i] for i in theirs.tolist()]
        for cell, state in zip(mine.tolist(), states):
            self._states[cell] = self._aggregator.merge(self._states[cell], state)

    def column(self, cells: Cells) -> Column:
        states = self._states[cells] if isinstance(cells, slice) else [self._states[i] for i in cells.tolist()]
        results = [self._aggregator.result(s) for s in states]
        try:
            return Column.from_list(results, AttributeType(self._aggregator.returns))
        except (TypeError, ValueError, OverflowError) as error:
            name = type(self._aggregator).__qualname__
            raise TypeError(f"{name}.result returned what is no {self._aggregator.returns}: {error}") from error

    def freeze(self, used: int) -> Mapping[str, Any]:
        return {"states": self._states}

    def thaw(self) -> None:
        self._states = list(self._states)

    def load(self, state: Mapping[str, Any]) -> None:
        self._states = list(state["states"])


class CustomHost(Operator):
    """Runs a :class:`CustomOperator` and refuses output that breaks the contract (whoever runs us names the slice)."""

    def __init__(self, operator: CustomOperator) -> None:
        self._operator = operator
        self._previous = BEFORE_TIME
        self.schema = operator.schema

    def step(self, ports: Sequence[Rows | None], boundary: int) -> Rows | None:
        rows = self._operator.step(ports, boundary)
        if rows is not None:
            _check_kind(rows)
            if len(rows):
                self._check(rows, boundary)
            else:
                rows = None
        self._previous = boundary
        return rows

    def _check(self, rows: Rows, boundary: int) -> None:
        if len(rows.columns) != len(self.schema):
            raise ValueError(f"returned {len(rows.columns)} columns, the schema has {len(self.schema)}")
        for attribute, column in zip(self.schema, rows.columns):
            if len(column) != len(rows) or column.values.dtype != attribute.type.dtype:
                raise ValueError(
                    f"column {attribute.name!r} has {len(column)} values of {column.values.dtype}; expected "
                    f"{len(rows)} of {attribute.type.dtype}"
                )
            if attribute.type is AttributeType.STRING and column.dictionary is None:
                raise ValueError(f"column {attribute.name!r} has no dictionary")
            if not attribute.nullable and column.valid is not None and not column.valid.all():
                raise ValueError(f"column {attribute.name!r} holds nulls, but is declared not null")
        times = rows.time
        if (times[1:] < times[:-1]).any():
            raise ValueError("returned rows are not sorted by time")
        if times[-1] >= boundary or times[0] < self._previous:
            raise ValueError("returned rows lie outside the slice")

    def snapshot(self) -> Mapping[str, Any]:
        return {"previous": self._previous, "operator": self._operator.snapshot()}

    def restore(self, state: Mapping[str, Any]) -> None:
        self._previous = state["previous"]
        self._operator.restore(state["operator"])

    def counters(self) -> Mapping[str, int]:
        return {name: int(n) for name, n in self._operator.counters().items()}  # NumPy's numbers go over no wire

    def oldest_needed(self) -> int | None:
        return self._operator.oldest_needed()

    def clear(self, boundary: int) -> None:
        self._previous = boundary
        self._operator.clear(boundary)

    def recount(self, counters: Mapping[str, int]) -> None:
        self._operator.recount(counters)


def _check_kind(rows: Rows) -> None:
    """Raises TypeError where it is something else, or made of something else; users write this."""
    if not isinstance(rows, Rows):
        raise TypeError(f"returned a {type(rows).__name__}; expected Rows or None")
    times: dict[str, object] = {"time": rows.time, "t_max": rows.t_max}
    for name, value in times.items():
        if not isinstance(value, np.ndarray) or value.dtype != np.int64 or value.ndim != 1:
            raise TypeError(f"Rows.{name} is {_shown(value)}; expected a one-dimensional array of int64")


def _shown(value: object) -> str:
    return f"an array of {value.dtype}" if isinstance(value, np.ndarray) else f"a {type(value).__name__}"
