"""Which standbys run beside what they back: chosen by the planner, and one after the other (docs/rules.md H7)."""

from __future__ import annotations

import pytest

from replicas.activation import Activation, Choice, RateMeter
from spe.config import load_plan_data
from spe.errors import ConfigError
from spe.plan import PartitionId, Plan
from spe.states import NodeState, UnitId
from spe.wire.messages import OutputStatus

SECOND = 1_000_000
GENERATOR = {"name": "orders", "rate": 100, "keys": 10, "seed": 1, "duration": "10s"}
CONFIG = {
    "nodes": ["n1", "n2", "n3", "n4", "n5"],
    "sources": {"a": {"from": {"generator": GENERATOR}}},
    "query": {
        "sums": {
            "aggregate": {"from": "a", "window": {"tumbling": "1s"}, "group_by": "key", "compute": {"n": "count(*)"}}
        }
    },
    "outputs": ["sums"],
    "fragments": {
        "f": {
            "operators": ["sums"],
            "key": "key",
            "partitions": 4,
            "replicas": [["n1"], ["n2"], ["n3"], ["n4"]],
            "standby": [["n5"], ["n5"], ["n5"], []],
        }
    },
    "clients": {"c": {"reads": ["sums"]}},
}


def plan(budget: int = 2) -> Plan:
    return load_plan_data({**CONFIG, "coordinator": {"budget": budget}})


def part(number: int) -> PartitionId:
    return PartitionId(UnitId("f"), number)


def activation(budget: int = 2, *active: int, margin: float = 0.1) -> Activation:
    return Activation(plan(budget), budget, algorithm="structure-aware", margin=margin, active=map(part, active))


def rates(*each: float) -> dict[str, list[float]]:
    return {"a": [sum(each)], "f": list(each)}


def no_time() -> float:
    return 0.0


def test_those_partitions_are_chosen_that_give_most_and_can_be_run_by_somebody() -> None:
    choice = activation().choose(rates(10, 40, 20, 1000), no_time)
    assert choice.active == {part(1), part(2)}, "nobody stands by for the largest"
    assert choice.value == pytest.approx(60 / 1070)
    assert choice.before == 0


def test_another_plan_must_be_better_by_the_margin() -> None:
    one = activation(1, 1)
    assert not one.adopt(Choice(frozenset({part(0)}), 0.104, 0.1))
    assert one.target == {part(1)}
    assert one.adopt(Choice(frozenset({part(0)}), 0.12, 0.1))
    assert one.target == {part(0)}


def test_a_plan_that_is_not_filled_yet_takes_any_better_one() -> None:
    one = activation(2, 1)
    assert one.adopt(one.choose(rates(10, 40, 20, 1), no_time))
    assert one.target == {part(1), part(2)}


def test_a_new_one_runs_before_an_old_one_goes() -> None:
    one = activation(1, 1)
    one.adopt(Choice(frozenset({part(0)}), 1.0, 0.1))
    running = {part(1)}
    assert one.step(running.__contains__) == part(0)
    assert set(one.wanted()) == {part(0), part(1)}
    assert one.step(running.__contains__) is None, "it is on its way"
    running.add(part(0))
    assert one.step(running.__contains__) == part(1)
    assert one.wanted() == {part(0): {"n5"}}
    assert one.step(running.__contains__) is None


def test_with_a_smaller_budget_some_go() -> None:
    one = activation(1, 0, 1, 2)
    assert one.adopt(Choice(frozenset({part(1)}), 0.2, 0.5))
    assert [one.step(lambda _: True) for _ in range(3)] == [part(0), part(2), None]


def test_a_partition_that_has_no_standby_any_more_is_forgotten() -> None:
    assert activation(1, 1, 3).active == {part(1)}


def test_rates_are_measured_by_ids_and_a_silence_is_no_rate() -> None:
    meter = RateMeter(plan(), 0)

    def heard(*ids: int) -> None:
        meter.heard(OutputStatus("sums", p, NodeState.STABLE, False, last, 0, 0, 1, 0.0) for p, last in enumerate(ids))

    heard(10, 20, 30, 40)
    meter.heard([OutputStatus("a", 0, NodeState.STABLE, False, 500, 0, 0, 1, 0.0)])
    assert meter.take(10 * SECOND) == {"a": [50.0], "f": [1.0, 2.0, 3.0, 4.0]}
    heard(20, 20, 50, 60)
    silent = {"a": [50.0], "f": [1.0, 2.0, 3.0, 4.0]}
    assert meter.take(20 * SECOND) == silent, "one partition is down: what was measured before counts"
    heard(30, 40, 60, 70)
    heard(29, 39, 60, 70)  # another replica, a little behind
    assert meter.take(30 * SECOND) == {"a": [50.0], "f": [1.0, 2.0, 1.0, 1.0]}


def test_a_budget_beyond_the_standbys_is_a_mistake_that_is_named() -> None:
    with pytest.raises(
        ConfigError, match=r"coordinator\.budget: expected at most 3, as many partitions have standbys, got 4"
    ):
        plan(4)
