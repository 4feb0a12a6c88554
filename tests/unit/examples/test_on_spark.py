"""The example of a query between two Spark jobs: what it takes for right.  `make example-spark` runs all of it."""

from __future__ import annotations

from typing import Any

import pytest

from examples.on_spark.__main__ import HERE
from examples.on_spark.judge import TotalsRead, judge
from replicas.on_spark.spots import partners
from spe.config import load


def proof(**changes: Any) -> dict[str, Any]:
    output = {"client": "board", "output": "totals", "findings": changes.pop("findings", [])}
    source = {"name": "orders", "flaws": changes.pop("flaws", [])}
    return {"outputs": [output], "sources": [source], "consistent_us": 500, "consistent_until": "12:00"} | changes


def read(*ids: int) -> TotalsRead:
    return TotalsRead({0: [{"_id": i, "_time_us": 100 * i, "n": 10} for i in ids]})


def test_its_two_nodes_have_to_be_apart() -> None:
    assert partners(load(HERE / "shop.yaml")[1]) == {"n1": {"n2"}, "n2": {"n1"}}


def test_all_is_right_where_each_order_is_counted_and_each_result_was_read_once() -> None:
    assert judge(proof(), read(1, 2, 3), 30, 30) == []
    assert judge(proof(), read(1, 2, 3), 30, 20) == []  # of a batch that was not finished nobody knows


def test_a_batch_that_comes_again_takes_the_place_of_the_first() -> None:
    one = read(1, 2)
    one.batches[1] = [{"_id": 3, "_time_us": 300, "n": 10}]
    one.batches[0] = one.batches[0][:]
    assert (len(one.rows), one.orders, one.until_us) == (3, 30, 300)


@pytest.mark.parametrize(
    ("found", "rows", "logged", "fed", "said"),
    [
        (proof(findings=[{"flaw": "wrong", "count": 2}]), read(1, 2), 20, 20, "board · totals: 2 tuples are wrong"),
        (proof(flaws=["times go back"]), read(1, 2), 20, 20, "orders: times go back"),
        (proof(consistent_us=150), read(1, 2), 20, 20, "proved until 12:00 only"),
        (proof(consistent_us=None), read(1, 2), 20, 20, "proved until 12:00 only"),
        (proof(), read(1, 3), 20, 20, "Spark has read 2 results with 2 ids up to 3"),
        (proof(), read(1, 1), 20, 20, "Spark has read 2 results with 1 ids up to 1"),
        (proof(), read(1, 2), 30, 20, "the source logged 30, and the results count 20"),
        (proof(), read(1, 2), 20, 30, "Spark has fed 30 orders; the source logged 20"),
    ],
)
def test_what_is_wrong_is_told(found: dict[str, Any], rows: TotalsRead, logged: int, fed: int, said: str) -> None:
    (told,) = judge(found, rows, logged, fed)
    assert said in told
