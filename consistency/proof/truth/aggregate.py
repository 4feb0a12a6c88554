"""Aggregates over windows, as Spark computes them.

A sliding window is merged from its panes if all aggregates can be; otherwise every row goes to each of its
windows.  Sums of floats that other operators read are added in the engine's order, to the bit, since a filter or a
ranking may depend on the last bit: the rows of a pane, then pane after pane.  Sums that are output directly are
compared within a tolerance.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import Window as Over
from pyspark.sql import functions as F
from pyspark.sql import types as T

from consistency.proof.recorded.query_file import AggregateEntry, CallEntry, CountEntry, TimeEntry
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
    member_time,
    per_window,
    start_of,
    with_windows,
)
from spe.query.aggregates import AGGREGATES, Partial

_BORN: Final = "__born"
_CLOSED: Final = "__closed"
_ROWS: Final = "__rows"
_BEGINS: Final = "__begins"
_PANE: Final = "__pane"
#: The place of a row in the order of arrival, as one value.
_PLACE: Final = "__place"


def aggregate(spec: AggregateEntry, stream: TruthStream, *, exact: bool) -> TruthStream:
    """Returns the output of an aggregate.

    Args:
      exact: other operators read it.
    """
    groups = _groups(spec)
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
    window = spec.window
    if not isinstance(window, TimeEntry):
        return _by_group(spec, window, stream, calls, keyed)
    rows = _by_window(window, stream, calls, groups, keyed)
    end = end_of(window)
    born = [F.col(f"{_BORN}.{name}") for name in stream.position]
    attributes_of = {
        **dict(zip(spec.group_by, columns(groups))),
        "window_start": timestamp(start_of(window)),
        "window_end": timestamp(end),
        **dict(zip(spec.calls, [call.result() for call in calls])),
    }
    frame = rows.select(PARTITION, (end - 1).alias(TIME), *ordered(born), *attributes(rows, attributes_of))
    return TruthStream(frame, len(born))


def _by_window(
    window: TimeEntry, stream: TruthStream, calls: list[_Call], groups: list[str], keyed: DataFrame
) -> DataFrame:
    """Aggregates the rows of each window and group: columns of the calls, and the place of the first row."""
    keys = [PARTITION, *groups, WINDOW]
    counted = with_windows(keyed, window, None if window.on is None else "__on")
    if window.overlaps and all(call.merges(window.on) for call in calls):
        begin = F.expr(window.pane_start(_PANE))
        places = Places(stream, begin, window.pane_us if window.on is None else None)
        shared = [PARTITION, *groups, _PANE, FIRST, LAST]
        parts = [part for call in calls for part in call.of_rows(stream.position)]
        made = counted.groupBy(*shared).agg(F.min(places.value).alias(_BORN), *parts)
        made = made.withColumn(_BORN, places.struct(F.col(_BORN)))
        merged = [part for call in calls for part in call.of_panes()]
        return per_window(made, window).groupBy(*keys).agg(F.min(_BORN).alias(_BORN), *merged)
    places = Places(stream, start_of(window), window.size_us if window.on is None else None)
    placed = per_window(counted, window).withColumn(_PLACE, places.value)
    rows = _aggregated(placed, keys, calls, stream.position, F.min(_PLACE).alias(_BORN))
    return rows.withColumn(_BORN, places.struct(F.col(_BORN)))


def _membership(spec: AggregateEntry) -> list[Column]:
    """Returns the attribute that decides membership, and the pane, for sums in order."""
    window = spec.window
    if not isinstance(window, TimeEntry):
        return [F.lit(0).alias(_PANE)]
    on = [] if window.on is None else [F.col(quoted(window.on)).alias("__on")]
    return [*on, F.expr(window.pane(member_time(window.on))).alias(_PANE)]


def _by_group(
    spec: AggregateEntry, window: CountEntry, stream: TruthStream, calls: list[_Call], keyed: DataFrame
) -> TruthStream:
    """Aggregates windows that the rows of a group make; the last row of each window gives time and place."""
    groups = _groups(spec)
    placed = _numbered(keyed, window, groups, stream).withColumn(_PLACE, position_struct(stream.position))
    last = [F.max(_PLACE).alias(_CLOSED), F.count(F.lit(1)).alias(_ROWS)]
    rows = _aggregated(placed, [PARTITION, *groups, WINDOW], calls, stream.position, *last)
    rows = rows.where(window.is_over(_ROWS))
    made = dict(zip([*spec.group_by, *spec.calls], [*columns(groups), *[call.result() for call in calls]]))
    frame = rows.select(
        PARTITION,
        F.col(f"{_CLOSED}.{TIME}").alias(TIME),
        *[F.col(f"{_CLOSED}.{name}").alias(name) for name in stream.order],
        *attributes(rows, made),
    )
    return TruthStream(frame, stream.width)


def _groups(spec: AggregateEntry) -> list[str]:
    return [f"__group{i}" for i in range(len(spec.group_by))]


def _numbered(keyed: DataFrame, window: CountEntry, groups: list[str], stream: TruthStream) -> DataFrame:
    """Adds WINDOW: the number of a row's window in its group."""
    group = f"partition by {', '.join([PARTITION, *groups])} order by {', '.join(stream.position)}"
    begun = keyed.withColumn(_BEGINS, F.expr(f"cast({window.begins(group)} as bigint)"))
    return begun.withColumn(WINDOW, F.expr(f"sum({_BEGINS}) over ({group})"))


def _aggregated(frame: DataFrame, keys: list[str], calls: list[_Call], position: list[str], *more: Column) -> DataFrame:
    """Aggregates rows directly, without those that have no result."""
    rows = frame.groupBy(*keys).agg(*more, *[part for call in calls for part in call.of_rows(position)])
    for call in calls:
        rows = call.with_result(rows)
    return rows


def open_rows(spec: AggregateEntry, stream: TruthStream) -> DataFrame:
    """Returns the rows of a stream in windows of a group that are not over."""
    assert isinstance(spec.window, CountEntry)
    groups = _groups(spec)
    keyed = stream.frame.select("*", *values(stream.frame, dict(zip(groups, spec.group_by.values()))))
    rows = F.count(F.lit(1)).over(Over.partitionBy(PARTITION, *groups, WINDOW))
    numbered = _numbered(keyed, spec.window, groups, stream).withColumn(_ROWS, rows)
    return numbered.where(f"not ({spec.window.is_over(_ROWS)})").select(*stream.frame.columns)


class _Call:
    """One aggregate: its partial aggregates, of rows and of panes, and its result, in columns that it names.

    The functions' ``spark`` says what they are; the proof reads nothing else that says how to compute a function.
    """

    def __init__(self, index: int, call: CallEntry, type_: T.DataType, exact: bool, *, skip: bool) -> None:
        self._name = f"__result{index}"
        self._argument = f"__argument{index}"
        self._type = type_
        self._user = call.function if ":" in call.function else None
        self._partials = () if self._user else AGGREGATES[call.function].spark
        self._in_order = exact and isinstance(type_, T.DoubleType) and any(p.ordered for p in self._partials)
        self._result = "{0}" if self._user else AGGREGATES[call.function].result
        self._may_fail = self._user is not None and skip

    def of_rows(self, position: list[str]) -> list[Column]:
        """Computes the partial aggregates of rows; the column _PLACE has a row's place as one value."""
        if self._user is not None:
            made = user_aggregate(self._user, self._type, self._sorted(position), skip=self._may_fail)
            return [made.alias(f"{self._name}_0")]
        return [self._of_rows(i, partial, position) for i, partial in enumerate(self._partials)]

    def _of_rows(self, index: int, partial: Partial, position: list[str]) -> Column:
        x = self._argument
        if self._in_order and partial.ordered is not None:
            made = F.when(F.count(x) > 0, _folded(self._sorted(position), *partial.ordered))
        else:
            wide = f"cast({x} as decimal(20,0))" if isinstance(self._type, T.LongType) else x
            made = F.expr(partial.rows.format(x=x, wide=wide, place=f"if({x} is null, null, {_PLACE})"))
        return made.alias(f"{self._name}_{index}")

    def _sorted(self, position: list[str]) -> Column:
        """Returns (pane, place, value) of the rows with a value, pane by pane and in order of arrival."""
        entry = F.struct(F.col(_PANE), *columns(position), F.col(self._argument).alias("x"))
        return F.array_sort(F.collect_list(F.when(F.col(self._argument).isNotNull(), entry)))

    def merges(self, on: str | None) -> bool:
        """Can partial aggregates of panes be merged?

        With ``on`` a late row counts in some windows of its pane only, so a pane has no fold in order.
        """
        each_merges = all(partial.panes is not None for partial in self._partials)
        return self._user is None and each_merges and (on is None or not self._in_order)

    def of_panes(self) -> list[Column]:
        return [self._of_panes(f"{self._name}_{i}", partial) for i, partial in enumerate(self._partials)]

    def _of_panes(self, name: str, partial: Partial) -> Column:
        assert partial.panes is not None
        if not self._in_order or partial.ordered is None:
            return F.expr(partial.panes.format(x=name)).alias(name)
        function, start = partial.ordered
        part = F.when(F.col(name).isNotNull(), F.struct(F.col(_PANE), F.col(name).alias("x")))
        parts = F.array_sort(F.collect_list(part))
        total = F.aggregate(parts, F.lit(start), lambda acc, entry: function(acc, entry["x"]))
        return F.when(F.count(name) > 0, total).alias(name)

    def with_result(self, rows: DataFrame) -> DataFrame:
        """Drops rows whose user-defined function has no result, if that is no reason to stop."""
        if not self._may_fail:
            return rows
        made = F.col(f"{self._name}_0")
        return rows.where(~made.getField("failed")).withColumn(f"{self._name}_0", made.getField("value"))

    def result(self) -> Column:
        return F.expr(self._result.format(*[f"{self._name}_{i}" for i in range(max(1, len(self._partials)))]))


def _folded(entries: Column, function: Callable[[Any, Any], Any], start: float) -> Column:
    """Folds floats in the order of ``entries``: within each pane, then pane after pane."""

    def step(acc: Column, entry: Column) -> Column:
        same = acc["pane"].eqNullSafe(entry[_PANE])
        return F.struct(
            F.when(same, acc["total"]).otherwise(function(acc["total"], acc["part"])).alias("total"),
            function(F.when(same, acc["part"]).otherwise(F.lit(start)), entry["x"]).alias("part"),
            entry[_PANE].cast("long").alias("pane"),
        )

    nothing = F.struct(F.lit(start).alias("total"), F.lit(start).alias("part"), F.lit(None).cast("long").alias("pane"))
    return F.aggregate(entries, nothing, step, lambda acc: function(acc["total"], acc["part"]))
