"""When the checkpoint log of a unit replica gets a slice (G6): buckets of 10, X = 40, αX = 30."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from consistency.dpc.manager import SliceToLog
from operators.footprints import LiveFootprints
from spe.plan.nodes import Reconcile
from spe.stream.times import BEFORE_TIME
from tests.unit.consistency.dpc.test_manager import World, healed, tentative


class UndoWorld(World):
    reconcile = Reconcile.UNDO


worlds = pytest.mark.parametrize("one", [World, UndoWorld])


class Log:
    """Wants the next slice that ends behind the last one, while ``wants``.

    Attributes:
      ends: of the slices that it got.
    """

    def __init__(self) -> None:
        self.wants = False
        self.ends: list[int] = []

    def turn(self, end: int) -> tuple[int, int] | None:
        return (BEFORE_TIME, 0) if self.wants and end > max(self.ends, default=BEFORE_TIME) else None

    def took(self, one: SliceToLog) -> None:
        self.ends.append(one.end)

    def replayed(self, live: Sequence[LiveFootprints]) -> None: ...


@worlds
def test_a_slice_that_is_wanted_is_taken_before_a_redo_ends(one: type[World]) -> None:
    """Who is tainted again in the same step would never get one, and an upstream that is full would wait for ever."""
    log = Log()
    world = tentative(one(partners=(), logging=log))
    log.wants = True
    world.upstream_is_full = True
    world.B(1, 165, 20)  # behind in0, so that the failure goes on
    world.run(165)
    assert world.states[-3:] == ["UP_FAILURE", "STABILIZATION+fresh", "UP_FAILURE"]
    assert log.ends[-1] == 20
    assert world.sunion.tainted


@worlds
def test_empty_redo_advances_log_when_upstream_is_full(one: type[World]) -> None:
    """The log lacks what was stable as the failure began; until it has that, what follows has no room."""
    log = Log()
    world = tentative(one(partners=(), logging=log))
    log.wants = True
    world.upstream_is_full = True
    world.run(170)
    assert log.ends == [10]
    assert world.sunion.tainted


@worlds
def test_while_tainted_nothing_is_taken(one: type[World]) -> None:
    log = Log()
    world = tentative(one(partners=(), logging=log))
    log.wants = True
    world.run(135)
    assert world.sunion.tainted
    assert log.ends == []


@worlds
def test_redo_after_healed_failure_logs_its_last_slice(one: type[World]) -> None:
    log = Log()
    world = healed(one(partners=(), logging=log))
    log.wants = True
    world.run(150)
    assert world.states[-1] == "STABLE"
    assert log.ends[-1] == 50
