"""Maps the aggregates of a query to accumulators: their arguments, updates and results."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from operators.aggregate.accumulators import (
    Accumulator,
    Cells,
    Computed,
    Count,
    Distinct,
    IntegerSum,
    Pick,
    extreme,
)
from operators.aggregate.custom import UserAccumulator
from operators.aggregate.text_accumulators import ExtremeText, PickText, TextAccumulator
from operators.ids import IndexArray, Int64Array
from operators.rejections import Refusals
from operators.strings import KeptStrings
from spe.expressions import Expression, compile_expression
from spe.query.aggregates import AGGREGATES, Fold, GroupState
from spe.query.declaration import load_class
from spe.query.operators.aggregate import AggregateCall
from spe.stream.batch import Column, Rows, canonical
from spe.stream.schema import AttributeType, Schema

#: Infinities and NaN are ordinary values.
QUIET: Final = np.errstate(over="ignore", invalid="ignore")

#: Argument of accumulators of whole rows.
_NO_COLUMN = Column(np.empty(0, np.int64))


def _make(state: GroupState | Fold, type_: AttributeType, strings: KeptStrings) -> Accumulator:
    text = type_ is AttributeType.STRING
    match state:
        case Fold(ufunc, start):
            return Computed(type_, ufunc, start)
        case GroupState.COUNT:
            return Count()
        case GroupState.DISTINCT:
            return Distinct(type_)
        case GroupState.EXACT_SUM:
            return IntegerSum()
        case GroupState.SMALLEST | GroupState.LARGEST:
            largest = state is GroupState.LARGEST
            return ExtremeText(strings, largest) if text else extreme(type_, largest)
        case GroupState.FIRST | GroupState.LAST:
            last = state is GroupState.LAST
            return PickText(strings, last) if text else Pick(type_, last)


@dataclass(frozen=True, slots=True)
class _Part:
    """An accumulator: its constructor, and the index of its argument (None: whole rows)."""

    make: Callable[[KeptStrings], Accumulator]
    argument: int | None


@dataclass(frozen=True, slots=True)
class _Result:
    """An aggregate: the parts with its states, and the part that counts its values (None: never null)."""

    parts: tuple[int, ...]
    count: int | None = None
    finish: Callable[..., Any] | None = None


class Calls:
    """The aggregates of an operator.  Parts and arguments that several of them need are shared.

    Args:
      calls: output name -> aggregate.
      schema: schema of the input rows.
      count_rows: count rows in any case, in part 0.
      refusals: collects values that user functions do not take; None: the functions raise.
    """

    def __init__(
        self,
        calls: Mapping[str, AggregateCall],
        schema: Schema,
        *,
        count_rows: bool = False,
        refusals: Refusals | None = None,
    ) -> None:
        self._refusals = refusals
        self._arguments: dict[str, int] = {}
        self._expressions: list[Expression] = []
        self._parts: list[_Part] = []
        self._known: dict[tuple[GroupState | Fold | str, int | None], int] = {}
        if count_rows:
            self._count(None)
        self._results = [self._plan(call, schema) for call in calls.values()]
        parts = self.new_parts(KeptStrings())
        self.needs_sequence = any(p.needs_sequence for p in parts)
        #: Number of parts with texts.
        self.texts = sum(isinstance(p, TextAccumulator) for p in parts)

    def _plan(self, call: AggregateCall, schema: Schema) -> _Result:
        if call.argument is None:
            return _Result((self._count(None),))
        argument = self._argument(call.argument, schema)
        if ":" in call.function:
            user, refusals = load_class(call.function, "function"), self._refusals
            name = f"{call.function}({call.argument})"
            return _Result((self._part(call.function, argument, lambda _: UserAccumulator(user(), refusals, name)),))
        function = AGGREGATES[call.function]
        may_be_null = self._expressions[argument].nullable and not function.is_count
        count = self._count(argument) if may_be_null else None
        return _Result(tuple(self._state(state, argument) for state in function.states), count, function.finish)

    def _state(self, state: GroupState | Fold, argument: int) -> int:
        if state is GroupState.COUNT:
            return self._count(argument)
        type_ = self._expressions[argument].type
        if state is GroupState.EXACT_SUM and type_ is AttributeType.FLOAT64:
            state = Fold(np.add, 0)
        return self._part(state, argument, lambda strings: _make(state, type_, strings))

    def _argument(self, text: str, schema: Schema) -> int:
        if text not in self._arguments:
            self._arguments[text] = len(self._expressions)
            self._expressions.append(compile_expression(text, schema))
        return self._arguments[text]

    def _count(self, argument: int | None) -> int:
        if argument is not None and not self._expressions[argument].nullable:
            argument = None  # counts every row, so both can share a count
        return self._part(GroupState.COUNT, argument, lambda _: Count())

    def _part(self, what: Any, argument: int | None, make: Callable[[KeptStrings], Accumulator]) -> int:
        key = (what, argument)
        if key not in self._known:
            self._known[key] = len(self._parts)
            self._parts.append(_Part(make, argument))
        return self._known[key]

    def new_parts(self, strings: KeptStrings) -> list[Accumulator]:
        """Makes new accumulators; ``strings`` holds their texts."""
        return [p.make(strings) for p in self._parts]

    @QUIET
    def evaluate(self, rows: Rows) -> list[Column]:
        """Computes the arguments."""
        return [e.evaluate(rows) for e in self._expressions]

    def update(
        self, parts: Sequence[Accumulator], cells: IndexArray, arguments: Sequence[Column], sequence: Int64Array
    ) -> None:
        """Processes rows: cell, arguments and sequence number of each (no sequence numbers if none are needed)."""
        cleaned: list[tuple[IndexArray, Column, Int64Array]] = []
        for column in arguments:
            if column.valid is None:
                cleaned.append((cells, column, sequence))
            else:
                present = column.valid.nonzero()[0]
                values = Column(column.values.take(present), None, column.dictionary)
                cleaned.append((cells.take(present), values, sequence.take(present) if len(sequence) else sequence))
        for part, plan in zip(parts, self._parts):
            if plan.argument is None:
                part.update(cells, _NO_COLUMN, sequence)
            else:
                part.update(*cleaned[plan.argument])

    @QUIET
    def results(self, parts: Sequence[Accumulator], cells: Cells) -> list[Column]:
        """Returns one column per aggregate, for these cells."""
        return [self._result(parts, r, cells) for r in self._results]

    def failed(self, parts: Sequence[Accumulator]) -> dict[int, str]:
        """Places of cells without a result in the last call of :meth:`results`, and the reasons."""
        failed_cells: dict[int, str] = {}
        if self._refusals is not None:
            for part in parts:
                if isinstance(part, UserAccumulator):
                    failed_cells = part.failed | failed_cells
        return failed_cells

    def _result(self, parts: Sequence[Accumulator], result: _Result, cells: Cells) -> Column:
        columns = [parts[part].column(cells) for part in result.parts]
        column = columns[0]
        if result.finish is not None:
            column = Column(canonical(result.finish(*[c.values for c in columns])))
        if result.count is None:
            return column
        count: Any = parts[result.count].column(cells).values
        values = column.values
        valid = None if count.all() else count > 0
        if valid is not None and column.dictionary is None:
            values = np.where(valid, values, values.dtype.type(0))
        return Column(values, valid, column.dictionary)
