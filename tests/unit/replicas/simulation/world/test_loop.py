"""The run loop of simulations: the seed gives the order of tasks; everything else is as in trio's loop."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from replicas.simulation.world.clock import JumpClock, current_clock
from replicas.simulation.world.host import seeded_scheduling
from replicas.simulation.world.loop import fits


def order_of(seed: int, clock: trio.abc.Clock) -> list[tuple[int, float]]:
    """The order in which ten tasks of two steps each ran."""
    seen: list[tuple[int, float]] = []

    async def one(number: int) -> None:
        seen.append((number, trio.current_time()))
        await trio.sleep(number % 3)
        seen.append((number, trio.current_time()))

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            for number in range(10):
                nursery.start_soon(one, number)

    with seeded_scheduling(seed):
        trio.run(main, clock=clock)
    return seen


def test_the_tested_version_of_trio_is_known() -> None:
    assert fits()


def test_the_seed_determines_the_order() -> None:
    orders = [order_of(seed, JumpClock()) for seed in (1, 2, 3)]
    assert [order_of(seed, JumpClock()) for seed in (1, 2, 3)] == orders
    assert orders[0] != orders[1] != orders[2]


def test_every_task_wakes_at_its_time() -> None:
    ours = order_of(1, JumpClock())
    assert sorted(ours) == sorted((n, at) for n in range(10) for at in (0.0, float(n % 3)))
    assert [at for _, at in ours] == sorted(at for _, at in ours)


def test_with_another_clock_the_loop_of_trio_runs() -> None:
    seen = order_of(1, trio.testing.MockClock(autojump_threshold=0))
    assert {n for n, _ in seen} == set(range(10))


def test_an_error_in_a_task_ends_the_run() -> None:
    async def fails() -> None:
        raise ValueError("it")

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(fails)
            await trio.sleep_forever()

    with seeded_scheduling(1), pytest.RaisesGroup(pytest.RaisesExc(ValueError, match="it")):
        trio.run(main, clock=JumpClock())


def test_a_cancelled_sleep_moves_no_time() -> None:
    async def main() -> float:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(current_clock().sleep, 9.0)
            await current_clock().sleep(1.0)
            nursery.cancel_scope.cancel()
        await trio.testing.wait_all_tasks_blocked()
        return trio.current_time()

    with seeded_scheduling(1):
        assert trio.run(main, clock=JumpClock()) == 1.0
