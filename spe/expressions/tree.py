"""The typed tree: what an expression computes, as the generator sees it.

Nodes compare by what they compute, not by where they stand, so an equal part is computed once.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from spe.stream.schema import AttributeType

#: Inclusive range of an integer that Spark keeps in 32 bits (INT); None for a BIGINT.
Bounds = tuple[int, int] | None


@dataclass(frozen=True, slots=True)
class Function:
    """How a function computes.  Null if any argument is.

    One of ``template``, ``columns`` and ``text`` is set.

    Attributes:
      template: a NumPy expression with ``{0}``, ``{1}`` … for its arguments (arrays, or scalars if literals).
      columns: takes such arguments; returns an array, or if ``partial`` the array and which rows are not null.
      text: takes Python values of one row, at least one of all arguments a string or the result one; run once per
        distinct combination.  Returns a Python value, or if ``partial`` possibly None.
      partial: may be null though no argument is.
      warns: NumPy may warn (overflow, division, NaN), though the result is as wanted.
      literals: indexes of arguments that are always literals.
    """

    name: str
    template: str | None = None
    columns: Callable[..., Any] | None = None
    text: Callable[..., Any] | None = None
    partial: bool = False
    warns: bool = False
    literals: frozenset[int] = frozenset()


class Form(enum.Enum):
    """What is computed otherwise than row by row from values alone: nulls decide, or dictionaries."""

    AND = enum.auto()
    OR = enum.auto()
    IS_NULL = enum.auto()
    SAME = enum.auto()  # (a, b, a = b): null-safe equality
    CASE = enum.auto()  # (condition, value, condition, value, …, else)
    COALESCE = enum.auto()
    GREATEST = enum.auto()  # (a, b): the one that is not null, else the larger
    LEAST = enum.auto()
    TEXT_EQUAL = enum.auto()  # two strings; the second may be a literal
    FLOAT_EQUAL = enum.auto()  # two floats, by NaN's rules; a literal makes these cheaper
    FLOAT_LESS = enum.auto()
    FLOAT_LESS_EQUAL = enum.auto()


@dataclass(frozen=True, slots=True)
class TypedExpression:
    """A part of an expression.

    Attributes:
      nullable: may be null.
      position: offset in the text, for errors.
      bounds: for an integer, see :data:`Bounds`.
    """

    type: AttributeType
    nullable: bool
    position: int = field(compare=False)
    bounds: Bounds = field(compare=False)


@dataclass(frozen=True, slots=True)
class Attr(TypedExpression):
    """An attribute: column ``index`` of the rows."""

    index: int
    name: str


@dataclass(frozen=True, slots=True)
class Const(TypedExpression):
    """A literal, or a part of literals only; None is null.  ``repr`` tells 0.0 from −0.0, and NaN equals itself.

    ``untyped`` is NULL itself, which takes the type that its place asks for.
    """

    value: Any = field(compare=False)
    untyped: bool = field(compare=False)
    key: str


@dataclass(frozen=True, slots=True)
class Apply(TypedExpression):
    """A function of its arguments."""

    function: Function
    arguments: tuple[TypedExpression, ...]


@dataclass(frozen=True, slots=True)
class Special(TypedExpression):
    """A special form of its arguments."""

    form: Form
    arguments: tuple[TypedExpression, ...]


def constant(value: Any, type_: AttributeType, position: int = 0, bounds: Bounds = None) -> Const:
    return Const(type_, value is None, position, bounds, value, False, repr(value))


def null(position: int) -> Const:
    """NULL before its type is known."""
    return Const(AttributeType.BOOL, True, position, None, None, True, "None")
