"""SQL text -> a typed, compiled expression.  sqlglot parses; typing, refusing and evaluating are ours.

The subset is closed: what is not handled here is refused with its position and, where there is one, what to write
instead.  docs/expressions.md lists it, and where Spark's rules and ours could part.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from spe.batch import BoolArray, Column, Rows
from spe.errors import ExpressionError
from spe.expressions import columns as c
from spe.schema import AttributeType, Schema
from spe.strings import StringDictionary
from spe.times import format_timestamp, parse_timestamp

INT, FLOAT, BOOL, TEXT, TIME = (
    AttributeType.INT64,
    AttributeType.FLOAT64,
    AttributeType.BOOL,
    AttributeType.STRING,
    AttributeType.TIMESTAMP,
)
Run = Callable[[Rows], Column]

_INT_MIN, _INT_MAX = -(2**63), 2**63 - 1
#: SQL's names for the attribute types in CAST.
_CAST_TYPES: Final = {
    "BIGINT": INT, "DOUBLE": FLOAT, "BOOLEAN": BOOL, "TEXT": TEXT, "VARCHAR": TEXT,
    "TIMESTAMPTZ": TIME, "TIMESTAMP": TIME, "TIMESTAMPLTZ": TIME,
}  # fmt: skip
_UNITS_US: Final = {
    "MICROSECOND": 1, "MILLISECOND": 1_000, "SECOND": 1_000_000, "MINUTE": 60_000_000, "HOUR": 3_600_000_000,
    "DAY": 86_400_000_000, "WEEK": 604_800_000_000,
}  # fmt: skip
_INSTEAD: Final = {
    "exp": "its bits differ between CPUs; compute it downstream", "ln": "its bits differ between CPUs",
    "log": "its bits differ between CPUs", "pow": "multiply instead", "power": "multiply instead",
    "sin": "its bits differ between CPUs", "cos": "its bits differ between CPUs", "rand": "results must repeat",
    "now": "results must repeat; use the tuple's own timestamp", "current_timestamp": "use the tuple's own timestamp",
    "ilike": "write lower(x) LIKE '…'", "rlike": "use LIKE", "regexp_like": "use LIKE", "uuid": "results must repeat",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Typed:
    """A compiled part: its type (None: the NULL literal), whether it can be null, how to run it, its constant."""

    type: AttributeType | None
    nullable: bool
    run: Run
    constant: Any = None
    is_constant: bool = False


class Expression:
    """A compiled expression over the attributes of one schema.

    Attributes:
      text: as written.
      type, nullable: of the result.
      references: attributes that it reads, in order of first use.
    """

    def __init__(self, text: str, typed: Typed, references: tuple[str, ...]) -> None:
        assert typed.type is not None
        self.text = text
        self.type = typed.type
        self.nullable = typed.nullable
        self.references = references
        self._run = typed.run

    def evaluate(self, rows: Rows) -> Column:
        """The value for each row."""
        return self._run(rows)

    def mask(self, rows: Rows) -> BoolArray:
        """For boolean expressions: True where true; neither false nor null."""
        column = self._run(rows)
        return column.values if column.valid is None else column.values & column.valid

    def __repr__(self) -> str:
        return f"<Expression {self.text!r}: {self.type}>"


def compile_expression(text: str, schema: Schema) -> Expression:
    """Raises ExpressionError when the text is outside the subset or does not type-check."""
    compiler = _Compiler(text, schema)
    typed = compiler.whole()
    return Expression(text, typed, tuple(compiler.references))


def compile_predicate(text: str, schema: Schema) -> Expression:
    """Like :func:`compile_expression`, and the result must be boolean."""
    expression = compile_expression(text, schema)
    if expression.type is not BOOL:
        raise ExpressionError(text, 0, f"a condition must be boolean, this is {expression.type}")
    return expression


class _Compiler:
    def __init__(self, text: str, schema: Schema) -> None:
        self._text = text
        self._schema = schema
        self.references: dict[str, None] = {}

    def whole(self) -> Typed:
        try:
            tree: Any = sqlglot.parse_one(self._text, dialect="spark")
        except SqlglotError as error:
            detail = error.errors[0] if getattr(error, "errors", None) else {}  # type: ignore[attr-defined]
            at = max(0, int(detail.get("col") or 1) - 1)
            message = str(detail.get("description") or error).split("\n")[0].rstrip(".")
            raise ExpressionError(self._text, min(at, len(self._text)), f"not an SQL expression: {message}") from None
        typed = self.compile(tree)
        if typed.type is None:
            raise ExpressionError(self._text, 0, "NULL alone has no type", "write CAST(NULL AS …)")
        return typed

    # --- errors ---

    def refuse(self, node: exp.Expression, message: str, hint: str = "") -> ExpressionError:
        at = min((n.meta["start"] for n in node.walk() if "start" in n.meta), default=0)
        return ExpressionError(self._text, at, message, hint)

    # --- dispatch ---

    def compile(self, node: exp.Expression) -> Typed:
        if isinstance(node, exp.Paren):
            return self.compile(node.this)
        handler = getattr(self, f"_{type(node).__name__.lower()}", None)
        if handler is None:
            name = node.name if isinstance(node, exp.Anonymous) else type(node).__name__
            key = name.lower()
            raise self.refuse(node, f"{key} is not supported", _INSTEAD.get(key, ""))
        typed: Typed = handler(node)
        return typed

    def typed(self, node: exp.Expression, *types: AttributeType) -> Typed:
        """A part that must have one of ``types`` (NULL takes the first of them)."""
        part = self.compile(node)
        if part.type is None:
            return self.null_of(types[0])
        if part.type not in types:
            wanted = " or ".join(types)
            raise self.refuse(node, f"expected {wanted}, this is {part.type}", f"CAST it to {types[0]}")
        return part

    @staticmethod
    def null_of(type_: AttributeType) -> Typed:
        return Typed(type_, True, lambda rows: c.null_column(len(rows), type_), None, True)

    def constant(self, value: Any, type_: AttributeType) -> Typed:
        if type_ is TEXT:
            dictionary = StringDictionary([value])
            return Typed(
                type_, False, lambda rows: Column(np.zeros(len(rows), np.int32), None, dictionary), value, True
            )
        return Typed(type_, False, lambda rows: Column(np.full(len(rows), value, type_.dtype)), value, True)

    def common(self, node: exp.Expression, parts: Sequence[Typed]) -> tuple[AttributeType, list[Typed]]:
        """One type for several parts: equal types, or int64 beside float64; NULL fits everything."""
        types = {p.type for p in parts if p.type is not None}
        if not types:
            raise self.refuse(node, "NULL alone has no type", "write CAST(NULL AS …)")
        if types == {INT, FLOAT}:
            target = FLOAT
        elif len(types) == 1:
            (target,) = types
        else:
            raise self.refuse(node, f"types do not fit together: {', '.join(sorted(types))}", "CAST one of them")
        return target, [self.to(p, target) for p in parts]

    def to(self, part: Typed, target: AttributeType) -> Typed:
        if part.type is target:
            return part
        if part.type is None:
            return self.null_of(target)
        assert (part.type, target) == (INT, FLOAT)
        if part.is_constant and part.constant is not None:
            return self.constant(float(part.constant), FLOAT)
        run = part.run

        def widen(rows: Rows) -> Column:
            column = run(rows)
            return Column(column.values.astype(np.float64), column.valid)

        return Typed(FLOAT, part.nullable, widen)

    # --- leaves ---

    def _column(self, node: exp.Column) -> Typed:
        name = node.name
        if node.table:
            raise self.refuse(node, f"{node.sql()} is qualified", "write the attribute's name alone")
        if name not in self._schema:
            there = ", ".join(self._schema.names)
            raise self.refuse(node.this, f"no attribute {name!r}", f"there are: {there}")
        self.references[name] = None
        at, attribute = self._schema.index(name), self._schema[name]
        return Typed(attribute.type, attribute.nullable, lambda rows: rows.columns[at])

    def _literal(self, node: exp.Literal) -> Typed:
        if node.is_string:
            return self.constant(node.this, TEXT)
        text = node.this
        if re.fullmatch(r"\d+", text):
            if int(text) > _INT_MAX:
                raise self.refuse(node, f"{text} does not fit into int64")
            return self.constant(int(text), INT)
        return self.constant(float(text) + 0.0, FLOAT)

    def _boolean(self, node: exp.Boolean) -> Typed:
        return self.constant(bool(node.this), BOOL)

    def _null(self, node: exp.Null) -> Typed:
        return Typed(None, True, lambda rows: c.null_column(len(rows), BOOL), None, True)

    # --- logic ---

    def _and(self, node: exp.And) -> Typed:
        return self._logic(node, conjunction=True)

    def _or(self, node: exp.Or) -> Typed:
        return self._logic(node, conjunction=False)

    def _logic(self, node: exp.Expression, *, conjunction: bool) -> Typed:
        left, right = self.typed(node.this, BOOL), self.typed(node.expression, BOOL)
        run_left, run_right = left.run, right.run

        def run(rows: Rows) -> Column:
            a, b = run_left(rows), run_right(rows)
            values = a.values & b.values if conjunction else a.values | b.values
            if a.valid is None and b.valid is None:
                return Column(values)
            known_a = np.ones(len(a), np.bool_) if a.valid is None else a.valid
            known_b = np.ones(len(b), np.bool_) if b.valid is None else b.valid
            # false AND null is false, true OR null is true: one known operand may decide alone.
            deciding_a = known_a & (a.values != conjunction)
            deciding_b = known_b & (b.values != conjunction)
            decided = deciding_a | deciding_b
            return Column(np.where(decided, not conjunction, values), decided | (known_a & known_b))

        return Typed(BOOL, left.nullable or right.nullable, run)

    def _not(self, node: exp.Not) -> Typed:
        part = self.typed(node.this, BOOL)
        run = part.run

        def negate(rows: Rows) -> Column:
            column = run(rows)
            return Column(~column.values, column.valid)

        return Typed(BOOL, part.nullable, negate)

    def _is(self, node: exp.Is) -> Typed:
        if isinstance(node.expression, exp.Boolean):
            return self._is_boolean(node, bool(node.expression.this))
        if not isinstance(node.expression, exp.Null):
            raise self.refuse(node, "only IS [NOT] NULL, TRUE and FALSE are supported")
        run = self.compile(node.this).run

        def is_null(rows: Rows) -> Column:
            column = run(rows)
            return Column(np.zeros(len(column), np.bool_) if column.valid is None else ~column.valid)

        return Typed(BOOL, False, is_null)

    def _is_boolean(self, node: exp.Is, wanted: bool) -> Typed:
        run = self.typed(node.this, BOOL).run

        def check(rows: Rows) -> Column:
            column = run(rows)
            hit = column.values == wanted
            return Column(hit if column.valid is None else hit & column.valid)

        return Typed(BOOL, False, check)

    # --- comparison ---

    def _eq(self, node: exp.EQ) -> Typed:
        return self._compare(node, "=")

    def _neq(self, node: exp.NEQ) -> Typed:
        return self._compare(node, "<>")

    def _lt(self, node: exp.LT) -> Typed:
        return self._compare(node, "<")

    def _lte(self, node: exp.LTE) -> Typed:
        return self._compare(node, "<=")

    def _gt(self, node: exp.GT) -> Typed:
        return self._compare(node, ">")

    def _gte(self, node: exp.GTE) -> Typed:
        return self._compare(node, ">=")

    def _compare(self, node: exp.Expression, sign: str) -> Typed:
        return self.comparison(node, self.compile(node.this), self.compile(node.expression), sign)

    def comparison(self, node: exp.Expression, left: Typed, right: Typed, sign: str) -> Typed:
        type_, (left, right) = self.common(node, [left, right])
        nullable = left.nullable or right.nullable
        if type_ is TEXT and right.is_constant and right.constant is not None:
            return self._text_against(left, right.constant, sign, nullable)
        test = {
            "=": c.equal,
            "<>": lambda a, b: ~c.equal(a, b),
            "<": c.less,
            ">": lambda a, b: c.less(b, a),
            "<=": lambda a, b: ~c.less(b, a),
            ">=": lambda a, b: ~c.less(a, b),
        }[sign]
        run_left, run_right = left.run, right.run

        def run(rows: Rows) -> Column:
            a, b = run_left(rows), run_right(rows)
            if type_ is TEXT and sign in ("=", "<>"):
                values = c.same_text(a, b)
                return Column(values if sign == "=" else ~values, c.both_valid(a, b))
            x, y = c.comparable(a, b)
            return Column(np.asarray(test(x, y)), c.both_valid(a, b))  # type: ignore[no-untyped-call]

        return Typed(BOOL, nullable, run)

    def _text_against(self, left: Typed, text: str, sign: str, nullable: bool) -> Typed:
        """Text against a constant: once per distinct text; equality is a look-up of one code."""
        run = left.run
        if sign in ("=", "<>"):

            def same(rows: Rows) -> Column:
                column = run(rows)
                assert column.dictionary is not None
                hit = column.values == column.dictionary.find(text)
                return Column(hit if sign == "=" else ~hit, column.valid)

            return Typed(BOOL, nullable, same)
        tests: dict[str, Callable[[str], bool]] = {
            "<": lambda s: s < text,
            "<=": lambda s: s <= text,
            ">": lambda s: s > text,
            ">=": lambda s: s >= text,
        }
        return self.per_entry(left, tests[sign], BOOL)

    def _nullsafeeq(self, node: exp.NullSafeEQ) -> Typed:
        return self._null_safe(node, equal=True)

    def _nullsafeneq(self, node: exp.NullSafeNEQ) -> Typed:
        return self._null_safe(node, equal=False)

    def _null_safe(self, node: exp.Expression, *, equal: bool) -> Typed:
        left, right = self.compile(node.this), self.compile(node.expression)
        run = self.comparison(node, left, right, "=").run
        _, (left, right) = self.common(node, [left, right])
        run_left, run_right = left.run, right.run

        def check(rows: Rows) -> Column:
            same = run(rows)
            values = same.values
            if same.valid is not None:
                a, b = run_left(rows).valid, run_right(rows).valid
                null_a = np.zeros(len(values), np.bool_) if a is None else ~a
                null_b = np.zeros(len(values), np.bool_) if b is None else ~b
                values = np.where(null_a | null_b, null_a & null_b, values)
            return Column(values if equal else ~values)

        return Typed(BOOL, False, check)

    def _between(self, node: exp.Between) -> Typed:
        return self.compile(
            exp.And(
                this=exp.GTE(this=node.this.copy(), expression=node.args["low"].copy()),
                expression=exp.LTE(this=node.this.copy(), expression=node.args["high"].copy()),
            )
        )

    def _in(self, node: exp.In) -> Typed:
        if node.args.get("query") or not node.expressions:
            raise self.refuse(node, "IN takes a list of literals")
        tests: list[exp.Expression] = []
        for item in node.expressions:
            if not self.compile(item).is_constant:
                raise self.refuse(item, "IN takes literals", "write it as comparisons with OR")
            tests.append(exp.EQ(this=node.this.copy(), expression=item.copy()))
        total = tests[0]
        for test in tests[1:]:
            total = exp.Or(this=total, expression=test)
        return self.compile(total)

    def _like(self, node: exp.Like, escape: str = "\\") -> Typed:
        pattern = self.typed(node.expression, TEXT)
        if not isinstance(pattern.constant, str):
            raise self.refuse(node.expression, "LIKE takes a literal pattern")
        out, at, text = "", 0, pattern.constant
        while at < len(text):
            ch = text[at]
            if ch == escape and at + 1 < len(text):
                at += 1
                out += re.escape(text[at])
            else:
                out += ".*" if ch == "%" else "." if ch == "_" else re.escape(ch)
            at += 1
        match = re.compile(out, re.DOTALL).fullmatch
        negated = bool(node.args.get("negate"))
        return self.per_entry(self.typed(node.this, TEXT), lambda s: (match(s) is not None) != negated, BOOL)

    def _escape(self, node: exp.Escape) -> Typed:
        sign = self.typed(node.expression, TEXT).constant
        if not isinstance(node.this, exp.Like) or not isinstance(sign, str) or len(sign) != 1:
            raise self.refuse(node, "ESCAPE takes one character, after LIKE")
        return self._like(node.this, sign)

    # --- arithmetic ---

    def _add(self, node: exp.Add) -> Typed:
        return self._plus_minus(node, np.add, 1)

    def _sub(self, node: exp.Sub) -> Typed:
        return self._plus_minus(node, np.subtract, -1)

    def _plus_minus(self, node: exp.Expression, operation: Any, sign: int) -> Typed:
        if isinstance(node.expression, exp.Interval):
            moment = self.typed(node.this, TIME)
            shift = sign * self._interval_us(node.expression)
            run = moment.run

            def move(rows: Rows) -> Column:
                column = run(rows)
                return Column(column.values + shift, column.valid)

            return Typed(TIME, moment.nullable, move)
        return self._arithmetic(node, operation)

    def _interval_us(self, node: exp.Interval) -> int:
        unit = str(node.args.get("unit") or "").upper().removesuffix("S")
        try:
            return round(float(node.this.name) * _UNITS_US[unit])
        except (KeyError, ValueError, AttributeError):
            raise self.refuse(node, "not an interval", "write e.g. INTERVAL 5 MINUTES") from None

    def _mul(self, node: exp.Mul) -> Typed:
        return self._arithmetic(node, np.multiply)

    def _arithmetic(self, node: exp.Expression, operation: Any) -> Typed:
        left, right = self.typed(node.this, INT, FLOAT), self.typed(node.expression, INT, FLOAT)
        type_, (left, right) = self.common(node, [left, right])
        run_left, run_right = left.run, right.run

        def run(rows: Rows) -> Column:
            a, b = run_left(rows), run_right(rows)
            with np.errstate(over="ignore", invalid="ignore"):
                values = operation(a.values, b.values)
            valid = c.both_valid(a, b)
            return c.finished(values, valid) if type_ is FLOAT else Column(values, valid)

        return Typed(type_, left.nullable or right.nullable, run)

    def _div(self, node: exp.Div) -> Typed:
        left = self.to(self.typed(node.this, FLOAT, INT), FLOAT)
        right = self.to(self.typed(node.expression, FLOAT, INT), FLOAT)
        return self._by(left, right, FLOAT, np.divide)

    def _intdiv(self, node: exp.IntDiv) -> Typed:
        left, right = self.typed(node.this, INT), self.typed(node.expression, INT)
        return self._by(left, right, INT, c.truncated_division)

    def _mod(self, node: exp.Mod) -> Typed:
        type_, (left, right) = self.common(
            node, [self.typed(node.this, INT, FLOAT), self.typed(node.expression, INT, FLOAT)]
        )
        return self._by(left, right, type_, np.fmod)

    def _by(self, left: Typed, right: Typed, type_: AttributeType, operation: Any) -> Typed:
        """Division of some kind: by zero it is null."""
        run_left, run_right = left.run, right.run

        def run(rows: Rows) -> Column:
            a, b = run_left(rows), run_right(rows)
            zero = b.values == 0
            divisor = np.where(zero, np.ones(1, b.values.dtype), b.values) if zero.any() else b.values
            with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
                values = operation(a.values, divisor)
            valid = c.masked(c.both_valid(a, b), ~zero if zero.any() else None)
            return c.finished(values, valid) if type_ is FLOAT else Column(values, valid)

        nonzero = right.is_constant and right.constant not in (None, 0)
        return Typed(type_, left.nullable or right.nullable or not nonzero, run)

    def _neg(self, node: exp.Neg) -> Typed:
        if isinstance(node.this, exp.Literal) and not node.this.is_string and node.this.this == str(-_INT_MIN):
            return self.constant(_INT_MIN, INT)
        part = self.typed(node.this, INT, FLOAT)
        if part.is_constant and part.constant is not None:
            return self.constant(-part.constant + (0.0 if part.type is FLOAT else 0), part.type or INT)
        return self.elementwise(part, np.negative)

    # --- conditionals ---

    def _case(self, node: exp.Case) -> Typed:
        tests: list[Typed] = []
        results: list[Typed] = []
        for branch in node.args["ifs"]:
            if node.this is None:
                tests.append(self.typed(branch.this, BOOL))
            else:
                tests.append(self.comparison(branch, self.compile(node.this), self.compile(branch.this), "="))
            results.append(self.compile(branch.args["true"]))
        default = node.args.get("default")
        results.append(self.compile(default) if default is not None else self._null(exp.Null()))
        return self._chosen(node, tests, results)

    def _if(self, node: exp.If) -> Typed:
        otherwise = node.args.get("false")
        results = [
            self.compile(node.args["true"]),
            self.compile(otherwise) if otherwise is not None else self._null(exp.Null()),
        ]
        return self._chosen(node, [self.typed(node.this, BOOL)], results)

    def _chosen(self, node: exp.Expression, tests: Sequence[Typed], results: Sequence[Typed]) -> Typed:
        type_, parts = self.common(node, results)
        run_tests, run_parts = [t.run for t in tests], [p.run for p in parts]

        def run(rows: Rows) -> Column:
            masks = []
            for test in run_tests:
                column = test(rows)
                masks.append(column.values if column.valid is None else column.values & column.valid)
            return c.choose(masks, [part(rows) for part in run_parts], type_)

        return Typed(type_, any(p.nullable for p in parts), run)

    def _coalesce(self, node: exp.Coalesce) -> Typed:
        type_, parts = self.common(node, [self.compile(n) for n in [node.this, *node.expressions]])
        runs = [p.run for p in parts]

        def run(rows: Rows) -> Column:
            found = [part(rows) for part in runs]
            masks = [np.ones(len(rows), np.bool_) if f.valid is None else f.valid for f in found[:-1]]
            return c.choose(masks, found, type_)

        return Typed(type_, all(p.nullable for p in parts), run)

    def _nullif(self, node: exp.Nullif) -> Typed:
        left = self.compile(node.this)
        if left.type is None:
            raise self.refuse(node, "NULL alone has no type", "write CAST(NULL AS …)")
        same, run_left = self.comparison(node, left, self.compile(node.expression), "=").run, left.run

        def run(rows: Rows) -> Column:
            hit, column = same(rows), run_left(rows)
            equal = hit.values if hit.valid is None else hit.values & hit.valid
            return Column(column.values, c.masked(column.valid, ~equal), column.dictionary)

        return Typed(left.type, True, run)

    # --- shapes that functions share ---

    def elementwise(self, part: Typed, function: Callable[[Any], Any], type_: AttributeType | None = None) -> Typed:
        """``function`` of the values; null stays null."""
        target = type_ or part.type
        assert target is not None
        run_part = part.run

        def run(rows: Rows) -> Column:
            column = run_part(rows)
            with np.errstate(all="ignore"):
                values = np.asarray(function(column.values))
            return c.finished(values, column.valid) if target is FLOAT else Column(values, column.valid)

        return Typed(target, part.nullable, run)

    def per_entry(
        self, part: Typed, function: Callable[[str], Any], type_: AttributeType, *, fails: bool = False
    ) -> Typed:
        """A value of each distinct text; None is null."""
        table, run_part = c.PerEntry(function, type_.dtype), part.run

        def run(rows: Rows) -> Column:
            column = run_part(rows)
            values, ok = table.of(column)
            return Column(values, c.masked(column.valid, ok))

        return Typed(type_, part.nullable or fails, run)

    def text_to_text(self, part: Typed, function: Callable[[str], str]) -> Typed:
        table, run_part = c.TextPerEntry(function), part.run
        return Typed(TEXT, part.nullable, lambda rows: table.of(run_part(rows)))

    def text_of(self, parts: Sequence[Typed], function: Callable[..., str | None], *, fails: bool = False) -> Typed:
        table, runs = c.TextOf(function), [p.run for p in parts]
        nullable = fails or any(p.nullable for p in parts)
        return Typed(TEXT, nullable, lambda rows: table.of([run(rows) for run in runs]))

    # --- casts ---

    def _cast(self, node: exp.Cast) -> Typed:
        name = node.to.this.name if hasattr(node.to.this, "name") else str(node.to.this)
        target = _CAST_TYPES.get(name)
        if target is None:
            hint = {"INT": "BIGINT", "SMALLINT": "BIGINT", "FLOAT": "DOUBLE"}.get(name, "")
            wanted = f"write CAST(… AS {hint})" if hint else "there are BIGINT, DOUBLE, BOOLEAN, STRING, TIMESTAMP"
            raise self.refuse(node, f"no cast to {name}", wanted)
        part = self.compile(node.this)
        if part.type is None:
            return self.null_of(target)
        if target is TIME and isinstance(part.constant, str):
            try:
                return self.constant(parse_timestamp(part.constant), TIME)
            except ValueError:
                raise self.refuse(
                    node.this, f"{part.constant!r} is no timestamp", "write 2024-01-31 12:00:00"
                ) from None
        return self.cast(node, part, target)

    _trycast = _cast

    def cast(self, node: exp.Expression, part: Typed, target: AttributeType) -> Typed:
        """Casts that fail give null."""
        source = part.type
        if source is target:
            return part
        if target is TEXT:
            return self._to_text(node, part)
        if source is TEXT:
            return self.per_entry(part, _FROM_TEXT[target], target, fails=True)
        if (source, target) == (INT, FLOAT):
            return self.to(part, FLOAT)
        if (source, target) == (FLOAT, INT):
            return self.elementwise(part, _float_to_int, INT)
        if source is BOOL and target in (INT, FLOAT):
            return self.elementwise(part, lambda v: v.astype(target.dtype), target)
        if target is BOOL and source in (INT, FLOAT):
            return self.elementwise(part, lambda v: v != 0, BOOL)
        raise self.refuse(node, f"no cast from {source} to {target}", "use unix_micros(…) or timestamp_micros(…)")

    def _to_text(self, node: exp.Expression, part: Typed) -> Typed:
        if part.type is FLOAT:
            raise self.refuse(node, "no cast from float64 to string", "systems write floats differently; round first")
        write: dict[AttributeType | None, Callable[[Any], str]] = {
            INT: str,
            BOOL: lambda v: "true" if v else "false",
            TIME: lambda v: format_timestamp(v).replace("T", " "),
        }
        return self.text_of([part], write[part.type])

    # --- numeric functions ---

    def _abs(self, node: exp.Abs) -> Typed:
        return self.elementwise(self.typed(node.this, INT, FLOAT), np.abs)

    def _ceil(self, node: exp.Ceil) -> Typed:
        return self._to_whole(node, np.ceil)

    def _floor(self, node: exp.Floor) -> Typed:
        return self._to_whole(node, np.floor)

    def _to_whole(self, node: exp.Expression, function: Any) -> Typed:
        part = self.typed(node.this, FLOAT, INT)
        if part.type is INT:
            return part
        return self.elementwise(part, lambda v: _float_to_int(function(v)), INT)

    def _round(self, node: exp.Round) -> Typed:
        part = self.typed(node.this, FLOAT, INT)
        digits = node.args.get("decimals")
        count = 0 if digits is None else self.typed(digits, INT).constant
        if not isinstance(count, int) or count < 0:
            raise self.refuse(node, "round takes a literal number of digits, 0 or more")
        if part.type is INT:
            return part
        return self.elementwise(part, lambda v: c.half_up(v, count))

    def _sign(self, node: exp.Sign) -> Typed:
        return self.elementwise(self.to(self.typed(node.this, FLOAT, INT), FLOAT), np.sign)

    def _sqrt(self, node: exp.Sqrt) -> Typed:
        return self.elementwise(self.to(self.typed(node.this, FLOAT, INT), FLOAT), np.sqrt)

    def _greatest(self, node: exp.Greatest) -> Typed:
        return self._extreme(node, largest=True)

    def _least(self, node: exp.Least) -> Typed:
        return self._extreme(node, largest=False)

    def _extreme(self, node: exp.Expression, *, largest: bool) -> Typed:
        """Nulls are left out, as in Spark; null only where all are."""
        type_, parts = self.common(node, [self.compile(n) for n in [node.this, *node.expressions]])
        runs = [p.run for p in parts]

        def run(rows: Rows) -> Column:
            best = runs[0](rows)
            for other_run in runs[1:]:
                other = other_run(rows)
                x, y = c.comparable(other, best)
                better = c.less(y, x) if largest else c.less(x, y)
                if other.valid is not None:
                    better = better & other.valid
                if best.valid is not None:
                    known = np.ones(len(rows), np.bool_) if other.valid is None else other.valid
                    better = better | (~best.valid & known)
                best = c.choose([better], [other, best], type_)
            return best

        return Typed(type_, all(p.nullable for p in parts), run)

    def _anonymous(self, node: exp.Anonymous) -> Typed:
        name, arguments = node.name.lower(), node.expressions
        if name == "pmod" and len(arguments) == 2:
            left, right = self.typed(arguments[0], INT), self.typed(arguments[1], INT)
            return self._by(left, right, INT, np.mod)
        if name in ("timestamp_micros", "timestamp_seconds") and len(arguments) == 1:
            scale = 1 if name == "timestamp_micros" else 1_000_000
            return self.elementwise(self.typed(arguments[0], INT), lambda v: v * scale, TIME)
        raise self.refuse(node, f"no function {name}", _INSTEAD.get(name, "docs/expressions.md lists what there is"))

    # --- text functions ---

    def _upper(self, node: exp.Upper) -> Typed:
        return self.text_to_text(self.typed(node.this, TEXT), str.upper)

    def _lower(self, node: exp.Lower) -> Typed:
        return self.text_to_text(self.typed(node.this, TEXT), str.lower)

    def _length(self, node: exp.Length) -> Typed:
        return self.per_entry(self.typed(node.this, TEXT), len, INT)

    def _trim(self, node: exp.Trim) -> Typed:
        if node.args.get("expression") is not None:
            raise self.refuse(node, "trim takes one argument: it removes spaces")
        where = str(node.args.get("position") or "BOTH").upper()
        cut: Callable[[str], str] = {
            "LEADING": lambda s: s.lstrip(" "),
            "TRAILING": lambda s: s.rstrip(" "),
        }.get(where, lambda s: s.strip(" "))
        return self.text_to_text(self.typed(node.this, TEXT), cut)

    def _replace(self, node: exp.Replace) -> Typed:
        old, new = self._text_literal(node.expression), self._text_literal(node.args.get("replacement"))
        return self.text_to_text(self.typed(node.this, TEXT), lambda s: s.replace(old, new) if old else s)

    def _text_literal(self, node: exp.Expression | None) -> str:
        value = "" if node is None else self.typed(node, TEXT).constant
        if not isinstance(value, str):
            assert node is not None
            raise self.refuse(node, "expected a literal text here")
        return value

    def _int_literal(self, node: exp.Expression) -> int:
        value = self.typed(node, INT).constant
        if not isinstance(value, int):
            raise self.refuse(node, "expected a literal integer here")
        return value

    def _startswith(self, node: exp.StartsWith) -> Typed:
        prefix = self._text_literal(node.expression)
        return self.per_entry(self.typed(node.this, TEXT), lambda s: s.startswith(prefix), BOOL)

    def _endswith(self, node: exp.EndsWith) -> Typed:
        suffix = self._text_literal(node.expression)
        return self.per_entry(self.typed(node.this, TEXT), lambda s: s.endswith(suffix), BOOL)

    def _contains(self, node: exp.Contains) -> Typed:
        part = self._text_literal(node.expression)
        return self.per_entry(self.typed(node.this, TEXT), lambda s: part in s, BOOL)

    def _substring(self, node: exp.Substring) -> Typed:
        start = self._int_literal(node.args["start"])
        length = node.args.get("length")
        count = None if length is None else self._int_literal(length)

        def cut(s: str) -> str:
            # From 1; 0 counts as 1; negative counts from the end, and may begin before the text.
            begin = start - 1 if start > 0 else len(s) + start if start < 0 else 0
            end = len(s) if count is None else begin + count
            return s[max(begin, 0) : max(end, 0)]

        return self.text_to_text(self.typed(node.this, TEXT), cut)

    def _splitpart(self, node: exp.SplitPart) -> Typed:
        delimiter = self._text_literal(node.args.get("delimiter"))
        index = self._int_literal(node.args["part_index"])
        if index == 0 or not delimiter:
            raise self.refuse(node, "split_part counts from 1 (or −1 from the end), with a delimiter")

        def part(s: str) -> str:
            parts = s.split(delimiter)
            at = index - 1 if index > 0 else len(parts) + index
            return parts[at] if 0 <= at < len(parts) else ""

        return self.text_to_text(self.typed(node.this, TEXT), part)

    def _concat(self, node: exp.Concat) -> Typed:
        return self._joined([self.typed(n, TEXT) for n in node.expressions])

    def _dpipe(self, node: exp.DPipe) -> Typed:
        return self._joined([self.typed(node.this, TEXT), self.typed(node.expression, TEXT)])

    def _joined(self, parts: Sequence[Typed]) -> Typed:
        return self.text_of(parts, lambda *texts: "".join(texts))

    # --- timestamp functions ---

    def _unixmicros(self, node: exp.UnixMicros) -> Typed:
        return self.elementwise(self.typed(node.this, TIME), lambda v: v, INT)

    def _unixseconds(self, node: exp.UnixSeconds) -> Typed:
        return self.elementwise(self.typed(node.this, TIME), lambda v: v // 1_000_000, INT)

    def _unixmillis(self, node: exp.UnixMillis) -> Typed:
        return self.elementwise(self.typed(node.this, TIME), lambda v: v // 1_000, INT)

    def _timestamptrunc(self, node: exp.TimestampTrunc) -> Typed:
        unit = node.args["unit"].name.upper()
        part = self.typed(node.this, TIME)
        if unit == "WEEK":  # Monday; the epoch was a Thursday
            return self.elementwise(part, lambda v: v - (v + 3 * _UNITS_US["DAY"]) % _UNITS_US["WEEK"])
        if unit in ("MONTH", "YEAR"):
            dtype = f"datetime64[{unit[0]}]"
            return self.elementwise(
                part, lambda v: v.astype("datetime64[us]").astype(dtype).astype("datetime64[us]").astype(np.int64)
            )
        if unit not in _UNITS_US:
            raise self.refuse(node, f"no unit {unit}", f"there are: {', '.join(_UNITS_US)}, MONTH, YEAR")
        size = _UNITS_US[unit]
        return self.elementwise(part, lambda v: v - v % size)

    def _extract(self, node: exp.Extract) -> Typed:
        return self._field(node, node.this.name.upper(), node.expression)

    def _field(self, node: exp.Expression, name: str, moment: exp.Expression) -> Typed:
        if isinstance(moment, exp.TsOrDsToDate):
            moment = moment.this
        function = _FIELDS.get(name)
        if function is None:
            raise self.refuse(node, f"no field {name}", f"there are: {', '.join(_FIELDS)}")
        return self.elementwise(self.typed(moment, TIME), function, INT)

    def _year(self, node: exp.Year) -> Typed:
        return self._field(node, "YEAR", node.this)

    def _month(self, node: exp.Month) -> Typed:
        return self._field(node, "MONTH", node.this)

    def _day(self, node: exp.Day) -> Typed:
        return self._field(node, "DAY", node.this)

    _dayofmonth = _day

    def _dayofweek(self, node: exp.DayOfWeek) -> Typed:
        return self._field(node, "DAYOFWEEK", node.this)

    def _hour(self, node: exp.Hour) -> Typed:
        return self._field(node, "HOUR", node.this)

    def _minute(self, node: exp.Minute) -> Typed:
        return self._field(node, "MINUTE", node.this)

    def _second(self, node: exp.Second) -> Typed:
        return self._field(node, "SECOND", node.this)


def _float_to_int(values: Any) -> Any:
    """Truncates; out of range saturates and NaN is 0, as in Spark."""
    with np.errstate(invalid="ignore"):
        whole = np.trunc(np.nan_to_num(values, nan=0.0, posinf=np.inf, neginf=-np.inf))
        inside = (whole > -(2.0**63)) & (whole < 2.0**63)
        result = np.where(inside, whole, 0.0).astype(np.int64)
        return np.where(inside, result, np.where(whole > 0, _INT_MAX, np.where(whole < 0, _INT_MIN, 0)))


def _text_to_int(s: str) -> int | None:
    s = s.strip()
    if not re.fullmatch(r"[+-]?\d+", s, re.ASCII) or not _INT_MIN <= int(s) <= _INT_MAX:
        return None
    return int(s)


def _text_to_float(s: str) -> float | None:
    s = s.strip()
    if re.fullmatch(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", s, re.ASCII):
        return float(s) + 0.0
    return None


def _text_to_bool(s: str) -> bool | None:
    return {"true": True, "t": True, "yes": True, "y": True, "1": True}.get(
        s.strip().lower(), {"false": False, "f": False, "no": False, "n": False, "0": False}.get(s.strip().lower())
    )


def _text_to_time(s: str) -> int | None:
    try:
        return parse_timestamp(s.strip())
    except ValueError:
        return None


_FROM_TEXT: Final[dict[AttributeType, Callable[[str], Any]]] = {
    INT: _text_to_int,
    FLOAT: _text_to_float,
    BOOL: _text_to_bool,
    TIME: _text_to_time,
}


def _months(v: Any) -> Any:
    return v.astype("datetime64[us]").astype("datetime64[M]").astype(np.int64)


def _days(v: Any) -> Any:
    return v // _UNITS_US["DAY"]


_FIELDS: Final[dict[str, Callable[[Any], Any]]] = {
    "YEAR": lambda v: _months(v) // 12 + 1970,
    "MONTH": lambda v: _months(v) % 12 + 1,
    "DAY": lambda v: (
        _days(v) - v.astype("datetime64[us]").astype("datetime64[M]").astype("datetime64[D]").astype(np.int64) + 1
    ),
    "DAYOFWEEK": lambda v: (_days(v) + 4) % 7 + 1,  # Sunday is 1
    "HOUR": lambda v: v // _UNITS_US["HOUR"] % 24,
    "MINUTE": lambda v: v // _UNITS_US["MINUTE"] % 60,
    "SECOND": lambda v: v // _UNITS_US["SECOND"] % 60,
}
