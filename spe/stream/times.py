"""Tuple time: int64 microseconds, with ends at which arithmetic saturates."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Final

#: The boundary that ends a stream; later than every tuple.  2**62, so that adding a window cannot overflow.
END_OF_TIME: Final = 2**62
#: Earlier than every tuple: nothing has been released yet.
BEFORE_TIME: Final = -(2**62)
#: Event times outside ±2**61 µs (some 73,000 years) are refused: the ends of time must stay out of reach of sums.
EVENT_LIMIT_US: Final = 2**61

MILLISECOND: Final = 1_000
SECOND: Final = 1_000_000

_UNITS: Final = {
    "us": 1,
    "ms": MILLISECOND,
    "s": SECOND,
    "m": 60 * SECOND,
    "min": 60 * SECOND,
    "h": 3_600 * SECOND,
    "d": 86_400 * SECOND,
}
_PART = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*(us|ms|min|s|m|h|d)")
#: A year as ISO 8601 writes it beyond four digits; year 0 has four, and is no year of Python's.
_EXPANDED_YEAR: Final = re.compile(r"([+-][0-9]{6}|0000)(?=-)")
#: The calendar repeats itself every 400 years.
_CYCLE_US: Final = 146_097 * 86_400 * SECOND
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def parse_duration(text: str) -> int:
    """Parses a text such as ``500ms``, ``2s``, ``1h30m`` or ``-10s``; returns microseconds.

    Raises:
      ValueError: the text is no duration (a bare number has no unit and is refused), or too long.
    """
    body, sign = text.strip(), 1
    if body.startswith("-"):
        body, sign = body[1:], -1
    total, at = 0.0, 0
    while at < len(body):
        part = _PART.match(body, at)
        if part is None:
            raise ValueError(f"expected a duration such as 500ms, 2s or 1h30m, got {text!r}")
        total += float(part[1]) * _UNITS[part[2]]
        at = part.end()
    if at == 0:
        raise ValueError(f"expected a duration such as 500ms, 2s or 1h30m, got {text!r}")
    if total >= END_OF_TIME:
        raise ValueError(f"expected a duration below {END_OF_TIME // (366 * _UNITS['d']):,} years, got {text[:40]!r}")
    return sign * round(total)


def format_duration(us: int) -> str:
    """Returns the shortest exact text that :func:`parse_duration` accepts."""
    for unit in ("d", "h", "m", "s", "ms"):
        if us and us % _UNITS[unit] == 0:
            return f"{us // _UNITS[unit]}{unit}"
    return f"{us}us" if us else "0s"


def parse_timestamp(text: str) -> int:
    """Parses ISO 8601; returns microseconds since the epoch.  UTC if no zone is given.

    Years outside 1 to 9999 are written with a sign and six digits, as ISO 8601 has it: ``+012026-01-01T00:00:00``.

    Raises:
      ValueError: the text is no ISO 8601 timestamp.
    """
    if (expanded := _EXPANDED_YEAR.match(text)) is not None:
        cycles, year = divmod(int(expanded[1]) - 2000, 400)
        return parse_timestamp(f"{2000 + year}{text[expanded.end() :]}") + cycles * _CYCLE_US
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return (moment - _EPOCH) // timedelta(microseconds=1)


def format_timestamp(us: int) -> str:
    """Formats a time as :func:`iso_timestamp` does, with ±inf for the ends of time."""
    if us >= END_OF_TIME:
        return "+inf"
    if us <= BEFORE_TIME:
        return "-inf"
    return iso_timestamp(us)


def iso_timestamp(us: int) -> str:
    """Formats any int64 as ISO 8601 in UTC, without zero microseconds; :func:`parse_timestamp` accepts the text."""
    try:
        return (_EPOCH + timedelta(microseconds=us)).replace(tzinfo=None).isoformat()
    except OverflowError:
        cycles, rest = divmod(us, _CYCLE_US)  # the rest lies in 1970 to 2369
        moment = _EPOCH + timedelta(microseconds=rest)
        year = moment.year + 400 * cycles
        shown = "0000" if year == 0 else f"{year:+07d}"
        return shown + moment.replace(tzinfo=None).isoformat()[4:]


def saturating_add(time_us: int, delta_us: int) -> int:
    """Returns ``time_us + delta_us``; the ends of time stay."""
    if time_us >= END_OF_TIME or time_us <= BEFORE_TIME:
        return time_us
    return max(BEFORE_TIME, min(END_OF_TIME, time_us + delta_us))


def floor_to(time_us: int, step_us: int) -> int:
    """Returns the largest multiple of ``step_us`` that is ≤ ``time_us``; the ends of time count as multiples."""
    if time_us >= END_OF_TIME or time_us <= BEFORE_TIME:
        return time_us
    return time_us - time_us % step_us
