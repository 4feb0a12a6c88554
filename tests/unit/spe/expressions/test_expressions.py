"""The SQL of expressions: results where Spark, NumPy and Python differ, and what is refused."""

from __future__ import annotations

import gc
import math
import re
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from spe.errors import ExpressionError
from spe.expressions import compile_expression, compile_predicate
from spe.expressions.functions import FUNCTIONS, OPERATORS
from spe.expressions.generate import generate
from spe.expressions.tree import constant
from spe.stream.batch import Column, Rows
from spe.stream.schema import AttributeType, Schema
from spe.stream.strings import StringDictionary
from spe.stream.times import parse_timestamp
from tests.support.sql_examples import EXAMPLES

SCHEMA = Schema.of(
    i="int64", j="int64", n="int64!", x="float64", y="float64", p="bool", s="string", t="string", ts="timestamp"
)
NAN, INF = math.nan, math.inf
LARGEST, SMALLEST = 2**63 - 1, -(2**63)


def rows(**columns: Any) -> Rows:
    """As many rows as the first column has values; attributes that are not given are null (n: 1)."""
    count = len(next(iter(columns.values()), [None]))
    cells = [columns.get(a.name, [None if a.nullable else 1] * count) for a in SCHEMA]
    return Rows.from_tuples(SCHEMA, [0] * count, list(zip(*cells)))


def value(text: str, **attributes: Any) -> Any:
    """The expression's value for one tuple."""
    found = compile_expression(text, SCHEMA).evaluate(rows(**{k: [v] for k, v in attributes.items()}))
    return found.to_list()[0]


def refused(text: str) -> ExpressionError:
    with pytest.raises(ExpressionError) as caught:
        compile_expression(text, SCHEMA)
    return caught.value


@pytest.mark.parametrize(
    ("text", "attributes", "expected"),
    [
        # nulls
        ("p AND i = 1", {"p": False}, False),
        ("p AND i = 1", {"p": True}, None),
        ("p OR i = 1", {"p": True}, True),
        ("p OR i = 1", {"p": False}, None),
        ("TRUE AND p", {}, None),
        ("FALSE AND p", {}, False),
        ("NULL OR p", {"p": True}, True),
        ("i = NULL", {"i": 1}, None),
        ("i IN (1, NULL)", {"i": 1}, True),
        ("i IN (1, NULL)", {"i": 2}, None),
        ("i NOT IN (1, NULL)", {"i": 2}, None),
        ("i IN (NULL)", {"i": 2}, None),
        ("i IN (1, 2, 3, 4, 5, 6)", {"i": 6}, True),
        ("x IN (1, 2, 3, 4, 0.5)", {"x": 0.5}, True),
        ("i IS DISTINCT FROM j", {"i": 1}, True),
        ("i IS NOT DISTINCT FROM j", {}, True),
        ("p IS NOT TRUE", {}, True),
        ("coalesce(i, NULL, 3)", {}, 3),
        ("greatest(i, j, 3)", {"j": 5}, 5),
        ("least(s, t)", {"s": "b", "t": "a"}, "a"),
        ("greatest(s, t)", {"s": "b"}, "b"),
        # precedence is Spark's
        ("NOT i = 1 AND p", {"i": 2, "p": True}, True),
        ("i = j IS NULL", {"i": 1}, True),
        ("i = 1 = p", {"i": 1, "p": True}, True),
        ("2 - 1 - 1 * 3", {}, -2),
        ("-i % 3", {"i": 4}, -1),
        # division
        ("i / j", {"i": 7, "j": 2}, 3.5),
        ("i / j", {"i": 7, "j": 0}, None),
        ("x / 0", {"x": 7.0}, None),
        ("i % 0", {"i": 7}, None),
        ("x % 0.0 IS NULL", {"x": 7.0}, True),
        ("i div j", {"i": -7, "j": 2}, -3),
        ("i div j", {"i": SMALLEST, "j": -1}, SMALLEST),
        ("i % j", {"i": SMALLEST, "j": -1}, 0),
        ("i % j", {"i": -1, "j": 3}, -1),
        ("pmod(i, j)", {"i": -1, "j": 3}, 2),
        ("pmod(i, j)", {"i": -7, "j": -3}, -1),
        ("x % 2.5", {"x": -4.0}, -1.5),
        # 64 bits wrap
        ("i + 1", {"i": LARGEST}, SMALLEST),
        ("-i", {"i": SMALLEST}, SMALLEST),
        ("abs(i)", {"i": SMALLEST}, SMALLEST),
        ("-9223372036854775808", {}, SMALLEST),
        # NaN is the largest value and equals itself
        ("x > 1", {"x": NAN}, True),
        ("1 < x", {"x": NAN}, True),
        ("x < y", {"x": 1.0, "y": NAN}, True),
        ("x < y", {"x": NAN, "y": 1.0}, False),
        ("x < y", {"x": NAN, "y": NAN}, False),
        ("x >= y", {"x": 1.0, "y": NAN}, False),
        ("x = y", {"x": NAN, "y": NAN}, True),
        ("x <=> CAST('NaN' AS DOUBLE)", {"x": NAN}, True),
        ("NOT (x > 1)", {"x": NAN}, False),
        ("greatest(x, y)", {"x": INF, "y": NAN}, NAN),
        ("least(x, y)", {"x": INF, "y": NAN}, INF),
        # no negative zero
        ("-x", {"x": 0.0}, 0.0),
        ("x * -1", {"x": 0.0}, 0.0),
        ("CAST(-x AS STRING)", {"x": 0.0}, "0.0"),
        # rounding
        ("round(x)", {"x": -2.5}, -3.0),
        ("round(x)", {"x": 0.49999999999999994}, 0.0),
        ("round(x, 2)", {"x": 1.005}, 1.01),
        ("round(x, 2)", {"x": -1.005}, -1.01),
        ("round(x, 1)", {"x": 1e300}, 1e300),
        ("ceil(x)", {"x": -1.5}, -1),
        ("floor(x)", {"x": -INF}, SMALLEST),
        ("sqrt(x)", {"x": -1.0}, NAN),
        # casts
        ("CAST(x AS BIGINT)", {"x": -1.9}, -1),
        ("CAST(x AS BIGINT)", {"x": 1e30}, LARGEST),
        ("CAST(x AS BIGINT)", {"x": NAN}, 0),
        ("CAST(s AS BIGINT)", {"s": " 12 "}, 12),
        ("CAST(s AS BIGINT)", {"s": "1.9"}, 1),
        ("CAST(s AS BIGINT)", {"s": "9223372036854775808"}, None),
        ("CAST(s AS BIGINT)", {"s": "twelve"}, None),
        ("CAST(s AS BIGINT)", {"s": "١"}, None),
        ("CAST(s AS DOUBLE)", {"s": "-Infinity"}, -INF),
        ("CAST(s AS DOUBLE)", {"s": "1_000"}, None),
        ("CAST(s AS BOOLEAN)", {"s": "Yes"}, True),
        ("CAST(s AS BOOLEAN)", {"s": "maybe"}, None),
        ("CAST(x AS STRING)", {"x": 1e7}, "1.0E7"),
        ("CAST(x AS STRING)", {"x": 9999999.0}, "9999999.0"),
        ("CAST(x AS STRING)", {"x": 0.001}, "0.001"),
        ("CAST(x AS STRING)", {"x": -0.00012}, "-1.2E-4"),
        ("CAST(x AS STRING)", {"x": 1.5e300}, "1.5E300"),
        ("CAST(ts AS STRING)", {"ts": -500_000}, "1969-12-31 23:59:59.5"),
        ("CAST(s AS TIMESTAMP)", {"s": "1970-1-1T00:00:01.25+00:30"}, -1_798_750_000),
        ("CAST(s AS TIMESTAMP)", {"s": "2026-02-30"}, None),
        ("CAST(s AS TIMESTAMP)", {"s": "2026-00-01"}, None),
        ("CAST(ts AS BIGINT)", {"ts": -1}, -1),
        ("CAST(i AS TIMESTAMP)", {"i": LARGEST}, LARGEST),
        # strings
        ("s < t", {"s": "Z", "t": "a"}, True),
        ("s < '\U0001f600'", {"s": "\uffff"}, True),
        ("s || t", {"s": "a"}, None),
        ("length(s)", {"s": "hé\U0001f600"}, 3),
        ("substr(s, 0, 2)", {"s": "abc"}, "ab"),
        ("substr(s, -5, 3)", {"s": "abc"}, "a"),
        ("substr(s, -2)", {"s": "abc"}, "bc"),
        ("substr(s, i)", {"s": "abc", "i": 2}, "bc"),
        ("trim(s)", {"s": " \ta "}, "\ta"),
        ("replace(s, '', 'x')", {"s": "abc"}, "abc"),
        ("split_part(s, '.', -1)", {"s": "a.b"}, "b"),
        ("split_part(s, '.', 3)", {"s": "a.b"}, ""),
        ("lpad(s, 5, 'xy')", {"s": "abc"}, "xyabc"),
        ("rpad(s, 2)", {"s": "abc"}, "ab"),
        ("s LIKE 'a%_z'", {"s": "abcz"}, True),
        ("s LIKE 'a%'", {"s": "a\nb"}, True),
        ("s LIKE 'ab%bc'", {"s": "abc"}, False),
        (r"s LIKE 'a\%'", {"s": "a%"}, True),
        (r"s LIKE 'a\%'", {"s": "ab"}, False),
        ("s LIKE 'a!_' ESCAPE '!'", {"s": "a_"}, True),
        ("s = 'it''s'", {"s": "it's"}, True),
        (r"s = 'a\tb\\'", {"s": "a\tb\\"}, True),
        # choices
        ("CASE WHEN i > 1 THEN 'big' WHEN i > 0 THEN s END", {"i": 1, "s": "one"}, "one"),
        ("CASE i WHEN 1 THEN 2 WHEN 2 THEN 0.5 END", {"i": 1}, 2.0),
        ("CASE WHEN p THEN NULL ELSE t END", {"t": "t"}, "t"),
        ("nullif(i, 1)", {"i": 1}, None),
        # timestamps
        ("ts + INTERVAL 5 SECONDS", {"ts": 0}, 5_000_000),
        ("INTERVAL '1 hour 30 minutes' + ts", {"ts": 0}, 5_400_000_000),
        ("ts - INTERVAL '0.5' SECOND", {"ts": 0}, -500_000),
        ("ts > TIMESTAMP '1970-01-01'", {"ts": 1}, True),
        ("year(ts)", {"ts": -1}, 1969),
        ("hour(ts)", {"ts": -1}, 23),
        ("unix_seconds(ts)", {"ts": -1}, -1),
        ("timestamp_seconds(i)", {"i": LARGEST}, None),
    ],
)
def test_value(text: str, attributes: dict[str, Any], expected: Any) -> None:
    found = value(text, **attributes)
    if isinstance(expected, float):
        assert repr(found) == repr(expected)  # tells −0.0 and NaN apart
    else:
        assert found == expected
        assert type(found) is type(expected)


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        ("year", 2024), ("quarter", 1), ("month", 2), ("weekofyear", 9), ("day", 29), ("dayofyear", 60),
        ("dayofweek", 5), ("weekday", 3), ("hour", 13), ("minute", 45), ("second", 10),
    ],
)  # fmt: skip
def test_parts_of_a_leap_day(function: str, expected: int) -> None:
    assert value(f"{function}(ts)", ts=parse_timestamp("2024-02-29T13:45:10.5")) == expected


@pytest.mark.parametrize(
    ("moment", "week"), [("2021-01-03", 53), ("2021-01-04", 1), ("2019-12-30", 1), ("1969-12-29", 1)]
)
def test_weeks_are_those_of_iso_8601(moment: str, week: int) -> None:
    assert value("extract(WEEK FROM ts)", ts=parse_timestamp(moment)) == week


@pytest.mark.parametrize(
    ("unit", "expected"),
    [
        ("millisecond", "1969-11-20T13:45:10.500"), ("second", "1969-11-20T13:45:10"), ("hour", "1969-11-20T13:00"),
        ("day", "1969-11-20"), ("week", "1969-11-17"), ("MONTH", "1969-11-01"), ("quarter", "1969-10-01"),
        ("year", "1969-01-01"),
    ],
)  # fmt: skip
def test_date_trunc_goes_back_also_before_the_epoch(unit: str, expected: str) -> None:
    moment = parse_timestamp("1969-11-20T13:45:10.500001")
    assert value(f"date_trunc('{unit}', ts)", ts=moment) == parse_timestamp(expected)


@pytest.mark.parametrize(
    ("text", "position", "message"),
    [
        ("", 0, "is empty"),
        ("i +", 3, "ends here; expected a value"),
        ("i j", 2, "j is not expected here"),
        ("i + nope", 4, "no attribute 'nope'; there are: i, j"),
        ("I + 1", 0, "did you mean i? names are case-sensitive"),
        ("i = 's'", 2, "int64 and string; convert one with CAST"),
        ("ts > '2020-01-01'", 3, "write TIMESTAMP"),
        ("i + s", 2, "joined with ||"),
        ("concat(s, i)", 0, "CAST(… AS STRING)"),
        ("ts - ts", 3, "use unix_micros"),
        ("i AND p", 0, "AND needs a bool, got int64"),
        ("i + exp(x)", 4, "differs between processors"),
        ("now()", 0, "replicas would not agree"),
        ("sum(i)", 0, "aggregate"),
        ("frobnicate(i)", 0, "no function frobnicate"),
        ("CAST(i AS INT)", 10, "the types are BIGINT"),
        ("CAST(p AS TIMESTAMP)", 0, "a bool cannot be cast to timestamp"),
        ("i IN (j)", 6, "IN takes literals only"),
        ("s LIKE t", 7, "string literal"),
        (r"s LIKE 'a\\x'", 7, "stands before x"),
        ("NULL", 0, "NULL has no type here"),
        ("sum", 0, "no attribute 'sum'"),
        ("9223372036854775808", 0, "beyond the range of int64"),
        ("1e999", 0, "too large"),
        ("0.1BD", 0, "0.5 or 0.5D"),
        ("ts + INTERVAL 1 MONTH", 14, "no fixed length"),
        ("INTERVAL 1 DAY", 0, "added to or subtracted from a timestamp"),
        ("extract(SECOND FROM ts)", 8, "DECIMAL"),
        ("r.i = 1", 1, "no prefix"),
        ("p && p", 2, "write AND"),
        ("i::bigint", 1, "write CAST"),
        ("s RLIKE 'a'", 2, "LIKE is"),
        ("i = 'abc", 4, "not closed"),
        ("round(x, i)", 9, "a literal from 0 to 15"),
        ("date_trunc('eon', ts)", 11, "a unit: microsecond"),
        ("IF(p, 1)", 0, "takes 3 arguments, got 2"),
        ("2147483647 + 1", 11, "32 bits"),
        ("hour(ts) * 3600 * 1000000", 16, "32 bits"),
        (" AND ".join(["p"] * 200), 896, "nested more than"),
        ("(" * 100 + "p" + ")" * 100, 50, "parentheses are open"),
    ],
)
def test_refused_expressions_name_the_place(text: str, position: int, message: str) -> None:
    error = refused(text)
    assert message in str(error)
    assert error.position == position


def test_a_predicate_has_to_be_a_bool() -> None:
    with pytest.raises(ExpressionError, match="expected a condition, got int64"):
        compile_predicate("i + 1", SCHEMA)


def test_null_counts_as_false_in_a_mask() -> None:
    assert compile_predicate("i > 1", SCHEMA).mask(rows(i=[1, None, 3])).tolist() == [False, False, True]
    assert compile_predicate("TRUE", SCHEMA).mask(rows(i=[1, 2])).tolist() == [True, True]


def test_type_and_nullability_are_known_before_the_first_tuple() -> None:
    def known(text: str) -> tuple[AttributeType, bool, tuple[str, ...]]:
        expression = compile_expression(text, SCHEMA)
        return expression.type, expression.nullable, expression.references

    assert known("n + 1") == (AttributeType.INT64, False, ("n",))
    assert known("n / 2") == (AttributeType.FLOAT64, False, ("n",))
    assert known("n / n") == (AttributeType.FLOAT64, True, ("n",))
    assert known("coalesce(s, 'x')") == (AttributeType.STRING, False, ("s",))
    assert known("n IS NULL OR i <=> n") == (AttributeType.BOOL, False, ("i", "n"))
    assert known("CAST(s AS DOUBLE) > x AND t = s") == (AttributeType.BOOL, True, ("s", "x", "t"))


def test_names_need_quotes_only_where_they_are_not_plain_words() -> None:
    schema = Schema(
        tuple(
            type(a)(name, a.type)
            for name, a in zip(["a b", "we`ird", "case", "timestamp", "end_1", "Ünit"], [SCHEMA["i"]] * 6)
        )
    )
    text = "`a b` + `we``ird` + `case` + timestamp + end_1 + Ünit"
    assert compile_expression(text, schema).references == schema.names


def test_a_batch_without_nulls_runs_without_masks() -> None:
    """Neither the generated function nor the result has a mask."""
    expression = compile_expression("x * i > 2 AND s = 'a'", SCHEMA)
    assert "valid" not in expression._plain.source
    assert "valid" in expression._masked.source
    assert expression.evaluate(rows(x=[2.0], i=[2], s=["a"])).valid is None


def test_a_mask_that_turns_out_all_true_is_dropped() -> None:
    assert compile_expression("coalesce(i, j)", SCHEMA).evaluate(rows(i=[None, 1], j=[2, None])).valid is None


def test_an_attribute_alone_is_its_column() -> None:
    batch = rows(s=["a", None])
    assert compile_expression("s", SCHEMA).evaluate(batch) is batch.columns[SCHEMA.index("s")]


def test_equal_parts_are_computed_once() -> None:
    source = compile_expression("CASE WHEN i * j > 5 THEN i * j ELSE -(i * j) END", SCHEMA)._plain.source
    assert source.count(" * ") == 1


def test_constant_parts_are_computed_once() -> None:
    source = compile_expression("i > 60 * 60 AND s = upper('a')", SCHEMA)._plain.source
    assert " * " not in source
    assert value("upper('a') || CAST(1 + 1 AS STRING)") == "A2"
    assert generate(constant(3, AttributeType.INT64), nulls=False).run((), 2)[0].tolist() == [3, 3]


@pytest.mark.parametrize(
    "text",
    ["i + 1", "s || t", "upper(s)", "s = t", "s LIKE 'a%'", "s < t", "CASE WHEN p THEN s ELSE 'x' END", "'a'", "3",
     "CAST(x AS STRING)", "round(x, 2)", "CAST(x AS BIGINT)", "date_trunc('month', ts)", "x / y", "i IN (1, 2)"],
)  # fmt: skip
def test_an_empty_batch_gives_an_empty_column(text: str) -> None:
    expression = compile_expression(text, SCHEMA)
    column = expression.evaluate(Rows.empty(SCHEMA))
    assert column.to_list() == []
    assert column.values.dtype == expression.type.dtype


@pytest.mark.parametrize("text", ["upper(s)", "s = 'a'", "s = t", "s < t", "coalesce(s, t)", "length(s)"])
def test_a_null_may_have_any_string_code(text: str) -> None:
    """Outer joins and user-defined operators make all-null columns over an empty dictionary."""
    nothing = Column(np.full(2, 7, np.int32), np.zeros(2, np.bool_), StringDictionary())
    batch = rows(i=[1, 2])
    columns = tuple(nothing if a.type is AttributeType.STRING else c for a, c in zip(SCHEMA, batch.columns))
    assert compile_expression(text, SCHEMA).evaluate(batch.with_columns(columns)).to_list() == [None, None]


def test_a_string_function_runs_once_per_distinct_text() -> None:
    """When the dictionary grows, only for the new texts."""
    expression = compile_expression("upper(s) = 'B'", SCHEMA)
    batch = rows(s=["a", "b"] * 50)
    column = batch.columns[SCHEMA.index("s")]
    dictionary = column.dictionary
    assert dictionary is not None
    seen: list[int] = []

    class Watched(StringDictionary):
        def map_entries(self, function: Any, done: int = 0) -> list[Any]:
            seen.append(len(self) - done)
            return super().map_entries(function, done)

    watched = Watched(["a", "b"])
    column.dictionary = watched
    column.values = np.array([0, 1] * 50, np.int32)
    column.valid = None
    for _ in range(3):
        expression.evaluate(batch)
    watched.code("c")
    column.values = np.array([2, 1] * 50, np.int32)
    assert expression.evaluate(batch).to_list() == [False, True] * 50
    assert seen == [2, 1]


def test_caches_do_not_keep_a_dictionary_alive() -> None:
    expression = compile_expression("upper(s) || t LIKE 'A%' OR s = t", SCHEMA)
    batch = rows(s=["a"], t=["b"])
    dictionaries = [weakref.ref(c.dictionary) for c in batch.columns if c.dictionary is not None]
    expression.evaluate(batch)
    del batch
    gc.collect()
    assert [d() for d in dictionaries] == [None, None]


def test_comparing_columns_adds_nothing_to_their_dictionaries() -> None:
    batch = rows(s=["a", "b", "c"], t=["x", "b", "y"])
    s, t = (batch.columns[SCHEMA.index(n)].dictionary for n in "st")
    assert s is not None
    assert t is not None
    before = len(s), len(t)
    assert compile_expression("s = t", SCHEMA).evaluate(batch).to_list() == [False, True, False]
    assert compile_expression("s <> t OR s < t", SCHEMA).evaluate(batch).to_list() == [True, False, True]
    assert (len(s), len(t)) == before


def test_only_the_used_texts_of_a_large_dictionary_are_copied() -> None:
    large = StringDictionary(f"text {k}" for k in range(10_000))
    batch = rows(s=["a", "b"], p=[True, False])
    columns = list(batch.columns)
    columns[SCHEMA.index("s")] = Column(np.array([7, 9_999], np.int32), None, large)
    column = compile_expression("IF(p, s, 'other')", SCHEMA).evaluate(batch.with_columns(tuple(columns)))
    assert column.to_list() == ["text 7", "other"]
    assert column.dictionary is not None
    assert len(column.dictionary) < 10


DOCS = Path(__file__).parents[4] / "docs" / "reference" / "expressions.md"


def test_every_function_is_documented() -> None:
    documented = set(re.findall(r"`([a-z_]+)\(", DOCS.read_text()))
    assert set(FUNCTIONS) - OPERATORS <= documented


@pytest.mark.parametrize(("text", "expected"), EXAMPLES.items())
def test_every_example_of_the_documentation_is_true(text: str, expected: str) -> None:
    found = value(text)
    shown = "NULL" if found is None else str(found).lower() if isinstance(found, bool) else repr(found)
    assert shown == expected
