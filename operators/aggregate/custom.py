"""User-defined aggregate functions: a small base class, and the accumulator that runs one."""

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
    """Base of user-defined aggregate functions, with one state per group and window.

    States are plain values (see :class:`CustomOperator`) and are never changed in place: ``add`` and ``merge`` return
    new ones, or the same one if nothing changed.  The result must not depend on how rows are divided into calls:
    ``add(add(s, a), b)`` equals ``add(s, a followed by b)``.  Nulls are left out; a group of only nulls has the state
    that ``create`` returns.

    With ``on_error: skip`` a value for which ``add`` raises is left out, like a null; whether it raises must depend on
    the value alone.  If ``merge`` or ``result`` raises, there is no result.
    """

    #: Type of the values of ``result`` (None becomes null), by name or as an AttributeType.
    returns: ClassVar[AttributeType | str]

    @classmethod  # noqa: B027 - any type suits by default
    def check(cls, argument: AttributeType) -> None:
        """Raises ValueError if the argument's type does not suit; any type suits by default."""

    @abstractmethod
    def create(self) -> Any:
        """Returns the state without rows."""

    @abstractmethod
    def add(self, state: Any, values: npt.NDArray[Any]) -> Any:
        """Adds ``values`` in order: int64 (timestamps too), float64, bool, or object for strings."""

    @abstractmethod
    def merge(self, state: Any, later: Any) -> Any:
        """Returns the state of the rows of ``state`` followed by those of ``later``; used for sliding windows."""

    @abstractmethod
    def result(self, state: Any) -> Any:
        """Returns the aggregate's value, or None for null."""


class UserAccumulator(Accumulator):
    """Runs an :class:`Aggregator`: one call of ``add`` per cell that a batch touches.

    Args:
      aggregator: the user's function.
      refusals: collects values that ``add`` does not take (the number of a row is its sequence number); None:
        exceptions go to the caller.
      name: name of the aggregate, for messages.

    Attributes:
      failed: places of cells without a result in the last call of :meth:`column`, and the reasons.
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
            return self._column_of_results(states, type_)
        results = [self._aggregator.result(s) for s in states]
        try:
            return Column.from_list(results, type_)
        except (TypeError, ValueError, OverflowError) as error:
            raise _no_value(self._aggregator, error) from error

    def _column_of_results(self, states: npt.NDArray[np.object_], type_: AttributeType) -> Column:
        results = [result_of(self._aggregator, s, type_) for s in states]
        for place, result in enumerate(results):
            if isinstance(result, Failed):
                self.failed[place] = f"{self._name}: {result.reason}"
                results[place] = None
        return Column.from_list(results, type_)


@dataclass(frozen=True, slots=True)
class Failed:
    """Placeholder of a state or a result that could not be made."""

    reason: str


def added(aggregator: Aggregator, state: Any, values: npt.NDArray[Any]) -> tuple[Any, dict[int, str]]:
    """Adds all values that ``add`` takes; returns the state, and the other values by place, with reasons (U15).

    Whether ``add`` takes a value depends on the value alone: it is tried with an empty state.

    Raises the exception of ``add`` if it takes each value alone.
    """
    try:
        return aggregator.add(state, values), {}
    except NOT_THE_ROWS:
        raise
    except Exception:  # user code
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
    accepted = np.delete(values, list(refused))
    return aggregator.add(state, accepted) if len(accepted) else state, refused


def merged(aggregator: Aggregator, state: Any, later: Any) -> Any:
    """Returns the result of ``merge``, or a Failed if it raised, now or before."""
    for operand in (state, later):
        if isinstance(operand, Failed):
            return operand
    try:
        return aggregator.merge(state, later)
    except NOT_THE_ROWS:
        raise
    except Exception as error:  # user code
        return Failed(reason_of(error))


def result_of(aggregator: Aggregator, state: Any, type_: AttributeType) -> Any:
    """Returns the result of ``result``, or a Failed if it or ``merge`` raised, or its type is wrong."""
    if isinstance(state, Failed):
        return state
    try:
        result = aggregator.result(state)
    except NOT_THE_ROWS:
        raise
    except Exception as error:  # user code
        return Failed(reason_of(error))
    try:
        Column.from_list([result], type_)
    except (TypeError, ValueError, OverflowError) as error:
        return Failed(str(_no_value(aggregator, error)))
    return result


def _no_value(aggregator: Aggregator, error: Exception) -> TypeError:
    return TypeError(f"{type(aggregator).__qualname__}.result returned what is no {aggregator.returns}: {error}")
