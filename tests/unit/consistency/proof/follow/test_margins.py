"""How much of the past each stream is needed for, and which queries are refused by name."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from consistency.proof.follow.margins import lookbacks
from consistency.proof.recorded.query_file import read
from spe.config import load_data
from spe.errors import SpeError

S = 1_000_000
SOURCE = {
    "schema": {"ts": "timestamp", "at": "timestamp", "k": "int64", "x": "float64"},
    "time": "ts",
    "from": {"jsonl": "none.jsonl"},
    "replay": {"max": True},
}
SUM: dict[str, Any] = {"aggregate": {"from": "a", "window": "10s", "group_by": "k", "compute": {"n": "count(*)"}}}


def needed(query: dict[str, Any], **more: Any) -> dict[str, int]:
    config = {"sources": {"a": SOURCE, "b": SOURCE}, "query": query, **more}
    plan = load_data(config).plan
    names = [*plan.sources, *(o.name for o in plan.query.operators)]
    attributes = {s: tuple(plan.query.schema_of(s).names) for s in names}
    return {str(s): us for s, us in lookbacks(read(yaml.safe_dump(config, sort_keys=False)), attributes).items()}


def window(on: str | None = None, of: str = "a", **more: Any) -> dict[str, Any]:
    shape = {"sliding": "10s", "slide": "1s", **({} if on is None else {"on": on})}
    return {"aggregate": {"from": of, "window": shape, "group_by": "k", "compute": {"n": "count(*)"}, **more}}


def test_stateless_operators_need_nothing_of_the_past() -> None:
    query = {"f": {"filter": {"from": "u", "where": "k > 0"}}, "u": {"union": ["a", "b"]}}
    assert set(needed(query).values()) == {0}


def test_margins_of_a_path_add_up_and_the_farthest_reader_counts() -> None:
    query = {
        "sums": SUM,
        "again": {"aggregate": {"from": "sums", "window": "1m", "compute": {"n": "max(n)"}}},
        "best": {"topk": {"from": "sums", "k": 3, "order_by": "n desc", "window": "20s"}},
    }
    found = needed(query, outputs=["again", "best", "sums"])
    assert found == {"a": 70 * S, "b": 0, "sums": 60 * S, "again": 0, "best": 0}


@pytest.mark.parametrize(
    ("within", "kind", "expected"),
    [
        ("5s", "inner", 10 * S),
        (["-2s", "7s"], "left", 9 * S),
        (["3s", "7s"], "full", 7 * S),
        (["-9s", "-4s"], "inner", 9 * S),
    ],
)
def test_a_join_needs_both_ends_of_its_interval(within: Any, kind: str, expected: int) -> None:
    join = {"join": {"left": "a", "right": "b", "on": "k", "within": within, "kind": kind}}
    assert needed({"j": join})["a"] == needed({"j": join})["b"] == expected


def test_a_window_by_the_time_of_the_source_needs_its_size() -> None:
    query = {
        "m": {"map": {"from": "f", "compute": {"when": "ts", "k": "k"}}},
        "f": {"filter": {"from": "a", "where": "k > 0"}},
    }
    assert needed(query | {"w": window("when", "m")})["a"] == 10 * S


def test_the_end_of_a_window_lies_a_microsecond_ahead() -> None:
    assert needed({"sums": SUM, "w": window("window_end", "sums")})["sums"] == 10 * S + 1


@pytest.mark.parametrize(
    "query",
    [
        {"w": window("at")},
        {"w": window("later", "m"), "m": {"map": {"from": "a", "compute": {"later": "ts + interval 1 day", "k": "k"}}}},
        {"w": {"join": {"left": "a", "right": "b", "on": "k", "within": "1s", "left_time": "ts", "right_time": "at"}}},
        {"w": {"topk": {"from": "a", "k": 1, "order_by": "x", "window": {"tumbling": "1s", "on": "at"}}}},
    ],
    ids=["any attribute", "computed", "join", "topk"],
)
def test_a_time_of_which_nothing_is_known_is_refused_by_name(query: dict[str, Any]) -> None:
    with pytest.raises(SpeError, match=r"operator 'w' cannot be proved in ranges: it goes by the time in '(at|later)'"):
        needed(query)


def test_an_operator_of_the_user_s_own_is_refused_by_name() -> None:
    custom = {"custom": {"from": "a", "class": "tests.support.operators_for_tests:PassThrough"}}
    with pytest.raises(SpeError, match="operator 'own' cannot be proved in ranges: what a class of your own"):
        needed({"own": custom})


def test_count_windows_need_no_past_but_the_stored_rows() -> None:
    query = {"c": {"aggregate": {"from": "a", "window": {"count": 5}, "compute": {"n": "sum(k)"}}}}
    assert needed(query)["a"] == 0
