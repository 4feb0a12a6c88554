"""The share of a lasting failure that the checkers judge has a lower bound, because unjudged time proves nothing."""

from __future__ import annotations

from collections import Counter
from functools import cache
from typing import Any

import pytest

from replicas.simulation.scenarios.scenario import Scenario
from replicas.simulation.simulate import simulate
from tests.simulation.seldom import CONFIG
from tests.support.long_forms import long_but

#: The failure lasts from second 3 to second 19, and the sources to second 24.
_LASTS_US = 16_000_000
_CUT_B = {"at": "3s", "kind": "cut", "target": "source:b", "for": "16s"}
_FAULTS: dict[str, list[dict[str, Any]]] = {
    "a source": [_CUT_B],
    "a source, and all of one replica": [
        _CUT_B,
        {"at": "3s", "kind": "cut", "from": "source:a", "to": "n1a", "for": "16s"},
    ],
    "a source, for one replica": [{"at": "3s", "kind": "cut", "from": "source:b", "to": "n1a", "for": "16s"}],
    "late links": [
        {"at": "3s", "kind": "delay", "from": ["n1a", "n1b"], "to": ["n2a", "n2b"], "by": "100ms", "for": "16s"}
    ],
    "a slow process": [{"at": "3s", "kind": "busy", "target": "n2a", "times": 2.0, "for": "16s"}],
    "a clock": [{"at": "3s", "kind": "skew", "target": "source:a", "by": "10ms", "for": "16s"}],
    "a disk": [{"at": "3s", "kind": "full", "target": "n1a", "for": "16s"}],
    "a process": [{"at": "3s", "kind": "kill", "target": "n1a", "for": "16s"}],
}


@cache
def amounts(name: str) -> Counter[str]:
    sources = {source: {**one, "boundary": "100ms"} for source, one in CONFIG["sources"].items()}
    config = {**CONFIG, "bucket": "100ms", "sources": sources, "outputs": ["all", "sums"]}
    config["clients"] = {"client": {"reads": ["all", "sums"]}}
    data = {
        "version": 1,
        "config": config,
        "seed": 1,
        "faults": _FAULTS[name],
        "heal_us": 22_000_000,
        "grace_us": 20_000_000,
    }
    outcome = simulate(Scenario.from_data(data))
    assert outcome.findings == []
    assert outcome.skipped == []
    return outcome.counters.amounts


@pytest.mark.parametrize("name", long_but(["a source", "late links", "a clock", "a process"], _FAULTS))
def test_most_of_a_lasting_failure_is_judged_for_p1(name: str) -> None:
    """For both channels; the rest is the time of one switch, and of rows that are due after the end."""
    found = amounts(name)
    judged = found["p1 stable_us"] + found["p1 tentative_us"]
    assert judged > (0.5 if name == "a process" else 0.7) * found["p1 path_us"]  # a process dies and restarts
    assert found["p1 excused no path_us"] < 0.1 * found["p1 path_us"]


@pytest.mark.parametrize(
    ("name", "channels"),
    long_but([("late links", 1), ("a clock", 2)], [("late links", 1), ("a slow process", 1), ("a clock", 2)]),
)
def test_late_links_are_judged_with_a_wider_bound(name: str, channels: int) -> None:
    assert amounts(name)["p1 widened_us"] > 0.7 * channels * _LASTS_US


def test_tentative_rows_and_windows_are_judged() -> None:
    """50 rows per second of source a, and five groups per window of 200 ms, less the time of a switch."""
    found = amounts("a source")
    assert found["p1 tentative_us"] > 0.7 * 2 * _LASTS_US
    assert found["accuracy rows compared"] > 0.6 * 50 * 16
    assert found["accuracy results compared"] > 0.6 * 5 * 5 * 16
    assert found["accuracy rows that were sent"] >= found["accuracy rows compared"]


def test_a_recovery_is_judged() -> None:
    assert amounts("a process")["recovering_us"] > 0
