"""Aggregates over windows, as Spark computes them.

A sliding window is merged from its panes if all aggregates can be; otherwise every row goes to each of its
windows.  Sums of floats that other operators read are added in the engine's order, to the bit, since a filter or a
ranking may depend on the last bit: the rows of a pane, then pane after pane.  Sums that are output directly are
compared within a tolerance.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import gcd
from typing import Any, Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import Window as Over
from pyspark.sql import functions as F
from pyspark.sql import types as T

from consistency.proof.recorded.query_file import AggregateEntry, CallEntry, WindowEntry
from consistency.proof.truth.stream import (
    PARTITION,
    TIME,
    Places,
    TruthStream,
    attributes,
    columns,
    ordered,
    position_struct,
    quoted,
    timestamp,
    values,
)
from consistency.proof.truth.user_code import user_aggregate
from consistency.proof.truth.windows import (
    FIRST,
    LAST,
    WINDOW,
    end_of,
    floor_div,
    member_time,
    per_window,
    start_of,
    with_windows,
)

_BORN: Final = "__born"
_CLOSED: Final = "__closed"
_ROWS: Final = "__rows"
_PANE: Final = "__pane"
#: Functions that merge partial aggregates.
_MERGED: Final[Mapping[str, Any]] = {"count": F.sum, "sum": F.sum, "exact_sum": F.sum, "min": F.min, "max": F.max}


def _exact_sum(x: Column) -> Column:
    return F.sum(x.cast("decimal(20,0)"))


#: Functions that compute partial aggregates from rows.
_FIRST_PART: Final[Mapping[str, Any]] = {**_MERGED, "count": F.count, "exact_sum": _exact_sum}


def aggregate(spec: AggregateEntry, stream: TruthStream, *, exact: bool) -> TruthStream:
    """Returns the output of an aggregate.

    Args:
      exact: other operators read it.
    """
    groups = [f"__group{i}" for i in range(len(spec.group_by))]
    arguments = {f"__argument{i}": call.argument or "1L" for i, call in enumerate(spec.calls.values())}
    keyed = stream.frame.select(
        PARTITION,
        *stream.position,
        *values(stream.frame, dict(zip(groups, spec.group_by.values())) | arguments),
        *_membership(spec),
    )
    calls = [
        _Call(i, call, keyed.schema[name].dataType, exact, skip=spec.skip)
        for i, (name, call) in enumerate(zip(arguments, spec.calls.values()))
    ]
    if spec.window.count:
        return _by_count(spec, stream, calls, groups, keyed)
    parts = _parts(calls, stream.position, spec.window.on)
    counted = with_windows(keyed, spec.window, None if spec.window.on is None else "__on")
    if spec.window.size_us > spec.window.slide_us and parts is not None:
        rows = _from_panes(spec.window, stream, parts, groups, counted)
        results = [c.from_parts() for c in calls]
    else:
        rows = _from_rows(spec.window, stream, calls, groups, counted)
        results = [F.col(c.name) for c in calls]
    end = end_of(spec.window)
    born = [F.col(f"{_BORN}.{name}") for name in stream.position]
    attributes_of = {
        **dict(zip(spec.group_by, columns(groups))),
        "window_start": timestamp(start_of(spec.window)),
        "window_end": timestamp(end),
        **dict(zip(spec.calls, results)),
    }
    frame = rows.select(PARTITION, (end - 1).alias(TIME), *ordered(born), *attributes(rows, attributes_of))
    return TruthStream(frame, len(born))


def _from_panes(
    window: WindowEntry, stream: TruthStream, parts: list[_Part], groups: list[str], counted: DataFrame
) -> DataFrame:
    """Computes the partial aggregates of each pane, and merges them by window."""
    pane_us = _pane_us(window)
    begin = F.col(_PANE) * pane_us + window.offset_us
    places = Places(stream, begin, pane_us if window.on is None else None)
    shared = [PARTITION, *groups, _PANE, FIRST, LAST]
    made = counted.groupBy(*shared).agg(F.min(places.value).alias(_BORN), *[p.first() for p in parts])
    rows = per_window(made.withColumn(_BORN, places.struct(F.col(_BORN))), window)
    return rows.groupBy(PARTITION, *groups, WINDOW).agg(F.min(_BORN).alias(_BORN), *[p.then() for p in parts])


def _from_rows(
    window: WindowEntry, stream: TruthStream, calls: list[_Call], groups: list[str], counted: DataFrame
) -> DataFrame:
    """Aggregates all rows of each window."""
    places = Places(stream, start_of(window), window.size_us if window.on is None else None)
    direct = [c.direct(stream.position, places.value) for c in calls]
    grouped = per_window(counted, window).groupBy(PARTITION, *groups, WINDOW)
    rows = _with_result(grouped.agg(F.min(places.value).alias(_BORN), *direct), calls)
    return rows.withColumn(_BORN, places.struct(F.col(_BORN)))


def _membership(spec: AggregateEntry) -> list[Column]:
    """Returns the attribute that decides membership, and the pane, for sums in order."""
    window = spec.window
    if window.count:
        return [F.lit(0).alias(_PANE)]
    on = [] if window.on is None else [F.col(quoted(window.on)).alias("__on")]
    pane = floor_div(member_time(window.on) - window.offset_us, _pane_us(window))
    return [*on, pane.alias(_PANE)]


def _pane_us(window: WindowEntry) -> int:
    return gcd(window.size_us, window.slide_us)


def _by_count(
    spec: AggregateEntry, stream: TruthStream, calls: list[_Call], groups: list[str], keyed: DataFrame
) -> TruthStream:
    """Aggregates every ``count`` rows of a group, in order; the last row of each window gives time and place."""
    count = spec.window.count
    arrival = Over.partitionBy(PARTITION, *groups).orderBy(*stream.position)
    numbered = keyed.withColumn(WINDOW, floor_div(F.row_number().over(arrival).cast("long") - 1, count))
    rows = (
        numbered.groupBy(PARTITION, *groups, WINDOW)
        .agg(
            F.max(position_struct(stream.position)).alias(_CLOSED),
            F.count(F.lit(1)).alias(_ROWS),
            *[c.direct(stream.position, position_struct(stream.position)) for c in calls],
        )
        .where(F.col(_ROWS) == count)
    )
    rows = _with_result(rows, calls)
    made = dict(zip([*spec.group_by, *spec.calls], columns([*groups, *[c.name for c in calls]])))
    frame = rows.select(
        PARTITION,
        F.col(f"{_CLOSED}.{TIME}").alias(TIME),
        *[F.col(f"{_CLOSED}.{name}").alias(name) for name in stream.order],
        *attributes(rows, made),
    )
    return TruthStream(frame, stream.width)


def open_rows(spec: AggregateEntry, stream: TruthStream) -> DataFrame:
    """Returns the rows of a stream in count windows that are not full."""
    groups = [f"__group{i}" for i in range(len(spec.group_by))]
    keyed = stream.frame.select("*", *values(stream.frame, dict(zip(groups, spec.group_by.values()))))
    group = Over.partitionBy(PARTITION, *groups)
    rows = F.count(F.lit(1)).over(group)
    place = F.row_number().over(group.orderBy(*stream.position))
    numbered = keyed.withColumn(_ROWS, place > rows - rows % spec.window.count)
    return numbered.where(_ROWS).select(*stream.frame.columns)


def _with_result(rows: DataFrame, calls: list[_Call]) -> DataFrame:
    """Drops rows whose user-defined function has no result, if that is no reason to stop."""
    for call in calls:
        if call.may_fail:
            result = F.col(call.name)
            rows = rows.where(~result.getField("failed")).withColumn(call.name, result.getField("value"))
    return rows


class _Call:
    """One aggregate: its argument's column, and its result from rows or from parts."""

    def __init__(self, index: int, call: CallEntry, type_: T.DataType, exact: bool, *, skip: bool) -> None:
        self.name = f"__result{index}"
        self.argument = f"__argument{index}"
        self.function = call.function
        self.type = type_
        self.in_order = exact and self.function in ("sum", "avg") and isinstance(type_, T.DoubleType)
        self.user = ":" in self.function
        self.may_fail = self.user and skip
        #: The sum that ``avg`` divides: a sum of BIGINT would wrap around.
        self.sum = "exact_sum" if isinstance(type_, T.LongType) else "sum"

    def direct(self, position: list[str], place: Column) -> Column:
        """Computes the result from all rows of a window; ``place`` is a row's place as one value."""
        return self._direct(position, place).alias(self.name)

    def _direct(self, position: list[str], place: Column) -> Column:
        x = F.col(self.argument)
        if self.user:
            return user_aggregate(self.function, self.type, self._sorted(position), skip=self.may_fail)
        if self.in_order:
            total = F.when(F.count(x) > 0, _added(self._sorted(position)))
            return total / F.count(x) if self.function == "avg" else total
        match self.function:
            case "count":
                return F.count(x)
            case "count_distinct":
                return F.count_distinct(x)
            case "avg":
                mean: Column = _FIRST_PART[self.sum](x).cast("double") / F.count(x)
                return mean
            case "first" | "last":
                pick = F.min_by if self.function == "first" else F.max_by
                return pick(x, F.when(x.isNotNull(), place))
        return {"sum": F.sum, "min": F.min, "max": F.max}[self.function](x)

    def _sorted(self, position: list[str]) -> Column:
        """Returns (pane, place, value) of the rows with a value, pane by pane and in order of arrival."""
        entry = F.struct(F.col(_PANE), *columns(position), F.col(self.argument).alias("x"))
        return F.array_sort(F.collect_list(F.when(F.col(self.argument).isNotNull(), entry)))

    def parts(self, position: list[str], on: str | None) -> list[_Part] | None:
        """Returns the partial aggregates of a pane's rows; None: the result cannot be merged from parts.

        With ``on`` a late row counts in some windows of its pane only, so a pane has no sum in order.
        """
        if self.user or self.function in ("count_distinct", "first", "last") or (self.in_order and on is not None):
            return None
        total = _SumInOrder(self, self._sorted(position)) if self.in_order else _Part(self, self.sum)
        match self.function:
            case "avg":
                return [total, _Part(self, "count")]
            case "sum" if self.in_order:
                return [total]
        return [_Part(self, self.function)]

    def from_parts(self) -> Column:
        if self.function == "avg":
            return F.col(f"{self.name}_{self.sum}").cast("double") / F.col(f"{self.name}_count")
        return F.col(f"{self.name}_{self.function}")


class _Part:
    """One partial aggregate of a call."""

    def __init__(self, call: _Call, function: str) -> None:
        self._function = function
        self._name = f"{call.name}_{function}"
        self._argument = call.argument

    def first(self) -> Column:
        made: Column = _FIRST_PART[self._function](F.col(self._argument)).alias(self._name)
        return made

    def then(self) -> Column:
        merged: Column = _MERGED[self._function](F.col(self._name)).alias(self._name)
        return merged


class _SumInOrder(_Part):
    """The sum of each pane; the sums are added pane after pane."""

    def __init__(self, call: _Call, rows: Column) -> None:
        super().__init__(call, "sum")
        self._rows = rows

    def first(self) -> Column:
        made: Column = F.when(F.count(self._argument) > 0, _added(self._rows)).alias(self._name)
        return made

    def then(self) -> Column:
        part = F.when(F.col(self._name).isNotNull(), F.struct(F.col(_PANE), F.col(self._name).alias("x")))
        total = F.aggregate(F.array_sort(F.collect_list(part)), F.lit(0.0), lambda acc, entry: acc + entry["x"])
        merged: Column = F.when(F.count(self._name) > 0, total).alias(self._name)
        return merged


def _parts(calls: list[_Call], position: list[str], on: str | None) -> list[_Part] | None:
    every = []
    for call in calls:
        parts = call.parts(position, on)
        if parts is None:
            return None
        every += parts
    return every


def _added(entries: Column) -> Column:
    """Sums floats in the order of ``entries``: within each pane, then pane after pane."""
    start = F.struct(F.lit(0.0).alias("total"), F.lit(0.0).alias("part"), F.lit(None).cast("long").alias("pane"))
    return F.aggregate(entries, start, _add, lambda acc: acc["total"] + acc["part"])


def _add(acc: Column, entry: Column) -> Column:
    same = acc["pane"].eqNullSafe(entry[_PANE])
    return F.struct(
        F.when(same, acc["total"]).otherwise(acc["total"] + acc["part"]).alias("total"),
        F.when(same, acc["part"] + entry["x"]).otherwise(F.lit(0.0) + entry["x"]).alias("part"),
        entry[_PANE].cast("long").alias("pane"),
    )
