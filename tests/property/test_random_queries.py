"""Random queries give, row by row and without the engine, what the engine gives: ids, times and values bit for bit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from random import Random
from typing import Any
from unittest.mock import patch

from hypothesis import given, settings
from hypothesis import strategies as st

from operators.aggregate.panes import Panes
from replicas.reference import reference_rows
from replicas.simulation.features.rejecting_operators import with_rejections
from replicas.simulation.scenarios.feature_set import Feature, Features
from replicas.simulation.scenarios.query_options import with_options
from replicas.simulation.scenarios.topologies import random_configuration, with_long_windows
from replicas.source.reference_stream import reference_elements
from spe.config import load_data
from tests.support.distribution import Situations
from tests.support.rows_compared import row_differences

SECONDS = 4


def configuration(seed: int, features: Features) -> dict[str, Any]:
    config = random_configuration(Random(f"queries {seed}"), SECONDS, features)
    if Feature.REJECTED in features:
        config = with_rejections(Random(f"rejected {seed}"), config)
    if Feature.OPTIONS in features:
        config = with_options(Random(f"options {seed}"), config)
    return with_long_windows(Random(f"windows {seed}"), config) if Feature.LONG_WINDOWS in features else config


def differing(config: dict[str, Any]) -> tuple[list[str], int]:
    """What differs, and how many results there are."""
    plan = load_data(config).plan
    elements = {stream: list(reference_elements(source)) for stream, source in plan.sources.items()}
    reference = reference_rows(plan, elements)
    return row_differences(config, plan, elements, reference), sum(len(ids) for ids, _ in reference.values())


def options(config: dict[str, Any]) -> Counter[str]:
    """What a query has that needs an option."""
    found: Counter[str] = Counter()
    for entry in config["query"].values():
        ((kind, body),) = entry.items()
        found.update(f"{kind} {key}" for key in body)
        if "on" in (body.get("window") or {}):
            found[f"{kind} by an attribute"] += 1
        if kind == "custom":
            found[body["class"].rpartition(":")[2]] += 1
        found["an aggregate function"] += ":Chained" in str(body.get("compute"))
    return found


QUERIES = Situations(
    {
        **dict.fromkeys(("join left_time", "join by an attribute", "join where"), 0.02),
        **dict.fromkeys(("topk with_ties", "topk rank_as", "topk partition_by", "topk by an attribute"), 0.02),
        **dict.fromkeys(("map keep", "aggregate by an attribute", "KeyedGaps", "an aggregate function"), 0.1),
        "a hundred results": 0.1,
    }
)
FEATURES = st.sets(st.sampled_from([Feature.EXTREMES, Feature.REJECTED, Feature.LONG_WINDOWS]))


@QUERIES.required
@settings(max_examples=100, deadline=None)
@given(st.integers(0, 1 << 40), FEATURES)
def test_a_random_query_equals_the_reference_by_row(seed: int, features: set[Feature]) -> None:
    config = configuration(seed, frozenset(features | {Feature.OPTIONS}))
    found, results = differing(config)
    met = options(config) | Counter({"a hundred results": int(results >= 100)})
    QUERIES.example({name: met[name] for name in QUERIES.names})
    assert found == []


def test_a_mistake_of_an_operator_is_noticed() -> None:
    """The engine's reference makes the same mistake as its replicas: only the other one does not."""
    ended = Panes._ended

    def newest_first(panes: Panes[Any], limit: int, window: int) -> Iterator[tuple[int, int, list[Any]]]:
        yield from ((begin, end, members[::-1]) for begin, end, members in ended(panes, limit, window))

    with patch.object(Panes, "_ended", newest_first):
        assert any(differing(configuration(seed, frozenset({Feature.OPTIONS})))[0] for seed in range(20))
