"""Who runs what, and where: a value beside the plan (rule D1)."""

from __future__ import annotations

import pickle
from dataclasses import replace

from spe.plan.deploy import Deployed
from spe.plan.directory import COORDINATOR, ClientSettings, Standbys
from spe.stream.ids import Channel, PartitionId
from spe.stream.names import NodeId, StreamId, UnitId
from tests.support.plans import SEQUENCE, chain, pass_on, source

FIRST, SECOND = PartitionId(UnitId("u1"), 0), PartitionId(UnitId("u2"), 0)
A, S1, S2 = (Channel(StreamId(name), 0) for name in ("a", "s1", "s2"))


def two_units() -> Deployed:
    """u1 on n1a and n1b makes s1; u2 on n2a and n2b makes s2 of it, which client c reads."""
    return chain([source("a", reader={})], [("s1", pass_on("a"), SEQUENCE), ("s2", pass_on("s1"), SEQUENCE)])


def test_another_directory_is_of_the_same_plan() -> None:
    plan, directory = two_units()
    other = replace(directory, version=1, placement={**directory.placement, FIRST: (NodeId("n2a"),)})

    assert (directory.epoch, directory.version) == (0, 0)
    assert plan.fingerprint == two_units().plan.fingerprint
    assert list(directory.producer_addresses(plan, S1)) == ["n1a", "n1b"]
    assert list(other.producer_addresses(plan, S1)) == ["n2a"]


def test_readers_and_makers_of_a_channel_follow_the_directory() -> None:
    plan, directory = two_units()
    directory = replace(
        directory,
        placement={FIRST: (NodeId("n1a"),), SECOND: (NodeId("n2a"),)},
        standbys={SECOND: Standbys((NodeId("n2b"),), 1_000_000)},
        clients={"c": ClientSettings("c", (S2.stream,)), "d": ClientSettings("d", (S1.stream, S2.stream))},
    )

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
    backed = replace(directory, standbys={SECOND: Standbys((NodeId("n1a"),), 1_000_000)})

    assert set(directory.addresses()) == {"n1a", "n1b", "n2a", "n2b", "source:a"}
    assert set(backed.addresses()) - set(directory.addresses()) == {COORDINATOR}


def test_a_share_of_x_follows_the_directory_it_is_asked_of() -> None:
    """Both units on one node halve its X; what was found of one plan is not said of another."""
    plan, directory = two_units()
    node = NodeId("n1a")
    together = replace(directory, placement={FIRST: (node,), SECOND: (node,)})
    alone = replace(plan, units=plan.units[:1])

    assert directory.share(plan, FIRST.unit, node).x_us == directory.nodes[node].x_us
    assert together.share(plan, FIRST.unit, node).x_us == directory.nodes[node].x_us // 2
    assert together.share(alone, FIRST.unit, node).x_us == directory.nodes[node].x_us
    again = pickle.loads(pickle.dumps(together))
    assert again.share(alone, FIRST.unit, node).x_us == directory.nodes[node].x_us
