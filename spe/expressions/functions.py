"""The table of functions and operators: one row per signature, with types and implementation.

A name may have several rows; the first whose argument types fit is used.  An int64 fits float64, too (as in Spark);
there are no other implicit conversions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from spe.expressions import calendar, numbers, texts
from spe.expressions.tree import Bounds, Function
from spe.stream.schema import AttributeType

INT, FLOAT, BOOL = AttributeType.INT64, AttributeType.FLOAT64, AttributeType.BOOL
STRING, TIMESTAMP = AttributeType.STRING, AttributeType.TIMESTAMP

#: Bound of the length of a text: it fits a frame, so Spark's 32-bit length does not overflow (spe.plan.plan.Limits).
MAX_TEXT: Final = 1 << 24
#: Longest text that lpad and rpad may make.
MAX_PAD: Final = 1 << 16

#: Computes the bounds of a result from those of its arguments (None: a BIGINT).
BoundsRule = Callable[..., Bounds]


@dataclass(frozen=True, slots=True)
class Row:
    """One signature of a function.

    Attributes:
      arguments: types; the last one may be repeated if ``variadic``.
      bounds: None: the result is a BIGINT in Spark too, or no integer.
      literal: index -> (check, message) of arguments that must be literals.
      without_zero: function for a second argument that is a literal other than 0, so that no row is null.
    """

    name: str
    arguments: tuple[AttributeType, ...]
    result: AttributeType
    function: Function
    variadic: bool = False
    bounds: BoundsRule | None = None
    literal: dict[int, tuple[Callable[[Any], bool], str]] | None = None
    without_zero: Function | None = None

    @property
    def signature(self) -> str:
        return f"{self.name}({', '.join(self.arguments)}{', …' if self.variadic else ''})"

    def fits(self, types: Sequence[AttributeType | None]) -> bool:
        """Do these argument types (None: NULL) fit?"""
        expected = self.expected(len(types))
        return len(expected) == len(types) and all(
            t in (None, e) or (t is INT and e is FLOAT) for t, e in zip(types, expected)
        )

    def expected(self, count: int) -> tuple[AttributeType, ...]:
        """Returns the argument types for a call with ``count`` arguments."""
        extra = count - len(self.arguments)
        return self.arguments + self.arguments[-1:] * extra if self.variadic and extra > 0 else self.arguments


# Bounds of 32-bit integers.


def _exact(operation: Callable[[int, int], int]) -> BoundsRule:
    def rule(a: Bounds, b: Bounds) -> Bounds:
        if a is None or b is None:
            return None
        corners = [operation(x, y) for x in a for y in b]
        return min(corners), max(corners)

    return rule


def _negated(a: Bounds) -> Bounds:
    return None if a is None else (-a[1], -a[0])


def _absolute(a: Bounds) -> Bounds:
    return None if a is None else (0, max(abs(a[0]), abs(a[1])))


def _of_dividend(a: Bounds, b: Bounds) -> Bounds:
    return None if a is None or b is None else (min(a[0], 0), max(a[1], 0))


def _of_divisor(a: Bounds, b: Bounds) -> Bounds:
    size = max(abs(b[0]), abs(b[1])) if b is not None else 0
    return None if a is None or b is None else (-size, size)


def _same(a: Bounds, *_: Bounds) -> Bounds:
    return a


def _within(low: int, high: int) -> BoundsRule:
    def rule(*_: Bounds) -> Bounds:
        return low, high

    return rule


# Makers of rows.


def _template(
    name: str, arguments: tuple[AttributeType, ...], result: AttributeType, template: str, **more: Any
) -> Row:
    warns = FLOAT in arguments
    return Row(name, arguments, result, Function(name, template=template, warns=warns), **more)


def _columns(
    name: str, arguments: tuple[AttributeType, ...], result: AttributeType, columns: Callable[..., Any], **more: Any
) -> Row:
    partial, literals = more.pop("partial", False), frozenset(more.get("literal", ()))
    function = Function(name, columns=columns, partial=partial, warns=True, literals=literals)
    return Row(name, arguments, result, function, **more)


def _text(
    name: str, arguments: tuple[AttributeType, ...], result: AttributeType, text: Callable[..., Any], **more: Any
) -> Row:
    partial, literals = more.pop("partial", False), frozenset(more.get("literal", ()))
    return Row(name, arguments, result, Function(name, text=text, partial=partial, literals=literals), **more)


def _numeric(name: str, template: str, bounds: BoundsRule, count: int) -> list[Row]:
    return [_template(name, (t,) * count, t, template, bounds=bounds if t is INT else None) for t in (INT, FLOAT)]


def _by_zero(
    name: str,
    type_: AttributeType,
    columns: Callable[..., Any],
    by: Function,
    result: AttributeType,
    bounds: BoundsRule | None = None,
) -> Row:
    return _columns(name, (type_, type_), result, columns, partial=True, bounds=bounds, without_zero=by)


def _remainders() -> list[Row]:
    rows = []
    for type_ in (INT, FLOAT):
        by = Function("%", columns=np.fmod, warns=True)
        positive = Function("pmod", columns=numbers.positive_remainder_by, warns=True)
        dividend, divisor = (_of_dividend, _of_divisor) if type_ is INT else (None, None)
        rows += [_by_zero(n, type_, numbers.remainder, by, type_, dividend) for n in ("%", "mod")]
        rows.append(_by_zero("pmod", type_, numbers.positive_remainder, positive, type_, divisor))
    return rows


def _calendar(name: str, part: Callable[[Any], Any], low: int, high: int) -> Row:
    return _columns(name, (TIMESTAMP,), INT, part, bounds=_within(low, high))


def _concat(*parts: str) -> str:
    return "".join(parts)


_UNIT = (lambda v: str(v).lower() in calendar.TRUNCATE, "a unit: " + ", ".join(calendar.TRUNCATE))
_PAD = (lambda v: v <= MAX_PAD, f"a literal of at most {MAX_PAD}")
_PART = (lambda v: v != 0, "an index other than 0")


def _any(check: tuple[Callable[[Any], bool], str], index: int) -> dict[int, tuple[Callable[[Any], bool], str]]:
    return {index: check}


def _date_trunc(unit: str, us: Any) -> Any:
    return calendar.TRUNCATE[unit.lower()](us)


def _round(a: Any, digits: int) -> Any:
    return numbers.round_half_up(a, digits)


_DIGITS = (lambda v: 0 <= v <= 15, "a literal from 0 to 15")

ROWS: Final[tuple[Row, ...]] = (
    # arithmetic
    *_numeric("+", "{0} + {1}", _exact(lambda x, y: x + y), 2),
    *_numeric("-", "{0} - {1}", _exact(lambda x, y: x - y), 2),
    *_numeric("*", "{0} * {1}", _exact(lambda x, y: x * y), 2),
    *_numeric("negative", "-{0}", _negated, 1),
    *_numeric("positive", "{0}", _same, 1),
    _by_zero("/", FLOAT, numbers.divide, Function("/", template="{0} / {1}", warns=True), FLOAT),
    _by_zero("div", INT, numbers.int_divide, Function("div", columns=numbers.int_divide_by, warns=True), INT),
    *_remainders(),
    *_numeric("abs", "np.abs({0})", _absolute, 1),
    _template("sign", (FLOAT,), FLOAT, "np.sign({0})"),
    _template("signum", (FLOAT,), FLOAT, "np.sign({0})"),
    _template("sqrt", (FLOAT,), FLOAT, "np.sqrt({0})"),
    *[_template(n, (INT,), INT, "{0}") for n in ("ceil", "ceiling", "floor")],
    *[_columns(n, (FLOAT,), INT, numbers.ceil_to_int) for n in ("ceil", "ceiling")],
    _columns("floor", (FLOAT,), INT, numbers.floor_to_int),
    _template("round", (INT,), INT, "{0}", bounds=_same),
    _template("round", (INT, INT), INT, "{0}", bounds=_same, literal=_any(_DIGITS, 1)),
    _columns("round", (FLOAT,), FLOAT, numbers.round_half_up),
    _columns("round", (FLOAT, INT), FLOAT, _round, literal=_any(_DIGITS, 1)),
    _template("isnan", (FLOAT,), BOOL, "{0} != {0}"),
    # booleans
    _template("not", (BOOL,), BOOL, "~{0}"),
    # strings
    _text("upper", (STRING,), STRING, str.upper),
    _text("ucase", (STRING,), STRING, str.upper),
    _text("lower", (STRING,), STRING, str.lower),
    _text("lcase", (STRING,), STRING, str.lower),
    *[_text(n, (STRING,), INT, len, bounds=_within(0, MAX_TEXT)) for n in ("length", "len", "char_length")],
    *[_text(n, (STRING, INT), STRING, texts.substring) for n in ("substr", "substring")],
    *[_text(n, (STRING, INT, INT), STRING, texts.substring) for n in ("substr", "substring")],
    _text("concat", (STRING,), STRING, _concat, variadic=True),
    _text("trim", (STRING,), STRING, lambda s: s.strip(" ")),
    _text("ltrim", (STRING,), STRING, lambda s: s.lstrip(" ")),
    _text("rtrim", (STRING,), STRING, lambda s: s.rstrip(" ")),
    _text("replace", (STRING, STRING), STRING, texts.replace),
    _text("replace", (STRING, STRING, STRING), STRING, texts.replace),
    *[_text(n, (STRING, STRING), BOOL, str.startswith) for n in ("startswith", "starts_with")],
    *[_text(n, (STRING, STRING), BOOL, str.endswith) for n in ("endswith", "ends_with")],
    _text("contains", (STRING, STRING), BOOL, lambda s, part: part in s),
    _text("split_part", (STRING, STRING, INT), STRING, texts.split_part, literal=_any(_PART, 2)),
    *[_text("lpad", a, STRING, texts.lpad, literal=_any(_PAD, 1)) for a in ((STRING, INT), (STRING, INT, STRING))],
    *[_text("rpad", a, STRING, texts.rpad, literal=_any(_PAD, 1)) for a in ((STRING, INT), (STRING, INT, STRING))],
    # timestamps
    _columns("date_trunc", (STRING, TIMESTAMP), TIMESTAMP, _date_trunc, literal=_any(_UNIT, 0)),
    _calendar("year", calendar.year, -300_000, 300_000),
    _calendar("quarter", calendar.quarter, 1, 4),
    _calendar("month", calendar.month, 1, 12),
    _calendar("weekofyear", calendar.week_of_year, 1, 53),
    *[_calendar(n, calendar.day, 1, 31) for n in ("day", "dayofmonth")],
    _calendar("dayofyear", calendar.day_of_year, 1, 366),
    _calendar("dayofweek", calendar.day_of_week, 1, 7),
    _calendar("weekday", calendar.weekday, 0, 6),
    _calendar("hour", calendar.hour, 0, 23),
    _calendar("minute", calendar.minute, 0, 59),
    _calendar("second", calendar.second, 0, 59),
    _template("unix_micros", (TIMESTAMP,), INT, "{0}"),
    _template("unix_millis", (TIMESTAMP,), INT, "{0} // 1000"),
    _template("unix_seconds", (TIMESTAMP,), INT, "{0} // 1000000"),
    _template("timestamp_micros", (INT,), TIMESTAMP, "{0}"),
    _columns("timestamp_millis", (INT,), TIMESTAMP, numbers.checked_product(1_000), partial=True),
    _columns("timestamp_seconds", (INT,), TIMESTAMP, numbers.checked_product(1_000_000), partial=True),
)

FUNCTIONS: Final[dict[str, list[Row]]] = {}
for _row in ROWS:
    FUNCTIONS.setdefault(_row.name, []).append(_row)

#: Names of operators, which cannot be called as functions.
OPERATORS: Final = frozenset(("+", "-", "*", "negative", "positive", "/", "div", "%", "not"))

EQUAL: Final = Function("=", template="{0} == {1}")
LESS: Final = Function("<", template="{0} < {1}")
LESS_EQUAL: Final = Function("<=", template="{0} <= {1}")
TEXT_LESS: Final = Function("<", text=lambda a, b: bool(a < b))
TEXT_LESS_EQUAL: Final = Function("<=", text=lambda a, b: bool(a <= b))
NOT: Final = Function("not", template="~{0}")
LATER: Final = Function("+", template="{0} + {1}")
INT_TO_FLOAT: Final = Function("cast", template="np.asarray({0}, np.float64)")

#: (from, to) -> cast function.  Other casts are refused.
CASTS: Final[dict[tuple[AttributeType, AttributeType], Function]] = {
    (INT, FLOAT): INT_TO_FLOAT,
    (FLOAT, INT): Function("cast", columns=numbers.float_to_int, warns=True),
    (INT, BOOL): Function("cast", template="{0} != 0"),
    (FLOAT, BOOL): Function("cast", template="{0} != 0"),
    (BOOL, INT): Function("cast", template="np.asarray({0}, np.int64)"),
    (BOOL, FLOAT): Function("cast", template="np.asarray({0}, np.float64)"),
    (INT, TIMESTAMP): Function("cast", columns=numbers.int_to_timestamp, warns=True),
    (FLOAT, TIMESTAMP): Function("cast", columns=numbers.float_to_timestamp, partial=True, warns=True),
    (TIMESTAMP, INT): Function("cast", template="{0} // 1000000"),
    (TIMESTAMP, FLOAT): Function("cast", template="{0} / 1e6"),
    (STRING, INT): Function("cast", text=texts.int_of_text, partial=True),
    (STRING, FLOAT): Function("cast", text=texts.float_of_text, partial=True),
    (STRING, BOOL): Function("cast", text=texts.bool_of_text, partial=True),
    (STRING, TIMESTAMP): Function("cast", text=texts.timestamp_of_text, partial=True),
    (INT, STRING): Function("cast", text=str),
    (FLOAT, STRING): Function("cast", text=texts.text_of_float),
    (BOOL, STRING): Function("cast", text=texts.text_of_bool),
    (TIMESTAMP, STRING): Function("cast", text=texts.text_of_timestamp),
}

#: Advice for unsupported functions.
INSTEAD: Final[dict[str, str]] = {
    **dict.fromkeys(
        ("exp", "ln", "log", "log2", "log10", "log1p", "expm1", "pow", "power", "sin", "cos", "tan", "asin", "acos",
         "atan", "atan2", "sinh", "cosh", "tanh", "cbrt", "degrees", "radians"),
        "its last bit differs between processors, so replicas would not agree; sqrt and arithmetic do not",
    ),
    **dict.fromkeys(
        ("count", "sum", "avg", "min", "max", "first", "last"), "aggregates belong in an aggregate's compute"
    ),
    **dict.fromkeys(
        ("now", "current_timestamp", "current_date", "rand", "random", "uuid"),
        "replicas would not agree; an expression depends on its tuple only",
    ),
    **dict.fromkeys(("rlike", "regexp", "regexp_like", "regexp_extract", "regexp_replace"), "use LIKE"),
    "left": "substr(s, 1, n)",
    "right": "substr(s, -n)",
    "instr": "contains(s, part)",
    "date_part": "extract(field FROM ts)",
    "to_timestamp": "CAST(s AS TIMESTAMP)",
    "hash": "the partition key decides the partition; within an expression there is no hash",
    "nvl2": "CASE WHEN x IS NOT NULL THEN a ELSE b END",
    "nanvl": "CASE WHEN isnan(x) THEN y ELSE x END",
    "timestampdiff": "unix_micros(a) - unix_micros(b)",
    "datediff": "unix_micros(a) - unix_micros(b)",
    "bround": "round",
}  # fmt: skip
