"""A cluster in virtual time, as users test with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from operators.custom import CustomOperator
from replicas.simulation import simulate as playing
from replicas.testing import PromiseBroken, faults, run
from spe.api import Environment, tcp, tumbling
from spe.errors import ConfigError, OperatorFailed
from spe.stream.batch import Rows
from spe.stream.schema import Schema

QUERY = """
sources:
  shop: {schema: {ts: timestamp!, product: string, price: float64}, time: ts, from: {csv: shop.csv}}
  web: {schema: {ts: timestamp!, product: string, price: float64}, time: ts, from: {tcp: "127.0.0.1:7001"}}
query:
  orders: {union: [shop, web]}
  totals: {aggregate: {from: orders, window: 1s, group_by: product, compute: {n: count(*), revenue: sum(price)}}}
"""
SOURCES = {
    "shop": """
        ts          product       price
        12:00:00    tea           3.5
        12:00:00.9  "green tea"   4
        12:00:04    tea           1
        12:00:09    tea           2
    """,
    "web": [{"ts": "12:00:00.5", "product": "tea", "price": 1}, {"ts": "12:00:08", "product": None, "price": 7}],
}
#: Longer than X.
CUT = [{"at": "1s", "kind": "cut", "target": "web", "for": "5s"}]


class Picky(CustomOperator):
    """Raises at a price above 5."""

    @classmethod
    def output_schema(cls, inputs: Sequence[Schema], **arguments: Any) -> Schema:
        return inputs[0]

    def step(self, ports: Sequence[Rows | None], boundary: int) -> Rows | None:
        rows = ports[0]
        if rows is not None and (rows.columns[2].values > 5).any():
            raise ValueError("too dear")
        return rows


def test_without_faults_all_results_are_stable() -> None:
    result = run(QUERY, SOURCES)

    result.expect(
        "totals",
        """
        product      n  revenue  window_end
        tea          2  4.5      12:00:01
        "green tea"  1  4        12:00:01
        tea          1  1        12:00:05
        -            1  7        12:00:09
        tea          1  2        12:00:10
        """,
    )
    assert {change.kind for change in result.changes("totals")} == {"stable"}


def test_a_cut_makes_results_tentative_and_they_are_corrected() -> None:
    result = run(QUERY, SOURCES, faults=CUT)

    kinds = [change.kind for change in result.changes("totals")]
    assert kinds.index("stable") < kinds.index("tentative") < kinds.index("undone")
    assert [row["product"] for row in result.tentative("totals", at="5.5s")] == ["tea"]
    assert len(result.stable("totals", at="5.5s")) == 2
    assert result.tentative("totals") == []
    assert result.stable("totals") == run(QUERY, SOURCES).stable("totals")
    assert "UP_FAILURE" in [change.state.name for change in result.states("n1")]


def test_the_same_arguments_give_the_same_run() -> None:
    one, other = (run(QUERY, SOURCES, faults="random", seed=7) for _ in range(2))

    assert one.faults == other.faults
    assert one.changes("totals") == other.changes("totals")
    assert one.length_s == other.length_s


def test_a_query_in_python_without_rows_is_run_on_made_up_ones() -> None:
    env = Environment("shop")
    orders = env.source("orders", tcp("127.0.0.1:7001"), {"ts": "timestamp!", "n": "int64"}, time="ts")
    env.outputs(orders.window(tumbling("1s")).aggregate("totals", n="count(*)"))
    result = run(env, length="4s", faults="- {at: 1s, kind: kill, target: n1, for: 1s}")

    assert sum(row["n"] for row in result.stable("totals")) == 200  # 50 a second


def test_a_broken_promise_tells_seed_faults_and_story(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reference lacks its last row, as if the cluster had made one too many."""
    reference = playing.SimCluster.reference

    def shorter(cluster: Any, *asked: Any, **named: Any) -> Any:
        whole = reference(cluster, *asked, **named).items()
        return {channel: (ids[:-1], rows.slice(0, len(rows) - 1)) for channel, (ids, rows) in whole}

    monkeypatch.setattr(playing.SimCluster, "reference", shorter)
    with pytest.raises(PromiseBroken) as caught:
        run(QUERY, SOURCES, faults=CUT, seed=41)

    text = str(caught.value)
    assert text.startswith("P2 (stable tuples are a prefix of the reference)")
    assert "the same run again: seed=41\n  at 1s cut source:web for 5s\n" in text
    assert "the last events:" in text


def test_drawn_seed_is_reported() -> None:
    first, second = run(QUERY, SOURCES, seed=None).seed, run(QUERY, SOURCES, seed=None).seed

    assert first != second


def test_an_operator_that_raises_is_named_with_its_line() -> None:
    query = QUERY + f"  picky: {{custom: {{class: '{__name__}:Picky', from: [orders]}}}}\n"
    with pytest.raises(OperatorFailed, match="too dear") as caught:
        run(query, SOURCES)

    assert "test_cluster.py" in "".join(caught.value.__notes__)
    assert 'raise ValueError("too dear")' in "".join(caught.value.__notes__)


def test_differing_results_are_shown_with_expected_ones() -> None:
    with pytest.raises(PromiseBroken) as caught:
        run(QUERY, SOURCES).expect("totals", "product n \n tea 2 \n tea 1")

    assert str(caught.value).splitlines()[:4] == [
        "totals: row 2 is not as expected (- expected, + found)",
        "     product      n",
        "     tea          2",
        "  -  tea          1",
    ]


@pytest.mark.parametrize(
    ("sources", "happening", "message"),
    [
        ({"sop": ""}, [], r"no source 'sop' \(did you mean 'shop'\?\)"),
        ({"shop": "ts prize \n 1s 2"}, [], r"source shop: no attribute 'prize' \(did you mean 'price'\?\)"),
        ({"shop": "ts price \n 1s 2 \n 2s dear"}, [], "source shop: row 2: price: expected float64, got 'dear'"),
        ({"shop": "ts price \n 1s"}, [], "source shop: row 1: expected 2 values"),
        ({"shop": [{"price": 1.0}]}, [], "source shop: row 1: ts is null, and is declared not null"),
        ({"shop": [("1s", "tea")]}, [], r"source shop: row 1: expected 3 values \(ts, product, price\)"),
        ({"shop": "ts price \n noon 2"}, [], "source shop: row 1: ts: expected a time such as 12:00:01.5"),
        ({"shop": [{"ts": "1s", "price": True}]}, [], "source shop: row 1: price: expected float64, got True"),
        ({}, [{"at": "1s", "kind": "kill", "target": "n7"}], r"faults\[0\].target: no process 'n7'"),
        ({}, [{"kind": "kill", "target": "n1"}], r"faults\[0\]: at is missing"),
        ({}, "- {at: 1s, kind: kill, target: n7}", r"the faults:1: \[0\].target: no process 'n7'"),
    ],
)
def test_a_mistake_names_the_line_of_the_test(sources: Mapping[str, Any], happening: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=rf"test_cluster\.py:\d+: {message}"):
        run(QUERY, sources, faults=happening)


def test_a_fault_that_could_not_happen_is_a_mistake() -> None:
    both = [{"at": "1s", "kind": "kill", "target": n, "for": "2s"} for n in ("n1", "n2")]
    with pytest.raises(ConfigError, match=r"test_cluster\.py:\d+: a fault did not happen: "):
        run(QUERY, SOURCES, faults=both)


def test_an_output_a_client_and_a_node_must_exist() -> None:
    result = run(QUERY, SOURCES)
    with pytest.raises(ConfigError, match=r"no output 'total' \(did you mean 'totals'\?\)"):
        result.stable("total")
    with pytest.raises(ConfigError, match="no client 'board' reads totals"):
        result.stable("totals", client="board")
    with pytest.raises(ConfigError, match=r"no node 'n9'"):
        result.states("n9")


@given(st.data())
@settings(max_examples=5, deadline=None, phases=[Phase.generate])
def test_answer_is_the_same_despite_faults(data: st.DataObject) -> None:
    happening = data.draw(faults(QUERY, within="8s"))
    result = run(QUERY, SOURCES, faults=happening, must_happen=False)

    assert [row["n"] for row in result.stable("totals")] == [2, 1, 1, 1, 1]


def test_a_source_that_is_late_to_begin_keeps_the_others_waiting() -> None:
    """It replays from its own start, so it lags for good, and nothing is claimed of what waits for it."""
    happening = [
        {"at": "0s", "kind": "kill", "target": "source:shop", "for": "6.1s"},
        {"at": "3.6s", "kind": "cut", "target": "source:web", "for": "3.4s"},
    ]
    result = run(QUERY, SOURCES, faults=happening)

    assert [row["n"] for row in result.stable("totals")] == [2, 1, 1, 1, 1]
