"""Moves that follow from loads: what the balancer is told, and what becomes of what it wants (L4-L8, M5)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from replicas.placement.deciders.balance import Balance
from replicas.placement.deciders.move import Move, MovePhase
from replicas.placement.view import ClusterView
from replicas.planning.balancing.actions import DrainNode, JoinSpare, MovePartition
from replicas.planning.load import SAMPLE_US, LoadSample
from replicas.planning.prediction import PredictedMove, RefusedMove, StateSource
from spe.config.load import load_data
from spe.plan.directory import Role
from spe.stream.ids import PartitionId
from spe.stream.names import NodeId, NodeState, UnitId
from spe.wire.messages.feeds import OutputStatus
from tests.support.placement_world import answer

N1, N2, N3 = (NodeId(f"n{n}") for n in (1, 2, 3))
PERIOD = 3  # samples
SAMPLE = LoadSample(0.1, memory=1e6, network=0.0, rows=100.0, state=1e6)


def p(number: int) -> PartitionId:
    return PartitionId(UnitId("totals"), number)


def output(id: PartitionId) -> OutputStatus:
    return OutputStatus("totals", id.partition, NodeState.STABLE, False, 0, 0, 0, 1, 0.0)


def config(replicas: list[list[str]], standby: list[list[str]] | None = None, **more: Any) -> dict[str, Any]:
    totals: dict[str, Any] = {
        "operators": ["totals"],
        "key": "key",
        "partitions": len(replicas),
        "replicas": replicas,
    }
    return {
        "cluster": "c",
        "sources": {
            "orders": {"from": {"generator": {"name": "orders", "rate": 10, "keys": 9, "seed": 1, "duration": "9s"}}}
        },
        "query": {
            "totals": {
                "aggregate": {
                    "from": "orders",
                    "window": {"tumbling": "1s"},
                    "group_by": "key",
                    "compute": {"n": "count(*)"},
                }
            }
        },
        "outputs": ["totals"],
        "fragments": {"totals": totals | ({} if standby is None else {"standby": standby})},
        "nodes": {"n1": {}, "n2": {}, "n3": {"spare": True}},
        "coordinator": {"balance": "30s", "cap": 0.8, "idle": 0.3},
    } | more


class World:
    """Nodes with loads, and moves that are done at the next sample, or fail."""

    def __init__(self, loads: Mapping[int, float], settings: Mapping[str, Any]) -> None:
        self.plan, self.directory = load_data(settings)
        self.loads = dict(loads)
        self.now = SAMPLE_US
        self.view = ClusterView(self.plan, self.directory, self.now, recovery_us=1)
        self.balance = Balance(self.view, self.now)
        self.alive = {str(n) for n in self.directory.nodes}
        self.moves: list[Move] = []
        self.said: list[object] = []
        self.fails = False
        self.held: list[tuple[PartitionId, NodeId]] = []
        self.running: dict[PartitionId, tuple[NodeId, ...]] | None = None

    def change(self, partition: PartitionId, node: NodeId, role: Role | None) -> None:
        self.directory = self.directory.with_role(partition, node, role)

    def learn(self) -> None:
        running = self.directory.placement if self.running is None else self.running
        self.view.redirect(self.directory, self.now)
        for node in self.directory.nodes:
            if node in self.alive:
                outputs = [output(id) for id, nodes in running.items() if node in nodes]
                held = {id: 2 for id, where in self.held if where == node}
                self.view.heard(node, answer(outputs, held), self.now)
            else:
                self.view.lost(node, self.now)
        self.balance.learn(self.now, self.moves, self.now)

    def step(self) -> None:
        """One sample's time."""
        self.now += SAMPLE_US
        for number, cpu in self.loads.items():
            self.balance.sampled(p(number), SAMPLE._replace(cpu=cpu), self.now)
        for move in [m for m in self.moves if not m.over]:
            self.end(move)
        self.learn()
        if any(not self.balance.has_ordered(m) for m in self.moves if not m.over):
            return
        for action in self.balance.tick(self.now):
            self.said.append(action)
            if isinstance(action, MovePartition):
                self.balance.ordered(action, self.ask(action.partition, action.source, action.target))

    def ask(self, partition: PartitionId, source: NodeId, target: NodeId) -> Move:
        move = Move(len(self.moves) + 1, partition, source, target, Role.ACTIVE, "asked", state_us=1)
        move.began_us = {MovePhase.JOIN: self.now}
        self.moves.append(move)
        return move

    def end(self, move: Move) -> None:
        move.phase = MovePhase.DROPPED if self.fails else MovePhase.DONE
        move.began_us[move.phase] = self.now
        if not self.fails:
            self.change(move.partition, move.target, Role.ACTIVE)
            self.change(move.partition, move.source, None)

    def periods(self, many: int) -> list[object]:
        before = len(self.said)
        for _ in range(PERIOD * many):
            self.step()
        return self.said[before:]


def moved(said: list[object]) -> list[tuple[int, NodeId, NodeId]]:
    return [(a.partition.partition, a.source, a.target) for a in said if isinstance(a, MovePartition)]


def test_full_node_is_relieved_by_a_move_in_the_directory() -> None:
    world = World({0: 0.5, 1: 0.4, 2: 0.1}, config([["n1"], ["n1"], ["n2"]]))
    assert moved(world.periods(2)) == [(1, N1, N2)]
    assert moved(world.periods(8)) == []
    assert world.directory.placement == {p(0): (N1,), p(1): (N2,), p(2): (N2,)}


def test_a_spare_joins_and_is_one_again_when_it_hosts_nothing() -> None:
    world = World({0: 0.6, 1: 0.6, 2: 0.6}, config([["n1"], ["n1"], ["n2"]]))
    said = world.periods(2)
    assert [type(one) for one in said] == [JoinSpare, MovePartition]
    assert moved(said) == [(1, N1, N3)] or moved(said) == [(0, N1, N3)]
    world.periods(4)
    world.loads = dict.fromkeys(world.loads, 0.05)
    said = world.periods(30)
    assert DrainNode in [type(one) for one in said]
    assert len({n for nodes in world.directory.placement.values() for n in nodes}) == 1


def test_a_drained_node_gets_no_partition_by_balancing() -> None:
    world = World({0: 0.5, 1: 0.4}, config([["n1"], ["n2"]]))
    world.periods(1)
    world.end(world.ask(p(1), N2, N1))
    assert [type(one) for one in world.periods(2)][:1] == [JoinSpare], (
        "it is a spare, and joins where nothing else helps"
    )
    rested = World({0: 0.3, 1: 0.3}, config([["n1"], ["n2"]], coordinator={"balance": "30s", "idle": 0}))
    rested.periods(1)
    rested.end(rested.ask(p(1), N2, N1))
    assert rested.periods(9) == []


def test_ordered_moves_come_first_and_their_partitions_rest() -> None:
    world = World({0: 0.5, 1: 0.4, 2: 0.1}, config([["n1"], ["n2"], ["n2"]]))
    world.periods(1)
    world.end(world.ask(p(1), N2, N1))
    world.periods(1)
    assert moved(world.periods(1)) == [(0, N1, N2)], "partition 1 was moved a moment ago"
    busy = World({0: 0.5, 1: 0.4, 2: 0.1}, config([["n1"], ["n1"], ["n2"]]))
    busy.ask(p(2), N2, N3)
    busy.end = lambda move: None  # type: ignore[method-assign]  # it never ends
    assert busy.periods(4) == []


def test_a_move_that_is_dropped_is_not_asked_for_again_at_once() -> None:
    world = World({0: 0.5, 1: 0.4, 2: 0.1}, config([["n1"], ["n1"], ["n2"]]))
    world.fails = True
    said = moved(world.periods(4))
    assert said[0] == (1, N1, N2)
    assert said.count((1, N1, N2)) == 1


def test_partition_running_on_its_standby_counts_there() -> None:
    nodes = {"n1": {}, "n2": {"capacity": 2}, "n3": {}}
    world = World({0: 0.1, 1: 0.85, 2: 0.1}, config([["n1"], ["n1"], ["n2"]], [["n3"]] * 3, nodes=nodes))
    world.running = {p(0): (N1,), p(1): (N3,), p(2): (N2,)}
    assert moved(world.periods(3)) == []
    assert "n3 needs 0.85 of 1 cores and 1 MB" in world.balance.remarks(world.now)
    orders, full = world.balance.proposed(world.now)
    assert orders == []
    assert [one.node for one in full] == [N3]
    assert "totals/1 runs on n3, not as the directory says" in full[0].reason


def test_a_dry_run_shows_moves_without_waiting() -> None:
    world = World({0: 0.5, 1: 0.4, 2: 0.1}, config([["n1"], ["n1"], ["n2"]]))
    world.step()
    world.step()
    orders, full = world.balance.proposed(world.now)
    assert moved(list(orders)) == [(1, N1, N2)]
    assert orders[0].reason == "n1 needs 0.90 of 0.80 cores"
    assert full == []
    assert world.balance.remarks(world.now)[0] == "n1 needs 0.90 of 1 cores and 2 MB"


def test_a_node_without_room_is_no_target_and_says_so() -> None:
    world = World({0: 0.5, 1: 0.4, 2: 0.1}, config([["n1"], ["n2"], ["n2"]]))
    world.step()
    world.learn()
    full = world.balance.full(world.directory, p(0), N2, world.now)
    assert full == "n2 needs 1.00 of 0.80 cores"
    assert world.balance.full(world.directory, p(0), N3, world.now) is None
    assert isinstance(world.balance.predicted(p(0), N3, world.now), PredictedMove)
    refused = world.balance.predicted(p(0), N2, world.now)
    assert isinstance(refused, RefusedMove)
    assert "would never catch up" in refused.reason
    assert World({}, config([["n1"], ["n2"]])).balance.predicted(p(0), N3, 0) is None, "nobody knows"


def test_a_checkpoint_that_is_gone_gives_no_state() -> None:
    """L4: a move that counted on it would take as long as from a partner, or longer."""
    world = World({}, config([["n1"], ["n2"]]))
    for held, source in (
        ([], StateSource.PARTNER),
        ([(p(0), N3)], StateSource.CHECKPOINT),
        ([], StateSource.PARTNER),
    ):
        world.held = held
        world.now += SAMPLE_US
        world.balance.sampled(p(0), SAMPLE._replace(state=1e12), world.now)
        world.learn()
        predicted = world.balance.predicted(p(0), N3, world.now)
        assert isinstance(predicted, PredictedMove)
        assert predicted.source is source


@pytest.mark.parametrize(
    ("section", "why"),
    [
        ({"idle": 0.9}, "idle must be below cap"),
        ({"balance": "soon"}, "balance"),
        ({"cap": 1.5}, "cap"),
        ({"placement": "correlated"}, "follows loads; expected balance: 30s"),
        ({"placement": "even", "balance": "30s"}, "placement"),
        ({"spread": 0.5}, "expected placement: correlated"),
        ({"spread": 0, "placement": "correlated", "balance": "30s"}, "spread"),
    ],
)
def test_settings_that_make_no_sense_are_refused(section: dict[str, Any], why: str) -> None:
    with pytest.raises(Exception, match=why):
        load_data(config([["n1"], ["n2"]], coordinator=section))


def follows(loads: list[float], settings: dict[str, Any], standbys: list[list[str]] | None = None) -> World:
    """Partitions 0 and 1 need more and more, 2 less and less; there is one node for each."""
    more = {"nodes": ["n1", "n2", "n3"], "coordinator": {"balance": "30s", "idle": 0, **settings}}
    world = World({}, config([["n1"], ["n2"], ["n3"]], standbys or [["n2"], [], []], **more))
    for load in loads:
        world.loads = {0: load, 1: load, 2: 0.6 - load}
        world.step()
    return world


RISING = [0.1 + n / 100 for n in range(33)]


def test_standby_moves_to_node_with_opposite_load() -> None:
    world = follows(RISING, {"placement": "correlated"})
    assert world.balance.relocation(world.now) == (p(0), N2, N3)
    world.change(p(0), N2, None)
    world.change(p(0), N3, Role.STANDBY)
    world.learn()
    assert world.balance.relocation(world.now) is None


@pytest.mark.parametrize(("spread", "moves"), [(None, 2), (0.6, 1)])
def test_standbys_share_a_node_within_the_spread(spread: float | None, moves: int) -> None:
    """Both belong on n3, which then has 3 times the mean load of the three nodes; with one of them it has 1.5 times."""
    settings = {"placement": "correlated"} | ({} if spread is None else {"spread": spread})
    world = follows(RISING, settings, [["n2"], ["n1"], []])
    made = 0
    while (move := world.balance.relocation(world.now)) is not None:
        partition, source, target = move
        assert target == N3
        world.change(partition, source, None)
        world.change(partition, target, Role.STANDBY)
        world.learn()
        made += 1
    assert made == moves


def test_standbys_stay_unless_configured_to_follow_loads() -> None:
    assert follows(RISING, {}).balance.relocation(10**12) is None
    early = follows(RISING[:20], {"placement": "correlated"})
    assert early.balance.relocation(early.now) is None, "ten periods must have passed"
    away = follows(RISING, {"placement": "correlated"})
    away.running = {p(0): (N2,), p(1): (N2,), p(2): (N3,)}
    away.learn()
    assert away.balance.relocation(away.now) is None, "a standby stands in for somebody"


def test_joining_node_counts_by_its_room_before_it_answers() -> None:
    world = World({0: 0.9, 1: 0.9}, config([["n1"], ["n1"]]))
    joined = replace(world.directory.nodes[N3], id=NodeId("n9"), address="n9:1", capacity=4.0)
    world.directory = world.directory.with_node(joined)
    world.step()
    assert world.balance.full(world.directory, p(0), joined.id, world.now) is None
    world.alive = {"n1", "n9"}
    world.step()
    assert {a.target for a in world.balance.proposed(world.now)[0]} == {joined.id}
    assert (
        world.balance.full(world.directory.with_role(p(1), joined.id, Role.ACTIVE), p(0), joined.id, world.now) is None
    )


def test_a_node_that_joins_again_has_the_room_that_it_says_then() -> None:
    world = World({0: 0.9, 1: 0.9}, config([["n1"], ["n1"]]))
    joined = replace(world.directory.nodes[N3], id=NodeId("n9"), address="n9:1", capacity=0.1)
    for capacity, full in ((0.1, True), (4.0, False)):
        world.directory = world.directory.with_node(replace(joined, capacity=capacity))
        world.alive = {"n1", "n9"}
        world.step()
        assert bool(world.balance.full(world.directory, p(0), joined.id, world.now)) is full
