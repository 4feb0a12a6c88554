"""The function and the kind of window of the pages on additions, in the engine and in the proof."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from consistency.proof.recorded.run import Run
from tests.spark.test_truth import CONFIG, A, B, aggregate, logged
from tests.support.additions import added_by_page
from tests.support.comparing import differences
from tests.support.runs import make_run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CUMULATE = {"cumulate": "60us", "step": "20us", "offset": "7us"}
CALLS = {"n": "range(n)", "x": "range(x)", "total": "sum(x)", "rows": "count(*)"}
QUERY = {
    "merged": aggregate("a", CUMULATE, "k", **CALLS),
    "direct": aggregate("a", CUMULATE, "j", **CALLS, kinds="count(distinct k)", last="last(n)"),
    "by_attribute": aggregate("a", {**CUMULATE, "on": "at"}, "j", **CALLS),
    "in_order": aggregate("b", CUMULATE, "j", **CALLS),
    "read": {"filter": {"from": "in_order", "where": "x > 1 or total > 0.5 or total is null"}},
    "ranked": {"topk": {"from": "b", "k": 2, "order_by": "n", "window": CUMULATE}},
    "joined": {"join": {"left": "a", "right": "b", "kind": "full", "on": "j", "window": CUMULATE}},
    "counted": aggregate("b", {"count": 3}, "k", n="range(n)", x="range(x)"),
}


def test_additions_of_the_pages_are_proved(spark: SparkSession, tmp_path: Path) -> None:
    with added_by_page("new-aggregate.md"), added_by_page("new-window.md"):
        inputs = {A: list(logged(3, 120)), B: list(logged(4, 100))}
        outputs = [name for name in QUERY if name != "in_order"]
        make_run(tmp_path / "run", {**CONFIG, "query": QUERY, "outputs": outputs}, inputs)
        compared, differing = differences(spark, Run.open(tmp_path / "run"), inputs)
        assert not differing, "\n".join(differing)
        assert compared > 500
