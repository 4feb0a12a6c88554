"""Sources at different speeds make results tentative without a failure (S5: sources keep in step)."""

from __future__ import annotations

from dataclasses import replace

import pytest
import trio

from replicas.simulation.world.clock import JumpClock
from spe.stream.names import StreamId
from tests.simulation.test_cluster import SECONDS, Outcome, make_plan
from tests.support.faulty_cluster import FaultyCluster


async def test_a_lagging_input_is_reported_once(jump_clock: JumpClock, capsys: pytest.CaptureFixture[str]) -> None:
    plan, directory = make_plan(1)
    name = StreamId("c")
    slow = replace(plan.sources[name], replay=plan.sources[name].replay | {"speed": 0.5})
    plan = replace(plan, sources={**plan.sources, name: slow})
    async with FaultyCluster(plan, directory) as cluster:
        with cluster.explain():
            await cluster.start()
            await trio.sleep(SECONDS - 1)
            for replica in cluster.replicas().values():
                (said,) = replica.reading.skew()
                assert said.startswith("c/0 lags ")
            await trio.sleep(SECONDS + 6)
            assert sum("input_skew" in line for line in cluster.log) == 2  # one per replica
            assert not any(r.reading.skew() for r in cluster.replicas().values())
            Outcome(cluster).assert_complete()
    told = [line for line in capsys.readouterr().err.splitlines() if "c/0 lags" in line]
    assert len(told) == 2
    assert "results stay tentative until it catches up" in told[0]


async def test_a_cut_that_heals_is_no_skew(jump_clock: JumpClock) -> None:
    async with FaultyCluster(*make_plan(1)) as cluster:
        await cluster.start()
        await trio.sleep(2)
        cluster.cut("source:c", "*")
        await trio.sleep(4)
        cluster.heal()
        await trio.sleep(SECONDS)
        assert not any("input_skew" in line for line in cluster.log)
        Outcome(cluster).assert_complete()
