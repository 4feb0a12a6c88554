"""Aggregate functions that users write: a small base class, and the accumulator that runs one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from operators import steps
from operators.aggregate.accumulators import Accumulator, Cells
from operators.ids import IndexArray, Int64Array
from operators.rejections import NOT_THE_ROWS, Refusals, RejectedRow, reason_of
from operators.steps import Steps, portions
from spe.stream.batch import Column
from spe.stream.schema import AttributeType


class Aggregator(ABC):
    """An aggregate function of your own, one state per group and window.

    States are plain values (see :class:`CustomOperator`) and are never changed in place: ``add`` and ``merge`` return
    new ones, or the same one when nothing changed.  However rows are cut into calls, the result must be the same:
    ``add(add(s, a), b)`` equals ``add(s, a followed by b)``.  Nulls are left out; a group of nothing but nulls has
    the state that ``create`` returns.

    With ``on_error: skip`` a value with which ``add`` raises is left out, as a null is, and whether it does must depend
    on the value alone; where ``merge`` or ``result`` raises there is no result.
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
    """Runs an :class:`Aggregator`: one call of ``add`` per cell that a batch touches.

    Args:
      aggregator: the user's.
      refusals: told of the values that ``add`` does not take (the number of a row is its sequence number); None: what
        is raised goes to the caller.
      name: of the aggregate, for people.

    Attributes:
      failed: of the cells that :meth:`column` was asked for last, the places of those without a result, and why.
    """

    def __init__(self, aggregator: Aggregator, refusals: Refusals | None = None, name: str = "") -> None:
        self._aggregator = aggregator
        self._refusals = refusals
        self._name = name
        self.kinds = {"states": (np.object_, None)}
        self.needs_sequence = refusals is not None
        self.failed: dict[int, str] = {}

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
        at = 0
        for cell, part in zip(touched.tolist(), np.split(values, cuts)):
            if self._refusals is None:
                states[cell] = self._aggregator.add(states[cell], part)
            else:
                states[cell], refused = added(self._aggregator, states[cell], part)
                for row, reason in refused.items():
                    number = int(sequence[order[at + row]])
                    self._refusals.rows.append(RejectedRow(0, number, f"{self._name}: {reason}"))
            at += len(part)

    def absorb(self, other: UserAccumulator, theirs: Cells, mine: IndexArray) -> None:
        states = self._states
        merge = self._aggregator.merge if self._refusals is None else self._merged
        for cell, state in zip(mine.tolist(), other._states[theirs]):
            states[cell] = merge(states[cell], state)

    def _merged(self, state: Any, later: Any) -> Any:
        return merged(self._aggregator, state, later)

    def copy(self, other: UserAccumulator, theirs: Cells, mine: IndexArray) -> None:
        self._states[mine] = other._states[theirs]  # states are never changed in place

    def footprint(self, cells: IndexArray) -> Steps[dict[str, Any]]:
        made: list[Any] = []
        for start, stop in portions(len(cells), steps.RELEASED):
            if start:
                yield
            made += self._states.take(cells[start:stop]).tolist()
        return {"states": made}

    def adopt(self, footprint: Mapping[str, Any], which: IndexArray, cells: IndexArray) -> Steps[None]:
        states, saved = self._states, footprint["states"]
        for start, stop in portions(len(which), steps.RELEASED):
            if start:
                yield
            for place, cell in zip(which[start:stop].tolist(), cells[start:stop].tolist()):
                states[cell] = saved[place]  # may be a sequence itself

    def column(self, cells: Cells) -> Column:
        states = self._states[cells]
        type_ = AttributeType(self._aggregator.returns)
        self.failed = {}
        if self._refusals is not None:
            return self._column_of_those_that_have_one(states, type_)
        results = [self._aggregator.result(s) for s in states]
        try:
            return Column.from_list(results, type_)
        except (TypeError, ValueError, OverflowError) as error:
            raise _no_value(self._aggregator, error) from error

    def _column_of_those_that_have_one(self, states: npt.NDArray[np.object_], type_: AttributeType) -> Column:
        results = [result_of(self._aggregator, s, type_) for s in states]
        for place, result in enumerate(results):
            if isinstance(result, Failed):
                self.failed[place] = f"{self._name}: {result.reason}"
                results[place] = None
        return Column.from_list(results, type_)


@dataclass(frozen=True, slots=True)
class Failed:
    """Stands for a state or a result that could not be made."""

    reason: str


def added(aggregator: Aggregator, state: Any, values: npt.NDArray[Any]) -> tuple[Any, dict[int, str]]:
    """The state with all values added that ``add`` takes, and the others, by place, and why (U15).

    Whether ``add`` takes a value depends on the value alone: it is given to an empty state.

    Raises whatever ``add`` raises of values each of which it takes.
    """
    try:
        return aggregator.add(state, values), {}
    except NOT_THE_ROWS:
        raise
    except Exception:  # a user's code
        refused = {}
        for place in range(len(values)):
            try:
                aggregator.add(aggregator.create(), values[place : place + 1])
            except NOT_THE_ROWS:
                raise
            except Exception as error:
                refused[place] = reason_of(error)
        if not refused:
            raise
    kept = np.delete(values, list(refused))
    return aggregator.add(state, kept) if len(kept) else state, refused


def merged(aggregator: Aggregator, state: Any, later: Any) -> Any:
    """What ``merge`` returns, or that it raised, now or before."""
    for one in (state, later):
        if isinstance(one, Failed):
            return one
    try:
        return aggregator.merge(state, later)
    except NOT_THE_ROWS:
        raise
    except Exception as error:  # a user's code
        return Failed(reason_of(error))


def result_of(aggregator: Aggregator, state: Any, type_: AttributeType) -> Any:
    """What ``result`` returns, or that it, or ``merge`` before it, raised, or that it is nothing of this type."""
    if isinstance(state, Failed):
        return state
    try:
        result = aggregator.result(state)
    except NOT_THE_ROWS:
        raise
    except Exception as error:  # a user's code
        return Failed(reason_of(error))
    try:
        Column.from_list([result], type_)
    except (TypeError, ValueError, OverflowError) as error:
        return Failed(str(_no_value(aggregator, error)))
    return result


def _no_value(aggregator: Aggregator, error: Exception) -> TypeError:
    return TypeError(f"{type(aggregator).__qualname__}.result returned what is no {aggregator.returns}: {error}")
