"""Lasting failures: links cut for 10 X, nodes that never return, nodes with different settings."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from typing import Any

from consistency.checking.counters import Counters
from consistency.checking.promises.leftovers import check_quiet
from consistency.checking.schedule import Paths, Reach, World
from replicas.simulation.scenarios.scenario import Scenario
from replicas.simulation.simulate import Outcome, simulate
from spe.config import load_data
from spe.stream.history import ProcessUp
from spe.stream.ids import Channel, PartitionId
from spe.stream.names import StreamId, UnitId
from tests.simulation.test_simulate import CONFIG, scenario, story


def starts(outcome: Outcome, host: str) -> int:
    return sum(isinstance(e, ProcessUp) and e.host == host for e in outcome.history)


def test_a_node_killed_for_good_stays_dead() -> None:
    outcome = simulate(scenario(1, [{"at": "2s", "kind": "kill", "target": "n1"}]))
    assert outcome.finished, "\n".join(outcome.story[-40:])
    assert outcome.holds, story(outcome)
    assert starts(outcome, "n1") == 1
    assert outcome.counters.amounts["runs with a node left dead"] == 1
    (plan, directory), history = outcome.scenario.deployed(), outcome.history
    assert list(check_quiet(history, plan, directory, Counters(), {"n1"})) == []
    assert {f.what for f in check_quiet(history, plan, directory, Counters())} >= {"does not run"}


def test_a_later_kill_with_a_length_does_not_restart_it() -> None:
    faults = [
        {"at": "2s", "kind": "kill", "target": "n1"},
        {"at": "3s", "kind": "kill", "target": "n1", "for": "1s"},
    ]
    outcome = simulate(scenario(1, faults))
    assert outcome.holds, story(outcome)
    assert starts(outcome, "n1") == 1


def test_a_restart_brings_back_a_node_without_power() -> None:
    faults = [{"at": "2s", "kind": "power", "target": "n1"}, {"at": "4s", "kind": "restart", "target": "n1"}]
    outcome = simulate(scenario(1, faults))
    assert outcome.holds, story(outcome)
    assert starts(outcome, "n1") == 2
    assert outcome.counters.amounts["runs with a node left dead"] == 0


def test_sources_are_restarted_at_the_heal() -> None:
    """A stream without its source would never end."""
    outcome = simulate(scenario(1, [{"at": "2s", "kind": "kill", "target": "source:a"}]))
    assert outcome.finished
    assert outcome.holds, story(outcome)
    assert starts(outcome, "source:a") == 2


def standing_by() -> dict[str, Any]:
    config = deepcopy(CONFIG)
    config["fragments"]["all"] |= {"replicas": ["n1"], "standby": ["n2"], "checkpoint": "300ms"}
    return config


def test_a_standby_replaces_a_dead_node_for_good() -> None:
    one = replace(scenario(1, [{"at": "4s", "kind": "power", "target": "n1"}]), config=standing_by())
    outcome = simulate(one)
    assert outcome.finished, "\n".join(outcome.story[-40:])
    assert outcome.holds, story(outcome)
    assert starts(outcome, "n1") == 1


def test_no_partition_is_left_without_a_node() -> None:
    faults = [{"at": "3s", "kind": "kill", "target": "n1"}, {"at": "5s", "kind": "kill", "target": "n2"}]
    outcome = simulate(replace(scenario(1, faults), config=standing_by()))
    assert outcome.holds, story(outcome)
    assert "left without a node" in outcome.skipped[0]


def longer(config: dict[str, Any], seconds: int) -> dict[str, Any]:
    config = deepcopy(config)
    for source in config["sources"].values():
        source["from"]["generator"]["duration"] = f"{seconds}s"
    return config


def test_one_way_cuts_for_ten_x_leave_stable_results() -> None:
    """One replica loses a source in one direction, the other keeps all inputs, so results stay stable."""
    faults = [
        {"at": "2s", "kind": "cut", "from": "n1", "to": "source:a", "one_way": True, "for": "11s"},
        {"at": "2s", "kind": "cut", "from": "source:b", "to": "n1", "for": "11s"},
    ]
    bare = scenario(1, faults)
    one = Scenario(1, longer(CONFIG, 16), {}, bare.faults, 14_000_000)
    outcome = simulate(one)
    assert outcome.holds, story(outcome)
    amounts = outcome.counters.amounts
    assert amounts["runs with links cut for 10 X"] == amounts["runs with links cut one way for 10 X"] == 1
    assert amounts["p1 stable_us"] > 5_000_000


def test_a_suspending_node_offers_no_tentative_path() -> None:
    """The availability checker still demands results while another replica gives them."""
    plan, directory = load_data({**CONFIG, "nodes": {"n1": {"policy": "suspend"}, "n2": {}}})
    (unit,) = plan.units
    of = PartitionId(UnitId(unit.id), 0)
    output = Channel(StreamId("sums"), 0)
    lost = frozenset({("source:a", "n1"), ("source:a", "n2")})
    paths = Paths(plan, directory, World(cut=lost))
    assert (paths.replica(of, "n1"), paths.replica(of, "n2")) == (Reach.NONE, Reach.TENTATIVE)
    assert paths.channel("client:c", output) is Reach.TENTATIVE
    alone = Paths(plan, directory, World(cut=lost, down=frozenset({"n2"})))
    assert alone.channel("client:c", output) is Reach.NONE


def test_nodes_with_different_settings_keep_every_promise() -> None:
    nodes = {"n1": {"x": "2s", "reconcile": "undo"}, "n2": {"policy": "delay", "checkpoint": {"every": "3s"}}}
    faults = [
        {"at": "2s", "kind": "cut", "target": "source:a", "for": "3s"},
        {"at": "6s", "kind": "kill", "target": "n2", "for": "1s"},
    ]
    one = replace(scenario(1, faults), config={**longer(CONFIG, 12), "nodes": nodes}, heal_us=10_000_000)
    outcome = simulate(one)
    assert outcome.holds, story(outcome)
    amounts = outcome.counters.amounts
    assert amounts["undos"] > 0
    for what in ("of nodes that differ in X", "of nodes that differ in policy", "of nodes that differ in reconcile"):
        assert amounts[f"runs {what}"] == 1
    assert amounts["runs with checkpoints further apart than X"] == 1
