"""A replica that must begin again (A3)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from replicas.node.recovery_task import RecoveryTask
from spe.errors import OperatorFailed
from spe.stream.ids import PartitionId, ReplicaId
from spe.stream.names import NodeId, UnitId

PARTITION = PartitionId(UnitId("u"), 0)


async def test_failed_operator_stops_only_its_replica() -> None:
    """The node goes on: nobody else would catch it."""
    raised = OperatorFailed("s", "", ValueError("its factory raised"))
    host: Any = SimpleNamespace(replica=SimpleNamespace(id=ReplicaId(*PARTITION, NodeId("n"))))
    failed: list[tuple[Any, OperatorFailed]] = []
    refused: list[str] = []

    class Log:
        async def refuse(self, why: str) -> None:
            refused.append(why)

    def make(id: ReplicaId) -> Any:
        raise raised

    hosting: Any = SimpleNamespace(
        running={PARTITION: host},
        log=lambda id: Log(),
        host=make,
        fail=lambda host, error: failed.append((host, error)),
        upstream=SimpleNamespace(choose=lambda: None),
    )
    snapshots: Any = None
    await RecoveryTask(hosting, snapshots).refuse_log(host, "other rows")
    assert refused == ["other rows"]
    assert failed == [(host, raised)]
