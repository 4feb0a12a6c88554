"""Decisions of the coordinator (H5 to H8) on constructed heartbeats."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from replicas.placement.deciders.install import REPEAT_US
from replicas.placement.deciders.replay import REPLAYS_IN_VAIN_US
from spe.log.origin import combined
from spe.plan.deploy import Deployed
from spe.plan.directory import Role, Standbys
from spe.plan.plan import Retain, Timing
from spe.stream.ids import PartitionId, ReplicaId
from spe.stream.names import NodeId, NodeState, StreamId, UnitId
from spe.wire.messages.feeds import OutputStatus
from tests.simulation.test_cluster import make_plan
from tests.support.placement_world import Installing
from tests.support.plans import placed

A, B, C = (NodeId(n) for n in ("n1a", "n1b", "n1c"))
PARTITION = PartitionId(UnitId("u1"), 0)
#: The standby that comes first.
FIRST = ReplicaId(*PARTITION, B)
PATIENCE, RECOVERY = 100, 2_000
#: Identity of the log of each source.
LOG = "0123456789abcdef"
STABLE, UP_FAILURE, RECOVERING = NodeState.STABLE, NodeState.UP_FAILURE, NodeState.RECOVERING


def plan() -> Deployed:
    found, directory = make_plan(1, replicas=3)
    standbys = {PARTITION: Standbys((B, C), 1)}
    return Deployed(found, placed(directory, {PARTITION: (A,)}, standbys))


def output(state: NodeState, frontier: int) -> OutputStatus:
    return OutputStatus("s1", 0, state, False, 0, frontier, 0, 1, 0.0)


class World:
    """A coordinator, and the answer of each node; None: the node is dead."""

    def __init__(self, heartbeat_us: int = 100_000) -> None:
        found, directory = plan()
        timed = replace(found, timing=Timing(heartbeat_us=heartbeat_us))
        self.coordination = Installing(timed, directory, 0, patience_us=PATIENCE, recovery_us=RECOVERY)
        self.nodes: dict[NodeId, NodeState | str | None] = {A: STABLE, B: "stands by", C: "stands by"}
        self.frontier = {A: 0, B: 0, C: 0}

    def at(self, now: int) -> str:
        for node, state in self.nodes.items():
            if state is None:
                self.coordination.lost(node, now)
            elif isinstance(state, NodeState):
                self.coordination.heard(node, [output(state, self.frontier[node])], now)
            else:
                self.coordination.heard(node, [], now)
        return " ".join(f"{d.verb}@{d.replica.node}" for d in self.coordination.decide(now))


def test_a_served_partition_needs_no_orders() -> None:
    world = World()
    for state in (STABLE, UP_FAILURE, NodeState.STABILIZATION):
        world.nodes[A] = state
        assert world.at(10) == ""
        assert world.at(10 * RECOVERY) == ""


def test_the_first_live_standby_takes_over_after_the_timeout() -> None:
    world = World()
    world.at(10)
    world.nodes |= {A: None, B: None}
    assert world.at(20) == ""
    assert world.at(20 + PATIENCE) == "install@n1c"


def test_a_recovering_replica_gets_more_time() -> None:
    world = World()
    world.nodes[A] = RECOVERING
    assert world.at(10) == ""
    assert world.at(RECOVERY - 1) == ""
    assert world.at(RECOVERY) == "install@n1b", "counted from the start, when nobody served it either"


def test_an_unheard_node_gets_more_time() -> None:
    world = World()
    world.nodes[A] = None
    assert world.at(PATIENCE) == ""
    assert world.at(RECOVERY) == "install@n1b"


def test_single_helper_is_enough_and_its_order_is_repeated() -> None:
    world = World()
    world.at(10)
    world.nodes[A] = None
    world.at(20)
    assert world.at(200) == "install@n1b"
    assert world.at(300) == ""
    assert world.at(200 + REPEAT_US) == "install@n1b"
    world.nodes[B] = RECOVERING
    assert world.at(200 + REPEAT_US + RECOVERY - 1) == "", "it is on its way"
    assert world.at(200 + REPEAT_US + RECOVERY) == "install@n1c", "it cannot, it seems; the next one may"


def test_an_order_is_not_repeated_before_its_effect_can_show() -> None:
    world = World(heartbeat_us=5_000_000)
    world.at(10)
    world.nodes[A] = None
    world.at(20)
    assert world.at(200) == "install@n1b"
    assert world.at(200 + 10_000_000 - 1) == ""
    assert world.at(200 + 10_000_000) == "install@n1b"


def test_a_helper_retires_when_all_placed_replicas_are_stable() -> None:
    world = World()
    world.nodes |= {A: RECOVERING, B: STABLE}
    assert world.at(10) == ""
    world.nodes[A] = UP_FAILURE
    assert world.at(20) == ""
    world.nodes |= {A: STABLE, B: UP_FAILURE}
    assert world.at(30) == "", "while something is broken two are better than one"
    world.nodes[B] = STABLE
    assert world.at(40) == "retire@n1b"


def test_thawed_replica_catches_up_before_helper_retires() -> None:
    """A replica that was frozen still says that it is STABLE, but is behind."""
    world = World()
    world.nodes |= {A: STABLE, B: STABLE}
    world.frontier = {A: 100, B: 900, C: 0}
    assert world.at(10) == ""
    world.frontier = {A: 890, B: 950, C: 0}
    assert world.at(20) == ""
    world.frontier = {A: 940, B: 1_000, C: 0}
    assert world.at(30) == "retire@n1b"


def test_replicas_catch_up_with_the_furthest_helper() -> None:
    """H5: consumers may have read from any helper."""
    world = World()
    world.nodes |= {B: STABLE, C: STABLE}
    world.frontier = {A: 600, B: 900, C: 500}
    assert world.at(10) == ""
    world.frontier[A] = 899
    assert world.at(20) == ""
    world.frontier[A] = 900
    assert world.at(30) == "retire@n1c"


def test_the_mark_of_an_earlier_calm_does_not_count() -> None:
    """H5: in the failure since then the helper went on, and a replica was frozen."""
    world = World()
    world.nodes[B] = STABLE
    world.frontier |= {A: 100, B: 900}
    assert world.at(10) == ""
    world.nodes[A] = None
    world.frontier[B] = 2_000
    assert world.at(20) == ""
    world.nodes[A] = STABLE
    world.frontier[A] = 950
    assert world.at(30) == "", "it is behind the helper"
    world.frontier[A] = 2_000
    assert world.at(40) == "retire@n1b"


def test_helpers_retire_one_by_one_the_last_first() -> None:
    world = World()
    world.nodes |= {B: STABLE, C: STABLE}
    assert world.at(10) == "retire@n1c"
    world.nodes[C] = "stands by"
    assert world.at(20) == "retire@n1b"


def test_a_helper_that_recovers_for_ever_keeps_no_other() -> None:
    world = World()
    world.nodes |= {B: RECOVERING, C: STABLE}
    assert world.at(10) == "retire@n1b"
    world.nodes[B] = "stands by"
    assert world.at(20) == "retire@n1c"


@pytest.mark.parametrize("active", [RECOVERING, UP_FAILURE, None])
def test_recovering_helper_stays_while_placed_replica_fails(active: NodeState | None) -> None:
    world = World()
    world.nodes |= {A: active, B: RECOVERING, C: STABLE}
    assert world.at(10) == ""
    world.nodes[C] = UP_FAILURE
    assert world.at(20) == ""


def test_placed_replica_catches_up_before_recovering_helper_ends() -> None:
    world = World()
    world.nodes[B] = RECOVERING
    world.frontier |= {A: 100, B: 900}
    assert world.at(10) == ""
    world.frontier[A] = 900
    assert world.at(20) == "retire@n1b"


def test_recovering_helper_for_dead_node_stays_when_other_leaves() -> None:
    """It retires before the source of the move where nobody is dead."""
    plan, directory = make_plan(1, replicas=3)
    d = NodeId("n1d")
    directory = directory.with_node(replace(directory.nodes[A], id=d, address="n1d:1"))
    directory = placed(directory, {PARTITION: (A, d)}, {PARTITION: Standbys((B, C), 1)})
    coordination = Installing(plan, directory, 0, patience_us=PATIENCE, recovery_us=RECOVERY)
    coordination.bring({}, (), {PARTITION: (B, A)})
    for node, state in ((A, STABLE), (B, STABLE), (C, RECOVERING)):
        coordination.heard(node, [output(state, 5)], 10)
    assert coordination.decide(10) == []
    coordination.heard(d, [output(STABLE, 5)], 20)
    assert [(o.verb, o.replica.node) for o in coordination.decide(20)] == [("retire", C)]
    coordination.heard(C, [], 30)
    assert [(o.verb, o.replica.node) for o in coordination.decide(30)] == [("retire", B)]


class Replaying:
    """u1, which n1a runs STABLE and n1b beside it as a helper, and u2, which reads it and n2a runs, both RECOVERING."""

    def __init__(self) -> None:
        plan, directory = make_plan(2)
        after = PartitionId(UnitId("u2"), 0)
        placement = {PARTITION: (A,), after: (NodeId("n2a"),)}
        standbys = {PARTITION: Standbys((B,), 1), after: Standbys((NodeId("n2b"),), 1)}
        self.after = RECOVERING
        self.coordination = Installing(
            plan, placed(directory, placement, standbys), 0, patience_us=PATIENCE, recovery_us=RECOVERY
        )

    def at(self, now: int) -> list[str]:
        self.coordination.heard(A, [output(STABLE, 5)], now)
        self.coordination.heard(B, [output(RECOVERING, 5)], now)
        after = OutputStatus("s2", 0, self.after, False, 0, 5, 0, 1, 0.0)
        self.coordination.heard(NodeId("n2a"), [after], now)
        return [f"{d.verb} {d.replica}" for d in self.coordination.decide(now)]


def test_helper_that_replays_an_unserved_partition_stays() -> None:
    """H8: others have forgotten what is to be made again."""
    world = Replaying()
    assert world.at(10) == []
    world.after = STABLE
    assert world.at(20) == ["retire u1/0@n1b"]


def test_source_that_replays_an_unserved_partition_stays() -> None:
    world = Replaying()
    world.coordination.bring({}, (), {PARTITION: (B, A)})
    assert world.at(10) == []
    world.after = STABLE
    assert world.at(20) == ["retire u1/0@n1b"]


def test_a_source_in_failure_leaves_a_stable_target_only() -> None:
    world = World()
    world.coordination.bring({PARTITION: [C]}, (), {PARTITION: (B, C)})
    world.nodes |= {B: UP_FAILURE, C: STABLE}
    world.frontier |= {B: 900, C: 890}
    assert world.at(10) == "", "it is behind"
    world.frontier[C] = 900
    world.nodes[A] = UP_FAILURE
    assert world.at(20) == "", "another one is not STABLE"
    world.nodes |= {A: STABLE, C: RECOVERING}
    assert world.at(30) == "", "the target is not STABLE"
    world.nodes |= {A: None, C: STABLE}
    assert world.at(40) == "retire@n1b"
    world.nodes[C] = "stands by"
    world.coordination.bring({}, (), {PARTITION: (B, C)})
    assert world.at(40 + REPEAT_US) == "", "the target does not run"


def test_wanted_standby_begins_with_a_serving_replica() -> None:
    """Two that begin at once could give no state to each other."""
    world = World()
    world.coordination.want(PARTITION, [B], 0)
    world.nodes[A] = RECOVERING
    assert world.at(10) == ""
    world.nodes[A] = STABLE
    assert world.at(20) == "install@n1b"


def test_a_wanted_standby_keeps_running() -> None:
    world = World()
    world.coordination.want(PARTITION, [C], 0)
    assert world.at(10) == "install@n1c"
    world.nodes[C] = STABLE
    assert world.at(20) == ""
    world.coordination.want(PARTITION, [], 30)
    assert world.at(30 + REPEAT_US) == "retire@n1c"


class TwoDeep:
    """u2, which n2a runs and n2b backs, reads u1, which n1a and n1b run."""

    def __init__(self, retain: Retain | None = None) -> None:
        plan, directory = make_plan(2)
        plan = replace(plan, sources={n: replace(s, retain=retain) for n, s in plan.sources.items()})
        self.of = PartitionId(UnitId("u2"), 0)
        placement = {**directory.placement, self.of: (NodeId("n2a"),)}
        standbys = {self.of: Standbys((NodeId("n2b"),), 1)}
        directory = placed(directory, placement, standbys)
        self.coordination = Installing(plan, directory, 0, patience_us=PATIENCE, recovery_us=RECOVERY)
        self.first = {"n1a": 40, "n1b": 40}
        self.state = {"n1a": STABLE, "n1b": STABLE}
        self.frontier = 0
        self.lacking = {"n2b": True}
        #: By source: the identity of its log; and what n1a and n1b have read.
        self.logs = {"a": LOG, "b": LOG, "c": LOG}
        self.origin = combined([LOG] * 3)

    def at(self, now: int) -> list[str]:
        for source, log in self.logs.items():
            output = OutputStatus(source, 0, STABLE, False, 90, 0, 0, 1, 0.0, origin=log)
            self.coordination.heard_source(output)
        for node, first in self.first.items():
            state = self.state[node]
            output = OutputStatus("s1", 0, state, False, 90, self.frontier, 0, first, 0.0, origin=self.origin)
            self.coordination.heard(NodeId(node), [output], now)
        for node, lacking in self.lacking.items():
            output = OutputStatus("s2", 0, RECOVERING, False, 0, 0, 0, 1, 0.0, lacking=lacking)
            self.coordination.heard(NodeId(node), [output], now)
        return [f"{d.verb} {d.replica}" for d in self.coordination.decide(now)]


def test_without_any_state_one_upstream_replica_replays() -> None:
    world = TwoDeep()
    world.coordination.heard(NodeId("n2a"), [], 0)
    assert world.at(10) == []
    assert world.at(9 + RECOVERY) == [], "it may have been told of something only now"
    assert world.at(10 + RECOVERY) == ["replay u1/0@n1b"]
    assert world.at(11 + RECOVERY) == []
    world.first["n1b"] = 1
    assert world.at(20 + RECOVERY + REPEAT_US) == [], "it has begun"
    world.first["n1b"] = 7
    assert world.at(30 + RECOVERY + REPEAT_US) == ["replay u1/0@n1b"], "and truncated again: some other standby was"


def test_a_replica_has_its_beginning_if_all_its_outputs_have() -> None:
    """H8: what is missing from one output has to be made again as well."""
    plan, directory = make_plan(2)
    of, extra = PartitionId(UnitId("u2"), 0), StreamId("extra")
    units = tuple(replace(u, outputs=(*u.outputs, extra)) if u.id == "u1" else u for u in plan.units)
    placement = {**directory.placement, PARTITION: (A,), of: (NodeId("n2a"),)}
    directory = placed(directory, placement, {of: Standbys((NodeId("n2b"),), 1)})
    coordination = Installing(replace(plan, units=units), directory, 0, patience_us=PATIENCE, recovery_us=RECOVERY)
    for source in plan.sources:
        coordination.heard_source(OutputStatus(source, 0, STABLE, False, 90, 0, 0, 1, 0.0, origin=LOG))
    coordination.heard(NodeId("n2a"), [], 0)
    for now in (10, 10 + RECOVERY):
        outputs = [
            OutputStatus(name, 0, STABLE, False, 90, 0, 0, first, 0.0) for name, first in ((extra, 40), ("s1", 1))
        ]
        coordination.heard(A, outputs, now)
        lost = OutputStatus("s2", 0, RECOVERING, False, 0, 0, 0, 1, 0.0, lacking=True)
        coordination.heard(NodeId("n2b"), [lost], now)
        decided = [f"{d.verb} {d.replica}" for d in coordination.decide(now)]
    assert decided == ["replay u1/0@n1a"]


@pytest.mark.parametrize("state", [UP_FAILURE, RECOVERING])
def test_replica_with_its_input_replays(state: NodeState) -> None:
    """The other one may be cut off from a source, and would wait for it for ever."""
    world = TwoDeep()
    world.coordination.heard(NodeId("n2a"), [], 0)
    world.state["n1b"] = state
    world.at(10)
    assert world.at(10 + RECOVERY) == ["replay u1/0@n1a"]
    world.state |= {"n1a": UP_FAILURE, "n1b": STABLE}
    assert world.at(20 + RECOVERY + REPEAT_US) == ["replay u1/0@n1a"], "two would begin anew"


def test_another_one_replays_where_the_first_one_stands_still() -> None:
    world = TwoDeep()
    world.coordination.heard(NodeId("n2a"), [], 0)
    world.at(10)
    assert world.at(10 + RECOVERY) == ["replay u1/0@n1b"]
    world.first["n1b"], world.state["n1b"] = 1, RECOVERING
    now = 20 + RECOVERY
    for _ in range(3):
        world.frontier += 10
        assert world.at(now) == []
        assert world.at(now + REPLAYS_IN_VAIN_US - 1) == [], "it has come further since"
        now += REPLAYS_IN_VAIN_US
    assert world.at(now) == ["replay u1/0@n1a"]
    world.first["n1a"], world.state["n1a"] = 1, RECOVERING
    assert world.at(now + REPEAT_US) == []
    assert world.at(now + 2 * REPLAYS_IN_VAIN_US) == [], "both have begun: nobody is left"


def test_another_one_replays_where_the_first_one_does_not_begin() -> None:
    world = TwoDeep()
    world.coordination.heard(NodeId("n2a"), [], 0)
    world.at(10)
    assert world.at(10 + RECOVERY) == ["replay u1/0@n1b"]
    assert world.at(9 + RECOVERY + REPLAYS_IN_VAIN_US) == ["replay u1/0@n1b"]
    assert world.at(10 + RECOVERY + REPLAYS_IN_VAIN_US) == ["replay u1/0@n1a"]


def three_deep() -> Callable[[int, dict[str, tuple[NodeState, int]]], list[str]]:
    """u3, which lacks a state, reads u2, which reads u1: orders, by the time and what runs of u2 and u1."""
    plan, directory = make_plan(3)
    last = PartitionId(UnitId("u3"), 0)
    directory = placed(
        directory, {**directory.placement, last: (NodeId("n3a"),)}, {last: Standbys((NodeId("n3b"),), 1)}
    )
    coordination = Installing(plan, directory, 0, patience_us=PATIENCE, recovery_us=RECOVERY)
    for source in plan.sources:
        coordination.heard_source(OutputStatus(source, 0, STABLE, False, 90, 0, 0, 1, 0.0, origin=LOG))

    def at(now: int, first: dict[str, tuple[NodeState, int]]) -> list[str]:
        coordination.heard(NodeId("n3a"), [], now)
        lost = OutputStatus("s3", 0, RECOVERING, False, 0, 0, 0, 1, 0.0, lacking=True)
        coordination.heard(NodeId("n3b"), [lost], now)
        for node, (state, begins) in first.items():
            output = OutputStatus(f"s{node[1]}", 0, state, False, 90, 0, 0, begins, 0.0)
            coordination.heard(NodeId(node), [output], now)
        return [f"{d.verb} {d.replica}" for d in coordination.decide(now)]

    return at


def test_replica_without_order_does_not_replay_in_vain() -> None:
    """Nothing begins anew while nobody runs u1."""
    at, runs = three_deep(), dict.fromkeys(("n2a", "n2b"), (STABLE, 40))
    at(10, runs)
    assert at(10 + RECOVERY, runs) == []
    runs |= dict.fromkeys(("n1a", "n1b"), (STABLE, 40))
    assert at(10 + RECOVERY + REPLAYS_IN_VAIN_US, runs) == ["replay u2/0@n2b", "replay u1/0@n1b"]


def test_replica_waiting_for_earlier_replay_is_not_stuck() -> None:
    at, runs = three_deep(), dict.fromkeys(("n1a", "n1b", "n2a", "n2b"), (STABLE, 40))
    at(10, runs)
    assert at(10 + RECOVERY, runs) == ["replay u2/0@n2b", "replay u1/0@n1b"]
    runs |= {"n1b": (RECOVERING, 1), "n2b": (RECOVERING, 1)}
    now = 20 + RECOVERY
    assert at(now, runs) == []
    now += REPLAYS_IN_VAIN_US
    assert at(now, runs) == ["replay u1/0@n1a"]
    runs["n1a"] = STABLE, 1
    assert at(now + REPLAYS_IN_VAIN_US - 1, runs) == [], "counted from when u1 was ready"
    assert at(now + REPLAYS_IN_VAIN_US, runs) == ["replay u2/0@n2a"]


def test_nothing_replays_from_log_that_may_lack_its_beginning() -> None:
    """H8: who began anew would wait for rows that are gone."""
    world = TwoDeep(Retain(for_us=1))
    world.coordination.heard(NodeId("n2a"), [], 0)
    assert [world.at(10 * n) for n in range(1, RECOVERY)] == [[]] * (RECOVERY - 1)


def test_nothing_replays_while_one_replica_can_continue() -> None:
    world = TwoDeep()
    world.lacking = {"n2a": False, "n2b": True}
    world.at(10)
    assert world.at(10 + 3 * RECOVERY) == []
    world.lacking["n2a"] = True
    assert world.at(20 + 3 * RECOVERY) == []
    assert world.at(20 + 4 * RECOVERY) == ["replay u1/0@n1b"]


def test_nothing_replays_from_silent_source_or_other_log() -> None:
    """H8, S6: what is missing could not be made again, and who replays would lose its state as well."""
    world = TwoDeep()
    world.coordination.heard(NodeId("n2a"), [], 0)
    world.at(10)
    del world.logs["b"]
    world.coordination.lost_source(StreamId("b"))
    assert world.at(10 + RECOVERY) == [], "b does not answer"
    world.logs["b"] = "another"
    assert world.at(20 + RECOVERY) == [], "b has another log"
    beginning = OutputStatus("b", 0, STABLE, False, 90, 0, 0, 2, 0.0, origin=LOG)
    del world.logs["b"]
    world.coordination.heard_source(beginning)
    assert world.at(30 + RECOVERY) == [], "the first row is gone"
    world.logs["b"] = LOG
    assert world.at(40 + RECOVERY) == ["replay u1/0@n1b"], "it is back"


def test_replica_without_state_replays_from_any_log() -> None:
    world = TwoDeep()
    world.origin = ""
    world.coordination.heard(NodeId("n2a"), [], 0)
    world.at(10)
    assert world.at(10 + RECOVERY) == ["replay u1/0@n1b"]


def test_nothing_replays_before_the_standby_has_tried() -> None:
    world = TwoDeep()
    world.lacking = {"n2a": True}
    world.coordination.heard(NodeId("n2b"), [], 0)
    world.at(10)
    assert world.at(10 + RECOVERY) == ["install u2/0@n2b"]


def test_a_node_that_ignores_orders_is_skipped_for_a_while() -> None:
    world = World()
    world.at(10)
    world.nodes[A] = None
    world.at(20)
    assert world.at(200) == "install@n1b"
    world.coordination.refused(ReplicaId(*PARTITION, B), 210)
    assert world.at(220) == "install@n1c"
    assert world.at(200 + REPEAT_US) == "install@n1b"


def test_move_continues_without_second_replica_during_wait() -> None:
    """The move may be what makes room (O6)."""
    for begin, orders in (
        (lambda c: c.bring({PARTITION: [B]}), "install@n1b"),
        (lambda c: c.want(PARTITION, [B], 0), ""),
    ):
        world = World()
        begin(world.coordination)
        world.coordination.hold({PartitionId(UnitId("another"), 0): None})
        assert world.at(10) == orders


def test_a_helper_that_does_not_start_is_not_waited_for() -> None:
    world = World()
    coordination = world.coordination
    coordination.want(PARTITION, [B], 5)
    assert coordination.helper(FIRST, 6) is RECOVERING, "it was not heard yet"
    world.at(10)
    assert coordination.helper(FIRST, 5 + RECOVERY) is None
    world.nodes[B] = STABLE
    world.at(20)
    assert coordination.helper(FIRST, 5 + RECOVERY) is STABLE
    assert coordination.unable({PARTITION: FIRST.node}, 20) == frozenset()
    world.nodes[B] = None
    world.at(30)
    assert coordination.helper(FIRST, 31) is None
    assert coordination.unable({PARTITION: FIRST.node}, 31) == {PARTITION}


def test_unheard_node_is_awaited_for_recovery_time() -> None:
    """From the beginning, and again from when all were lost: the coordinator may have been cut off."""
    world = World()
    coordination, standby = world.coordination, {PARTITION: B}
    assert coordination.unable(standby, RECOVERY - 1) == frozenset()
    assert coordination.unable(standby, RECOVERY) == {PARTITION}
    coordination.heard(B, [], RECOVERY)
    assert coordination.unable(standby, RECOVERY) == frozenset()
    coordination.lost(B, 2 * RECOVERY)
    assert coordination.unable(standby, 3 * RECOVERY - 1) == frozenset()
    assert coordination.unable(standby, 3 * RECOVERY) == {PARTITION}


def test_a_standby_that_is_away_may_return_with_a_state() -> None:
    world = TwoDeep()
    world.lacking = {"n2a": True}
    world.coordination.heard(NodeId("n2b"), [], 0)
    world.at(10)
    world.coordination.lost(NodeId("n2b"), 20)
    assert world.at(10 + RECOVERY) == []
    assert world.at(9 + 4 * RECOVERY) == []
    assert world.at(10 + 4 * RECOVERY) == ["replay u1/0@n1b"], "it does not come"


def test_the_upstream_of_two_partitions_replays_once() -> None:
    plan, directory = make_plan(2)
    ids = [PartitionId(UnitId("u2"), p) for p in range(2)]
    units = tuple(replace(u, partitions=2) if u.id == "u2" else u for u in plan.units)
    placement = {**directory.placement, **{id: (NodeId("n2a"),) for id in ids}}
    standbys = {id: Standbys((NodeId("n2b"),), 1) for id in ids}
    directory = placed(directory, placement, standbys)
    coordination = Installing(replace(plan, units=units), directory, 0, patience_us=PATIENCE, recovery_us=RECOVERY)
    for source in plan.sources:
        coordination.heard_source(OutputStatus(source, 0, STABLE, False, 90, 0, 0, 1, 0.0, origin=LOG))
    for now in (10, 10 + RECOVERY):
        coordination.heard(NodeId("n1a"), [OutputStatus("s1", 0, STABLE, False, 90, 0, 0, 40, 0.0)], now)
        lost = [OutputStatus("s2", p, RECOVERING, False, 0, 0, 0, 1, 0.0, lacking=True) for p in range(2)]
        coordination.heard(NodeId("n2a"), [], now)
        coordination.heard(NodeId("n2b"), lost, now)
        decided = [f"{d.verb} {d.replica}" for d in coordination.decide(now)]
    assert decided == ["replay u1/0@n1a"]


def test_heartbeats_of_a_standby_before_its_retire_do_not_count() -> None:
    """H7: a standby that is wanted again at once would seem to run, and another one would retire."""
    world = World()
    world.nodes |= {B: STABLE}
    assert world.at(10) == "retire@n1b"
    world.coordination.want(PARTITION, [B], 20)
    assert world.coordination.helper(FIRST, 20) is RECOVERING
    world.nodes |= {B: "stands by"}
    assert world.at(30) == "install@n1b"
    world.nodes |= {B: STABLE}
    world.at(10 + REPEAT_US)
    assert world.coordination.helper(FIRST, 10 + REPEAT_US) is STABLE


def test_partition_on_its_first_standby_is_not_lost() -> None:
    """The next heartbeat tells who runs it; that of the standby may come before."""
    plan, directory = make_plan(1, replicas=3)
    alone = placed(directory, {PARTITION: (A,)})
    coordination = Installing(plan, alone, 0, patience_us=PATIENCE, recovery_us=RECOVERY)
    coordination.heard(A, [output(STABLE, 5)], 4_990)
    coordination.redirect(alone.with_role(PARTITION, B, Role.STANDBY), 5_000)
    coordination.heard(B, [], 5_010)
    assert coordination.decide(5_010 + PATIENCE) == []
    assert coordination.decide(4_999 + RECOVERY) == []
    coordination.heard(A, [output(STABLE, 5)], 7_000)
    coordination.lost(A, 9_000)
    (decision,) = coordination.decide(9_000 + PATIENCE)
    assert (decision.verb, decision.replica.node) == ("install", B)


def test_removed_standbys_get_no_orders() -> None:
    plan, directory = make_plan(1, replicas=3)
    backed = placed(directory, {PARTITION: (A,)}, {PARTITION: Standbys((B, C), 1)})
    coordination = Installing(plan, backed, 0, patience_us=PATIENCE, recovery_us=RECOVERY)
    for node in (A, B, C):
        coordination.heard(node, [output(STABLE, 5)] if node == A else [], 10)
    coordination.want(PARTITION, [B], 10)
    coordination.redirect(backed.with_role(PARTITION, B, None), 20)
    assert [one.wanted for one in coordination.status()] == [()]
    coordination.lost(A, 30)
    assert [d.replica.node for d in coordination.decide(30 + PATIENCE)] == [C]
    coordination.redirect(backed.with_role(PARTITION, B, None).with_role(PARTITION, C, None), 40)
    assert coordination.decide(50 + 9 * RECOVERY) == []
    assert coordination.status() == []


def test_a_node_that_runs_a_partition_is_not_spared() -> None:
    """O5: another node serves it, and this one may be about to."""
    world = World()
    lent = ReplicaId(*PARTITION, B)
    for state in (RECOVERING, STABLE):
        world.nodes[B] = state
        world.at(10)
        assert not world.coordination.spared(lent, 10)
    world.nodes[B] = "stands by"
    world.at(20)
    assert world.coordination.spared(lent, 20)


def test_node_without_role_waits_for_silent_standbys() -> None:
    """O5: a standby may return with a checkpoint, and the other node has none to start from."""
    found, directory = make_plan(1, replicas=3)
    directory = placed(directory, {PARTITION: (A,)}, {PARTITION: Standbys((B,), 1)})
    coordination = Installing(found, directory, 0, patience_us=PATIENCE, recovery_us=RECOVERY)
    for node in (A, B, C):
        coordination.heard(node, [output(STABLE, 0)] if node == A else [], 10)
    for node in (A, B):
        coordination.lost(node, 20)
    waits = (20 + RECOVERY, 19 + 4 * RECOVERY, 20 + 4 * RECOVERY)
    assert [coordination.unserved(now)[PARTITION].others for now in waits] == [(), (), (C,)]
    coordination.heard(B, [], 21)
    assert coordination.unserved(20 + PATIENCE)[PARTITION].others == (C,), "it has refused, or has no room"
