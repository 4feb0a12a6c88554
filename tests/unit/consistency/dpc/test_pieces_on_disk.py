"""Pieces of the inputs that are on disk, in the middle of a redo (B6)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from spe.plan.nodes import Reconcile
from spe.runtime.spill import SpillNotLoaded
from spe.stream.names import NodeState
from tests.unit.consistency.dpc.test_manager import COUNTING, World, healed
from tests.unit.spe.runtime.test_spill import World as Disk
from tests.unit.spe.runtime.test_spill import batch


def test_live_pauses_while_divided_piece_is_on_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else corrections would be held back for ever, behind tentative tuples of a live that has paused (V4)."""
    disk = Disk()
    piece, on_disk = disk.write(batch(0)), [True]
    world = healed(World(partners=()))
    world.blocked = True

    def pause(original: Callable[[], None] = world.sunion.pause_live) -> None:
        if on_disk.pop() if on_disk else False:
            raise SpillNotLoaded(disk.shelf, piece)
        original()

    monkeypatch.setattr(world.sunion, "pause_live", pause)
    with pytest.raises(SpillNotLoaded):
        world.run(150)
    world.run(151)
    assert world.states[-2:] == ["STABILIZATION+fresh", "STABILIZATION"]


def test_snapshot_ends_without_any_advance(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who finds a damaged piece waits for a snapshot, and is who advances."""
    monkeypatch.setattr(World, "reconcile", Reconcile.UNDO)
    monkeypatch.setattr(World, "slice_rows", 1)
    world = World(unit=COUNTING, partners=())
    for at in (0, 1):
        world.B(at, 100, 10)
    world.run(100)
    world.live[1] = False
    world.S(0, 105, (15, "x"), (16, "y"))
    world.B(0, 110, 30)
    world.run(129)
    world.run(160)
    assert world.states[-1] == "UP_FAILURE"
    world.live[1] = True
    world.S(1, 170, (12, "u"))
    for at in (0, 1):
        world.B(at, 170, 50)
    replica = world.replica
    for now in range(170, 10_000, 100):
        world.advance(now)
        if replica.state is NodeState.STABILIZATION:
            break
    assert world.redo.rebuilding
    assert any(not replica.prepare_snapshot() for _ in range(100))
    assert replica.snapshot() is not None
