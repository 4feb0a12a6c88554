"""A process started with another plan is refused and does no harm; later it returns with the right plan."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from replicas.simulation.features.replan import OTHER_IDS, replanned
from replicas.simulation.simulate import Outcome, simulate
from spe.config import load_plan_data
from spe.stream.history import Note, Opened, ProcessUp
from tests.simulation.test_simulate import CONFIG, scenario, story
from tests.support.long_forms import long_but

CHANGES = ("query", "bucket", "limits", "timing")


def config(*, standby: bool = False) -> dict[str, Any]:
    """With a filter, and a client that can be started again."""
    found = deepcopy(CONFIG)
    found["query"] = {
        "both": {"union": ["a", "b"]},
        "large": {"filter": {"from": "both", "where": "qty > 3"}},
        "sums": {
            "aggregate": {
                "from": "large",
                "window": {"tumbling": "500ms"},
                "group_by": "key",
                "compute": {"v": "sum(qty)"},
            }
        },
    }
    found["fragments"]["all"]["operators"] = ["both", "large", "sums"]
    found["clients"]["c"]["sinks"] = [{"jsonl": "final"}]
    if standby:
        found["fragments"]["all"] |= {"replicas": ["n1"], "standby": ["n2"], "checkpoint": "300ms"}
    return found


def run(target: str, change: str, *, seed: int = 1, standby: bool = False) -> Outcome:
    fault = {"at": "3s", "kind": "replan", "target": target, "change": change, "for": "1500ms"}
    one = replace(scenario(seed, [fault]), config=config(standby=standby))
    outcome = simulate(one)
    assert outcome.skipped == []
    return outcome


def test_process_with_another_plan_is_rejected_by_all() -> None:
    """A node and a source that were started with the same other query would feed each other."""
    faults = [
        {"at": at, "kind": "replan", "target": target, "change": "query", "for": "3s"}
        for at, target in (("3s", "n1"), ("4s", "source:a"), ("4100ms", "source:b"))
    ]
    outcome = simulate(replace(scenario(1, faults), config=config()))
    assert outcome.finished
    assert outcome.holds, story(outcome)
    fed = [e for e in outcome.history if isinstance(e, Opened) and e.consumer.endswith("@n1")]
    assert [e for e in fed if e.at_us > 6_000_000]
    assert not [e for e in fed if 3_000_000 < e.at_us < 6_000_000]


def refusals(outcome: Outcome) -> list[Note]:
    return [e for e in outcome.history if isinstance(e, Note) and e.name == "refused"]


@pytest.mark.parametrize("change", CHANGES)
def test_another_plan_has_another_fingerprint_where_ids_differ(change: str) -> None:
    plan = load_plan_data(config())
    other = replanned(plan, change)
    assert (other.fingerprint != plan.fingerprint) is (change in OTHER_IDS)
    assert (other.limits, other.timing, other.bucket_us, other.query) != (
        plan.limits,
        plan.timing,
        plan.bucket_us,
        plan.query,
    )


@pytest.mark.parametrize(
    ("target", "change"),
    long_but(
        [("n1", "query"), ("n1", "limits"), ("source:a", "query"), ("client:c", "query")],
        product(["n1", "source:a", "client:c"], CHANGES),
    ),
)
def test_a_process_with_another_plan_does_no_harm(target: str, change: str) -> None:
    outcome = run(target, change)
    assert outcome.finished, "\n".join(outcome.story[-40:])
    assert outcome.holds, story(outcome)
    assert sum(isinstance(e, ProcessUp) and e.host == target for e in outcome.history) == 3
    refused = refusals(outcome)
    if (target, change) == ("client:c", "query"):
        assert not refused  # refused by its own folders, before it connects
        assert any("cannot go on: recording clients/c" in line for line in outcome.story)
        assert outcome.counters.amounts["recordings compared"] == 1
        return
    assert bool(refused) is (change in OTHER_IDS)
    assert all("plan" in note.text for note in refused)
    assert outcome.counters.amounts[f"fault replan {change}"] == 1


@pytest.mark.parametrize("change", ["query", "limits"])
def test_a_standby_stands_in_for_a_node_with_another_plan(change: str) -> None:
    outcome = run("n1", change, standby=True)
    assert outcome.finished, "\n".join(outcome.story[-40:])
    assert outcome.holds, story(outcome)


def test_the_heal_restores_the_right_plan() -> None:
    fault = {"at": "3s", "kind": "replan", "target": "n1", "change": "query"}
    outcome = simulate(replace(scenario(1, [fault]), config=config()))
    assert outcome.finished, "\n".join(outcome.story[-40:])
    assert outcome.holds, story(outcome)


def test_the_only_holder_of_a_state_gets_no_other_plan() -> None:
    faults = [
        {"at": "2s", "kind": "kill", "target": "n2", "for": "4s"},
        {"at": "3s", "kind": "replan", "target": "n1", "change": "query", "for": "1s"},
    ]
    outcome = simulate(replace(scenario(1, faults), config=config()))
    assert outcome.holds, story(outcome)
    assert "nobody else has the state" in outcome.skipped[0]
