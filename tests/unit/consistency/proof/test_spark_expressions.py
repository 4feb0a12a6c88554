"""The text that Spark gets for an expression; tests/spark/test_expressions.py compares its results."""

from __future__ import annotations

import pytest

from consistency.proof.spark_expressions import spark_text

#: Types of operands, as Spark would say them.
TYPES = {"x": "double", "s": "string", "n": "bigint", "x * CAST((0.0D + (x)) AS STRING)": "double"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("price * 0.1 > 1e3", "price * 0.1D > 1e3D"),
        ("1. + .5", "1.D + .5D"),
        ("x > 0.5D AND i = 5L", "x > 0.5D AND i = 5L"),
        ("starts_with(s, 'a') AND Ends_With (t, '0.1')", "startswith(s, 'a') AND endswith (t, '0.1')"),
        ("starts_with = 'it''s'", r"starts_with = 'it\'s'"),
        ('\'say ""\' || "it\'s ""it"""', '\'say ""\' || "it\'s \\"it\\""'),
        (r"s = 'a\'' || ''", r"s = 'a\'' || ''"),
        ("`0.1` + i -- 0.1", "`0.1` + i"),
        ("1 /* 0.1 */ + i", "1   + i"),
        ("CAST(n AS STRING)", "CAST(n AS STRING)"),
        ("cast(x as string)", "CAST((0.0D + (x)) AS STRING)"),
        ("CAST(s AS BIGINT)", "CAST(s AS BIGINT)"),
        ("CAST(s AS DOUBLE) > 1.5", "CAST(nullif(regexp_extract((s), '^[^xX]*$', 0), '') AS DOUBLE) > 1.5D"),
        (
            "CAST(x * CAST(x AS STRING) AS STRING)",
            "CAST((0.0D + (x * CAST((0.0D + (x)) AS STRING))) AS STRING)",
        ),
        ("cast", "cast"),
    ],
)
def test_an_expression_is_rewritten_only_where_spark_differs(text: str, expected: str) -> None:
    assert spark_text(text, lambda operand: TYPES[operand]).strip() == expected


def test_a_text_is_a_timestamp_only_where_both_readers_accept_it() -> None:
    written = spark_text("CAST(s AS TIMESTAMP)", lambda operand: TYPES[operand])
    assert written.startswith("CAST(nullif(regexp_extract((s), '^[")
    assert written.endswith(", 0), '') AS TIMESTAMP)")
