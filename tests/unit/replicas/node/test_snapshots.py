"""Snapshots of replicas, and what is asked of partners (A3)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from replicas.node.snapshots import Snapshots
from spe.stream.ids import PartitionId, ReplicaId
from spe.stream.names import NodeId, UnitId
from tests.support.source_env import ListTrace

PARTITION = PartitionId(UnitId("u"), 0)
ME: Any = None


async def test_of_a_partner_that_has_left_nothing_comes() -> None:
    trace = ListTrace()
    hosting: Any = SimpleNamespace(
        env=SimpleNamespace(trace=trace), plan=None, directory=SimpleNamespace(nodes={NodeId("n"): None})
    )
    found = await Snapshots(hosting, ME).fetch(ReplicaId(*PARTITION, NodeId("n")), "gone")
    assert found == "gone has left"
    assert trace.named("no_snapshot") == [{"replica": "u/0@n", "partner": "gone", "why": "gone has left"}]
