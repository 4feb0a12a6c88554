"""The comparison of the conformance cases can fail, and their expressions come out as SQL."""

from __future__ import annotations

import pytest

from tests.support.conformance import multiset_differences
from tests.support.python_sql import to_sql


def test_rows_are_compared_as_multisets() -> None:
    assert multiset_differences([(1, "a"), (2, None)], [(2, None), (1, "a")], ["int", "string"], 0.0) == []
    assert multiset_differences([(1,), (1,), (3,)], [(1,), (2,)], ["int"], 0.0) == ["+1 (1,)", "+1 (3,)", "-1 (2,)"]


def test_doubles_may_differ_by_the_tolerance_and_by_no_more() -> None:
    types = ["string", "double"]
    assert multiset_differences([("a", 1.0), ("a", 2.0)], [("a", 2.0 + 1e-10), ("a", 1.0)], types, 1e-9) == []
    assert multiset_differences([("a", 1.0)], [("a", 1.1)], types, 1e-9) == ["('a', 1.0) instead of ('a', 1.1)"]
    assert multiset_differences([("a", None)], [("a", 1.0)], types, 1e-9) == ["+1 ('a', True)", "-1 ('a', False)"]
    assert multiset_differences([("a", None)], [("a", None)], types, 1e-9) == []


@pytest.mark.parametrize(
    ("python", "sql"),
    [
        ("event_type == 'pick''up'", "event_type = 'pickup'"),
        ("a > 2 and not b", "(a > 2) AND (NOT (b))"),
        ("auction in (1007, 1020)", "auction IN (1007, 1020)"),
        ("counter % 5", "(counter % 5)"),
        ("0.908 * price", "(0.908 * price)"),
        ("a if a is not None else b", "CASE WHEN a IS NOT NULL THEN a ELSE b END"),
        ("window_start >= 0", "window_start >= TIMESTAMP '1970-01-01 00:00:00'"),
        ("l_window_start", "window_start"),
        ("timestamp", "`timestamp`"),
    ],
)
def test_python_expressions_become_sql(python: str, sql: str) -> None:
    assert to_sql(python, frozenset({"window_start"}), {"l_window_start": "window_start"}) == sql


def test_expression_without_sql_is_refused() -> None:
    with pytest.raises(ValueError, match=r"no SQL for 'f\(x\)'"):
        to_sql("f(x)", frozenset(), {})
