"""Code generator: makes one flat NumPy function of a typed tree, with a line per distinct part.

Each expression has two functions: one for batches without nulls, with masks only for operations that make nulls, and
one for the rest.  Under a null a value is unspecified but initialised, so every operation runs on all rows, and the
mask tells which results count.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from spe.expressions import numbers
from spe.expressions.entries import PerEntry, PerRow, TextEqual, recoded
from spe.expressions.tree import Apply, Attr, Const, Form, Function, Special, TypedExpression
from spe.stream.batch import Column
from spe.stream.schema import AttributeType
from spe.stream.strings import StringDictionary, StringPool

#: (columns, number of rows) -> values, mask or None, dictionary or None.
Run = Callable[[tuple[Column, ...], int], tuple[Any, Any, Any]]


@dataclass(frozen=True, slots=True)
class _Var:
    """Names of the variables of a part's result; ``valid`` is None if nothing can be null."""

    value: str
    valid: str | None = None
    dictionary: str | None = None


@dataclass(slots=True)
class Program:
    """A generated function.

    Attributes:
      warns: NumPy may warn while it runs.
      source: its text, for debugging.
    """

    run: Run
    warns: bool
    source: str


def generate(node: TypedExpression, *, nulls: bool, columnar: bool = False) -> Program:
    """Generates the function that computes ``node``.

    Args:
      nulls: attributes may have masks; False: they are assumed to have no null.
      columnar: literals become columns, so that an expression without attributes is computed by the same
        operations, on one row.
    """
    return _Generator(nulls, columnar).program(node)


class _Generator:
    def __init__(self, nulls: bool, columnar: bool) -> None:
        self._nulls = nulls
        self._columnar = columnar
        self._lines: list[str] = []
        self._known: dict[TypedExpression, _Var] = {}
        self._count = 0
        self._warns = False
        self._names: dict[str, Any] = {"np": np, "recoded": recoded}

    def program(self, node: TypedExpression) -> Program:
        result = self._emit(node)
        if isinstance(node, Const) and node.value is not None and not self._columnar:
            result = self._spread(node)
        self._lines.append(f"return {result.value}, {result.valid}, {result.dictionary}")
        source = "def run(columns, n):\n" + "".join(f"    {line}\n" for line in self._lines)
        exec(
            compile(source, "<expression>", "exec"), self._names
        )  # the text is generated: literals are passed as names
        return Program(self._names["run"], self._warns, source)

    # Variables and lines.

    def _name(self, prefix: str) -> str:
        self._count += 1
        return f"{prefix}{self._count}"

    def _let(self, expression: str, prefix: str = "x") -> str:
        name = self._name(prefix)
        self._lines.append(f"{name} = {expression}")
        return name

    def _constant(self, value: Any) -> str:
        name = self._name("k")
        self._names[name] = value
        return name

    def _both(self, *masks: str | None) -> str | None:
        """Returns the mask that is true where all masks are."""
        some = list(dict.fromkeys(m for m in masks if m is not None))
        if len(some) < 2:
            return some[0] if some else None
        return self._let(" & ".join(some), "m")

    # Nodes.

    def _emit(self, node: TypedExpression) -> _Var:
        known = self._known.get(node)
        if known is None:
            known = self._known[node] = self._emit_new(node)
        return known

    def _emit_new(self, node: TypedExpression) -> _Var:
        if isinstance(node, Attr):
            return self._attr(node)
        if isinstance(node, Const):
            return self._const(node)
        if isinstance(node, Apply):
            return self._text(node) if node.function.text is not None else self._apply(node)
        assert isinstance(node, Special)
        return self._special(node)

    def _attr(self, node: Attr) -> _Var:
        column = self._let(f"columns[{node.index}]", "c")
        valid = None
        if node.nullable and self._nulls:
            valid = self._let(f"{column}.valid", "m")
            self._lines.append(f"if {valid} is None: {valid} = np.ones(n, np.bool_)")
        text = node.type is AttributeType.STRING
        return _Var(self._let(f"{column}.values"), valid, self._let(f"{column}.dictionary", "d") if text else None)

    def _const(self, node: Const) -> _Var:
        if node.value is None:
            dtype = self._constant(node.type.dtype)
            text = node.type is AttributeType.STRING
            dictionary = self._constant(StringDictionary([""])) if text else None
            return _Var(self._let(f"np.zeros(n, {dtype})"), self._let("np.zeros(n, np.bool_)", "m"), dictionary)
        return self._spread(node) if self._columnar else _Var(self._constant(node.value))

    def _spread(self, node: Const) -> _Var:
        """A literal as a column."""
        dtype = self._constant(node.type.dtype)
        if node.type is AttributeType.STRING:
            return _Var(self._let(f"np.zeros(n, {dtype})"), None, self._constant(StringDictionary([node.value])))
        return _Var(self._let(f"np.full(n, {self._constant(node.value)}, {dtype})"))

    # Functions.

    def _argument(self, function: Function, index: int, node: TypedExpression) -> _Var:
        if index in function.literals and isinstance(node, Const):
            return _Var(self._constant(node.value))
        return self._emit(node)

    def _apply(self, node: Apply) -> _Var:
        function = node.function
        arguments = [self._argument(function, i, a) for i, a in enumerate(node.arguments)]
        values = [a.value for a in arguments]
        self._warns |= function.warns
        own = None
        if function.template is not None:
            value = self._let(function.template.format(*values))
        else:
            call = f"{self._constant(function.columns)}({', '.join(values)})"
            value = self._let(call)
            if function.partial:
                own = self._name("m")
                self._lines[-1] = f"{value}, {own} = {call}"
        return _Var(value, self._both(*[a.valid for a in arguments], own))

    def _text(self, node: Apply) -> _Var:
        """Emits a function on Python values: per dictionary entry of one string column, or per distinct row."""
        function = node.function
        fixed = {
            i: a.value
            for i, a in enumerate(node.arguments)
            if isinstance(a, Const) and a.value is not None and (i in function.literals or not self._columnar)
        }
        varying = [(a, self._emit(a)) for i, a in enumerate(node.arguments) if i not in fixed]
        assert function.text is not None
        bound = _bound(function.text, fixed, len(node.arguments))
        if len(varying) == 1 and varying[0][0].type is AttributeType.STRING:
            var = varying[0][1]
            call = f"{self._constant(PerEntry(bound, node.type, function.partial))}({var.value}, {var.dictionary})"
        else:
            columns = ", ".join(f"({v.value}, {v.dictionary})" for _, v in varying)
            call = f"{self._constant(PerRow(bound, node.type, function.partial))}({columns})"
        value, own, dictionary = self._name("x"), self._name("m"), self._name("d")
        self._lines.append(f"{value}, {own}, {dictionary} = {call}")
        valid = self._both(*[v.valid for _, v in varying], own if function.partial else None)
        return _Var(value, valid, dictionary if node.type is AttributeType.STRING else None)

    # Special forms.

    def _special(self, node: Special) -> _Var:
        if node.form is Form.CASE:
            return self._case(node)
        if node.form is Form.COALESCE:
            return self._coalesce(node)
        if node.form is Form.TEXT_EQUAL:
            return self._text_equal(*node.arguments)
        if node.form in (Form.FLOAT_EQUAL, Form.FLOAT_LESS, Form.FLOAT_LESS_EQUAL):
            return self._float_comparison(node.form, *node.arguments)
        first, second, *more = [self._emit(a) for a in node.arguments] + [_Var("")]
        if node.form is Form.IS_NULL:
            return _Var(self._let("np.zeros(n, np.bool_)" if first.valid is None else f"~{first.valid}"))
        if node.form is Form.AND:
            return _Var(self._let(f"{first.value} & {second.value}"), self._decided(first, second, "~"))
        if node.form is Form.OR:
            return _Var(self._let(f"{first.value} | {second.value}"), self._decided(first, second, ""))
        if node.form is Form.SAME:
            return self._same(first, second, more[0])
        return self._extreme(node, first, second)

    def _decided(self, a: _Var, b: _Var, sign: str) -> str | None:
        """The mask of AND (OR): not null if neither side is, or if one is false (true), which decides alone."""
        if a.valid is None and b.valid is None:
            return None
        if a.valid is None:
            return self._let(f"{b.valid} | {sign}{a.value}", "m")
        if b.valid is None:
            return self._let(f"{a.valid} | {sign}{b.value}", "m")
        both = f"({a.valid} & {b.valid})"
        return self._let(f"{both} | ({a.valid} & {sign}{a.value}) | ({b.valid} & {sign}{b.value})", "m")

    def _same(self, a: _Var, b: _Var, equal: _Var) -> _Var:
        if a.valid is None or b.valid is None:
            known = self._both(a.valid, b.valid)
            return equal if known is None else _Var(self._let(f"{equal.value} & {known}"))
        return _Var(self._let(f"({a.valid} & {b.valid} & {equal.value}) | ~({a.valid} | {b.valid})"))

    def _extreme(self, node: Special, a: _Var, b: _Var) -> _Var:
        """Emits the larger (smaller) of two, or the one that is not null.  NaN is the largest."""
        function = np.maximum if node.form is Form.GREATEST else np.fmin
        value = self._let(f"{self._constant(function)}({a.value}, {b.value})")
        if a.valid is not None:
            value = self._let(f"np.where({a.valid}, {value}, {b.value})")
        if b.valid is not None:
            value = self._let(f"np.where({b.valid}, {value}, {a.value})")
        if a.valid is None or b.valid is None:
            return _Var(value)
        return _Var(value, self._let(f"{a.valid} | {b.valid}", "m"))

    def _text_equal(self, a: TypedExpression, b: TypedExpression) -> _Var:
        first = self._emit(a)
        if isinstance(b, Const) and b.value is not None and not self._columnar:
            code = f"{first.dictionary}.find({self._constant(b.value)})"
            return _Var(self._let(f"{first.value} == {code}"), first.valid)
        second = self._emit(b)
        equal = self._constant(TextEqual())
        value = self._let(f"{equal}({first.value}, {first.dictionary}, {second.value}, {second.dictionary})")
        return _Var(value, self._both(first.valid, second.valid))

    def _float_comparison(self, form: Form, a: TypedExpression, b: TypedExpression) -> _Var:
        first, second = self._emit(a), self._emit(b)
        x, y = first.value, second.value
        valid = self._both(first.valid, second.valid)
        if _is_number(b):  # NaN on the left fails each of these, as it should
            operator = {Form.FLOAT_EQUAL: "==", Form.FLOAT_LESS: "<", Form.FLOAT_LESS_EQUAL: "<="}[form]
            return _Var(self._let(f"{x} {operator} {y}"), valid)
        if _is_number(a):  # NaN on the right is the larger one
            turned = {Form.FLOAT_EQUAL: f"{y} == {x}", Form.FLOAT_LESS: f"~({y} <= {x})"}
            return _Var(self._let(turned.get(form, f"~({y} < {x})")), valid)
        function = {
            Form.FLOAT_EQUAL: numbers.float_equal,
            Form.FLOAT_LESS: numbers.float_less,
            Form.FLOAT_LESS_EQUAL: numbers.float_less_equal,
        }[form]
        return _Var(self._let(f"{self._constant(function)}({x}, {y})"), valid)

    # CASE and COALESCE: the value is picked per row.

    def _case(self, node: Special) -> _Var:
        conditions = [self._emit(a) for a in node.arguments[:-1:2]]
        branches = [*node.arguments[1::2], node.arguments[-1]]
        values, dictionary = self._in_one_dictionary(node.type, branches)
        masks = [self._emit(b).valid for b in branches]
        value, valid = values[-1], masks[-1]
        for condition, branch, mask in reversed(list(zip(conditions, values, masks))):
            holds = self._both(condition.value, condition.valid)
            if valid is not None or mask is not None:
                valid = self._let(f"np.where({holds}, {mask or True}, {valid or True})", "m")
            value = self._let(f"np.where({holds}, {branch}, {value})")
        return self._picked(value, valid, dictionary)

    def _coalesce(self, node: Special) -> _Var:
        parts: list[TypedExpression] = []
        for argument in node.arguments:
            parts.append(argument)
            if self._emit(argument).valid is None:
                break
        if len(parts) == 1:
            return self._emit(parts[0])
        values, dictionary = self._in_one_dictionary(node.type, parts)
        value, valid = values[-1], self._emit(parts[-1]).valid
        for part, branch in reversed(list(zip(parts[:-1], values))):
            mask = self._emit(part).valid
            value = self._let(f"np.where({mask}, {branch}, {value})")
            valid = valid and self._let(f"{mask} | {valid}", "m")
        return self._picked(value, valid, dictionary)

    def _in_one_dictionary(
        self, type_: AttributeType, parts: Sequence[TypedExpression]
    ) -> tuple[list[str], str | None]:
        """Returns the values of the parts, and the common dictionary of strings."""
        if type_ is not AttributeType.STRING:
            return [self._emit(p).value for p in parts], None
        target = self._let(f"{self._constant(StringPool())}.current()", "d")
        codes = []
        for part in parts:
            if isinstance(part, Const) and part.value is not None and not self._columnar:
                codes.append(self._let(f"{target}.code({self._constant(part.value)})"))
            else:
                var = self._emit(part)
                codes.append(self._let(f"recoded({var.value}, {var.dictionary}, {target})"))
        return codes, target

    def _picked(self, value: str, valid: str | None, dictionary: str | None) -> _Var:
        if dictionary is not None:
            value = self._let(f"{value}.astype(np.int32, copy=False)")
        return _Var(value, valid, dictionary)


def _is_number(node: TypedExpression) -> bool:
    """Is this a literal other than NULL and NaN?"""
    return isinstance(node, Const) and node.value is not None and node.value == node.value


def _bound(function: Callable[..., Any], fixed: dict[int, Any], count: int) -> Callable[..., Any]:
    """Binds fixed arguments of a function."""
    if not fixed:
        return function

    def bound(*varying: Any) -> Any:
        rest = iter(varying)
        return function(*[fixed[i] if i in fixed else next(rest) for i in range(count)])

    return bound
