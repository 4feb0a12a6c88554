"""Snapshots of replicas, and what is asked of partners (A3)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import trio

from replicas.link.signal import Signal
from replicas.node.log_task import _Writer
from replicas.node.snapshots import Snapshots
from replicas.simulation.world.clock import JumpClock
from spe.runtime.spill import SpillNotLoaded
from spe.stream.ids import PartitionId, ReplicaId
from spe.stream.names import NodeId, UnitId
from tests.support.faulty_cluster import FaultyCluster
from tests.support.plans import SEQUENCE, chain, pass_on, source
from tests.support.source_env import ListTrace

PARTITION = PartitionId(UnitId("u"), 0)
ME: Any = None


async def test_partner_that_left_gives_no_snapshot() -> None:
    trace = ListTrace()
    hosting: Any = SimpleNamespace(
        env=SimpleNamespace(trace=trace), plan=None, directory=SimpleNamespace(nodes={NodeId("n"): None})
    )
    found = await Snapshots(hosting, ME).fetch(ReplicaId(*PARTITION, NodeId("n")), "gone")
    assert found == "gone has left"
    assert trace.named("no_snapshot") == [{"replica": "u/0@n", "partner": "gone", "why": "gone has left"}]


class _Piece(SpillNotLoaded):
    """While it is loaded, the replica is ended."""

    def __init__(self, running: dict[PartitionId, Any]) -> None:
        self._running = running
        self.told: list[str] = []

    async def load(self) -> None:
        self.told.append("loaded")
        self._running.clear()

    def release(self) -> None:
        self.told.append("released")


def _on_disk(running: dict[PartitionId, Any]) -> tuple[Any, _Piece]:
    """A replica whose output lies on disk."""
    piece = _Piece(running)

    def spilled_after(last_id: int) -> Any:
        raise piece

    replica = SimpleNamespace(
        id=ReplicaId(*PARTITION, NodeId("n")), logs=[SimpleNamespace(spilled_after=spilled_after)]
    )
    running[PARTITION] = host = SimpleNamespace(replica=replica, error=None)
    return host, piece


async def test_data_loaded_for_ended_replica_snapshot_is_released() -> None:
    hosting: Any = SimpleNamespace(running={})
    host, piece = _on_disk(hosting.running)
    assert await Snapshots(hosting, ME).of(host) is None
    assert piece.told == ["loaded", "released"]


async def test_pause_after_refused_slice_ends_with_replica(jump_clock: JumpClock) -> None:
    """It may be ten seconds; another replica's log cannot be written before."""
    current, log_work = True, Signal()
    clock = FaultyCluster(*chain([source("a", reader={})], [("s", pass_on("a"), SEQUENCE)])).env("n1a").clock
    writer: Any = SimpleNamespace(
        _host=SimpleNamespace(replica=SimpleNamespace(core=None), log_work=log_work),
        _hosting=SimpleNamespace(now=clock.monotonic_us),
        _clock=clock,
        _pauses=SimpleNamespace(least_us=10_000_000),
        _is_current=lambda: current,
    )
    async with trio.open_nursery() as nursery:
        nursery.start_soon(cast("Any", _Writer)._rest, writer, clock.monotonic_us())
        await trio.sleep(1)
        current = False
        log_work.wake()
        await trio.sleep(1)
        assert not nursery.child_tasks
        nursery.cancel_scope.cancel()


async def test_data_loaded_for_ended_replica_log_is_released() -> None:
    hosting: Any = SimpleNamespace(running={})
    host, piece = _on_disk(hosting.running)
    writer: Any = SimpleNamespace(_host=host, _is_current=lambda: bool(hosting.running))
    assert await cast("Any", _Writer)._entries(writer, [0]) is None
    assert piece.told == ["loaded", "released"]
