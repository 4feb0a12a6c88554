"""Formats figures, for the page and the terminal."""

from __future__ import annotations

from datetime import UTC, datetime

from spe.stream.times import BEFORE_TIME, END_OF_TIME


def count(n: int) -> str:
    """``12,345``."""
    return f"{n:,}"


def plural(n: int, what: str) -> str:
    """``1 tuple``, ``2 tuples``."""
    return f"{n:,} {what}{'' if n == 1 else 's'}"


def seconds(us: int | None) -> str:
    """``1.02 s``; ``unknown`` if it is not known."""
    if us is None:
        return "unknown"
    value = us / 1e6
    if abs(value) >= 100:
        return f"{value:.0f} s"
    return f"{value:.3g} s" if abs(value) >= 0.1 else f"{round(value, 3):g} s"


def share(value: float | None) -> str:
    """``97.3 %``; never 100 % for less than all."""
    if value is None:
        return "–"
    return "100 %" if value >= 1 else f"{min(value, 0.999) * 100:.1f} %"


def moment(time_us: int) -> str:
    """Tuple time as text, UTC; without microseconds where there are none."""
    if time_us <= BEFORE_TIME:
        return "the beginning"
    if time_us >= END_OF_TIME:
        return "the end"
    try:
        at = datetime.fromtimestamp(time_us // 1_000_000, UTC)
    except (OverflowError, OSError, ValueError):
        return f"{time_us} µs"
    rest = f".{time_us % 1_000_000:06d}" if time_us % 1_000_000 else ""
    return f"{at:%Y-%m-%d %H:%M:%S}{rest}"
