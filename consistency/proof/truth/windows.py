"""Finds the windows in which a tuple counts, as Spark computes them (docs/reference/operators.md, rule U7)."""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from consistency.proof.recorded.query_file import WindowEntry
from consistency.proof.truth.stream import TIME, quoted
from spe.stream.times import END_OF_TIME

#: First and last window of a tuple; and the window, if each has its own row.
FIRST: Final = "__first"
LAST: Final = "__last"
WINDOW: Final = "__window"

_LAST_TIME: Final = END_OF_TIME - 1


def member_time(on: str | None) -> Column:
    """Returns the time that decides membership, microseconds; null where the attribute is null."""
    if on is None:
        return F.col(TIME)
    micros = F.unix_micros(F.col(quoted(on)))
    return F.when(micros.isNotNull(), F.greatest(F.lit(-_LAST_TIME), F.least(F.lit(_LAST_TIME), micros)))


def floor_div(column: Column, divisor: int) -> Column:
    """Returns ⌊column / divisor⌋ of longs."""
    by = F.lit(divisor).cast("long")
    return F.call_function("div", column - F.pmod(column, by), by)


def with_windows(frame: DataFrame, window: WindowEntry, on: str | None) -> DataFrame:
    """Adds FIRST and LAST, the windows in which a tuple counts; drops tuples that count in none.

    A window counts a tuple whose member time is in it and whose tuple time is before its end.
    """
    member = member_time(on)
    size, slide, offset = window.size_us, window.slide_us, window.offset_us
    first = floor_div(member - (offset + size), slide) + 1
    if on is not None:  # by tuple time itself nothing is ever late
        first = F.greatest(first, floor_div(F.col(TIME) - (offset + size), slide) + 1)
    last = floor_div(member - offset, slide)
    counted = frame.withColumns({FIRST: first, LAST: last})
    if on is not None:
        counted = counted.where(member.isNotNull())
    return counted.where(F.col(FIRST) <= F.col(LAST))


def per_window(frame: DataFrame, window: WindowEntry) -> DataFrame:
    """Expands each row with FIRST and LAST to a row per window: adds WINDOW, drops these two."""
    if window.size_us <= window.slide_us:
        rows = frame.withColumn(WINDOW, F.col(FIRST))
    else:
        rows = frame.withColumn(WINDOW, F.explode(F.sequence(F.col(FIRST), F.col(LAST))))
    return rows.drop(FIRST, LAST)


def start_of(window: WindowEntry) -> Column:
    return F.col(WINDOW) * window.slide_us + window.offset_us


def end_of(window: WindowEntry) -> Column:
    """Returns the end of a window, exclusive; END_OF_TIME at the latest."""
    return F.least(start_of(window) + window.size_us, F.lit(END_OF_TIME))
