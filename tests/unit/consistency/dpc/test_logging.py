"""When the checkpoint log of a unit replica gets a slice (G6): buckets of 10, X = 40, αX = 30."""

from __future__ import annotations

import pytest

from consistency.dpc.events import Action, Advance, LogLost, LogRequest, PartnerGrants, SliceToLog
from spe.plan.nodes import Reconcile
from spe.stream.times import BEFORE_TIME, END_OF_TIME
from tests.unit.consistency.dpc.test_manager import World, healed, tentative


class UndoWorld(World):
    reconcile = Reconcile.UNDO


worlds = pytest.mark.parametrize("one", [World, UndoWorld])


@worlds
def test_a_slice_that_is_wanted_is_taken_before_a_redo_ends(one: type[World]) -> None:
    """Who is tainted again in the same step would never get one, and an upstream that is full would wait for ever."""
    world = tentative(one(partners=(), logs=True))
    world.ask_log()
    world.upstream_is_full = True
    world.B(1, 165, 20)  # behind in0, so that the failure goes on
    world.run(165)
    assert world.states[-3:] == ["UP_FAILURE", "STABILIZATION+fresh", "UP_FAILURE"]
    assert world.logged[-1] == 20
    assert world.sunion.tainted


@worlds
def test_empty_redo_advances_log_when_upstream_is_full(one: type[World]) -> None:
    """The log lacks what was stable as the failure began; until it has that, what follows has no room."""
    world = tentative(one(partners=(), logs=True))
    world.ask_log()
    world.upstream_is_full = True
    world.run(170)
    assert world.logged == [10]
    assert world.sunion.tainted


@worlds
def test_while_tainted_nothing_is_taken(one: type[World]) -> None:
    world = tentative(one(partners=(), logs=True))
    world.ask_log()
    world.run(135)
    assert world.sunion.tainted
    assert world.logged == []


@worlds
def test_redo_after_healed_failure_logs_its_last_slice(one: type[World]) -> None:
    world = healed(one(partners=(), logs=True))
    world.ask_log()
    world.run(150)
    assert world.states[-1] == "STABLE"
    assert world.logged[-1] == 50


def test_refused_last_slice_comes_again_when_asked_for() -> None:
    world = World(partners=(), logs=True)
    for at in (0, 1):
        world.B(at, 100, END_OF_TIME)
    for times in (1, 2):
        world.handle(LogRequest(BEFORE_TIME, 0, BEFORE_TIME), 100)
        world.run(100)
        assert world.logged == [END_OF_TIME] * times, "the disk had no room for the one before"
        world.run(101)
        assert world.logged == [END_OF_TIME] * times, "it was not asked for"


@worlds
def test_redos_that_only_make_room_are_x_apart(one: type[World]) -> None:
    """R2: the disk had no room for the state, which the log asks for again at once."""
    world = tentative(one(partners=(), logs=True))
    world.ask_log()
    world.upstream_is_full = True
    world.run(170)
    assert world.replica.counts.reconciliations == 1
    world.handle(LogRequest(BEFORE_TIME, 0, 10, again=True), 171)
    world.run(209)
    assert world.states.count("STABILIZATION+fresh") == 1
    world.run(210)
    assert world.replica.counts.reconciliations == 2
    assert world.logged == [10, 10]


@worlds
def test_a_redo_writes_all_after_a_slice_was_lost(one: type[World]) -> None:
    """G1: it began as the log had all, and the log lacks a slice since."""
    world = one(logs=True)
    world.ask_log()
    healed(world)
    world.run(150)
    world.handle(PartnerGrants(1), 151)
    world.replica.handle(LogLost(), 151)
    actions: list[Action] = []
    for _ in range(20):
        actions += world.replica.handle(Advance(), 151)
    (written,) = (action for action in actions if isinstance(action, SliceToLog))
    assert world.logged == [10]
    assert written.end == 50
    assert written.made.complete
