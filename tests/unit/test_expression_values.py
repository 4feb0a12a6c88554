"""The SQL subset: three-valued logic, Spark's arithmetic, and clear refusals."""

from __future__ import annotations

import math
from typing import Any

import pytest

from spe.batch import Rows
from spe.errors import ExpressionError
from spe.expressions import compile_expression, compile_predicate
from spe.schema import AttributeType, Schema
from spe.times import parse_timestamp

SCHEMA = Schema.of(i="int64", j="int64", f="float64", g="float64", b="bool", s="string", t="string", ts="timestamp")
NAN, INF = math.nan, math.inf
BIG = 2**63 - 1


def value(text: str, **attributes: Any) -> Any:
    """The expression's value over one tuple; attributes that are not given are null."""
    rows = Rows.from_tuples(SCHEMA, [0], [tuple(attributes.get(n) for n in SCHEMA.names)])
    (result,) = compile_expression(text, SCHEMA).evaluate(rows).to_list()
    return result


def moment(text: str) -> int:
    return parse_timestamp(text)


@pytest.mark.parametrize(
    ("text", "attributes", "expected"),
    [
        # three-valued logic
        ("b AND i = 1", {"b": False}, False),
        ("b AND i = 1", {"b": True}, None),
        ("b OR i = 1", {"b": True}, True),
        ("b OR i = 1", {"b": False}, None),
        ("NOT (i = 1)", {}, None),
        ("i IS NULL", {}, True),
        ("i IS NOT NULL", {"i": 1}, True),
        ("b IS TRUE", {}, False),
        ("i = NULL", {"i": 1}, None),
        ("i <=> NULL", {}, True),
        ("i <=> j", {"i": 1}, False),
        ("i IS DISTINCT FROM j", {"i": 1, "j": 1}, False),
        ("i IN (1, 2)", {"i": 2}, True),
        ("i IN (1, NULL)", {"i": 1}, True),
        ("i IN (1, NULL)", {"i": 3}, None),
        ("i NOT IN (1, 2)", {"i": 3}, True),
        ("i BETWEEN 1 AND 3", {"i": 3}, True),
        ("s IN ('a', 'b')", {"s": "b"}, True),
        # division and remainder
        ("i / j", {"i": 7, "j": 2}, 3.5),
        ("i / j", {"i": 7, "j": 0}, None),
        ("f / g", {"f": 1.0, "g": 0.0}, None),
        ("i div j", {"i": -1, "j": 2}, 0),
        ("i div j", {"i": -7, "j": 2}, -3),
        ("i div j", {"i": 7, "j": 0}, None),
        ("i % j", {"i": -1, "j": 3}, -1),
        ("i % j", {"i": 5, "j": 0}, None),
        ("pmod(i, j)", {"i": -1, "j": 3}, 2),
        ("f % 2.5", {"f": -4.0}, -1.5),
        # overflow wraps
        ("i + 1", {"i": BIG}, -(2**63)),
        ("i * 2", {"i": 2**62}, -(2**63)),
        ("-9223372036854775808", {}, -(2**63)),
        # NaN is the largest value and equals itself
        ("f > 1", {"f": NAN}, True),
        ("f = f", {"f": NAN}, True),
        ("NOT (f > 1)", {"f": NAN}, False),
        ("f < g", {"f": 1.0, "g": NAN}, True),
        ("f <= g", {"f": NAN, "g": 1.0}, False),
        ("greatest(f, g)", {"f": INF, "g": NAN}, NAN),
        # rounding
        ("round(f)", {"f": -2.5}, -3.0),
        ("round(f)", {"f": 2.5}, 3.0),
        ("round(f, 1)", {"f": 0.25}, 0.3),
        ("floor(f)", {"f": -1.5}, -2),
        ("ceil(f)", {"f": -1.5}, -1),
        ("floor(f)", {"f": -INF}, -(2**63)),
        ("sign(i)", {"i": -3}, -1.0),
        ("abs(i)", {"i": -3}, 3),
        ("sqrt(f)", {"f": 9.0}, 3.0),
        ("-f", {"f": 0.0}, 0.0),
        # mixed types
        ("i + f", {"i": 1, "f": 0.5}, 1.5),
        ("i > 1.5", {"i": 2}, True),
        ("2.0D * i", {"i": 3}, 6.0),
        # conditionals
        ("CASE WHEN i > 1 THEN 'big' WHEN i > 0 THEN 'one' ELSE 'none' END", {"i": 1}, "one"),
        ("CASE WHEN i > 1 THEN 'big' END", {}, None),
        ("CASE i WHEN 1 THEN 2 WHEN 2 THEN 0.5 END", {"i": 1}, 2.0),
        ("if(b, i, j)", {"i": 1, "j": 2}, 2),
        ("coalesce(i, j, 7)", {"j": 2}, 2),
        ("coalesce(i, j, 7)", {}, 7),
        ("nullif(i, 1)", {"i": 1}, None),
        ("nullif(i, 1)", {"i": 2}, 2),
        ("greatest(i, j, 3)", {"j": 5}, 5),
        ("least(s, t)", {"s": "b", "t": "a"}, "a"),
        # text
        ("s = 'x'", {"s": "x"}, True),
        ("s = t", {"s": "x", "t": "x"}, True),
        ("s < t", {"s": "Z", "t": "a"}, True),
        ("s < 'b'", {"s": "a"}, True),
        ("s LIKE 'a%_z'", {"s": "abcz"}, True),
        ("s LIKE 'a!%' ESCAPE '!'", {"s": "a%"}, True),
        ("s NOT LIKE '%b%'", {"s": "abc"}, False),
        ("upper(s) || '-' || lower(t)", {"s": "a", "t": "B"}, "A-b"),
        ("concat(s, t)", {"s": "a"}, None),
        ("length(s)", {"s": "héé"}, 3),
        ("substring(s, 2, 2)", {"s": "abcd"}, "bc"),
        ("substr(s, -2)", {"s": "abcd"}, "cd"),
        ("trim(s)", {"s": "  a "}, "a"),
        ("replace(s, 'a', 'b')", {"s": "aXa"}, "bXb"),
        ("starts_with(s, 'ab')", {"s": "abc"}, True),
        ("endswith(s, 'c')", {"s": "abc"}, True),
        ("contains(s, 'x')", {"s": "abc"}, False),
        ("split_part(s, '.', 2)", {"s": "a.b.c"}, "b"),
        ("split_part(s, '.', -1)", {"s": "a.b.c"}, "c"),
        # casts: what fails is null
        ("CAST(s AS BIGINT)", {"s": " 12 "}, 12),
        ("CAST(s AS BIGINT)", {"s": "1.5"}, None),
        ("CAST(s AS DOUBLE)", {"s": "1e3"}, 1000.0),
        ("CAST(f AS BIGINT)", {"f": -1.9}, -1),
        ("CAST(f AS BIGINT)", {"f": 1e30}, BIG),
        ("CAST(f AS BIGINT)", {"f": NAN}, 0),
        ("CAST(i AS STRING)", {"i": -5}, "-5"),
        ("CAST(b AS BIGINT)", {"b": True}, 1),
        ("CAST(i AS BOOLEAN)", {"i": 2}, True),
        ("CAST(s AS BOOLEAN)", {"s": "maybe"}, None),
        ("CAST(s AS TIMESTAMP)", {"s": "2024-01-02 03:04:05"}, moment("2024-01-02T03:04:05")),
        # timestamps
        ("ts + INTERVAL 5 SECONDS", {"ts": 0}, 5_000_000),
        ("ts - INTERVAL '1' HOUR", {"ts": 0}, -3_600_000_000),
        ("ts > TIMESTAMP '1970-01-01 00:00:00'", {"ts": 1}, True),
        ("date_trunc('hour', ts)", {"ts": moment("2024-02-29T13:45:10")}, moment("2024-02-29T13:00:00")),
        ("date_trunc('month', ts)", {"ts": moment("2024-02-29T13:45:10")}, moment("2024-02-01")),
        ("date_trunc('week', ts)", {"ts": moment("2024-02-29")}, moment("2024-02-26")),
        ("year(ts)", {"ts": moment("1969-12-31T23:00:00")}, 1969),
        ("month(ts)", {"ts": moment("1969-12-31T23:00:00")}, 12),
        ("day(ts)", {"ts": moment("2024-02-29")}, 29),
        ("hour(ts)", {"ts": -1}, 23),
        ("extract(minute FROM ts)", {"ts": moment("2024-02-29T13:45:10")}, 45),
        ("dayofweek(ts)", {"ts": moment("2024-02-29")}, 5),
        ("unix_micros(ts)", {"ts": 17}, 17),
        ("unix_seconds(ts)", {"ts": -1}, -1),
        ("timestamp_micros(i)", {"i": 5}, 5),
    ],
)
def test_value(text: str, attributes: dict[str, Any], expected: Any) -> None:
    found = value(text, **attributes)
    if isinstance(expected, float) and math.isnan(expected):
        assert math.isnan(found)
    else:
        assert found == expected
        assert type(found) is type(expected)


@pytest.mark.parametrize(
    ("text", "position", "message"),
    [
        ("i +", 2, "not an SQL expression"),
        ("i + nope", 4, "no attribute 'nope'; there are: i, j"),
        ("i = 's'", 0, "types do not fit together"),
        ("s > 1", 0, "types do not fit together"),
        ("b + 1", 0, "expected int64 or float64, this is bool"),
        ("exp(f)", 0, "exp is not supported; its bits differ"),
        ("i + frobnicate(j)", 4, "no function frobnicate"),
        ("CAST(i AS INT)", 5, "no cast to INT; write CAST(… AS BIGINT)"),
        ("CAST(f AS STRING)", 5, "no cast from float64 to string"),
        ("CAST(ts AS BIGINT)", 5, "no cast from timestamp to int64; use unix_micros"),
        ("i IN (j)", 6, "IN takes literals"),
        ("s LIKE t", 7, "LIKE takes a literal pattern"),
        ("NULL", 0, "NULL alone has no type"),
        ("(SELECT 1)", 8, "not supported"),
        ("sum(i)", 0, "sum is not supported"),
        ("99999999999999999999", 0, "does not fit into int64"),
        ("ts + INTERVAL 1 MONTH", 0, "not an interval"),
        ("x.i = 1", 0, "qualified"),
    ],
)
def test_refusals_say_where_and_what_instead(text: str, position: int, message: str) -> None:
    with pytest.raises(ExpressionError) as caught:
        compile_expression(text, SCHEMA)
    assert message in str(caught.value)
    assert caught.value.position == position


def test_a_condition_must_be_boolean() -> None:
    with pytest.raises(ExpressionError, match="must be boolean, this is int64"):
        compile_predicate("i + 1", SCHEMA)


def test_null_counts_as_false_in_a_condition() -> None:
    rows = Rows.from_tuples(SCHEMA, [0, 0, 0], [(v,) + (None,) * 7 for v in (1, None, 3)])
    assert compile_predicate("i > 1", SCHEMA).mask(rows).tolist() == [False, False, True]


def test_types_and_nullability_are_known_before_the_first_tuple() -> None:
    schema = Schema.of(i="int64!", s="string")
    assert compile_expression("i + 1", schema).nullable is False
    assert compile_expression("i / 2", schema).nullable is False
    assert compile_expression("i / i", schema).nullable is True
    assert compile_expression("coalesce(s, 'x')", schema).nullable is False
    expression = compile_expression("length(s) + i", schema)
    assert (expression.type, expression.nullable, expression.references) == (AttributeType.INT64, True, ("s", "i"))


def test_an_empty_batch_gives_an_empty_column() -> None:
    rows = Rows.empty(SCHEMA)
    for text in ("i + 1", "s || t", "upper(s)", "s LIKE 'a%'", "s < t", "CASE WHEN b THEN s ELSE 'x' END"):
        assert compile_expression(text, SCHEMA).evaluate(rows).to_list() == []


def test_texts_are_worked_on_once_each_also_when_the_dictionary_grows() -> None:
    expression = compile_expression("upper(s)", SCHEMA)
    rows = Rows.from_tuples(SCHEMA, [0, 0], [(None,) * 5 + ("a", None, None), (None,) * 5 + ("b", None, None)])
    dictionary = rows.columns[5].dictionary
    assert dictionary is not None
    assert expression.evaluate(rows).to_list() == ["A", "B"]
    rows.columns[5].values[0] = dictionary.code("c")
    assert expression.evaluate(rows).to_list() == ["C", "B"]
