"""Quantities in a configuration, written as texts, and the base of its models.

Each type's validator reports what it expected; pydantic collects the errors of all fields.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Final
from urllib.parse import SplitResult, urlsplit

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field
from pydantic.fields import FieldInfo

from spe.stream.times import parse_duration, parse_timestamp

#: Prefix of S3 URLs.
S3: Final = "s3://"
#: Range of sensible numbers above zero.
_LEAST: Final = 1e-6
_MOST: Final = 1e12
_SIZE: Final = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*(B|kB|KB|MB|GB|KiB|MiB|GiB)?\s*")
_PERCENT: Final = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*%\s*")
_SIZES: Final = {
    None: 1,
    "B": 1,
    "kB": 10**3,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "KiB": 1 << 10,
    "MiB": 1 << 20,
    "GiB": 1 << 30,
}


class Model(BaseModel):
    """A mapping in the configuration.  Refuses unknown keys; does not convert between texts and numbers."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, populate_by_name=True)

    @classmethod
    def known(cls) -> dict[str, FieldInfo]:
        """Returns the keys."""
        return {field.alias or name: field for name, field in cls.model_fields.items()}


def duration_of(value: Any) -> int:
    """Reads ``2s``; returns microseconds.  Raises ValueError without a unit, except for 0."""
    if isinstance(value, str):
        return parse_duration(value)
    if value == 0 and isinstance(value, int) and not isinstance(value, bool):
        return 0
    raise ValueError(f"expected a duration with its unit, such as 500ms, 2s or 1h30m, got {value!r}")


def _positive_duration(value: Any) -> int:
    us = duration_of(value)
    if us <= 0:
        raise ValueError(f"expected a duration above zero, got {value!r}")
    return us


def _length(value: Any) -> int:
    us = duration_of(value)
    if us < 0:
        raise ValueError(f"expected a duration of zero or more, got {value!r}")
    return us


def size_of(value: Any) -> int:
    """Reads ``64MB`` or ``1GiB``; returns bytes.  Raises ValueError."""
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        return value
    match = _SIZE.fullmatch(value) if isinstance(value, str) else None
    if match is None or not 0 < float(match[1]) < 1e18:
        raise ValueError(f"expected a size such as 64MB or 1GiB, got {str(value)[:40]!r}")
    return round(float(match[1]) * _SIZES[match[2]])


def share_of(value: Any) -> float:
    """Reads ``5%`` or ``0.05``; returns 0.05.  Raises ValueError unless above 0 and at most 100%."""
    match = _PERCENT.fullmatch(value) if isinstance(value, str) else None
    number = float(match[1]) / 100 if match else value
    if isinstance(number, int | float) and not isinstance(number, bool) and 0 < number <= 1:
        return float(number)
    raise ValueError(f"expected a share above 0 and at most 100%, such as 5% or 0.05, got {value!r}")


def timestamp_of(value: Any) -> int:
    """Reads an ISO 8601 text; returns microseconds since the epoch.  Raises ValueError."""
    if isinstance(value, str):
        try:
            return parse_timestamp(value)
        except ValueError:
            pass
    raise ValueError(f"expected an ISO 8601 timestamp such as 2018-03-24T17:15:20, got {value!r}")


def address_of(value: Any) -> str:
    """Checks ``host:port``; port 0: any free one.  Raises ValueError."""
    if isinstance(value, str):
        host, colon, port = value.rpartition(":")
        if host and colon and port.isdecimal() and int(port) < 65_536:
            return value
    raise ValueError(f"expected host:port such as 127.0.0.1:7101, got {value!r}")


def is_select(text: Any) -> bool:
    """Does a text begin like a SELECT statement?"""
    return isinstance(text, str) and text.lstrip()[:7].upper() == "SELECT "


def names_of(value: Any) -> tuple[str, ...]:
    """Reads a name, or a list of distinct names.  Raises ValueError."""
    items = [value] if isinstance(value, str) else value
    if not isinstance(items, list | tuple) or not all(isinstance(i, str) and i for i in items):
        raise ValueError(f"expected a name or a list of names, got {value!r}")
    twice = sorted({i for i in items if list(items).count(i) > 1})
    if twice:
        raise ValueError(f"{twice[0]!r} is listed twice")
    return tuple(items)


#: Microseconds above zero.
PositiveDuration = Annotated[int, BeforeValidator(_positive_duration)]
#: Microseconds, zero or more.
Length = Annotated[int, BeforeValidator(_length)]
#: Bytes.
Size = Annotated[int, BeforeValidator(size_of)]
#: Above 0, at most 1.
Share = Annotated[float, BeforeValidator(share_of)]
#: Microseconds since the epoch.
Moment = Annotated[int, BeforeValidator(timestamp_of)]
#: ``host:port``.
Address = Annotated[str, BeforeValidator(address_of)]
#: One or more names.
Names = Annotated[tuple[str, ...], BeforeValidator(names_of)]
#: A count of at least one.
Count = Annotated[int, Field(ge=1)]


def _moderate(number: float) -> float:
    """Returns a number.  Raises ValueError if it is too small or large to scale times with."""
    if not _LEAST <= number <= _MOST:
        raise ValueError(f"expected a number from {_LEAST:g} to {_MOST:g}, got {number:g}")
    return number


#: A number above zero, not extremely small or large.
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False), AfterValidator(_moderate)]


def split_open(url: str) -> SplitResult:
    """Splits a URL for display.  Raises ValueError if it has credentials or options, without repeating them."""
    parts = urlsplit(url)
    if "@" in parts.netloc or parts.query or parts.fragment:
        raise ValueError("expected no credentials and no options in a URL: the environment or files of AWS have those")
    return parts
