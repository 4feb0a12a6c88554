"""A unit replica that goes on from its checkpoint log, and whose input is missing before it has replayed all (G4, T3).

Its window of 100 counts x and u (in the footprint), y, v and z (to be replayed), and what comes later.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from consistency.dpc.events import InstallLog
from consistency.dpc.instance import Instance, LogReplay, Released
from operators.fragment_log import LoggedSlice
from operators.steps import finished
from spe.errors import LogCorrupt
from spe.plan.nodes import Policy, Reconcile
from tests.unit.consistency.dpc.test_manager import COUNTING, World

#: Where the log's last two slices end.
T, END = 20, 40


@pytest.fixture(autouse=True, params=Reconcile)
def reconcile(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(World, "reconcile", request.param)


def replaying(*, reaches: int = 50, **options: Any) -> World:
    """At 200: in0 has sent all that it had sent before, up to ``reaches``; in1 has not been heard."""
    before = World(unit=COUNTING)
    instance = before.replica.empty_instance()
    before.S(0, 0, (5, "x"), (25, "y"), (35, "z"))
    before.S(1, 0, (8, "u"), (28, "v"))
    slices, positions, commits = [], [], []
    for at in (0, 1):
        before.B(at, 0, END)
    for end in (T, END):
        piece = before.sunion.release_stable(100, end)
        assert piece is not None
        assert instance.log is not None
        list(instance.stable(piece))
        made = finished(instance.log.slice_log(end))
        slices.append(LoggedSlice(end, made.closings, made.all_footprints()))
        positions.append(before.sunion.needed_from(end))
        commits.append(made.commit)
    outputs = [o.snapshot() for o in instance.outputs]
    world = World(unit=COUNTING, **{"partners": (), **options})
    again = world.replica.empty_instance()
    assert again.log is not None
    finished(again.log.reconstruct(commits[1], commits[0], T, slices))
    replay = LogReplay(T, END, commits[1], outputs, positions[0], instance.rows)
    world.handle(InstallLog(again, replay), 0)
    world.live[1] = False
    world.S(0, 200, *[(time, x) for time, x in ((25, "y"), (35, "z")) if time < reaches])
    world.B(0, 200, reaches)
    assert world.run(229) == ""
    assert world.states == []
    return world


def tentative(**options: Any) -> World:
    """At 240: the window has ended without v."""
    world = replaying(**options)
    assert world.run(230) == "b50"
    assert world.states == ["UP_FAILURE"]
    world.S(0, 240, (60, "w"))
    world.B(0, 240, 110)
    assert world.run(240) == "T/995 b110"
    assert world.replica.snapshot() is None
    return world


def test_partial_replay_is_tentative_until_complete() -> None:
    world = tentative()
    world.live[1] = True
    world.S(1, 250, (28, "v"))
    world.B(1, 250, 110)
    assert world.run(250) == "S1/996 B110(1) clear"
    assert world.states[-1] == "STABLE"
    assert world.replica.stable_rows == 6
    assert world.replica.snapshot() is not None


def test_partner_that_serves_by_then_is_asked_first() -> None:
    world = tentative(partners=("n2",))
    world.live[1] = True
    world.S(1, 250, (28, "v"))
    world.B(1, 250, 110)
    world.run(250)
    world.grant(251)
    assert world.run(251) == "S1/996 B110(1) clear"


def test_redo_ending_before_replay_is_not_begun() -> None:
    """R1: it would leave nobody STABLE."""
    world = tentative()
    world.live[1] = True
    world.S(1, 250, (28, "v"))
    world.B(1, 250, 30)
    world.b(1, 250, 110)
    assert world.run(250) == ""
    assert world.states == ["UP_FAILURE"]


def test_a_redo_that_makes_room_may_end_before_the_replay_does() -> None:
    """R2: the rest of it is still ahead."""
    world = tentative(redo_bytes=1)
    world.S(1, 250, (28, "v"))
    world.B(1, 250, 30)
    assert world.run(250) == "clear T/996 b110"
    assert world.states == ["UP_FAILURE", "STABILIZATION+fresh", "UP_FAILURE"]
    assert world.replica.snapshot() is None
    assert world.sunion.acknowledged() == [2, 2]
    world.live[1] = True
    world.B(1, 260, 110)
    assert world.run(260) == "S1/996 B110(1) clear"
    assert world.states[-1] == "STABLE"


def test_redo_ending_before_replay_is_not_stable() -> None:
    """Though nothing is due: what waited for long is stable now, and all else is young."""
    world = replaying(reaches=29, redo_bytes=1)
    assert world.run(236) == ""
    world.S(0, 245, (35, "z"))
    world.B(0, 245, 50)
    world.live[1] = True
    world.S(1, 250, (28, "v"))
    world.B(1, 250, 30)
    world.run(250)
    assert world.states == ["UP_FAILURE", "STABILIZATION+fresh", "UP_FAILURE"]
    assert world.sunion.cursors.restart_point == 30
    world.B(1, 260, 50)
    assert world.run(260) == "B50(0) clear"
    assert world.states[-1] == "STABLE"


def test_other_rows_than_before_are_refused_by_the_redo() -> None:
    world = tentative()
    world.live[1] = True
    world.B(1, 250, 110)
    with pytest.raises(LogCorrupt, match="replay ends with row 4, the checkpoint log with row 5"):
        world.run(250)


def test_a_replay_in_portions_ends_nowhere_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """All that is stable is through, but not the replay."""
    again = Instance.again

    def in_two(instance: Instance, piece: Any) -> Iterator[Released]:
        yield None
        yield from again(instance, piece)

    monkeypatch.setattr(Instance, "again", in_two)
    world = replaying()
    world.live[1] = True
    world.S(1, 229, (28, "v"))
    world.B(1, 229, 30)
    assert world.run(229) == ""
    assert world.states == []
    world.B(1, 229, 50)
    assert world.run(229) == "B50(0)"
    assert world.states == ["STABLE"]


def test_suspend_taints_nothing_and_policy_may_change() -> None:
    world = replaying(failure=Policy.SUSPEND)
    assert world.run(230) == ""
    assert world.states == ["UP_FAILURE"]
    assert not world.sunion.tainted
    assert world.replica.snapshot() is None
    world.change(231, during_failure=Policy.PROCESS)
    assert world.run(231) == "b50"
    assert world.sunion.tainted


def test_under_suspend_it_is_stable_when_all_was_replayed() -> None:
    world = replaying(failure=Policy.SUSPEND)
    world.run(230)
    world.S(1, 240, (28, "v"))
    world.B(1, 240, 40)
    world.run(240)
    assert world.states == ["UP_FAILURE"], "the next bucket is due"
    world.live[1] = True
    for at in (0, 1):
        world.B(at, 250, 60)
    assert world.run(250) == "B60(0)"
    assert world.states[-1] == "STABLE"


def test_state_after_replay_is_corrected_like_any_other() -> None:
    """R9: what was replayed is part of the window, also when tentative data are undone."""
    world = replaying()
    world.live[1] = True
    world.S(1, 229, (28, "v"))
    world.B(1, 229, 50)
    assert world.run(229) == "B50(0)"
    assert world.states == ["STABLE"]
    world.live[1] = False
    world.S(0, 240, (60, "w"))
    world.B(0, 240, 110)
    assert world.run(260) == "T/996 b110"
    world.live[1] = True
    world.S(1, 262, (70, "a"))
    world.B(1, 262, 110)
    assert world.run(262) == "S1/997 B110(1) clear"


def test_state_that_is_taken_over_replays_on() -> None:
    """R5, G4: live that resumes behind a redo releases nothing before the end of its replay, and counts all of it."""
    before = replaying().replica
    redo = before._run.live
    live = before.empty_instance()
    live.take_over(redo)
    assert live.replay is redo.replay is not None
    while live.rebuild(1):
        pass
    source = World(unit=COUNTING)
    source.S(0, 0, (25, "y"), (35, "z"), (60, "w"))
    source.S(1, 0, (28, "v"))
    for at in (0, 1):
        source.B(at, 0, 110)
    source.sunion.install(T, [0, 0])
    source.sunion.taint()
    replayed = source.sunion.release_tentative(END, 100)
    assert list(live.tentative(replayed)) == []
    assert live.replay is None
    source.tentative(0, [e for r in live.tentative(source.sunion.release_tentative(110, 100)) if r for e in r[1]])
    assert source.out == ["T/996", "b110"]
