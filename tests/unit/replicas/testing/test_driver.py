"""A query step by step, without a cluster."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from replicas.testing import PromiseBroken, QueryDriver, results
from spe.api import Environment, csv, tumbling
from spe.errors import ConfigError

SCHEMA = {"ts": "timestamp!", "k": "string", "v": "int64"}


def totals(partitions: int = 1) -> Environment:
    env = Environment("t")
    both = env.source("a", csv("a.csv"), SCHEMA, time="ts").union(env.source("b", csv("b.csv"), SCHEMA, time="ts"))
    out = both.key_by("k").window(tumbling("1s")).aggregate("totals", n="count(*)", sum="sum(v)")
    env.outputs(out)
    env.fragment("f", [both, out], key="k", partitions=partitions)
    return env


@pytest.mark.parametrize("partitions", [1, 3])
def test_results_are_final_once_all_sources_pass_their_window(partitions: int) -> None:
    driver = QueryDriver(totals(partitions))
    driver.send("a", "ts k v \n 0.1s x 1 \n 0.2s y 2")
    driver.advance("1s", "a")
    assert driver.read("totals") == []

    driver.send("b", [("0.9s", "x", 5)])
    driver.advance("1s", "b")
    found = sorted((row["k"], row["n"], row["sum"]) for row in driver.read("totals"))
    assert found == [("x", 2, 6), ("y", 1, 2)]
    assert driver.read("totals") == []

    driver.send("b", [(datetime(2026, 1, 1, 0, 0, 3, tzinfo=UTC), None, -1)])
    driver.end()
    driver.expect("totals", "k n sum window_start \n - 1 -1 3s")


def test_rows_before_the_time_that_was_reached_are_refused() -> None:
    driver = QueryDriver(totals())
    driver.advance("2s")
    with pytest.raises(ConfigError, match=r"test_driver\.py:\d+: source a: a row of 2026-01-01T00:00:01 after"):
        driver.send("a", [("1s", "x", 1)])
    with pytest.raises(ConfigError, match=r"expected a time such as 12:00:01\.5, got 'later'"):
        driver.advance("later")


def test_tables_compare_the_columns_that_they_have() -> None:
    driver = QueryDriver(totals())
    driver.send("a", "ts k v \n 1s x 1")
    driver.end()
    with pytest.raises(PromiseBroken, match="row 1 is not as expected"):
        driver.expect("totals", "sum \n 2")
    assert results(totals(), {"a": "ts k v \n 1s x 1"})["totals"] == [
        {"k": "x", "window_start": "2026-01-01T00:00:01", "window_end": "2026-01-01T00:00:02", "n": 1, "sum": 1}
    ]


def test_a_mistake_in_a_query_of_text_names_the_test() -> None:
    with pytest.raises(ConfigError, match=r"test_driver\.py:\d+: the configuration:2: query"):
        QueryDriver("sources: {a: {from: {generator: orders}}}\nquery: {f: {filter: {from: a, were: x}}}\n")
