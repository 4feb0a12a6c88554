"""Builds typed nodes: converts operands to one type, leaves out what literals decide, and computes literal parts."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Final, NoReturn

import numpy as np

from spe.errors import ExpressionError
from spe.expressions import functions
from spe.expressions.functions import INT_TO_FLOAT
from spe.expressions.generate import generate
from spe.expressions.tree import Apply, Bounds, Const, Form, Function, Special, TypedExpression, constant
from spe.stream.batch import Column
from spe.stream.schema import AttributeType

INT, FLOAT, BOOL = AttributeType.INT64, AttributeType.FLOAT64, AttributeType.BOOL
STRING, TIMESTAMP = AttributeType.STRING, AttributeType.TIMESTAMP

#: Longer lists of numbers are searched, shorter ones compared one by one.
_FEW: Final = 4
_FLOAT_FORMS: Final = {"=": Form.FLOAT_EQUAL, "<": Form.FLOAT_LESS, "<=": Form.FLOAT_LESS_EQUAL}
_PLAIN_FUNCTIONS: Final = {"=": functions.EQUAL, "<": functions.LESS, "<=": functions.LESS_EQUAL}
_TEXT_FUNCTIONS: Final = {"<": functions.TEXT_LESS, "<=": functions.TEXT_LESS_EQUAL}


class NodeBuilder:
    """Builds the nodes of one expression.

    Args:
      text: the whole expression, for errors.
    """

    def __init__(self, text: str) -> None:
        self._text = text

    def _fail(self, position: int, message: str, hint: str = "") -> NoReturn:
        raise ExpressionError(self._text, position, message, hint)

    def _apply(
        self,
        function: Function,
        type_: AttributeType,
        arguments: Sequence[TypedExpression],
        position: int,
        bounds: Bounds = None,
    ) -> TypedExpression:
        if any(isinstance(a, Const) and a.value is None for a in arguments):
            return constant(None, type_, position)
        nullable = function.partial or any(a.nullable for a in arguments)
        return self._folded(Apply(type_, nullable, position, bounds, function, tuple(arguments)), arguments)

    def _special(
        self,
        form: Form,
        type_: AttributeType,
        arguments: Sequence[TypedExpression],
        position: int,
        *,
        nullable: bool,
        bounds: Bounds = None,
    ) -> TypedExpression:
        return self._folded(Special(type_, nullable, position, bounds, form, tuple(arguments)), arguments)

    def _folded(self, node: TypedExpression, arguments: Sequence[TypedExpression]) -> TypedExpression:
        """Computes a node of literals only, by the same operations as on a column."""
        if not all(isinstance(a, Const) for a in arguments):
            return node
        with np.errstate(all="ignore"):
            values, valid, dictionary = generate(node, nulls=True, columnar=True).run((), 1)
        value = Column(np.asarray(values, node.type.dtype), valid, dictionary).to_list()[0]
        return constant(value, node.type, node.position, node.bounds)

    def _unified(self, nodes: Sequence[TypedExpression], position: int, what: str) -> list[TypedExpression]:
        """Converts nodes to one type: NULL takes the others' type, integers among floats become floats."""
        types = {n.type for n in nodes if not (isinstance(n, Const) and n.untyped)}
        if types == {INT, FLOAT}:
            return [self._as(n, FLOAT) for n in nodes]
        if len(types) > 1:
            names = " and ".join(sorted(types))
            hint = "write TIMESTAMP '…'" if types == {STRING, TIMESTAMP} else "convert one with CAST(… AS …)"
            self._fail(position, f"{what} of {names}", hint)
        return [self._as(n, t) for t in types for n in nodes] or list(nodes)

    def _as(self, node: TypedExpression, type_: AttributeType) -> TypedExpression:
        if isinstance(node, Const) and node.untyped:
            return constant(None, type_, node.position)
        if node.type is INT and type_ is FLOAT:
            return self._apply(INT_TO_FLOAT, FLOAT, [node], node.position)
        return node

    def _logic(self, form: Form, left: TypedExpression, right: TypedExpression, position: int) -> TypedExpression:
        """Makes AND or OR; a literal that is not NULL decides alone, or has no effect."""
        deciding = form is Form.OR
        for literal, other in ((left, right), (right, left)):
            if isinstance(literal, Const) and literal.value is not None:
                return literal if literal.value is deciding else other
        return self._special(form, BOOL, [left, right], position, nullable=left.nullable or right.nullable)

    def _not(self, node: TypedExpression, position: int) -> TypedExpression:
        return self._apply(functions.NOT, BOOL, [node], position)

    def _compared(self, operator: str, left: TypedExpression, right: TypedExpression, position: int) -> TypedExpression:
        left, right = self._unified([left, right], position, "a comparison")
        if operator == "<>":
            return self._not(self._compared("=", left, right, position), position)
        if operator in (">", ">="):
            left, right, operator = right, left, {">": "<", ">=": "<="}[operator]
        if operator == "<=>":
            return self._same(left, right, position)
        if left.type is STRING and operator == "=":
            if isinstance(left, Const):
                left, right = right, left
            return self._comparison(Form.TEXT_EQUAL, left, right, position)
        if left.type is FLOAT:
            return self._comparison(_FLOAT_FORMS[operator], left, right, position)
        text = left.type is STRING
        return self._apply((_TEXT_FUNCTIONS if text else _PLAIN_FUNCTIONS)[operator], BOOL, [left, right], position)

    def _comparison(self, form: Form, left: TypedExpression, right: TypedExpression, position: int) -> TypedExpression:
        if any(isinstance(a, Const) and a.value is None for a in (left, right)):
            return constant(None, BOOL, position)
        return self._special(form, BOOL, [left, right], position, nullable=left.nullable or right.nullable)

    def _same(self, left: TypedExpression, right: TypedExpression, position: int) -> TypedExpression:
        for literal, other in ((left, right), (right, left)):
            if isinstance(literal, Const) and literal.value is None:
                return self._special(Form.IS_NULL, BOOL, [other], position, nullable=False)
        equal = self._compared("=", left, right, position)
        return self._special(Form.SAME, BOOL, [left, right, equal], position, nullable=False)

    def _among(self, value: TypedExpression, listed: Sequence[Const], position: int) -> TypedExpression:
        """Makes ``value IN (…)``, as comparisons or a search."""
        values = [c.value for c in listed]
        if value.type is STRING and len(values) != 1:
            return self._apply(Function("in", text=frozenset(values).__contains__), BOOL, [value], position)
        if value.type is not STRING and len(values) > _FEW and all(v == v for v in values):
            wanted = np.array(values, value.type.dtype)
            return self._apply(Function("in", columns=lambda v: np.isin(v, wanted)), BOOL, [value], position)
        result: TypedExpression = constant(False, BOOL, position)
        for i, item in enumerate(listed):
            equal = self._compared("=", value, item, position)
            result = equal if i == 0 else self._logic(Form.OR, result, equal, position)
        return result

    def _chosen(
        self, conditions: Sequence[TypedExpression], values: Sequence[TypedExpression], position: int
    ) -> TypedExpression:
        """Makes CASE without branches that literals decide."""
        parts: list[TypedExpression] = []
        otherwise = values[-1]
        for condition, value in zip(conditions, values):
            if not isinstance(condition, Const):
                parts += [condition, value]
            elif condition.value:
                otherwise = value
                break
        if not parts:
            return dataclasses.replace(otherwise, bounds=hull(values))
        if isinstance(otherwise, Const) and otherwise.untyped:
            return otherwise  # every branch is NULL
        nullable = any(v.nullable for v in (*parts[1::2], otherwise))
        type_ = otherwise.type
        return self._special(Form.CASE, type_, [*parts, otherwise], position, nullable=nullable, bounds=hull(values))

    def _extreme(self, left: TypedExpression, right: TypedExpression, largest: bool, position: int) -> TypedExpression:
        """Makes CASE WHEN left IS NULL OR left < right THEN right ELSE left END; with > for the smaller."""
        beaten = self._compared("<" if largest else ">", left, right, position)
        if left.nullable:
            absent = self._special(Form.IS_NULL, BOOL, [left], position, nullable=False)
            beaten = self._logic(Form.OR, absent, beaten, position)
        nullable = left.nullable and right.nullable
        return dataclasses.replace(self._chosen([beaten], [right, left], position), nullable=nullable)


def hull(nodes: Sequence[TypedExpression]) -> Bounds:
    """Bounds of a value that is one of several: 32 bits only if all have them."""
    known: list[Any] = [n.bounds for n in nodes if not (isinstance(n, Const) and n.value is None)]
    if not known or any(b is None for b in known):
        return None
    return min(b[0] for b in known), max(b[1] for b in known)
