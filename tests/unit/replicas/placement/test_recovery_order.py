"""Order of recovery where there is too little room (O1 to O6), from heartbeats of a constructed cluster."""

from __future__ import annotations

import pytest

from replicas.placement.deciders.install import LostPartition
from replicas.placement.deciders.move import IN_VAIN_US
from spe.plan.deploy import Deployed
from spe.plan.directory import Role, Version
from spe.plan.revision import Revision, revised
from spe.stream.ids import PartitionId
from spe.stream.names import NodeId, UnitId
from tests.support.recovery_order import BEAT, RestoringCluster, three_queries

LOADS = {"fa": 0.5, "fb": 0.4, "fc": 0.3}
FA, FB, FC = (PartitionId(UnitId(name), 0) for name in ("fa", "fb", "fc"))
ALL = "fa/0 fb/0 fc/0"


def cluster(backs: list[str] | None = None, **sections: object) -> RestoringCluster:
    found = RestoringCluster(three_queries(LOADS, backs=backs, **sections))
    assert found.serving() == ALL
    return found


def test_with_enough_room_each_recovers_on_first_standby() -> None:
    found = cluster(nodes={f"n{at}": {"capacity": 2} for at in range(1, 6)})
    found.kill("n1", "n2", "n3")
    assert found.beat(2) == "install fa/0@n4, install fb/0@n4, install fc/0@n4"
    assert found.order.status() is None


def test_without_loads_each_comes_back_at_once() -> None:
    found = RestoringCluster(three_queries({}))
    found.kill("n1", "n2", "n3")
    assert found.beat(2) == "install fa/0@n4, install fb/0@n4, install fc/0@n4"


def test_no_node_exceeds_cap_and_waiting_partitions_are_named() -> None:
    """Each of n4 and n5 has room for 0.8: all but 0.4."""
    found = cluster(backs=["n4"])
    found.kill("n1", "n2", "n3")
    assert found.beat(10) == "install fb/0@n4, install fc/0@n4"
    assert found.serving() == "fb/0 fc/0"
    status = found.order.status()
    assert status is not None
    assert status.waits == {"fa/0": "needs 0.50 of a core; the most room is 0.10, on n4"}
    assert status.value == pytest.approx(2 / 3)
    assert found.beat(50) == ""


def test_each_node_restores_in_sequence_and_both_are_filled() -> None:
    found = cluster()
    found.kill("n1", "n2", "n3")
    orders = found.beat(3).split(", ")
    assert {order[-2:] for order in orders} == {"n4", "n5"}
    assert len(orders) == 2
    status = found.order.status()
    assert status is not None
    assert len(status.under_way) == 2
    assert [(one.partition in ALL, one.node) for one in status.planned] == [(True, status.planned[0].node)]
    assert [point.after_s for point in status.values] == [0.0, 1.0, 2.0]
    found.beat(10)
    assert found.serving() == ALL
    assert found.order.status() is None


def test_arrival_makes_a_new_plan_and_running_replicas_stay() -> None:
    """n5 comes when n4 is full: what waited runs there."""
    found = cluster()
    found.kill("n1", "n2", "n3", "n5")
    found.beat(10)
    (waits,) = set(ALL.split()) - set(found.serving().split())
    found.start("n5")
    assert found.beat(3) == f"install {waits}@n5"
    found.beat(5)
    assert found.serving() == ALL


def test_a_node_that_comes_back_makes_room_where_others_helped() -> None:
    found = cluster(backs=["n4"])
    found.kill("n1", "n2", "n3")
    found.beat(10)
    assert found.serving() == "fb/0 fc/0"
    found.start("n2")
    assert found.beat(15) == "retire fb/0@n4, install fa/0@n4"
    assert found.serving() == ALL


def test_a_node_that_restores_its_own_partition_needs_no_order() -> None:
    """fa waits for room; its node is back and restores it: nobody else is told to when there is room."""
    found = cluster(backs=["n4"])
    found.kill("n1", "n2", "n3")
    found.beat(10)
    found.restores = 50
    found.start("n1")
    found.beat(3)
    found.restores = 3
    found.start("n2")
    assert found.beat(25) == "retire fb/0@n4"


def test_an_install_is_not_ordered_again_however_long_it_takes() -> None:
    found = cluster()
    found.restores = 300
    found.kill("n1", "n2", "n3")
    found.beat(3)
    assert found.beat(100) == ""
    found.begin()
    assert found.beat(100) == "", "nor by the next coordinator"


STUCK = 10**9
#: Heartbeats after which a node has restored in vain.
IN_VAIN = IN_VAIN_US // BEAT


@pytest.mark.parametrize("others", [False, True], ids=["a standby", "a node without a role"])
def test_vain_restore_is_given_to_another_node(others: bool) -> None:
    """n4 never comes to an end with what it restores."""
    nodes = {**{f"n{at}": {} for at in range(1, 5)}, "n5": {"capacity": 2, "spare": others}}
    found = cluster(backs=["n4"] if others else ["n4", "n5"], nodes=nodes)
    found.kill("n1", "n2", "n3")
    while not (runs := found.runs[NodeId("n4")]):
        found.beat()
    (stuck,) = runs
    runs[stuck] = STUCK
    found.beat(IN_VAIN - 10)
    assert str(stuck) not in found.serving()
    orders = found.beat(30)
    assert f"install {stuck}@n5" in orders
    assert (f"{stuck}: n5 standby" in orders) == others
    assert found.serving() == ALL
    assert found.runs[NodeId("n4")][stuck] > 0, "it may come to an end later"


def test_stuck_restore_is_tried_on_two_nodes_at_most() -> None:
    """Each copy takes the room of all else that is lost."""
    found = cluster(backs=["n4", "n5", "n6", "n7"])
    found.restores = STUCK
    found.kill("n1", "n2", "n3")
    for _ in range(5):
        found.beat(IN_VAIN)
        for id in (FA, FB, FC):
            assert sum(id in runs for runs in found.runs.values()) <= 2


def test_restore_possible_on_one_node_only_stays_there() -> None:
    found = cluster(backs=["n4"])
    found.kill("n1", "n2", "n3")
    while not (runs := found.runs[NodeId("n4")]):
        found.beat()
    (stuck,) = runs
    runs[stuck] = STUCK
    found.beat(IN_VAIN + 10)
    status = found.order.status()
    assert status is not None
    assert status.under_way == {str(stuck): "n4"}


def test_restore_waiting_for_lost_input_is_not_vain() -> None:
    """fc reads fa, which has room nowhere."""
    found = RestoringCluster(three_queries({"fa": 0.9, "fb": 0.1, "fc": 0.1}, reads="a"))
    found.kill("n1", "n3")
    found.restores = STUCK
    assert "install fc/0" in found.beat(IN_VAIN - 10)
    assert found.beat(30) == ""


def test_restore_waiting_for_a_source_is_not_vain() -> None:
    """Nobody would be faster: the source is away."""
    found = cluster()
    found.restores = STUCK
    found.kill("n1", "n2", "n3")
    found.beat(IN_VAIN - 10)
    found.silent_sources.add("s")
    assert found.beat(30) == ""
    found.silent_sources.clear()
    assert found.beat(IN_VAIN - 10) == ""
    assert "install" in found.beat(30), "then it counts anew"


def test_advancing_restore_is_not_vain() -> None:
    """A replica is slow; when it is no further than it once was, that is no progress."""
    found = cluster()
    found.restores = STUCK
    found.kill("n1", "n2", "n3")
    found.beat(10)
    slow = [f"{id}@{node}" for node, runs in found.runs.items() for id in runs]
    for frontier in (5, 6, 7):
        found.frontiers = dict.fromkeys(slow, frontier)
        assert found.beat(IN_VAIN - 20) == ""
    for frontier in (4, 7):
        found.frontiers = dict.fromkeys(slow, frontier)
        orders = found.beat(20)
    assert "install" in orders


def test_installs_of_a_node_that_dies_are_planned_again() -> None:
    found = cluster()
    found.restores = 300
    found.kill("n1", "n2", "n3")
    first = dict(order.split()[1].split("@")[::-1] for order in found.beat(3).split(", "))
    found.restores = 3
    found.kill("n5")
    assert found.beat(10) == "", "n4 is not through with what it restores"
    status = found.order.status()
    assert status is not None
    assert first["n4"] in status.under_way
    found.start("n5")
    assert f"install {first['n5']}@n5" in found.beat(10)


def test_priorities_decide() -> None:
    """n4 has room for one partition."""
    for favourite in "abc":
        recovery = {"priorities": {favourite: 5}}
        found = cluster(backs=["n4"], recovery=recovery, coordinator={"cap": 0.5})
        found.kill("n1", "n2", "n3")
        assert found.beat(10) == f"install f{favourite}/0@n4"


def test_greater_measured_load_counts_while_nodes_are_silent() -> None:
    found = cluster(backs=["n4"])
    found.order.measured({FA: 0.2, FB: 0.6})
    found.kill("n1", "n2", "n3")
    found.beat(20)
    assert found.serving() == "fa/0 fc/0", "less than expected is no reason to give the room away"


def test_room_for_expected_loads_is_kept_if_less_is_measured() -> None:
    """O1: n4 has room for 0.8; what was measured is 0.8 together, what is expected 1.2."""
    found = cluster(backs=["n4"])
    found.order.measured({FA: 0.1, FB: 0.4, FC: 0.3})
    found.kill("n1", "n2", "n3")
    found.beat(20)
    assert len(found.serving().split()) == 2


def test_a_node_that_has_left_is_not_in_the_plan() -> None:
    """D4: it may leave while it still answers, and no order can reach it."""
    found = cluster(backs=["n4"], others=["n6"])
    assert NodeId("n6") in found.coordination.view.runs
    del found.runs[NodeId("n6")]
    found.coordination.redirect(found.directory.without_node(NodeId("n6")), found.now)
    found.order.redirect()
    found.kill("n1", "n2", "n3")
    found.beat(20)
    status = found.order.status()
    assert status is not None
    assert dict(status.room).keys() == {"n4"}


def test_a_load_that_moves_by_a_fifth_makes_a_new_plan() -> None:
    found = cluster(backs=["n4"])
    found.order.measured({FC: 0.5})
    found.kill("n1", "n2", "n3")
    found.beat(10)
    assert len(found.serving().split()) == 1
    found.order.measured({FC: 0.45})
    assert found.beat(5) == ""
    found.order.measured({FC: 0.3})
    found.beat(10)
    assert len(found.serving().split()) == 2


def test_partition_with_newly_known_load_joins_the_plan() -> None:
    found = RestoringCluster(three_queries({"fa": 0.5, "fb": 0.4}, backs=["n4"]))
    found.kill("n1", "n2", "n3")
    assert "install fc/0@n4" in found.beat(3), "nobody knows what it needs"
    found.beat(5)
    found.order.measured({FC: 0.2})
    assert found.beat(10) == ""
    assert len(found.serving().split()) == 2


def test_a_node_that_refuses_is_passed_over() -> None:
    found = cluster(coordinator={"cap": 0.5})
    found.refusing = {"fa/0@n4", "fb/0@n4", "fc/0@n4"}
    found.kill("n1", "n2", "n3")
    found.beat(5)
    status = found.order.status()
    assert status is not None
    assert "n4" not in status.under_way.values()
    found.beat(5)
    assert len(found.serving().split()) == 1
    assert {len(runs) for runs in found.runs.values()} == {0, 1}
    assert found.runs[NodeId("n4")] == {}


def test_a_plan_that_takes_long_holds_back_nothing_but_orders() -> None:
    found = cluster(backs=["n4"])
    found.kill("n1", "n2", "n3")
    assert found.beat(20, plans=False) == ""
    assert found.beat(3) != ""


def test_a_plan_for_a_shortage_that_is_over_is_not_followed() -> None:
    found = cluster(backs=["n4"])
    found.kill("n1", "n2", "n3")
    found.beat(2, plans=False)
    task = found.order.task()
    assert task is not None
    found.start("n1", "n2", "n3")
    found.beat(5, plans=False)
    found.order.adopt(task.run())
    assert found.beat(20) == ""


def test_a_second_replica_does_not_start_while_something_waits() -> None:
    """H7 wants fa on n4, though n1 serves it: that would take the room of a lost partition."""
    found = cluster(backs=["n4"], coordinator={"cap": 0.5})
    found.kill("n2", "n3")
    found.beat(10)
    found.coordination.want(FA, [NodeId("n4")], found.now)
    assert found.beat(10) == ""
    found.start("n2", "n3")
    assert "install fa/0@n4" in found.beat(20)


def test_a_partition_that_no_node_may_run_waits_with_a_reason() -> None:
    found = cluster(backs=["n4"], coordinator={"cap": 0.3, "idle": 0.2})
    found.kill("n1", "n2")
    found.beat(5)
    status = found.order.status()
    assert status is not None
    assert status.waits["fa/0"] == "needs 0.50 of a core; the most room is 0.30, on n4"


def test_the_next_coordinator_knows_the_loads_of_lost_partitions() -> None:
    found = RestoringCluster(three_queries({}, backs=["n4"]))
    assert found.order.to_keep() is None
    found.order.measured({FA: 0.5, FB: 0.5, FC: 0.4})
    kept = found.order.to_keep()
    assert kept == ({FA: 0.5, FB: 0.5, FC: 0.4}, {})
    found.order.measured({FA: 0.55})
    assert found.order.to_keep() is None, "nearly the same"
    found.kill("n1", "n2")
    found.begin(*kept)
    found.beat(30)
    assert len(found.serving().split()) == 2


def test_next_coordinator_knows_memory_of_lost_partitions() -> None:
    found = cluster(backs=["n4"], nodes={f"n{at}": {"memory": "1GB", "capacity": 2} for at in range(1, 5)})
    found.order.measured_memory({FA: 2e9})
    kept = found.order.to_keep()
    assert kept == ({}, {FA: 2e9})
    found.order.measured_memory({FA: 2.1e9})
    assert found.order.to_keep() is None, "nearly the same"
    found.kill("n1")
    found.begin(*kept)
    found.beat(30)
    assert found.serving() == "fb/0 fc/0"


def test_a_replica_back_without_a_state_is_helped_without_room() -> None:
    """The standby has the state: else everything upstream would begin anew (H8)."""
    found = cluster(backs=["n4"])
    found.kill("n1", "n2", "n3")
    found.beat(10)
    assert found.serving() == "fb/0 fc/0"
    found.lacking = {"fa/0@n1"}
    found.restores = 50
    found.start("n1")
    found.restores = 3
    assert found.beat(9) == ""
    assert found.beat(5) == "install fa/0@n4"


def test_a_silent_partition_keeps_its_last_load() -> None:
    found = RestoringCluster(three_queries({}, backs=["n4"]))
    found.order.measured({FA: 0.5, FB: 0.5})
    found.order.measured({FC: 0.1})
    found.kill("n1", "n2", "n3")
    found.beat(30)
    assert len(found.serving().split()) == 2


def test_node_without_role_takes_what_standbys_cannot() -> None:
    """n4 has room for fa and fc; fb begins on n6 once that is its standby."""
    found = cluster(backs=["n4"], others=["n6"])
    found.kill("n1", "n2", "n3")
    orders = found.beat(15)
    assert "fb/0: n6 standby" in orders
    assert orders.index("fb/0: n6 standby") < orders.index("install fb/0@n6")
    assert "install fb/0@n4" not in orders
    assert found.serving() == ALL
    found.start("n2")
    assert found.beat(10) == "retire fb/0@n6, fb/0: n6 gone"
    found.start("n1", "n3")
    assert found.beat(10) == "retire fa/0@n4, retire fc/0@n4"
    assert found.order.lending.lent == set()


def test_a_lent_role_is_not_used_before_all_know_of_it() -> None:
    found = cluster(backs=["n4"], others=["n6"])
    found.knowing = False
    found.kill("n1", "n2", "n3")
    assert found.beat(20) == "fb/0: n6 standby, install fa/0@n4, install fc/0@n4", "n4 had its role before"
    found.knowing = True
    assert "install fb/0@n6" in found.beat(10)


def test_silent_node_keeps_lent_role_until_another_is_healthy() -> None:
    """n6 restores fb, and is cut off from the coordinator only; n2 is back, and lacks an input."""
    found = cluster(backs=["n4"], others=["n6"])
    found.kill("n1", "n2", "n3")
    assert "install fb/0@n6" in found.beat(15)
    found.failing, found.silent = {"fb/0@n2"}, {"n6"}
    found.start("n2")
    assert "fb/0: n6 gone" not in found.beat(30)
    found.failing = set()
    assert "fb/0: n6 gone" in found.beat(5)


def test_new_coordinator_waits_for_node_with_a_lent_role() -> None:
    """All it knows is that n2 serves fb; n6 answers a moment later."""
    found = cluster(backs=["n4"], others=["n6"])
    found.kill("n1", "n2", "n3")
    assert "install fb/0@n6" in found.beat(15)
    found.silent, node = {"n6"}, NodeId("n6")
    found.begin()
    found.start("n2")
    assert "n6 gone" not in found.beat(8)
    found.silent = set()
    orders = found.beat(20)
    assert orders.index("retire fb/0@n6") < orders.index("fb/0: n6 gone")
    assert node not in found.directory.roles[FB]


def test_next_coordinator_takes_back_lent_roles() -> None:
    """Also one that has nothing but the directory, which others told it."""
    found = cluster(backs=["n4"], others=["n6"])
    found.kill("n1", "n2", "n3")
    found.beat(15)
    kept = Revision.decode(revised(found.configured, Version(1, 1), found.directory).encode())
    found.directory = kept.over(found.configured)
    found.begin()
    found.start("n1", "n2", "n3")
    assert "fb/0: n6 gone" in found.beat(20)


def test_other_nodes_are_used_when_standbys_stay_silent() -> None:
    """Nobody has a checkpoint, so those that may come back with one are waited for."""
    found = cluster(backs=["n4"], others=["n6"])
    found.kill("n1", "n4")
    assert found.beat(35) == ""
    assert found.beat(15) == "fa/0: n6 standby, install fa/0@n6"
    assert found.serving() == ALL


def test_a_node_without_room_in_memory_is_passed_over() -> None:
    nodes = {"n1": {}, "n2": {}, "n3": {}, "n4": {"memory": "1GB"}, "n5": {"memory": "4GB"}, "n6": {"spare": True}}
    for backs, dead, expected in (
        (["n4", "n5"], ["n1"], "install fa/0@n5"),
        (["n4"], ["n1", "n5"], "fa/0: n6 standby, install fa/0@n6"),
    ):
        found = RestoringCluster(three_queries({"fa": 0.1, "fb": 0.7, "fc": 0.7}, nodes=nodes, backs=backs))
        found.order.measured_memory({FA: 2e9})
        found.kill(*dead)
        assert found.beat(15) == expected


def test_partition_too_large_for_any_memory_waits_with_reason() -> None:
    """Its first standby, n4, would be filled beyond its cap; n5 is by the other one."""
    nodes = {**{n: {"memory": "1GB"} for n in ("n1", "n3", "n4")}, "n2": {}, "n5": {"memory": "4GB"}}
    found = RestoringCluster(three_queries({"fa": 0.1, "fb": 0.1, "fc": 0.1}, nodes=nodes, backs=["n4", "n5"]))
    found.order.measured_memory({FA: 2e9, FB: 3e9})
    found.kill("n1", "n2")
    assert found.beat(30) == "install fa/0@n5"
    assert found.serving() == "fa/0 fc/0"
    status = found.order.status()
    assert status is not None
    assert status.waits == {"fb/0": "needs 3000 MB; of its standbys n5 has most memory left, 1200 MB"}
    found.start("n1")
    assert found.beat(20) == "retire fa/0@n5, install fb/0@n5"
    assert found.serving() == ALL
    assert found.order.status() is None


@pytest.mark.parametrize(("x", "orders"), [("250ms", ""), ("1s", "fc/0: n6 standby, install fc/0@n6")])
def test_node_with_x_too_short_for_another_unit_is_skipped(x: str, orders: str) -> None:
    """fc reads fa: on one node they divide X."""
    nodes = {"n1": {}, "n2": {}, "n3": {}, "n4": {}, "n6": {"x": x}}
    plan, directory = three_queries({"fa": 0.7, "fb": 0.7, "fc": 0.7}, nodes=nodes, backs=["n4"], reads="a")
    found = RestoringCluster(Deployed(plan, directory.with_role(FA, NodeId("n6"), Role.STANDBY)))
    found.kill("n3", "n4")
    assert found.beat(60) == orders


def test_a_node_with_unknown_loads_gets_nothing_more() -> None:
    found = RestoringCluster(three_queries({"fa": 0.5, "fb": 0.1}, backs=["n4"]))
    found.kill("n1", "n2", "n4")
    assert found.beat(60) == "", "n3 runs fc"
    found.order.measured({FC: 0.1})
    assert "fb/0: n3 standby" in found.beat(60)


def test_load_of_lost_partition_follows_its_source_rate() -> None:
    """With a source twice as fast only one of the three fits on n4."""
    loads = {FA: 0.35, FB: 0.35, FC: 0.35}
    for rate, back in ((100.0, 2), (110.0, 2), (200.0, 1)):
        found = RestoringCluster(three_queries({}, backs=["n4"]))
        found.order.fed({"s": 100.0})
        found.order.measured(loads)
        found.kill("n1", "n2", "n3")
        found.order.fed({"s": rate})
        found.beat(20)
        assert len(found.serving().split()) == back, rate


def test_order_of_remaining_installs_follows_source_rates() -> None:
    """n4 has room for the union and one of its inputs: the one with more rows, as measured last."""
    source = {"from": {"generator": {"name": "sequence", "rate": 100}}}
    for first, second in ((1000.0, 10.0), (10.0, 1000.0)):
        found = RestoringCluster(
            three_queries(
                {"fa": 0.3, "fb": 0.3, "fc": 0.2},
                backs=["n4"],
                sources={"s": source, "t": source},
                query={
                    "a": {"filter": {"from": "s", "where": "n >= 0"}},
                    "b": {"filter": {"from": "t", "where": "n >= 0"}},
                    "c": {"union": ["a", "b"]},
                },
                outputs=["c"],
                coordinator={"cap": 0.5},
            )
        )
        found.kill("n1", "n2", "n3")
        found.beat(2, plans=False)
        found.order.fed({"s": first, "t": second})
        found.beat(20)
        assert found.serving() == ("fa/0 fc/0" if first > second else "fb/0 fc/0")


def test_another_rate_while_something_waits_makes_a_new_plan() -> None:
    found = cluster(backs=["n4"])
    found.kill("n1", "n2", "n3")
    found.beat(10)
    assert found.order.task() is None
    found.order.fed({"s": 100.0})
    assert found.order.task() is not None
    found.beat(2)
    found.order.fed({"s": 105.0})
    assert found.order.task() is None
    found.order.fed({"s": 130.0})
    assert found.order.task() is not None


def test_a_partition_that_was_ordered_takes_room() -> None:
    """O1: n4 has room for 0.8, and is to install 0.5 of it."""
    room, n4 = cluster().order._room, NodeId("n4")
    lost = {FB: LostPartition(0, able=(n4,), recovering=(), lacking=False)}
    assert room.fits(lost)
    room.pending = {FA: n4}
    assert not room.fits(lost)


def test_lower_source_rate_leaves_the_expected_need() -> None:
    """O1: the larger of the measured and the expected load counts."""
    needs = cluster().order._needs
    sources = needs.sources[FA]
    needs.fed(dict.fromkeys(sources, 100.0))
    needs.measured({FA: 0.6})
    assert needs.fed(dict.fromkeys(sources, 200.0))[FA] == pytest.approx(1.2)
    assert needs.fed(dict.fromkeys(sources, 10.0))[FA] == LOADS["fa"]
