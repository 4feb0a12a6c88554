"""The aggregate functions: a row of AGGREGATES each (docs/internals/new-aggregate.md)."""

from __future__ import annotations

import enum
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from spe.stream.schema import AttributeType


class GroupState(enum.Enum):
    """A state of a group, of the values that are not null."""

    COUNT = enum.auto()
    DISTINCT = enum.auto()
    #: The sum; of integers exact, rounded once to float64.
    EXACT_SUM = enum.auto()
    SMALLEST = enum.auto()
    LARGEST = enum.auto()
    #: The first value by arrival.
    FIRST = enum.auto()
    LAST = enum.auto()


@dataclass(frozen=True, slots=True)
class Fold:
    """A number as state, of the argument's type: ``start``, and from each value ``ufunc(state, value)``, in order.

    Panes are merged by the same function, so it must be associative, but for the rounding of floats.
    """

    ufunc: np.ufunc
    start: float


@dataclass(frozen=True, slots=True)
class Partial:
    """A partial aggregate as Spark computes it, in Spark SQL.

    Attributes:
      rows: from rows.  ``{x}`` is the argument, ``{wide}`` the same with integers as DECIMAL, ``{place}`` the place of
        the row in the order of arrival, null where the argument is.
      panes: from those of panes, ``{x}``; None: it needs all rows of the window.
      ordered: function and start of a fold of floats, for readers to which the last bit matters (rule U3).
    """

    rows: str
    panes: str | None = None
    ordered: tuple[Callable[[Any, Any], Any], float] | None = None


@dataclass(frozen=True, slots=True)
class AggregateFunction:
    """An aggregate function: its declaration, the engine's computation and, independent of it, the proof's.

    Attributes:
      name: its name in calls, in lower case.
      about: its result, for the manual.
      states: the states of a group from which the engine computes the result.
      spark: the partial aggregates from which the proof computes it.
      finish: computes results from arrays of ``states``; None: the only state is the result.
      result: the same in Spark SQL, of the partial aggregates ``{0}``, ``{1}``, …
      numeric: takes int64 and float64 only.
      returns: type of the result; None: the argument's.
      is_count: 0 without values; other functions are null then.
    """

    name: str
    about: str
    states: tuple[GroupState | Fold, ...]
    spark: tuple[Partial, ...]
    finish: Callable[..., Any] | None = None
    result: str = "{0}"
    numeric: bool = False
    returns: AttributeType | None = None
    is_count: bool = False

    @property
    def by_arrival(self) -> bool:
        """Do ties in time decide the result?"""
        return bool({GroupState.FIRST, GroupState.LAST} & set(self.states))

    @property
    def picks(self) -> bool:
        """Is the result one of the values?"""
        return (
            self.states[0] in (GroupState.SMALLEST, GroupState.LARGEST, GroupState.FIRST, GroupState.LAST)
            and self.finish is None
        )


_ORDERED: Final = "the argument's type; strings by code point, NaN above all numbers"
_COUNT: Final = Partial("count({x})", "sum({x})")
_ADDED: Final = (operator.add, 0.0)

AGGREGATES: Final = {
    function.name: function
    for function in (
        AggregateFunction(
            "count", "int64; `count(*)`: rows", (GroupState.COUNT,), (_COUNT,),
            returns=AttributeType.INT64, is_count=True,
        ),
        AggregateFunction(
            "count_distinct", "int64", (GroupState.DISTINCT,), (Partial("count(distinct {x})"),),
            returns=AttributeType.INT64, is_count=True,
        ),
        AggregateFunction(
            "sum", "the argument's type; int64 wraps around", (Fold(np.add, 0),),
            (Partial("sum({x})", "sum({x})", _ADDED),), numeric=True,
        ),
        AggregateFunction(
            "avg", "float64; the sum of int64 is exact", (GroupState.COUNT, GroupState.EXACT_SUM),
            (_COUNT, Partial("sum({wide})", "sum({x})", _ADDED)),
            lambda count, total: total / np.maximum(count, 1), "cast({1} as double) / {0}",
            numeric=True, returns=AttributeType.FLOAT64,
        ),
        AggregateFunction(
            "min", _ORDERED, (GroupState.SMALLEST,), (Partial("min({x})", "min({x})"),)
        ),
        AggregateFunction(
            "max", _ORDERED, (GroupState.LARGEST,), (Partial("max({x})", "max({x})"),)
        ),
        AggregateFunction(
            "first", "the first that is not null, by arrival", (GroupState.FIRST,), (Partial("min_by({x}, {place})"),)
        ),
        AggregateFunction(
            "last", "the last that is not null, by arrival", (GroupState.LAST,), (Partial("max_by({x}, {place})"),)
        ),
    )
}  # fmt: skip
