"""Aggregate functions that users write: a small base class, and the accumulator that runs one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from operators.aggregate.accumulators import Accumulator, Cells
from operators.ids import IndexArray, Int64Array
from spe.stream.batch import Column
from spe.stream.schema import AttributeType


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
        self.kinds = {"states": (np.object_, None)}

    @property
    def _states(self) -> npt.NDArray[np.object_]:
        return self._columns.arrays[self._first]

    def grow(self, old: int, count: int) -> None:
        states = self._states
        for cell in range(old, count):
            states[cell] = self._aggregator.create()

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
        states = self._states
        for cell, part in zip(touched.tolist(), np.split(values, cuts)):
            states[cell] = self._aggregator.add(states[cell], part)

    def absorb(self, other: UserAccumulator, theirs: Cells, mine: IndexArray) -> None:
        states = self._states
        for cell, state in zip(mine.tolist(), other._states[theirs]):
            states[cell] = self._aggregator.merge(states[cell], state)

    def column(self, cells: Cells) -> Column:
        states = self._states[cells]
        results = [self._aggregator.result(s) for s in states]
        try:
            return Column.from_list(results, AttributeType(self._aggregator.returns))
        except (TypeError, ValueError, OverflowError) as error:
            name = type(self._aggregator).__qualname__
            raise TypeError(f"{name}.result returned what is no {self._aggregator.returns}: {error}") from error
