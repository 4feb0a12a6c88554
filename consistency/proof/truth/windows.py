"""Finds the windows in which a tuple counts, as Spark computes them (docs/reference/operators.md, rule U7)."""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from consistency.proof.recorded.query_file import TimeEntry
from consistency.proof.truth.stream import TIME, quoted
from spe.stream.times import END_OF_TIME

#: First and last window of a tuple; and the window, if each has its own row.
FIRST: Final = "__first"
LAST: Final = "__last"
WINDOW: Final = "__window"

_LAST_TIME: Final = END_OF_TIME - 1


def member_time(on: str | None) -> str:
    """Returns the time that decides membership, microseconds, in Spark SQL; null where the attribute is null."""
    if on is None:
        return TIME
    micros = f"unix_micros({quoted(on)})"
    return f"if({micros} is null, null, greatest(-{_LAST_TIME}L, least({_LAST_TIME}L, {micros})))"


def floor_div(column: Column, divisor: int) -> Column:
    """Returns ⌊column / divisor⌋ of longs."""
    by = F.lit(divisor).cast("long")
    return F.call_function("div", column - F.pmod(column, by), by)


def with_windows(frame: DataFrame, window: TimeEntry, on: str | None) -> DataFrame:
    """Adds FIRST and LAST, the windows in which a tuple counts; drops tuples that count in none.

    A window counts a tuple whose member time is in it and whose tuple time is before its end.
    """
    member = member_time(on)
    first, last = F.expr(window.first(member)), F.expr(window.last(member))
    if on is not None:  # by tuple time itself nothing is ever late
        frame = frame.where(F.col(quoted(on)).isNotNull())
        first = F.greatest(first, F.expr(window.first(TIME)))
    return frame.withColumns({FIRST: first, LAST: last}).where(F.col(FIRST) <= F.col(LAST))


def per_window(frame: DataFrame, window: TimeEntry) -> DataFrame:
    """Expands each row with FIRST and LAST to a row per window: adds WINDOW, drops these two."""
    each = F.explode(F.sequence(F.col(FIRST), F.col(LAST))) if window.overlaps else F.col(FIRST)
    return frame.withColumn(WINDOW, each).drop(FIRST, LAST)


def start_of(window: TimeEntry, number: str = WINDOW) -> Column:
    return F.expr(window.start(number))


def end_of(window: TimeEntry, number: str = WINDOW) -> Column:
    """Returns the end of a window, exclusive; END_OF_TIME at the latest."""
    return F.least(F.expr(window.end(number)), F.lit(END_OF_TIME))
