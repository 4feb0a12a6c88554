"""Parts of timestamps (int64 microseconds, UTC, proleptic Gregorian) on whole columns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import numpy.typing as npt

Int64Array = npt.NDArray[np.int64]

SECOND_US: Final = 1_000_000
DAY_US: Final = 86_400 * SECOND_US
#: 1969-12-29, the Monday before the epoch, in days.
_MONDAY: Final = -3


def _days(us: Int64Array) -> Int64Array:
    return us // DAY_US


def _dates(us: Int64Array, unit: str) -> Int64Array:
    """Returns years or months since 1970-01."""
    return _days(us).view("datetime64[D]").astype(f"datetime64[{unit}]").view(np.int64)


def _begin(count: Int64Array, unit: str) -> Int64Array:
    """Returns the day since the epoch at which a year or month begins."""
    return count.view(f"datetime64[{unit}]").astype("datetime64[D]").view(np.int64)


def year(us: Int64Array) -> Int64Array:
    return _dates(us, "Y") + 1970


def quarter(us: Int64Array) -> Int64Array:
    return _dates(us, "M") % 12 // 3 + 1


def month(us: Int64Array) -> Int64Array:
    return _dates(us, "M") % 12 + 1


def day(us: Int64Array) -> Int64Array:
    return _days(us) - _begin(_dates(us, "M"), "M") + 1


def day_of_year(us: Int64Array) -> Int64Array:
    return _days(us) - _begin(_dates(us, "Y"), "Y") + 1


def weekday(us: Int64Array) -> Int64Array:
    """Day of the week, Monday is 0."""
    return (_days(us) - _MONDAY) % 7


def day_of_week(us: Int64Array) -> Int64Array:
    """Day of the week, Sunday is 1."""
    return (_days(us) - _MONDAY + 1) % 7 + 1


def week_of_year(us: Int64Array) -> Int64Array:
    """Week by ISO 8601: it belongs to the year of its Thursday."""
    thursday = _days(us) - weekday(us) + 3
    return (day_of_year(thursday * DAY_US) - 1) // 7 + 1


def _part(unit_us: int, count: int) -> Callable[[Any], Any]:
    def part(us: Int64Array) -> Int64Array:
        return us // unit_us % count

    return part


hour = _part(3_600 * SECOND_US, 24)
minute = _part(60 * SECOND_US, 60)
second = _part(SECOND_US, 60)


def _to_step(step_us: int) -> Callable[[Any], Any]:
    def truncate(us: Int64Array) -> Int64Array:
        return us - us % step_us

    return truncate


def _to_week(us: Int64Array) -> Int64Array:
    return (_days(us) - weekday(us)) * DAY_US


def _to_months(unit: str, step: int) -> Callable[[Any], Any]:
    def truncate(us: Int64Array) -> Int64Array:
        count = _dates(us, unit)
        return _begin(count - count % step, unit) * DAY_US

    return truncate


_TO_MONTH, _TO_YEAR, _TO_DAY = _to_months("M", 1), _to_months("Y", 1), _to_step(DAY_US)
#: Unit of date_trunc -> function that returns the start of a timestamp's unit.
TRUNCATE: Final[dict[str, Callable[[Any], Any]]] = {
    "microsecond": _to_step(1),
    "millisecond": _to_step(1_000),
    "second": _to_step(SECOND_US),
    "minute": _to_step(60 * SECOND_US),
    "hour": _to_step(3_600 * SECOND_US),
    "day": _TO_DAY,
    "dd": _TO_DAY,
    "week": _to_week,
    "month": _TO_MONTH,
    "mon": _TO_MONTH,
    "mm": _TO_MONTH,
    "quarter": _to_months("M", 3),
    "year": _TO_YEAR,
    "yyyy": _TO_YEAR,
    "yy": _TO_YEAR,
}
