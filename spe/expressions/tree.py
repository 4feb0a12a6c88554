"""The typed tree of an expression, for the generator.

Nodes compare by their computation, not by their position, so equal parts are computed once.
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
    """The implementation of a function.  The result is null if any argument is.

    One of ``template``, ``columns`` and ``text`` is set.

    Attributes:
      template: a NumPy expression with ``{0}``, ``{1}`` … for its arguments (arrays, or scalars if literals).
      columns: takes such arguments; returns an array, or if ``partial`` the array and a mask of rows that are not null.
      text: takes Python values of one row, where an argument or the result is a string; called once per distinct
        combination.  Returns a Python value, or None if ``partial``.
      partial: the result may be null although no argument is.
      warns: NumPy may warn (overflow, division, NaN) although the result is correct.
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
    """Special forms, which depend on nulls or dictionaries, not on values alone."""

    AND = enum.auto()
    OR = enum.auto()
    IS_NULL = enum.auto()
    SAME = enum.auto()  # (a, b, a = b): null-safe equality
    CASE = enum.auto()  # (condition, value, condition, value, …, else)
    COALESCE = enum.auto()
    GREATEST = enum.auto()  # (a, b): the larger, or the one that is not null
    LEAST = enum.auto()
    TEXT_EQUAL = enum.auto()  # two strings; the second may be a literal
    FLOAT_EQUAL = enum.auto()  # two floats, with the rules for NaN; cheaper with a literal
    FLOAT_LESS = enum.auto()
    FLOAT_LESS_EQUAL = enum.auto()


@dataclass(frozen=True, slots=True)
class TypedExpression:
    """A part of an expression.

    Attributes:
      nullable: the value may be null.
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
    """A literal, or a part of literals only; None is null.  ``key`` distinguishes 0.0 and −0.0; NaN equals NaN.

    ``untyped`` is NULL itself, which takes the required type.
    """

    value: Any = field(compare=False)
    untyped: bool = field(compare=False)
    key: str


@dataclass(frozen=True, slots=True)
class Apply(TypedExpression):
    """A function with arguments."""

    function: Function
    arguments: tuple[TypedExpression, ...]


@dataclass(frozen=True, slots=True)
class Special(TypedExpression):
    """A special form with arguments."""

    form: Form
    arguments: tuple[TypedExpression, ...]


def constant(value: Any, type_: AttributeType, position: int = 0, bounds: Bounds = None) -> Const:
    return Const(type_, value is None, position, bounds, value, False, repr(value))


def null(position: int) -> Const:
    """NULL before its type is known."""
    return Const(AttributeType.BOOL, True, position, None, None, True, "None")
