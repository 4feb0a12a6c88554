"""The example of a query between two Spark jobs: what it takes for right.  `make example-spark` runs all of it."""

from __future__ import annotations

from typing import Any

import pytest

from examples.on_spark.__main__ import HERE
from examples.on_spark.judge import TotalsRead, judge
from replicas.on_spark.spots import partners
from spe.config import load


def report(truth: int, tuples: int, *, complete: bool = True, **changes: Any) -> dict[str, Any]:
    source = {"name": "orders", "tuples": tuples, "complete": complete}
    return {"verdict": "CONSISTENT", "reasons": [], "outputs": [{"truth": truth}], "sources": [source]} | changes


def read(*ids: int) -> TotalsRead:
    return TotalsRead({0: [{"_id": i, "n": 10} for i in ids]})


def test_example_nodes_have_to_be_apart() -> None:
    assert partners(load(HERE / "shop.yaml")[1]) == {"n1": {"n2"}, "n2": {"n1"}}


def test_run_with_each_order_and_result_once_is_right() -> None:
    assert judge(report(3, 30), read(1, 2, 3), 30) == []
    assert judge(report(3, 30), read(1, 2, 3), 20) == []  # of a batch that was not finished nobody knows


def test_a_batch_that_comes_again_takes_the_place_of_the_first() -> None:
    one = read(1, 2)
    one.batches[1] = [{"_id": 3, "n": 10}]
    one.batches[0] = one.batches[0][:]
    assert (len(one.rows), one.orders) == (3, 30)


@pytest.mark.parametrize(
    ("found", "rows", "fed", "said"),
    [
        (report(2, 20, verdict="UNKNOWN", reasons=["it goes on"]), read(1, 2), 20, "the run is UNKNOWN: it goes on"),
        (report(2, 20, complete=False), read(1, 2), 20, "the source has not ended"),
        (report(2, 20), read(1, 3), 20, "Spark has read 2 results with 2 ids up to 3; there are 2"),
        (report(2, 20), read(1, 1), 20, "Spark has read 2 results with 1 ids up to 1"),
        (report(3, 20), read(1, 2), 20, "Spark has read 2 results with 2 ids up to 2; there are 3"),
        (report(2, 30), read(1, 2), 20, "the source logged 30, and the results count 20"),
        (report(2, 20), read(1, 2), 30, "Spark has fed 30 orders; the source logged 20"),
    ],
)
def test_wrong_results_are_reported(found: dict[str, Any], rows: TotalsRead, fed: int, said: str) -> None:
    (told,) = judge(found, rows, fed)
    assert said in told
