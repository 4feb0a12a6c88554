"""Which standbys run all the time (H7): chosen by the planner, and started one after the other."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest

from replicas.placement.deciders.activation import Activation, Choice, RateMeter
from replicas.placement.deciders.move import RoleChange
from replicas.placement.view import ClusterView
from spe.config import load_data
from spe.errors import ConfigError
from spe.plan.deploy import Deployed
from spe.plan.directory import Role
from spe.stream.ids import PartitionId, ReplicaId
from spe.stream.names import NodeId, NodeState, UnitId
from spe.wire.messages.feeds import OutputStatus

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


def plan(budget: int = 2) -> Deployed:
    return load_data({**CONFIG, "coordinator": {"budget": budget}})


def part(number: int) -> PartitionId:
    return PartitionId(UnitId("f"), number)


def activation(budget: int = 2, *active: int, margin: float = 0.1) -> Activation:
    view = ClusterView(*plan(budget), 0, recovery_us=1)
    return Activation(view, budget, algorithm="structure-aware", margin=margin, active=map(part, active))


def rates(*each: float) -> dict[str, list[float]]:
    return {"a": [sum(each)], "f": list(each)}


def by_partition(states: Mapping[PartitionId, NodeState | None]) -> Callable[[ReplicaId], NodeState | None]:
    return lambda standby: states.get(standby.of)


def test_the_best_partitions_with_a_live_standby_are_chosen() -> None:
    choice = activation().choose(rates(10, 40, 20, 1000))
    assert choice.active == {part(1), part(2)}, "nobody stands by for the largest"
    assert choice.value == pytest.approx(60 / 1070)
    assert choice.before == 0


def test_a_standby_that_is_so_for_a_while_is_not_chosen() -> None:
    """Because of a move, or of a recovery that lent it the role."""
    one = activation(2, 1)
    one.follow({ReplicaId(*part(1), NodeId("n5"))})
    assert one.choose(rates(10, 40, 20, 1000)).active == {part(0), part(2)}
    assert one.wanted() == {}
    assert not one.adopt(Choice(frozenset({part(1)}), 1.0, 1.0))


def test_another_plan_must_be_better_by_the_margin() -> None:
    one = activation(1, 1)
    assert not one.adopt(Choice(frozenset({part(0)}), 0.104, 0.1))
    assert one.target == {part(1)}
    assert one.adopt(Choice(frozenset({part(0)}), 0.12, 0.1))
    assert one.target == {part(0)}


def test_a_node_that_leaves_by_a_move_is_not_active() -> None:
    """It would never retire, and the move would wait for ever."""
    one = activation(1, 1)
    n2, n3 = NodeId("n2"), NodeId("n3")
    leave = RoleChange(part(1), ((n3, Role.ACTIVE), (n2, Role.STANDBY)))
    one._view.redirect(leave(plan(1).directory), 0)
    one.follow()
    assert one.wanted() == {part(1): {"n5"}}


def test_an_unfinished_plan_is_replaced_by_any_better_one() -> None:
    one = activation(2, 1)
    assert one.adopt(one.choose(rates(10, 40, 20, 1)))
    assert one.target == {part(1), part(2)}


def test_a_new_active_runs_before_an_old_one_retires() -> None:
    one = activation(1, 1)
    one.adopt(Choice(frozenset({part(0)}), 1.0, 0.1))
    states: dict[PartitionId, NodeState | None] = {part(1): NodeState.STABLE, part(0): NodeState.RECOVERING}
    assert one.step(by_partition(states)) == part(0)
    assert set(one.wanted()) == {part(0), part(1)}
    assert not one.settled
    assert one.step(by_partition(states)) is None, "it is on its way"
    states[part(0)] = NodeState.UP_FAILURE
    assert one.step(by_partition(states)) is None, "what is to take its place does not do it yet"
    states[part(0)] = NodeState.STABLE
    assert one.step(by_partition(states)) == part(1)
    assert one.wanted() == {part(0): {"n5"}}
    assert one.step(by_partition(states)) is None
    assert one.settled


def test_the_next_active_begins_when_the_last_one_serves() -> None:
    one = activation(2)
    one.adopt(Choice(frozenset({part(0), part(1)}), 1.0, 0.0))
    states: dict[PartitionId, NodeState | None] = dict.fromkeys([part(0), part(1)], NodeState.RECOVERING)
    assert one.step(by_partition(states)) == part(0)
    assert one.step(by_partition(states)) is None, "it is on its way"
    states[part(0)] = NodeState.STABLE
    assert one.step(by_partition(states)) == part(1)


def test_a_standby_on_a_dead_node_is_not_waited_for() -> None:
    one = activation(2)
    one.adopt(Choice(frozenset({part(0), part(1)}), 1.0, 0.1))
    states: dict[PartitionId, NodeState | None] = {part(0): None, part(1): NodeState.RECOVERING}
    assert [one.step(by_partition(states)), one.step(by_partition(states))] == [part(0), part(1)]


def test_active_standby_is_kept_if_replacement_node_is_dead() -> None:
    one = activation(1, 1)
    one.adopt(Choice(frozenset({part(0)}), 1.0, 0.1))
    states: dict[PartitionId, NodeState | None] = {part(1): NodeState.STABLE, part(0): None}
    assert one.step(by_partition(states)) == part(0)
    assert one.step(by_partition(states)) is None, "somebody must run"
    states[part(0)] = NodeState.STABLE
    assert one.step(by_partition(states)) == part(1)


def test_a_dead_standby_retires_before_others() -> None:
    one = activation(1, 0, 1, 2)
    one.adopt(Choice(frozenset({part(2)}), 1.0, 0.1))
    states = {part(0): NodeState.STABLE, part(1): None, part(2): NodeState.STABLE}
    assert [one.step(by_partition(states)), one.step(by_partition(states))] == [part(1), part(0)]


def test_a_standby_on_a_dead_node_is_not_chosen() -> None:
    one = activation(2, 1)
    choice = one.choose(rates(10, 40, 20, 0), [part(1)])
    assert choice.active == {part(0), part(2)}
    assert choice.before == 0
    assert one.choose(rates(10, 40, 20, 0), [part(0), part(1)]).active == {part(2)}
    assert one.choose(rates(10, 40, 20, 0), [part(0), part(1), part(2)]).active == frozenset()


def test_a_smaller_plan_replaces_no_better_one() -> None:
    """A structure-aware plan may leave room; then a better plan replaces it, and a worse one does not."""
    one = activation(2, 0, 1)
    assert not one.adopt(Choice(frozenset({part(2)}), 0.34, 0.66))
    one = activation(3, 0, 1)
    assert not one.adopt(Choice(frozenset({part(2)}), 0.34, 0.66))
    assert one.adopt(Choice(frozenset({part(0), part(1), part(2)}), 0.67, 0.66))


def test_standbys_retire_when_the_budget_shrinks() -> None:
    one = activation(1, 0, 1, 2)
    assert one.adopt(Choice(frozenset({part(1)}), 0.2, 0.5))
    assert [one.step(lambda _: NodeState.STABLE) for _ in range(3)] == [part(0), part(2), None]


def test_a_partition_without_standbys_is_forgotten() -> None:
    assert activation(1, 1, 3).active == {part(1)}


def test_rates_are_measured_over_periods_without_failures() -> None:
    meter = RateMeter(plan().plan, 0)

    def heard(*ids: int, source: int = 0, state: NodeState = NodeState.STABLE) -> None:
        meter.heard(OutputStatus("sums", p, state, False, last, 0, 0, 1, 0.0) for p, last in enumerate(ids))
        if source:
            meter.heard([OutputStatus("a", 0, NodeState.STABLE, False, source, 0, 0, 1, 0.0)])

    heard(1_000, 1_000, 1_000, 1_000, source=50_000)
    assert meter.take(4 * SECOND) == {}, "they were running when we began"
    heard(1_010, 1_020, 1_030, 1_040, source=50_500)
    assert meter.take(14 * SECOND) == {"a": [50.0], "f": [1.0, 2.0, 3.0, 4.0]}
    heard(1_020, 1_020, 1_050, 1_060, source=51_000)
    before = {"a": [50.0], "f": [1.0, 2.0, 3.0, 4.0]}
    assert meter.take(24 * SECOND) == before, "one partition made nothing: what was measured before counts"
    heard(1_025, 1_300, 1_055, 1_065, state=NodeState.UP_FAILURE)
    heard(1_030, 1_400, 1_060, 1_070, source=51_600)
    assert meter.take(34 * SECOND) == {**before, "a": [60.0]}, "it failed"
    heard(1_040, 1_900, 1_070, 1_080)
    assert meter.take(44 * SECOND) == {**before, "a": [60.0]}, "it catches up, and the source was not heard of"
    heard(1_060, 1_910, 1_080, 1_090, source=10)
    heard(1_059, 1_909, 1_080, 1_090)  # another replica, a little behind
    assert meter.take(54 * SECOND) == {"a": [60.0], "f": [2.0, 1.0, 1.0, 1.0]}, "the source begins anew"
    heard(source=110)
    assert meter.take(64 * SECOND)["a"] == [60.0]
    heard(source=310)
    assert meter.take(74 * SECOND)["a"] == [20.0]


def test_a_budget_beyond_the_standbys_is_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"coordinator\.budget: expected at most 3, as many partitions have one replica"
    ):
        plan(4)
