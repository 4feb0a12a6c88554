"""Interval literals: lengths of time that do not depend on the calendar."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Final

_UNIT_US: Final = {
    "microsecond": 1,
    "millisecond": 1_000,
    "second": 1_000_000,
    "minute": 60_000_000,
    "hour": 3_600_000_000,
    "day": 86_400_000_000,
    "week": 604_800_000_000,
}
_PART = re.compile(r"\s*([+-]?\d+(?:\.\d+)?)\s+([A-Za-z]+)", re.ASCII)


class NotAnInterval(ValueError):
    """The text is no interval of fixed length; the message has the reason."""


def interval_us(text: str) -> int:
    """Reads ``5 seconds``, ``1 hour 30 minutes``, ``-2 days``; returns microseconds.

    Raises:
      NotAnInterval: the text is no interval, or has months or years, whose length varies.
    """
    body = text.strip()
    if body.lower().startswith("interval "):
        body = body[len("interval ") :]
    total, at = Decimal(0), 0
    while at < len(body):
        part = _PART.match(body, at)
        if part is None:
            raise NotAnInterval(f"{text!r} is no interval")
        unit = part[2].lower().removesuffix("s")
        if unit in ("month", "year", "quarter"):
            raise NotAnInterval(f"{part[2]} have no fixed length")
        if unit not in _UNIT_US:
            raise NotAnInterval(f"{part[2]!r} is no unit of time")
        if "." in part[1] and unit != "second":
            raise NotAnInterval("only seconds may have a fraction")
        total += Decimal(part[1]) * _UNIT_US[unit]
        at = part.end()
    if at == 0:
        raise NotAnInterval(f"{text!r} is no interval")
    if total != int(total):
        raise NotAnInterval(f"{text!r} is finer than a microsecond")
    if abs(total) >= 2**62:
        raise NotAnInterval(f"{text!r} is longer than time")
    return int(total)
