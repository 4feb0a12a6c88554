"""The fingerprint of what the tuples of a stream depend on (U14: results belong to a query)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from spe.config import load_plan_data
from spe.plan.plan import Plan
from spe.plan.results import results_fingerprint
from spe.stream.names import StreamId

READER = {"generator": {"name": "orders", "rate": 10}}


def plan(where: str = "qty > 3", **more: Any) -> Plan:
    """Two outputs beside each other: ``large`` and its sums, and ``small``."""
    return load_plan_data(
        {
            "cluster": "test",
            "sources": {"a": {"from": READER}, "b": {"from": READER}},
            "query": {
                "large": {"filter": {"from": "a", "where": where}},
                "sums": {
                    "aggregate": {
                        "from": "large",
                        "window": "1s",
                        "group_by": "key",
                        "compute": {"v": "sum(qty)"},
                    }
                },
                "small": {"filter": {"from": "b", "where": "qty <= 3"}},
            },
            "outputs": ["sums", "small", "large"],
            "nodes": ["n1", "n2"],
        }
        | more
    )


def of(plan: Plan, stream: str) -> str:
    return results_fingerprint(plan, StreamId(stream))


@pytest.mark.parametrize(
    "more",
    [
        {"nodes": ["n1", "n2", "n3"]},
        {"defaults": {"x": "9s"}},
        {"bucket": "200ms"},
        {"outputs": ["sums", "small"]},
        {"clients": {"c": {"reads": ["sums"]}, "d": {}}},
        {"limits": {"output": "1MB"}},
        {"fragments": {"all": {"operators": ["large", "sums", "small"], "replicas": ["n2"]}}},
    ],
    ids=lambda more: next(iter(more)),
)
def test_settings_without_effect_on_tuples_keep_the_fingerprint(more: dict[str, Any]) -> None:
    for stream in ("sums", "small"):
        assert of(plan(), stream) == of(plan(**more), stream)


def test_another_filter_changes_only_streams_after_it() -> None:
    other = plan("qty > 4")
    assert of(plan(), "sums") != of(other, "sums")
    assert of(plan(), "large") != of(other, "large")
    assert of(plan(), "small") == of(other, "small")
    assert of(plan(), "a") == of(other, "a")


def test_other_partitions_change_the_ids() -> None:
    def divided(count: int) -> Plan:
        return plan(
            fragments={
                "all": {"operators": ["large", "sums"], "key": "key", "partitions": count},
                "rest": {"operators": ["small"]},
            }
        )

    assert of(divided(1), "sums") != of(divided(2), "sums")
    assert of(divided(1), "small") == of(divided(2), "small")


def test_another_schema_of_a_source_changes_streams_after_it() -> None:
    base = plan()
    schemas = dict(base.query.sources)
    schemas[StreamId("a")] = schemas[StreamId("a")].__class__(tuple(schemas[StreamId("a")])[:-1])
    other = replace(base, query=replace(base.query, sources=schemas))
    assert of(base, "sums") != of(other, "sums")
    assert of(base, "small") == of(other, "small")
