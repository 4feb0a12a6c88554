"""Sources replayed by rate or at different speeds: tentative results are allowed while their times are apart."""

from __future__ import annotations

from typing import Any

import pytest

from consistency.checking.node_settings import InForce
from consistency.checking.source_skew import apart
from replicas.cli.campaigns.campaign import run
from replicas.simulation.scenarios.random_scenario import faulty
from tests.support.long_forms import long_but

LENGTH_US = 10_000_000


def config(*replays: dict[str, Any], duration: str = "10s") -> dict[str, Any]:
    """Two sources of 50 tuples a second of tuple time, merged and counted by two replicas."""
    generator = {"name": "orders", "rate": 50, "keys": 8, "duration": duration}
    sources = {
        name: {"from": {"generator": generator | {"seed": at}}, "replay": replay}
        for at, (name, replay) in enumerate(zip("ab", replays))
    }
    return {
        "sources": sources,
        "query": {
            "u": {"union": ["a", "b"]},
            "t": {"aggregate": {"from": "u", "window": "1s", "compute": {"n": "count(*)"}}},
        },
        "outputs": ["t"],
        "fragments": {"main": {"operators": ["u", "t"], "replicas": ["n1", "n2"]}},
        "nodes": ["n1", "n2"],
        "clients": {"c": {"reads": ["t"]}},
    }


#: The slow ones have fewer rows, for a run ends within half a minute.
PACES = [
    ({"rate": 50}, {"rate": 20}, "10s"),
    ({"rate": 100}, {"speed": 1}, "10s"),
    ({"rate": 3}, {"rate": 3}, "1s"),
]


@pytest.mark.parametrize(("first", "second", "duration"), PACES)
@pytest.mark.parametrize("seed", long_but([1], [1, 2]))
def test_sources_replayed_by_rate_break_no_promise(
    first: dict[str, Any], second: dict[str, Any], duration: str, seed: int
) -> None:
    findings, outcome = run(faulty(config(first, second, duration=duration), seed, LENGTH_US))
    assert outcome is not None
    assert not findings, "\n".join(map(str, findings))


def test_sources_of_one_speed_are_never_apart() -> None:
    scenario = faulty(config({"speed": 1}, {"speed": 1}), 1, LENGTH_US)
    findings, outcome = run(scenario)
    assert not findings
    assert outcome is not None
    deployed = scenario.deployed()
    assert apart(outcome.history, *deployed, InForce(*deployed, {})) == []


def test_sources_are_apart_while_lag_exceeds_bucket_wait() -> None:
    scenario = faulty(config({"rate": 100}, {"rate": 20}), 1, LENGTH_US)
    _, outcome = run(scenario)
    assert outcome is not None
    deployed = scenario.deployed()
    began, *_ = apart(outcome.history, *deployed, InForce(*deployed, {}))
    assert {"source:a", "source:b", "n1", "n2"} == set(getattr(began, "hosts", ()))
    assert began.at_us < 3_000_000
