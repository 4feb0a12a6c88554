"""String functions, and casts from and to strings, on one text.

They run once per distinct text, not per row (spe.expressions.entries), so they may be plain Python.  Each is total: it
returns None where Spark gives NULL.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Final

import numpy as np

from spe.expressions.numbers import INT64_MAX, INT64_MIN

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)

#: Characters that Spark trims before casting a text: white space and control characters.
_BLANK: Final = "".join(chr(c) for c in range(0x21)) + "\x7f"
_INTEGER = re.compile(r"([+-]?)(?:(\d+)(?:\.\d*)?|\.\d*)", re.ASCII)
_DOUBLE = re.compile(r"([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)[dDfF]?", re.ASCII)
_SPECIAL: Final = {
    "nan": float("nan"),
    "inf": float("inf"),
    "+inf": float("inf"),
    "infinity": float("inf"),
    "+infinity": float("inf"),
    "-inf": float("-inf"),
    "-infinity": float("-inf"),
}
_TRUE: Final = frozenset(("t", "true", "y", "yes", "1"))
_FALSE: Final = frozenset(("f", "false", "n", "no", "0"))
_TIMESTAMP = re.compile(
    r"(?P<year>\d{4})(?:-(?P<month>\d{1,2})(?:-(?P<day>\d{1,2})"
    r"(?:[ T](?:(?P<hour>\d{1,2}):(?P<minute>\d{1,2})(?::(?P<second>\d{1,2})(?:\.(?P<fraction>\d*))?)?"
    r"\s*(?P<zone>Z|UTC|GMT|(?P<sign>[+-])(?P<zone_hour>\d{1,2})(?::?(?P<zone_minute>\d{2}))?)?)?)?)?)?",
    re.ASCII,
)


# Functions.


def substring(text: str, position: int, length: int = INT64_MAX) -> str:
    """Returns characters from a 1-based position on (0 counts as 1; negative: from the end)."""
    start = position - 1 if position > 0 else len(text) + position if position < 0 else 0
    end = start + length
    return text[max(start, 0) : max(end, 0)] if end > start else ""


def replace(text: str, search: str, replacement: str = "") -> str:
    return text.replace(search, replacement) if search else text


def split_part(text: str, delimiter: str, index: int) -> str | None:
    """Returns the 1-based part between delimiters, from the end if negative; "" out of range."""
    if index == 0:
        return None
    parts = text.split(delimiter) if delimiter else [text]
    at = index - 1 if index > 0 else len(parts) + index
    return parts[at] if 0 <= at < len(parts) else ""


def lpad(text: str, length: int, pad: str = " ") -> str:
    return _padding(text, length, pad) + text[: max(length, 0)]


def rpad(text: str, length: int, pad: str = " ") -> str:
    return text[: max(length, 0)] + _padding(text, length, pad)


def _padding(text: str, length: int, pad: str) -> str:
    missing = length - len(text)
    return (pad * (missing // len(pad) + 1))[:missing] if missing > 0 and pad else ""


class Like:
    """A LIKE pattern as a predicate on a text.

    Linear in the text: between two ``%`` the first match suffices, so there is no backtracking.

    Raises:
      ValueError: the escape character is before a character that needs none, or at the end.
    """

    def __init__(self, pattern: str, escape: str) -> None:
        segments, at = [""], 0
        while at < len(pattern):
            c = pattern[at]
            if c == escape:
                at += 1
                if at == len(pattern):
                    raise ValueError(f"the pattern ends with the escape character {escape}")
                c = pattern[at]
                if c not in ("%", "_", escape):
                    raise ValueError(f"the escape character {escape} stands before {c}, which needs none")
                segments[-1] += re.escape(c)
            elif c == "%":
                segments.append("")
            else:
                segments[-1] += "." if c == "_" else re.escape(c)
            at += 1
        compiled = [re.compile(s, re.DOTALL) for s in segments]
        self._first, self._middle, self._last = compiled[0], compiled[1:-1], compiled[-1]
        self._last_length = len(re.sub(r"\\.", ".", segments[-1], flags=re.DOTALL))
        self._whole = len(segments) == 1

    def __call__(self, text: str) -> bool:
        if self._whole:
            return self._first.fullmatch(text) is not None
        match = self._first.match(text)
        for segment in self._middle:
            if match is None:
                return False
            match = segment.search(text, match.end())
        if match is None:
            return False
        tail = len(text) - self._last_length
        return tail >= match.end() and self._last.fullmatch(text, tail) is not None


# Casts from strings.


def int_of_text(text: str) -> int | None:
    """Casts as Spark does with ANSI off: truncates a fraction."""
    match = _INTEGER.fullmatch(text.strip(_BLANK))
    if match is None or match[0] in ("", "+", "-"):
        return None
    value = int(match[1] + (match[2] or "0")) if len(match[0]) < 400 else INT64_MAX + 1
    return value if INT64_MIN <= value <= INT64_MAX else None


def float_of_text(text: str) -> float | None:
    body = text.strip(_BLANK)
    match = _DOUBLE.fullmatch(body)
    return float(match[1]) if match is not None else _SPECIAL.get(body.lower())


def bool_of_text(text: str) -> bool | None:
    body = text.strip(_BLANK).lower()
    return True if body in _TRUE else False if body in _FALSE else None


def timestamp_of_text(text: str) -> int | None:
    """Reads ``2026``, ``2026-01``, ``2026-01-31`` or ``2026-01-31 12:00[:00[.123456]][zone]``; None otherwise.

    UTC without a zone; a zone is Z, UTC, GMT or an offset.  Digits beyond microseconds are cut off.
    """
    match = _TIMESTAMP.fullmatch(text.strip(_BLANK))
    if match is None:
        return None
    part = {name: int(value) for name, value in match.groupdict("0").items() if value.isdigit()}
    try:
        moment = datetime(
            part["year"],
            part["month"] or 1,
            part["day"] or 1,
            part["hour"],
            part["minute"],
            part["second"],
            int((match["fraction"] or "").ljust(6, "0")[:6]),
            UTC,
        )
    except ValueError:
        return None
    if (match["month"] and not part["month"]) or (match["day"] and not part["day"]):
        return None
    if part["zone_hour"] > 18 or part["zone_minute"] > 59:
        return None
    offset_us = (part["zone_hour"] * 60 + part["zone_minute"]) * 60_000_000
    return (moment - _EPOCH) // _MICROSECOND + (offset_us if match["sign"] == "-" else -offset_us)


# Casts to strings.


def text_of_float(value: float) -> str:
    """Formats as Double.toString of Java 19 and later: plain between 10⁻³ and 10⁷, else with an exponent.

    Uses the shortest digits that identify the value; instead of a single one, the nearest two (4.9E-324).
    """
    value += 0.0
    if value != value:
        return "NaN"
    if value in (float("inf"), float("-inf")):
        return "Infinity" if value > 0 else "-Infinity"
    if value == 0:
        return "0.0"
    sign = "-" if value < 0 else ""
    shown = repr(abs(value))
    if len(shown.partition("e")[0]) == 1:
        shown = f"{abs(value):.1e}"
    mantissa, _, exponent = shown.partition("e")
    whole, _, fraction = mantissa.partition(".")
    digits = (whole + fraction).lstrip("0")
    #: value = 0.digits × 10^point
    point = len(whole) + int(exponent or 0) - (len(whole + fraction) - len(digits))
    digits = digits.rstrip("0") or "0"
    if -3 < point <= 7:
        if point <= 0:
            return f"{sign}0.{'0' * -point}{digits}"
        return f"{sign}{digits[:point].ljust(point, '0')}.{digits[point:] or '0'}"
    return f"{sign}{digits[0]}.{digits[1:] or '0'}E{point - 1}"


def text_of_bool(value: bool) -> str:
    return "true" if value else "false"


def text_of_timestamp(us: int) -> str:
    """Formats ``2026-01-31 12:00:00.5``, in UTC, without trailing zeros."""
    seconds, micros = divmod(us, 1_000_000)
    text = str(np.datetime64(seconds, "s")).replace("T", " ")
    if not text.startswith("-") and len(text) > len("2026-01-31 12:00:00"):
        text = "+" + text
    return f"{text}.{micros:06d}".rstrip("0") if micros else text
