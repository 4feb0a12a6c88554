"""Steps take virtual time in proportion to the state of the node."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import trio

from replicas.simulation.simulate import simulate
from replicas.simulation.world.clock import JumpClock
from replicas.simulation.world.cluster import SimCluster
from replicas.simulation.world.work import STEP_MAX_US, StateCompute, _largest
from tests.simulation.test_cluster import make_plan
from tests.simulation.test_simulate import scenario, story


class Held:
    """A replica with this many rows in the pieces of one input, and groups in one operator."""

    def __init__(self, rows: list[int], groups: int) -> None:
        self.sunion = self
        self.core = self
        self.inputs = [self]
        self.stable = [range(n) for n in rows]
        self._groups = groups

    def operator_states(self) -> list[Any]:
        return [{"sums": np.zeros(self._groups), "marks": [1, 2]}, {}]


def compute(one: Held, *, turn_us: int = 0, state_ns: int = 10_000) -> tuple[StateCompute, list[float]]:
    occupied: list[float] = []
    replica: Any = one
    return StateCompute(turn_us, state_ns, lambda: [replica], occupied.append), occupied


async def test_a_step_takes_time_for_each_row_and_group_held(jump_clock: JumpClock) -> None:
    one, occupied = compute(Held([100, 50], 350), turn_us=3000)
    await one.turn()
    assert occupied == [0.005]  # 500 of them, 10 µs each
    assert trio.current_time() == pytest.approx(0.003)
    assert await one.run(lambda: "done") == "done"
    assert trio.current_time() == pytest.approx(0.008)


async def test_no_step_is_longer_than_the_bound(jump_clock: JumpClock) -> None:
    one, occupied = compute(Held([1_000_000], 0))
    await one.turn()
    assert occupied == [STEP_MAX_US / 1e6]


def test_rows_of_pieces_are_summed_but_columns_are_not() -> None:
    assert _largest({"panes": [{"a": np.zeros(3), "b": np.zeros(3)}, {"a": np.zeros(4)}], "name": "x"}) == 7
    assert _largest({}) == 0


async def test_a_host_does_nothing_else_during_a_step(jump_clock: JumpClock) -> None:
    """Its heartbeats are answered late; those of other hosts are not."""
    async with SimCluster(*make_plan(), state_ns=1000) as cluster:
        await cluster.start()
        await trio.sleep(2)
        cluster._occupy("n1a", 0.03)
        assert "n1a" in cluster._processors.frozen
        await trio.sleep(0.02)
        assert "n1a" in cluster._processors.frozen
        await trio.sleep(0.02)
        assert "n1a" not in cluster._processors.frozen


async def test_a_step_does_not_end_a_freeze(jump_clock: JumpClock) -> None:
    async with SimCluster(*make_plan(), state_ns=1000) as cluster:
        await cluster.start()
        await trio.sleep(2)
        cluster._occupy("n1a", 0.03)
        cluster.freeze("n1a")
        await trio.sleep(0.1)
        assert "n1a" in cluster._processors.frozen
        cluster.thaw("n1a")


def test_promises_are_kept_while_state_costs_time() -> None:
    faults = [{"at": "2s", "kind": "cut", "target": "source:a", "for": "2s"}]
    outcome = simulate(scenario(1, faults, state_ns=200_000, limits={"slice_rows": 10}))
    assert outcome.holds, story(outcome)
    assert outcome.counters.amounts["runs in which state costs time"] == 1
