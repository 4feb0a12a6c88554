"""The clock of a simulation: deadlines and alarms in order, and no time passes while a task can run."""

from __future__ import annotations

import pytest
import trio
import trio.lowlevel

from replicas.link.signal import Signal
from replicas.simulation.world.clock import JumpClock, Stuck, current_clock


async def wait_for(signal: Signal, when: float, woken: list[tuple[str, float]], name: str) -> None:
    token = signal.token()
    current_clock().wake_at(when, signal)
    await signal.wait(token)
    woken.append((name, trio.current_time()))


async def test_alarms_and_deadlines_come_at_their_times_and_in_order(jump_clock: JumpClock) -> None:
    woken: list[tuple[str, float]] = []
    both = Signal()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait_for, Signal(), 3.0, woken, "late")
        nursery.start_soon(wait_for, both, 1.0, woken, "one")
        nursery.start_soon(wait_for, both, 2.0, woken, "other of the same signal")
        await trio.sleep(1.5)
        woken.append(("deadline", trio.current_time()))
        await trio.sleep(2.5)
    names = [name for name, _ in woken]
    assert sorted(names[:2]) == ["one", "other of the same signal"]  # a waiting task checks, and waits again
    assert names[2:] == ["deadline", "late"]
    assert [at for _, at in woken] == [1.0, 1.0, 1.5, 3.0]


async def test_an_alarm_of_a_task_woken_before_moves_no_time(jump_clock: JumpClock) -> None:
    woken: list[tuple[str, float]] = []
    signal = Signal()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait_for, signal, 5.0, woken, "it")
        await trio.sleep(1.0)
        signal.wake()
    assert woken == [("it", 1.0)]
    token = signal.token()
    await trio.sleep(9.0)
    assert trio.current_time() == 10.0
    assert signal.token() == token  # the alarm was of the token before


async def test_an_alarm_in_the_past_fires_at_once(jump_clock: JumpClock) -> None:
    woken: list[tuple[str, float]] = []
    await trio.sleep(4.0)
    await wait_for(Signal(), 2.0, woken, "it")
    assert woken == [("it", 4.0)]


async def test_another_clock_is_refused(autojump_clock: trio.testing.MockClock) -> None:
    with pytest.raises(TypeError, match="needs the clock JumpClock, found MockClock"):
        current_clock()


def test_a_run_that_computes_for_too_long_is_broken_off() -> None:
    """Where each jump of time computes next to nothing."""
    clock = JumpClock(cpu_s=0.05)
    clock.start_clock()
    with pytest.raises(Stuck, match=r"more than 0\.05 s of computing"):
        max(map(clock.deadline_to_sleep_time, range(10_000_000)))


async def test_all_waiting_tasks_are_woken_by_each_signal(jump_clock: JumpClock) -> None:
    signal, turns = Signal(), 0

    async def follow() -> None:
        nonlocal turns
        for _ in range(5):
            await signal.wait(signal.token())
            turns += 1

    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(follow)
        for _ in range(5):
            await trio.sleep(1.0)
            signal.wake()
    assert turns == 15
