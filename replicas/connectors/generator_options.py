"""Options of readers, as a configuration or a caller gives them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from spe.errors import SpeError
from spe.stream.times import parse_duration, parse_timestamp


def duration_of(value: str | int) -> int:
    """Returns an option in microseconds, given as a text such as ``2s``, or as microseconds."""
    try:
        return parse_duration(value) if isinstance(value, str) else int(value)
    except ValueError as error:
        raise SpeError(str(error)) from error


def timestamp_of(value: str | int) -> int:
    """Returns an option in microseconds, given as an ISO 8601 text, or as microseconds."""
    try:
        return parse_timestamp(value) if isinstance(value, str) else int(value)
    except ValueError as error:
        raise SpeError(f"expected an ISO 8601 timestamp, got {value!r}") from error


def positive(reader: Mapping[str, Any], name: str, default: float) -> float:
    """Returns an option that must be above zero."""
    value = reader.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise SpeError(f"reader.{name}: expected a positive number, got {value!r}")
    return float(value)
