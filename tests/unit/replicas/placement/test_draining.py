"""Where partitions go when their node is drained (M5)."""

from __future__ import annotations

import pytest

from replicas.placement.deciders.draining import targets
from replicas.placement.deciders.move import MoveRefused
from spe.plan.directory import Directory, Role
from spe.stream.ids import PartitionId
from spe.stream.names import NodeId
from tests.support.moves import PARTITION, A, B, C, plan_of

ALL = {A, B, C}


def anything(directory: Directory, partition: PartitionId, node: NodeId, role: Role) -> None:
    """Every node can have every role."""


def test_a_partition_goes_where_least_is_hosted() -> None:
    _, directory = plan_of([A], [B])
    assert targets(directory, A, ALL, anything) == [(PARTITION, C)]
    assert targets(directory, B, ALL, anything) == [(PARTITION, C)], "a standby too"
    assert targets(directory, C, ALL, anything) == [], "it hosts nothing"


def test_each_target_counts_with_its_future_partitions() -> None:
    _, directory = plan_of([A])
    other = PartitionId(PARTITION.unit, 1)
    roles = {PARTITION: {A: Role.ACTIVE}, other: {A: Role.ACTIVE}}
    both = Directory(directory.nodes, roles, directory.sources, directory.clients)
    assert targets(both, A, ALL, anything) == [(PARTITION, B), (other, C)]


def test_a_drain_is_refused_whole_with_the_reason_for_each_node() -> None:
    _, directory = plan_of([A], [B])
    with pytest.raises(MoveRefused, match=r"nobody can take u1/0: n1c does not answer; n1b hosts it already$"):
        targets(directory, A, {A, B}, anything)
    with pytest.raises(MoveRefused, match=r"nobody can take u1/0: n1c is too slow; n1b hosts it already$"):
        targets(directory, A, ALL, lambda _, __, node, ___: f"{node} is too slow")
    with pytest.raises(MoveRefused, match="there is no node n9; there are n1a, n1b, n1c"):
        targets(directory, NodeId("n9"), ALL, anything)
