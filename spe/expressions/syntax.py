"""Untyped syntax of expressions: names, values and calls, each with its place in the text.

Operators are calls, too (``+``, ``and``, ``is null``), so the type checker handles one shape only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Union

from spe.stream.schema import AttributeType


@dataclass(frozen=True, slots=True)
class Name:
    """An attribute."""

    position: int
    name: str
    depth: int = 1


@dataclass(frozen=True, slots=True)
class Value:
    """A literal; None is NULL.

    Attributes:
      type: None for NULL, which takes the required type.
      wide: an integer that Spark reads as BIGINT (5L, or beyond 32 bits), not as INT.
    """

    position: int
    value: int | float | str | bool | None
    type: AttributeType | None
    wide: bool = False
    depth: int = 1


@dataclass(frozen=True, slots=True)
class Interval:
    """A fixed length of time."""

    position: int
    us: int
    depth: int = 1


@dataclass(frozen=True, slots=True)
class Call:
    """A function, an operator or a special form, by its lower-case name."""

    position: int
    name: str
    arguments: tuple[Syntax, ...]
    depth: int


@dataclass(frozen=True, slots=True)
class Cast:
    """CAST(argument AS target)."""

    position: int
    argument: Syntax
    target: AttributeType
    depth: int


Syntax = Union[Name, Value, Interval, Call, Cast]  # noqa: UP007 - the classes above refer to it before it exists
