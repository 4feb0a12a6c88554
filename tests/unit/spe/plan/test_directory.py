"""The directory says who runs what, and where; the plan does not (U11)."""

from __future__ import annotations

import pickle
from dataclasses import replace

import pytest

from spe.plan.deploy import Deployed
from spe.plan.directory import CONFIGURED, COORDINATOR, ClientSettings, Role, Standbys, Version
from spe.stream.ids import Channel, PartitionId
from spe.stream.names import NodeId, StreamId, UnitId
from tests.support.plans import SEQUENCE, chain, pass_on, placed, source

FIRST, SECOND = PartitionId(UnitId("u1"), 0), PartitionId(UnitId("u2"), 0)
A, S1, S2 = (Channel(StreamId(name), 0) for name in ("a", "s1", "s2"))


def two_units() -> Deployed:
    """u1 on n1a and n1b makes s1; u2 on n2a and n2b makes s2 of it, which client c reads."""
    return chain([source("a", reader={})], [("s1", pass_on("a"), SEQUENCE), ("s2", pass_on("s1"), SEQUENCE)])


def test_a_plan_may_have_another_directory() -> None:
    plan, directory = two_units()
    other = placed(directory, {**directory.placement, FIRST: (NodeId("n2a"),)})

    assert directory.version == CONFIGURED
    assert plan.fingerprint == two_units().plan.fingerprint
    assert list(directory.producer_addresses(plan, S1)) == ["n1a", "n1b"]
    assert list(other.producer_addresses(plan, S1)) == ["n2a"]


def test_readers_and_makers_of_a_channel_follow_the_directory() -> None:
    plan, directory = two_units()
    placement, standbys = (
        {FIRST: (NodeId("n1a"),), SECOND: (NodeId("n2a"),)},
        {SECOND: Standbys((NodeId("n2b"),), 1_000_000)},
    )
    clients = {"c": ClientSettings("c", (S2.stream,)), "d": ClientSettings("d", (S1.stream, S2.stream))}
    directory = replace(placed(directory, placement, standbys), clients=clients)

    assert directory.producer_addresses(plan, A) == {"source:a": "source-a:1"}
    assert directory.producer_addresses(plan, S2) == {"n2a": "n2a:1", "n2b": "n2b:1"}
    assert directory.consumers_of(plan, A) == ("u1/0@n1a",)
    assert directory.consumers_of(plan, S1) == ("u2/0@n2a", "u2/0@n2b", "client:d")
    assert directory.standbys_of(plan, S1) == ("u2/0@n2b",)
    assert directory.read_by(plan, {"n2b", "client:c"}) == {S1, S2}
    assert [str(id) for id in directory.replicas_on(NodeId("n2b"))] == []
    assert [str(id) for id in directory.standbys_on(NodeId("n2b"))] == ["u2/0@n2b"]


def test_the_coordinator_has_an_address_where_there_are_standbys() -> None:
    _, directory = two_units()
    backed = placed(directory, standbys={SECOND: Standbys((NodeId("n1a"),), 1_000_000)})

    assert set(directory.addresses()) == {"n1a", "n1b", "n2a", "n2b", "source:a"}
    assert set(backed.addresses()) - set(directory.addresses()) == {COORDINATOR}


def test_the_share_of_x_follows_the_directory() -> None:
    """Two units on one node halve its X; a cached result of one directory is not used for another."""
    plan, directory = two_units()
    node = NodeId("n1a")
    together = placed(directory, {FIRST: (node,), SECOND: (node,)})
    alone = replace(plan, units=plan.units[:1])

    assert directory.share(plan, FIRST.unit, node).x_us == directory.nodes[node].x_us
    assert together.share(plan, FIRST.unit, node).x_us == directory.nodes[node].x_us // 2
    assert together.share(alone, FIRST.unit, node).x_us == directory.nodes[node].x_us
    again = pickle.loads(pickle.dumps(together))
    assert again.share(alone, FIRST.unit, node).x_us == directory.nodes[node].x_us


@pytest.mark.parametrize("long", [0, 1])
def test_the_longest_way_through_a_node_divides_its_x(long: int) -> None:
    """T7: of a unit's partitions on a node only one reads what that node makes."""
    plan, directory = two_units()
    first, second = (replace(unit, partitions=2) for unit in plan.units)
    aligned = tuple(replace(i, producers=2, key=("n",), aligned=True) for i in second.inputs)
    plan = replace(plan, units=(first, replace(second, inputs=aligned)))
    node, away = NodeId("n1a"), NodeId("n1b")
    made = {PartitionId(FIRST.unit, p): (node if p == long else away,) for p in range(2)}
    directory = placed(directory, made | {PartitionId(SECOND.unit, p): (node,) for p in range(2)})

    assert directory.in_sequence(plan, SECOND.unit, node) == 2
    assert directory.in_sequence(plan, FIRST.unit, node) == 2
    assert directory.in_sequence(plan, FIRST.unit, away) == 1


def test_hosts_are_replicas_first_and_then_standbys() -> None:
    plan, directory = two_units()
    changed = directory.with_role(FIRST, NodeId("n2b"), Role.STANDBY).with_role(FIRST, NodeId("n2a"), Role.ACTIVE)
    changed = changed.with_role(FIRST, NodeId("n1a"), Role.STANDBY)

    assert changed.placement[FIRST] == ("n1b", "n2a")
    assert changed.standbys[FIRST].nodes == ("n2b", "n1a")
    assert changed.hosts(FIRST) == ("n1b", "n2a", "n2b", "n1a")
    assert list(changed.producer_addresses(plan, S1)) == ["n1b", "n2a", "n2b", "n1a"]
    assert changed.with_role(FIRST, NodeId("n1a"), None).hosts(FIRST) == ("n1b", "n2a", "n2b")
    assert directory.hosts(FIRST) == ("n1a", "n1b"), "the one before is as it was"
    assert changed.placement[SECOND] == directory.placement[SECOND]


def test_versions_are_ordered_by_epoch_and_then_by_number() -> None:
    assert CONFIGURED < Version(1, 1) < Version(1, 2) < Version(2, 1)
    assert str(Version(3, 14)) == "3/14"
