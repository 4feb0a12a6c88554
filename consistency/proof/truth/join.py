"""Joins, as Spark computes them: pairs within an interval or a window, then the outer rows without partner."""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from consistency.proof.recorded.query_file import JoinEntry
from consistency.proof.truth.stream import (
    PARTITION,
    TIME,
    TruthStream,
    columns,
    expression,
    ordered,
    padded,
    quoted,
    timestamp,
)
from consistency.proof.truth.windows import WINDOW, end_of, floor_div, member_time, per_window, start_of, with_windows
from spe.stream.times import END_OF_TIME

_BOUNDS: Final = ("window_start", "window_end")
LEFT: Final = 0
RIGHT: Final = 1
_OUTER: Final = (("left", "full"), ("right", "full"))
#: Ends of intervals stay within this, so that adding them to a time cannot overflow.
_FAR: Final = END_OF_TIME - 1


class _Side:
    """The rows of one side that take part, with names that the other side does not have.

    Columns: ``__l_`` or ``__r_`` + (partition, time, order…, at, key…), WINDOW likewise for window joins, and the
    attributes by their names in the output.
    """

    def __init__(self, spec: JoinEntry, side: int, stream: TruthStream) -> None:
        self.side = side
        self.stream = stream
        self._spec = spec
        self.mark = "__l_" if side == LEFT else "__r_"
        self.width = stream.width
        prefix = spec.prefix[side]
        self._names = [prefix + name for name in stream.names]
        self.attributes = [quoted(name) for name in self._names]
        self.frame = self._rows(prefix)

    def name(self, what: str) -> str:
        return self.mark + what

    @property
    def position(self) -> list[str]:
        return [self.name("time"), *[self.name(f"order{i}") for i in range(self.width)]]

    @property
    def identity(self) -> list[str]:
        """Columns that identify a row: partition, place and, where each window has its own row, the window."""
        window = [] if self._spec.window is None else [self.name("window")]
        return [self.name("partition"), *self.position, *window]

    def _rows(self, prefix: str) -> DataFrame:
        spec, frame = self._spec, self.stream.frame
        named = spec.left_time if self.side == LEFT else spec.right_time
        window: list[Column] = []
        if spec.window is not None:
            frame = per_window(with_windows(frame, spec.window, named or spec.window.on), spec.window)
            window = [F.col(WINDOW).alias(self.name("window"))]
        elif named is not None:
            frame = frame.where(F.col(quoted(named)).isNotNull())
        return frame.select(
            F.col(PARTITION).alias(self.name("partition")),
            *[F.col(old).alias(new) for old, new in zip(self.stream.position, self.position)],
            (F.expr(member_time(named)) if spec.window is None else F.lit(0)).alias(self.name("at")),
            *[F.col(quoted(pair[self.side])).alias(self.name(f"key{i}")) for i, pair in enumerate(spec.on)],
            *window,
            *[F.col(quoted(name)).alias(prefix + name) for name in self.stream.names],
        )

    @property
    def nothing(self) -> list[Column]:
        """Returns null attributes, for an outer row without partner."""
        types = self.stream.types.values()
        return [F.lit(None).cast(type_).alias(name) for name, type_ in zip(self._names, types)]

    def until(self) -> Column:
        """Returns the last tuple time at which a row can still find a partner, by the interval."""
        assert self._spec.within_us is not None
        lower, upper = self._spec.within_us
        reach = upper if self.side == LEFT else -lower
        return F.col(self.name("at")) + max(-_FAR, min(_FAR, reach))


def join(spec: JoinEntry, left: TruthStream, right: TruthStream) -> TruthStream:
    """Returns the output of a join."""
    sides = (_Side(spec, LEFT, left), _Side(spec, RIGHT, right))
    pairs = _pairs(spec, *sides)
    if spec.where is not None:
        pairs = _where(spec, pairs)
    widest = max(side.width for side in sides)
    width = 2 * widest + 5
    rows = _paired(spec, pairs, sides, widest, width)
    for side in sides:
        if spec.kind in _OUTER[side.side]:
            alone = side.frame.join(pairs.select(*side.identity).distinct(), side.identity, "left_anti")
            rows = rows.unionByName(_alone(spec, alone, sides, side, width))
    return TruthStream(rows, width)


def _pairs(spec: JoinEntry, left: _Side, right: _Side) -> DataFrame:
    """Returns all pairs of rows that match in key and time."""
    same = F.col("__l_partition") == F.col("__r_partition")
    for i in range(len(spec.on)):
        same &= F.col(f"__l_key{i}") == F.col(f"__r_key{i}")
    if spec.window is not None:
        return left.frame.join(right.frame, same & (F.col("__l_window") == F.col("__r_window")))
    assert spec.within_us is not None
    lower, upper = (max(-_FAR, min(_FAR, us)) for us in spec.within_us)
    step = min(upper - lower + 1, _FAR)
    # Bins are as wide as the interval: a left row is in two of them, a right one in one.
    reach = [floor_div(_clipped(F.col("__l_at") + end), step) for end in (lower, upper)]
    lefts = left.frame.withColumn("__l_bin", F.explode(F.sequence(*reach)))
    rights = right.frame.withColumn("__r_bin", floor_div(F.col("__r_at"), step))
    apart = F.col("__r_at") - F.col("__l_at")
    right_later = F.col("__r_time") >= F.col("__l_time")
    in_time = F.when(right_later, F.col("__r_time") <= left.until()).otherwise(F.col("__l_time") <= right.until())
    fits = (apart >= lower) & (apart <= upper) & in_time
    return lefts.join(rights, same & (F.col("__l_bin") == F.col("__r_bin")) & fits)


def _clipped(column: Column) -> Column:
    return F.greatest(F.lit(-_FAR), F.least(F.lit(_FAR), column))


def _where(spec: JoinEntry, pairs: DataFrame) -> DataFrame:
    """Returns pairs for which the condition is true; it may name the window's attributes."""
    assert spec.where is not None
    if spec.window is None:
        return pairs.where(expression(pairs, spec.where))
    bounded = pairs.select("*", *_bounds(spec, "__l_window"))
    return bounded.where(expression(bounded, spec.where)).drop(*_BOUNDS)


def _bounds(spec: JoinEntry, window: str) -> tuple[Column, Column]:
    """Returns the window's attributes."""
    assert spec.window is not None
    bounds = start_of(spec.window, window), end_of(spec.window, window)
    return timestamp(bounds[0]).alias(_BOUNDS[0]), timestamp(bounds[1]).alias(_BOUNDS[1])


def _paired(spec: JoinEntry, pairs: DataFrame, sides: tuple[_Side, _Side], widest: int, width: int) -> DataFrame:
    """Orders pairs by later tuple, earlier tuple, window; the left input goes first at equal times."""
    left, right = (padded(columns(side.position), widest + 1) for side in sides)
    right_later = F.col("__r_time") >= F.col("__l_time")
    later = [F.when(right_later, r).otherwise(l_) for l_, r in zip(left, right)]
    earlier = [F.when(right_later, l_).otherwise(r) for l_, r in zip(left, right)]
    window = F.col("__l_window") if spec.window is not None else F.lit(0)
    order = [F.lit(0), F.when(right_later, RIGHT).otherwise(LEFT), *later[1:], *earlier, window]
    bounds = [] if spec.window is None else list(_bounds(spec, "__l_window"))
    made = [*columns(sides[LEFT].attributes), *columns(sides[RIGHT].attributes), *bounds]
    return pairs.select(
        F.col("__l_partition").alias(PARTITION),
        later[0].alias(TIME),
        *ordered(padded(order, width)),
        *made,
    )


def _alone(spec: JoinEntry, rows: DataFrame, sides: tuple[_Side, _Side], side: _Side, width: int) -> DataFrame:
    """Returns outer rows: at the last time at which they could find a partner, behind the pairs of that instant."""
    bounds: list[Column] = []
    if spec.window is None:
        time = F.least(F.greatest(side.until(), F.col(side.name("time"))), F.lit(END_OF_TIME - 1))
    else:
        time = end_of(spec.window, side.name("window")) - 1
        bounds = list(_bounds(spec, side.name("window")))
    own, *order = columns(side.position)
    made = [
        *(
            column
            for each_side in sides
            for column in (columns(each_side.attributes) if each_side is side else each_side.nothing)
        ),
        *bounds,
    ]
    return rows.select(
        F.col(side.name("partition")).alias(PARTITION),
        time.alias(TIME),
        *ordered(padded([F.lit(1), own, F.lit(side.side), *order], width)),
        *made,
    )
