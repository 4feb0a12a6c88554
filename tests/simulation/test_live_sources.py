"""Live sources in a cluster: silent, stopped, restarted, behind the clock (S7: time of live input)."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Any

import pytest

from replicas.simulation.scenarios.random_scenario import random_scenario
from replicas.simulation.scenarios.scenario import Scenario
from replicas.simulation.simulate import Outcome, simulate
from replicas.simulation.world.producer import random_live
from spe.plan.review import review
from spe.stream.batch import Batch
from spe.stream.history import Delivered
from spe.stream.names import Kind
from spe.stream.times import SECOND
from tests.support.long_forms import long_but

SECONDS = 16
YEAR_US = 365 * 86_400 * SECOND

#: Source b has a row every four seconds.
CONFIG = {
    "cluster": "live",
    "bucket": "100ms",
    "defaults": {"x": "1s", "alpha": 0.9},
    "sources": {
        "a": {
            "boundary": "100ms",
            "disorder": "100ms",
            "from": {"generator": {"name": "sequence", "rate": 50, "seed": 1, "duration": f"{SECONDS}s"}},
        },
        "b": {
            "boundary": "100ms",
            "disorder": "100ms",
            "from": {"generator": {"name": "sequence", "rate": 0.25, "seed": 2, "duration": f"{SECONDS}s"}},
        },
    },
    "query": {"all": {"union": ["a", "b"]}},
    "outputs": ["all"],
    "fragments": {"f": {"operators": ["all"], "replicas": ["n1", "n2"]}},
    "nodes": ["n1", "n2"],
    "clients": {"client": {"reads": ["all"]}},
}
BY_DATA = {"watermark": "data", "idle_us": 300_000}


def played(live: Mapping[str, Mapping[str, Any]], *faults: Mapping[str, Any], seed: int = 1) -> Outcome:
    data = {
        "config": CONFIG,
        "seed": seed,
        "options": {"live": live},
        "faults": list(faults),
        "version": 1,
        "heal_us": SECONDS * SECOND,
        "grace_us": 20 * SECOND,
    }
    outcome = simulate(Scenario.from_data(data))
    assert outcome.findings == []
    assert outcome.finished
    assert outcome.skipped == []
    return outcome


def tentative(outcome: Outcome) -> list[float]:
    """The seconds at which the client received tentative elements."""
    return [
        e.at_us / 1e6
        for e in outcome.history
        if isinstance(e, Delivered) and isinstance(e.element, Batch) and e.element.kind is Kind.TENTATIVE
    ]


def late(outcome: Outcome) -> int:
    """Rows of the client's stable stream whose time is not their event time."""
    return sum(
        int((e.element.rows.time != e.element.rows.columns[0].values).sum())
        for e in outcome.history
        if isinstance(e, Delivered) and isinstance(e.element, Batch) and e.element.kind is Kind.STABLE
    )


@pytest.mark.parametrize("behind_us", long_but([0, YEAR_US], [0, 5 * SECOND, YEAR_US, -5 * SECOND]))
def test_a_silent_source_delays_no_results(behind_us: int) -> None:
    """Nor are its rows late afterwards, however far event times are from the clock."""
    how = {**BY_DATA, "behind_us": behind_us}
    outcome = played({"a": how, "b": how})
    assert tentative(outcome) == []
    assert late(outcome) == 0


def test_without_idle_a_silent_source_makes_results_tentative() -> None:
    how = {**BY_DATA, "idle_us": None}
    outcome = played({"a": BY_DATA, "b": how})
    assert tentative(outcome) != []
    assert late(outcome) == 0


def test_idle_time_below_warning_makes_results_tentative() -> None:
    """The idle time of the first test gives no warning and no tentative results."""
    live = {"a": BY_DATA, "b": {**BY_DATA, "idle_us": 900_000}}
    outcome = played(live)
    assert [f.path for f in review(*outcome.scenario.deployed()) if f.path[0] == "sources"] == [
        ("sources", "b", "idle")
    ]
    assert tentative(outcome) != []
    assert not any(
        "idle" in f.path for f in review(*Scenario(1, CONFIG, {"live": {"a": BY_DATA, "b": BY_DATA}}).deployed())
    )


def test_a_producer_behind_is_late_by_clock_and_not_by_data() -> None:
    how = {"watermark": "clock", "behind_us": 5 * SECOND}
    assert late(played({"a": how, "b": how})) > 50 * (SECONDS - 1)


def test_rows_that_waited_for_a_stopped_source_are_not_late() -> None:
    outcome = played(
        {"a": BY_DATA, "b": BY_DATA}, {"at": "5s", "kind": "freeze", "target": ["source:a", "source:b"], "for": "5s"}
    )
    assert late(outcome) == 0
    assert [at for at in tentative(outcome) if at < 5] == []


def test_rows_of_a_stopped_producer_are_late_everywhere() -> None:
    """The stable stream equals the log: the same rows are late everywhere."""
    outcome = played({"a": {**BY_DATA, "pauses_us": [[5 * SECOND, 4 * SECOND]]}, "b": BY_DATA})
    assert 0 < late(outcome) <= 50 * 4


@pytest.mark.parametrize(("from_s", "to_s"), [(5.2, 11), (0.1, 5.2)], ids=["forward", "back"])
def test_restarts_and_clock_steps_break_no_promise(from_s: float, to_s: float) -> None:
    """Source b starts at 0, 2.5 and 5.5 s, and its clock is set by an hour in between."""
    outcome = played(
        {"a": BY_DATA, "b": BY_DATA},
        {"at": f"{from_s}s", "kind": "skew", "target": "source:b", "by": "1h", "for": f"{to_s - from_s:g}s"},
        {"at": "2s", "kind": "kill", "target": "source:b", "for": "500ms"},
        {"at": "5s", "kind": "kill", "target": "source:b", "for": "500ms"},
        {"at": "9s", "kind": "kill", "target": "source:a", "for": "1s"},
        {"at": "10s", "kind": "kill", "target": "n1", "for": "1s"},
    )
    assert late(outcome) == 0


@pytest.mark.parametrize("seed", long_but([7121], [7100, 7121, 7129, 7134]))
def test_a_random_run_with_live_sources_holds(seed: int) -> None:
    scenario = random_scenario(seed)
    live = random_live(Random(f"live {seed}"), list(scenario.config["sources"]), scenario.heal_us // SECOND)
    options = {**scenario.options, "live": live}
    outcome = simulate(Scenario(seed, scenario.config, options, scenario.faults, scenario.heal_us, scenario.grace_us))
    assert outcome.findings == []


def test_random_runs_draw_live_sources() -> None:
    drawn = [s for s in map(random_scenario, range(7000, 7060)) if "live" in s.options]
    assert 3 <= len(drawn) <= 20
    assert {how["watermark"] for s in drawn for how in s.options["live"].values()} == {"data", "clock"}
    for scenario in drawn:
        assert Scenario.from_data(scenario.to_data()).plan() == scenario.plan()
