"""Type checker: resolves names, determines types, and computes literal parts; errors have a place."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Final, NoReturn

from spe.errors import ExpressionError
from spe.expressions import functions
from spe.expressions.building import BOOL, INT, STRING, TIMESTAMP, NodeBuilder, hull
from spe.expressions.functions import FUNCTIONS, INSTEAD, OPERATORS, Row
from spe.expressions.syntax import Call, Cast, Interval, Name, Syntax, Value
from spe.expressions.texts import Like
from spe.expressions.tree import Attr, Const, Form, Function, TypedExpression, constant, null
from spe.problems import did_you_mean
from spe.stream.schema import AttributeType, Schema

_INT32: Final = (-(2**31), 2**31 - 1)


def check(syntax: Syntax, text: str, schema: Schema) -> TypedExpression:
    """Returns the typed tree of an expression over tuples of ``schema``.

    Raises:
      ExpressionError: an unknown name, types that do not fit, or an unsupported construct.
    """
    node = _Checker(text, schema).node(syntax)
    if isinstance(node, Const) and node.untyped:
        raise ExpressionError(
            text, node.position, "NULL has no type here", "write CAST(NULL AS BIGINT), or another type"
        )
    return node


class _Checker(NodeBuilder):
    """Reads the syntax of one expression."""

    def __init__(self, text: str, schema: Schema) -> None:
        super().__init__(text)
        self._schema = schema

    def node(self, syntax: Syntax) -> TypedExpression:
        if isinstance(syntax, Name):
            return self._name(syntax)
        if isinstance(syntax, Value):
            return self._value(syntax)
        if isinstance(syntax, Cast):
            return self._cast(syntax)
        if isinstance(syntax, Interval):
            self._fail(syntax.position, "an INTERVAL can only be added to or subtracted from a timestamp")
        form = getattr(self, "_form_" + _FORMS[syntax.name], None) if syntax.name in _FORMS else None
        if form is None:
            return self._function(syntax)
        result: TypedExpression = form(syntax)
        return result

    # Names, literals, casts.

    def _name(self, syntax: Name) -> TypedExpression:
        if syntax.name not in self._schema:
            close = [n for n in self._schema.names if n.lower() == syntax.name.lower()]
            known = ", ".join(self._schema.names) or "(none)"
            self._fail(
                syntax.position,
                f"no attribute {syntax.name!r}{'' if close else did_you_mean(syntax.name, self._schema.names)}",
                f"did you mean {close[0]}? names are case-sensitive" if close else f"there are: {known}",
            )
        index = self._schema.index(syntax.name)
        attribute = self._schema.attributes[index]
        return Attr(attribute.type, attribute.nullable, syntax.position, None, index, syntax.name)

    def _value(self, syntax: Value) -> TypedExpression:
        if syntax.type is None:
            return null(syntax.position)
        narrow = syntax.type is INT and not syntax.wide
        assert not narrow or isinstance(syntax.value, int)
        bounds = (int(syntax.value), int(syntax.value)) if narrow and syntax.value is not None else None
        return constant(syntax.value, syntax.type, syntax.position, bounds)

    def _cast(self, syntax: Cast) -> TypedExpression:
        argument, target = self.node(syntax.argument), syntax.target
        if isinstance(argument, Const) and argument.value is None:
            return constant(None, target, syntax.position)
        if argument.type is target:
            return dataclasses.replace(argument, bounds=None, position=syntax.position)
        function = functions.CASTS.get((argument.type, target))
        if function is None:
            self._fail(syntax.position, f"a {argument.type} cannot be cast to {target}", "CAST to BIGINT first")
        return self._apply(function, target, [argument], syntax.position)

    def _bool(self, syntax: Syntax, what: str) -> TypedExpression:
        node = self._as(self.node(syntax), BOOL)
        if node.type is not BOOL:
            self._fail(node.position, f"{what} needs a bool, got {node.type}", "compare it with something")
        return node

    # Functions of the table.

    def _function(self, syntax: Call) -> TypedExpression:
        if any(isinstance(a, Interval) for a in syntax.arguments) and syntax.name in ("+", "-"):
            return self._moved(syntax)
        rows = FUNCTIONS.get(syntax.name)
        if rows is None:
            self._fail(
                syntax.position,
                f"no function {syntax.name}",
                INSTEAD.get(syntax.name, "see docs/reference/expressions.md"),
            )
        arguments = [self.node(a) for a in syntax.arguments]
        types = [None if isinstance(a, Const) and a.untyped else a.type for a in arguments]
        row = next((r for r in rows if r.fits(types)), None)
        if row is None:
            self._refuse(syntax, rows, types)
        arguments = [self._as(a, t) for a, t in zip(arguments, row.expected(len(arguments)))]
        self._check_literals(row, arguments)
        function = row.function
        if row.without_zero is not None and isinstance(arguments[1], Const):
            if not arguments[1].value:
                return constant(None, row.result, syntax.position)
            function = row.without_zero
        bounds = row.bounds(*[a.bounds for a in arguments]) if row.bounds is not None else None
        if bounds is not None and not (_INT32[0] <= bounds[0] and bounds[1] <= _INT32[1]):
            self._fail(
                syntax.position,
                "this may leave 32 bits, which Spark computes it in",
                "write a literal as 5L, or CAST one side AS BIGINT",
            )
        return self._apply(function, row.result, arguments, syntax.position, bounds)

    def _refuse(self, syntax: Call, rows: Sequence[Row], types: Sequence[AttributeType | None]) -> NoReturn:
        got = ", ".join("NULL" if t is None else t.value for t in types) or "nothing"
        hint = "expected " + " or ".join(r.signature for r in rows)
        if syntax.name in OPERATORS:
            hint = "convert with CAST(… AS …)"
            if TIMESTAMP in types and len(types) == 2:
                hint = "add an INTERVAL, or use unix_micros(…) for the difference in microseconds"
            elif STRING in types:
                hint = "strings are joined with ||, and numbers in them read with CAST(… AS BIGINT)"
        elif syntax.name == "concat" and all(t is not None for t in types):
            hint = "make strings of the others with CAST(… AS STRING)"
        self._fail(syntax.position, f"{syntax.name} does not take {got}", hint)

    def _check_literals(self, row: Row, arguments: Sequence[TypedExpression]) -> None:
        for index, (fits, expected) in (row.literal or {}).items():
            argument = arguments[index]
            if not isinstance(argument, Const) or argument.value is None or not fits(argument.value):
                self._fail(argument.position, f"argument {index + 1} of {row.name} has to be {expected}")

    def _moved(self, syntax: Call) -> TypedExpression:
        """Checks timestamp ± interval, and interval + timestamp."""
        left, right = syntax.arguments
        if isinstance(left, Interval):
            left, right = right, left
            if syntax.name == "-":
                self._fail(syntax.position, "nothing can be subtracted from an INTERVAL")
        if isinstance(left, Interval) or not isinstance(right, Interval):
            self._fail(syntax.position, "an INTERVAL can only be added to or subtracted from a timestamp")
        moment = self._as(self.node(left), TIMESTAMP)
        if moment.type is not TIMESTAMP:
            self._fail(moment.position, f"an INTERVAL cannot be added to a {moment.type}", "CAST(… AS TIMESTAMP)")
        us = right.us if syntax.name == "+" else -right.us
        return self._apply(functions.LATER, TIMESTAMP, [moment, constant(us, INT)], syntax.position)

    # Booleans.

    def _form_logic(self, syntax: Call) -> TypedExpression:
        name = syntax.name.upper()
        left, right = (self._bool(a, name) for a in syntax.arguments)
        return self._logic(Form.AND if syntax.name == "and" else Form.OR, left, right, syntax.position)

    def _form_not(self, syntax: Call) -> TypedExpression:
        return self._not(self._bool(syntax.arguments[0], "NOT"), syntax.position)

    def _form_is_null(self, syntax: Call) -> TypedExpression:
        self._count(syntax, 1, 1)
        node = self.node(syntax.arguments[0])
        if not node.nullable:
            result: TypedExpression = constant(False, BOOL, syntax.position)
        else:
            result = self._special(Form.IS_NULL, BOOL, [node], syntax.position, nullable=False)
        return self._not(result, syntax.position) if syntax.name == "isnotnull" else result

    def _form_compare(self, syntax: Call) -> TypedExpression:
        left, right = (self.node(a) for a in syntax.arguments)
        return self._compared(syntax.name, left, right, syntax.position)

    def _form_between(self, syntax: Call) -> TypedExpression:
        value, low, high = self._unified([self.node(a) for a in syntax.arguments], syntax.position, "BETWEEN")
        above = self._compared("<=", low, value, syntax.position)
        return self._logic(Form.AND, above, self._compared("<=", value, high, syntax.position), syntax.position)

    def _form_in(self, syntax: Call) -> TypedExpression:
        if len(syntax.arguments) < 2:
            self._fail(syntax.position, "IN needs at least one value")
        nodes = self._unified([self.node(a) for a in syntax.arguments], syntax.position, "IN")
        for node in nodes[1:]:
            if not isinstance(node, Const):
                self._fail(node.position, "IN takes literals only", "write a = b OR a = c")
        listed = [n for n in nodes[1:] if isinstance(n, Const) and n.value is not None]
        result = self._among(nodes[0], listed, syntax.position)
        if len(listed) == len(nodes) - 1:
            return result
        unknown = constant(None, BOOL, syntax.position)
        return self._logic(Form.OR, result, unknown, syntax.position)

    def _form_like(self, syntax: Call) -> TypedExpression:
        value, pattern, escape = (self.node(a) for a in syntax.arguments)
        value = self._as(value, STRING)
        if value.type is not STRING:
            self._fail(value.position, f"LIKE needs a string, got {value.type}", "CAST(… AS STRING)")
        assert isinstance(escape, Const)
        if isinstance(pattern, Const) and pattern.value is None:
            return constant(None, BOOL, syntax.position)
        if not isinstance(pattern, Const) or pattern.type is not STRING:
            self._fail(pattern.position, "the pattern of LIKE has to be a string literal", "use contains or startswith")
        try:
            like = Like(pattern.value, escape.value)
        except ValueError as error:
            self._fail(pattern.position, str(error), "write it twice to mean itself")
        return self._apply(Function("like", text=like), BOOL, [value], syntax.position)

    # Choices.

    def _form_case(self, syntax: Call) -> TypedExpression:
        conditions = [self._bool(a, "WHEN") for a in syntax.arguments[:-1:2]]
        return self._case(syntax, conditions, [*syntax.arguments[1::2], syntax.arguments[-1]])

    def _form_if(self, syntax: Call) -> TypedExpression:
        self._count(syntax, 3, 3)
        return self._case(syntax, [self._bool(syntax.arguments[0], "IF")], syntax.arguments[1:])

    def _case(self, syntax: Call, conditions: Sequence[TypedExpression], branches: Sequence[Syntax]) -> TypedExpression:
        values = self._unified([self.node(b) for b in branches], syntax.position, f"{syntax.name.upper()} gives values")
        return self._chosen(conditions, values, syntax.position)

    def _form_coalesce(self, syntax: Call) -> TypedExpression:
        self._count(syntax, 1, 2 if syntax.name in ("nvl", "ifnull") else None)
        nodes = self._unified([self.node(a) for a in syntax.arguments], syntax.position, "COALESCE")
        bounds = hull(nodes)
        parts: list[TypedExpression] = []
        for node in nodes:
            if not (isinstance(node, Const) and node.value is None):
                parts.append(node)
                if not node.nullable:
                    break
        if len(parts) < 2:
            return dataclasses.replace((parts or nodes)[0], bounds=bounds)
        nullable = parts[-1].nullable
        return self._special(Form.COALESCE, parts[0].type, parts, syntax.position, nullable=nullable, bounds=bounds)

    def _form_isnan(self, syntax: Call) -> TypedExpression:
        """Makes isnan, which is never null: as in Spark, null is not NaN."""
        node = self._function(syntax)
        if not node.nullable:
            return node
        parts = [node, constant(False, BOOL, syntax.position)]
        return self._special(Form.COALESCE, BOOL, parts, syntax.position, nullable=False)

    def _form_nullif(self, syntax: Call) -> TypedExpression:
        self._count(syntax, 2, 2)
        left, right = (self.node(a) for a in syntax.arguments)
        equal = self._compared("=", left, right, syntax.position)
        if isinstance(left, Const) and left.untyped:
            return left
        return self._chosen([equal], [constant(None, left.type, syntax.position), left], syntax.position)

    def _form_extreme(self, syntax: Call) -> TypedExpression:
        self._count(syntax, 2, None)
        name = syntax.name.upper()
        nodes = self._unified([self.node(a) for a in syntax.arguments], syntax.position, name)
        result = nodes[0]
        for node in nodes[1:]:
            if node.type in (STRING, BOOL):
                result = self._extreme(result, node, name == "GREATEST", syntax.position)
                continue
            form = Form.GREATEST if name == "GREATEST" else Form.LEAST
            nullable = result.nullable and node.nullable
            result = self._special(form, node.type, [result, node], syntax.position, nullable=nullable)
        return dataclasses.replace(result, bounds=hull(nodes))

    def _count(self, syntax: Call, low: int, high: int | None) -> None:
        count = len(syntax.arguments)
        if count < low or (high is not None and count > high):
            expected = f"{low}" if low == high else f"{low} to {high}" if high else f"at least {low}"
            self._fail(syntax.position, f"{syntax.name} takes {expected} arguments, got {count}")


#: Name of a special form -> name of the method that checks it.
_FORMS: Final = {
    "and": "logic", "or": "logic", "not": "not", "is null": "is_null", "isnull": "is_null", "isnotnull": "is_null",
    "isnan": "isnan",
    "=": "compare", "<>": "compare", "<": "compare", "<=": "compare", ">": "compare", ">=": "compare",
    "<=>": "compare", "between": "between", "in": "in", "like": "like", "case": "case", "if": "if",
    "coalesce": "coalesce", "nvl": "coalesce", "ifnull": "coalesce", "nullif": "nullif", "greatest": "extreme",
    "least": "extreme",
}  # fmt: skip
