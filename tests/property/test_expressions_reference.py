"""Compiled expressions agree with a row-at-a-time evaluator in plain Python, however batches are cut.

The evaluator shares no code with the compiler: each generated expression has its meaning as a Python function of one
row, in which None is null.
"""

from __future__ import annotations

import decimal
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from spe.expressions import compile_expression
from spe.stream.batch import Rows, concat_columns
from spe.stream.schema import Schema
from spe.stream.strings import StringDictionary
from tests.support.distribution import Situations

SCHEMA = Schema.of(i="int64", j="int64", x="float64", y="float64", p="bool", q="bool", s="string", t="string")
Row = dict[str, Any]


@dataclass
class Case:
    """An SQL text and what it means for one row."""

    text: str
    meaning: Callable[[Row], Any]


# The rules, one value at a time.


def wrapped(value: int) -> int:
    return (value + 2**63) % 2**64 - 2**63


def strict(function: Callable[..., Any]) -> Callable[..., Any]:
    """Null if any argument is."""
    return lambda *args: None if any(a is None for a in args) else function(*args)


def order(value: Any) -> tuple[bool, Any]:
    """NaN is equal to itself and larger than everything."""
    return (True, 0) if isinstance(value, float) and math.isnan(value) else (False, value)


def sql_and(a: bool | None, b: bool | None) -> bool | None:
    if a is False or b is False:
        return False
    return None if a is None or b is None else True


def sql_or(a: bool | None, b: bool | None) -> bool | None:
    if a is True or b is True:
        return True
    return None if a is None or b is None else False


def int_div(a: int, b: int) -> int | None:
    return None if b == 0 else wrapped(abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1))


def int_mod(a: int, b: int) -> int | None:
    return None if b == 0 else abs(a) % abs(b) * (-1 if a < 0 else 1)


def float_mod(a: float, b: float) -> float | None:
    if b == 0:
        return None
    return math.nan if math.isinf(a) or math.isnan(a) or math.isnan(b) else math.fmod(a, b)


def float_operation(sign: str, a: float, b: float) -> float:
    try:
        return {"+": lambda: a + b, "-": lambda: a - b, "*": lambda: a * b}[sign]()
    except OverflowError:
        return math.inf


COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "=": lambda a, b: order(a) == order(b),
    "<>": lambda a, b: order(a) != order(b),
    "<": lambda a, b: order(a) < order(b),
    "<=": lambda a, b: order(a) <= order(b),
    ">": lambda a, b: order(a) > order(b),
    ">=": lambda a, b: order(a) >= order(b),
}


def like(text: str, pattern: str) -> bool:
    if not pattern:
        return not text
    if pattern[0] == "%":
        return any(like(text[k:], pattern[1:]) for k in range(len(text) + 1))
    return bool(text) and pattern[0] in ("_", text[0]) and like(text[1:], pattern[1:])


# Random expressions.

INTS = st.one_of(st.integers(-4, 4), st.sampled_from([2**63 - 1, -(2**63), 2**62, 10**9]))
FLOATS = st.one_of(
    st.sampled_from([0.0, 1.0, -1.5, 2.5, 0.1, math.nan, math.inf, -math.inf, 1e300, -2.5]),
    st.floats(-100, 100).map(lambda v: v + 0.0),
)
TEXTS = st.text("ab%_ Aß", max_size=4)


def attribute(name: str) -> Case:
    return Case(name, lambda row: row[name])


def literal(value: int | float | str | bool) -> Case:
    if isinstance(value, str):
        return Case("'" + value + "'", lambda row: value)
    if isinstance(value, bool):
        return Case(str(value).upper(), lambda row: value)
    return Case(f"{value}L" if isinstance(value, int) else f"{value!r}D", lambda row: value)


def join(template: str, function: Callable[..., Any], *parts: Case) -> Case:
    """``({template})`` over the parts, each in parentheses of its own."""
    text = template.format(*[f"({p.text})" for p in parts])
    return Case(text, lambda row: function(*[p.meaning(row) for p in parts]))


def when(c: Any, a: Any, b: Any) -> Any:
    return a if c is True else b


def first_known(*values: Any) -> Any:
    return next((v for v in values if v is not None), None)


def grown(leaf: st.SearchStrategy[Case], *layers: st.SearchStrategy[Case]) -> st.SearchStrategy[Case]:
    return st.one_of(leaf, leaf, *layers)


def numbers(depth: int, kind: str) -> st.SearchStrategy[Case]:
    """Expressions of type int64 or float64."""
    whole = kind == "int"
    leaf = st.one_of(
        st.sampled_from("ij" if whole else "xy").map(attribute),
        st.integers(-9, 9).map(literal) if whole else st.sampled_from([0.0, 1.5, 0.1, 1e10]).map(literal),
    )
    if depth == 0:
        return leaf
    inner = numbers(depth - 1, kind)

    def arithmetic(sign: str, a: Case, b: Case) -> Case:
        if whole:
            exact: dict[str, Callable[[int, int], int]] = {
                "+": lambda v, w: wrapped(v + w),
                "-": lambda v, w: wrapped(v - w),
                "*": lambda v, w: wrapped(v * w),
            }
            return join(f"{{0}} {sign} {{1}}", strict(exact[sign]), a, b)
        return join(f"{{0}} {sign} {{1}}", strict(lambda v, w: float_operation(sign, v, w)), a, b)

    layers = [
        st.builds(arithmetic, st.sampled_from("+-*"), inner, inner),
        st.builds(lambda a: join("-{0}", strict(lambda v: wrapped(-v) if whole else -v), a), inner),
        st.builds(lambda a: join("abs({0})", strict(lambda v: wrapped(abs(v)) if whole else abs(v)), a), inner),
        st.builds(lambda a, b: join("{0} % {1}", strict(int_mod if whole else float_mod), a, b), inner, inner),
        st.builds(lambda c, a, b: join("IF({0}, {1}, {2})", when, c, a, b), bools(depth - 1), inner, inner),
        st.builds(lambda a, b: join("coalesce({0}, {1})", first_known, a, b), inner, inner),
        st.builds(
            lambda a, b: join(
                "nullif({0}, {1})", lambda v, w: v if v is None or w is None or order(v) != order(w) else None, a, b
            ),
            inner,
            inner,
        ),
        st.builds(lambda a, b: join("greatest({0}, {1})", extreme(max), a, b), inner, inner),
        st.builds(lambda a, b: join("least({0}, {1})", extreme(min), a, b), inner, inner),
    ]
    if whole:
        layers += [
            st.builds(lambda a, b: join("{0} div {1}", strict(int_div), a, b), inner, inner),
            # Spark computes it in 32 bits, so expressions that may overflow are refused: length(s) * length(s).
            texts(depth - 1).map(lambda a: join("CAST(length({0}) AS BIGINT)", strict(len), a)),
        ]
    else:
        divide = strict(lambda v, w: None if w == 0 else v / w)
        layers += [
            st.builds(lambda a, b: join("{0} / {1}", divide, a, b), inner, inner),
            numbers(depth - 1, "int").map(lambda a: join("CAST({0} AS DOUBLE)", strict(float), a)),
        ]
    return grown(leaf, *layers)


def extreme(pick: Callable[..., Any]) -> Callable[..., Any]:
    def function(*values: Any) -> Any:
        known = [v for v in values if v is not None]
        return pick(known, key=order) if known else None

    return function


def texts(depth: int) -> st.SearchStrategy[Case]:
    leaf = st.one_of(st.sampled_from("st").map(attribute), TEXTS.map(literal))
    if depth == 0:
        return leaf
    inner = texts(depth - 1)
    return grown(
        leaf,
        inner.map(lambda a: join("upper({0})", strict(str.upper), a)),
        inner.map(lambda a: join("trim({0})", strict(lambda v: v.strip(" ")), a)),
        st.builds(lambda a, b: join("{0} || {1}", strict(lambda v, w: v + w), a, b), inner, inner),
        st.builds(lambda c, a, b: join("IF({0}, {1}, {2})", when, c, a, b), bools(depth - 1), inner, inner),
        st.builds(lambda a, b: join("coalesce({0}, {1})", first_known, a, b), inner, inner),
        st.builds(lambda a, b: join("greatest({0}, {1})", extreme(max), a, b), inner, inner),
        st.builds(
            lambda a: join("CASE WHEN {0} LIKE 'a%' THEN 'x' END", lambda v: "x" if v and v[0] == "a" else None, a),
            inner,
        ),
    )


def bools(depth: int) -> st.SearchStrategy[Case]:
    leaf = st.one_of(st.sampled_from("pq").map(attribute), st.booleans().map(literal))
    if depth == 0:
        return leaf
    inner = bools(depth - 1)
    layers = [
        st.builds(lambda a, b: join("{0} AND {1}", sql_and, a, b), inner, inner),
        st.builds(lambda a, b: join("{0} OR {1}", sql_or, a, b), inner, inner),
        inner.map(lambda a: join("NOT {0}", strict(lambda v: not v), a)),
        texts(depth - 1).flatmap(
            lambda a: st.text("ab%_", max_size=4).map(
                lambda pattern: join(f"{{0}} LIKE '{pattern}'", strict(lambda v: like(v, pattern)), a)
            )
        ),
        numbers(depth - 1, "int").map(
            lambda a: join("{0} IN (1, 2, NULL)", lambda v: None if v is None or v not in (1, 2) else True, a)
        ),
        texts(depth - 1).map(lambda a: join("{0} IN ('a', 'b')", strict(lambda v: v in ("a", "b")), a)),
    ]
    for operands in (numbers(depth - 1, "int"), numbers(depth - 1, "float"), texts(depth - 1)):
        layers += [
            st.builds(
                lambda sign, a, b: join(f"{{0}} {sign} {{1}}", strict(COMPARE[sign]), a, b),
                st.sampled_from(list(COMPARE)),
                operands,
                operands,
            ),
            st.builds(
                lambda a, b: join(
                    "{0} <=> {1}",
                    lambda v, w: v is w if v is None or w is None else order(v) == order(w),
                    a,
                    b,
                ),
                operands,
                operands,
            ),
            st.builds(
                lambda a, low, high: join(
                    "{0} BETWEEN {1} AND {2}",
                    lambda v, lo, hi: sql_and(strict(COMPARE[">="])(v, lo), strict(COMPARE["<="])(v, hi)),
                    a,
                    low,
                    high,
                ),
                operands,
                operands,
                operands,
            ),
            operands.map(lambda a: join("{0} IS NULL", lambda v: v is None, a)),
        ]
    return grown(leaf, *layers)


EXPRESSIONS = st.one_of(numbers(2, "int"), numbers(2, "float"), texts(2), bools(2), bools(3))
CELLS = [INTS, INTS, FLOATS, FLOATS, st.booleans(), st.booleans(), TEXTS, TEXTS]
ROWS = st.booleans().flatmap(
    lambda nulls: st.lists(st.tuples(*[st.one_of(st.none(), c) if nulls else c for c in CELLS]), max_size=8)
)


def same(found: Any, expected: Any) -> bool:
    """Equal in value and type; floats equal in bits, except NaN, which is checked elsewhere."""
    if isinstance(expected, float) and isinstance(found, float):
        if math.isnan(expected):
            return math.isnan(found)
        return found == expected and (found != 0 or math.copysign(1, found) == 1)
    return type(found) is type(expected) and bool(found == expected)


def rows_of(data: list[tuple[Any, ...]]) -> Rows:
    """Strings of the two columns in dictionaries of their own."""
    return Rows.from_tuples(SCHEMA, [0] * len(data), data)


COLUMNS = Situations({"a null comes out": 0.06, "something else comes out": 0.3, "a NaN or an infinity goes in": 0.1})


@COLUMNS.required
@settings(max_examples=400, deadline=None)
@given(case=EXPRESSIONS, data=ROWS)
def test_columns_equal_the_results_row_by_row(case: Case, data: list[tuple[Any, ...]]) -> None:
    expression = compile_expression(case.text, SCHEMA)
    column = expression.evaluate(rows_of(data))
    expected = [case.meaning(dict(zip(SCHEMA.names, row))) for row in data]
    found = column.to_list()
    COLUMNS.example(
        {
            "a null comes out": None in found,
            "something else comes out": any(f is not None for f in found),
            "a NaN or an infinity goes in": any(
                isinstance(cell, float) and not math.isfinite(cell) for row in data for cell in row
            ),
        }
    )
    assert len(found) == len(expected)
    assert all(same(f, e) for f, e in zip(found, expected)), (case.text, data, found, expected)
    assert column.values.dtype == expression.type.dtype
    assert expression.nullable or column.valid is None
    assert column.valid is None or not column.valid.all()


HALVES = Situations({"rows before and after the cut": 0.07})


@HALVES.required
@settings(max_examples=100, deadline=None)
@given(case=EXPRESSIONS, data=ROWS, cut=st.integers(0, 8))
def test_values_are_the_same_in_one_batch_and_in_two(case: Case, data: list[tuple[Any, ...]], cut: int) -> None:
    expression = compile_expression(case.text, SCHEMA)
    rows = rows_of(data)
    cut = min(cut, len(data))
    HALVES.example({"rows before and after the cut": 0 < cut < len(data)})
    parts = [expression.evaluate(rows.slice(0, cut)), expression.evaluate(rows.slice(cut, len(data)))]
    joined, whole = concat_columns(parts), expression.evaluate(rows)
    assert [repr(v) for v in joined.to_list()] == [repr(v) for v in whole.to_list()]
    if whole.dictionary is None and whole.valid is None:
        assert joined.values.tobytes() == whole.values.tobytes()


ROTATED = Situations({"a new dictionary after texts": 0.2, "a text that the old dictionary has not": 0.2})


@ROTATED.required
@settings(max_examples=50, deadline=None)
@given(batches=st.lists(st.tuples(st.booleans(), st.lists(st.tuples(TEXTS, TEXTS), max_size=5)), max_size=6))
def test_string_functions_follow_growing_and_new_dictionaries(batches: list[tuple[bool, list[Any]]]) -> None:
    """The caches are per dictionary; new texts in an old dictionary, and a new dictionary, are both noticed.

    1. batches come in, some of them beginning a new dictionary in one of the columns
    2. each result is that of the texts of its own batch
    """
    schema = Schema.of(s="string", t="string")
    equal, upper = (compile_expression(text, schema) for text in ("s = t", "upper(s) || t"))
    left, right = StringDictionary(), StringDictionary()
    seen: set[str] = set()
    met = {"a new dictionary after texts": False, "a text that the old dictionary has not": False}
    for fresh, pairs in batches:
        met["a new dictionary after texts"] |= fresh and bool(seen)
        met["a text that the old dictionary has not"] |= bool(seen) and not {a for a, _ in pairs} <= seen
        seen |= {a for a, _ in pairs}
        if fresh:
            right = StringDictionary()
        one = Rows.from_tuples(schema, [0] * len(pairs), pairs)
        columns = (one.columns[0].in_dictionary(left), one.columns[1].in_dictionary(right))
        rows = one.with_columns(columns)
        assert equal.evaluate(rows).to_list() == [a == b for a, b in pairs]
        assert upper.evaluate(rows).to_list() == [a.upper() + b for a, b in pairs]
    ROTATED.example(met)


ROUNDED = Situations({"rounding changes it": 0.36, "rounding changes nothing": 0.1})


@ROUNDED.required
@settings(max_examples=200, deadline=None)
@given(
    values=st.lists(
        st.one_of(
            st.floats(allow_nan=False, allow_infinity=False),
            st.floats(-10, 10),
            st.builds(lambda n, d: n / 10**d, st.integers(-(10**16), 10**16), st.integers(0, 16)),
        ),
        min_size=1,
        max_size=20,
    ),
    digits=st.integers(0, 15),
)
def test_round_goes_by_the_shortest_decimal(values: list[float], digits: int) -> None:
    expression = compile_expression(f"round(x, {digits})", Schema.of(x="float64"))
    found = expression.evaluate(Rows.from_tuples(Schema.of(x="float64"), [0] * len(values), [(v,) for v in values]))
    with decimal.localcontext(prec=400):
        step = decimal.Decimal(1).scaleb(-digits)
        expected = [
            float(decimal.Decimal(repr(v)).quantize(step, decimal.ROUND_HALF_UP)) + 0.0  # no negative zero
            for v in values
        ]
    changed = [v != e for v, e in zip(values, expected, strict=True)]
    ROUNDED.example({"rounding changes it": any(changed), "rounding changes nothing": not all(changed)})
    assert [repr(v) for v in found.to_list()] == [repr(v) for v in expected]
