"""When buffers fill, memory stays bounded, nothing is lost, and fresh results continue where possible."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Any

import pytest
import trio

from replicas.node.replica import Replica
from replicas.producer.feed import PULL_BYTES
from replicas.simulation.world.clock import JumpClock
from replicas.simulation.world.host import HOST, SimCompute
from spe.plan.deploy import Deployed
from spe.plan.directory import Directory
from spe.plan.plan import Limits, Plan
from tests.simulation.test_cluster import X_US, Outcome, make_plan, run
from tests.support.faulty_cluster import FaultyCluster
from tests.support.long_forms import long_but

#: Small enough that a failure of seconds fills them many times over.
SMALL = Limits(output_bytes=60_000, input_bytes=30_000, suffix_bytes=60_000)


def longer(plan: Plan, directory: Directory, seconds: int) -> Deployed:
    sources = {
        name: replace(one, reader=dict(one.reader) | {"duration": f"{seconds}s"}) for name, one in plan.sources.items()
    }
    return Deployed(replace(plan, sources=sources), directory)


class Memory:
    """Records the memory of the replicas from their status."""

    def __init__(self, cluster: FaultyCluster) -> None:
        self.cluster = cluster
        self.most: dict[str, int] = {}
        #: Progress at the time of the heal.
        self.at_heal: dict[str, int] = {}

    async def watch(self) -> None:
        while True:
            self.look()
            await trio.sleep(0.2)

    def look(self) -> dict[str, int]:
        now: dict[str, int] = {}
        for node in self.cluster.nodes.values():
            for replica in node.replicas().values():
                for name, value in (
                    ("redo data", replica.sunion.stable_bytes),
                    ("tentative", sum(i.tentative_bytes for i in replica.sunion.inputs)),
                    ("log", max(log.stable.nbytes for log in replica.logs)),
                    ("suffix", max(log.suffix.nbytes for log in replica.logs)),
                    ("clocks", len(replica.sunion.clocks)),
                ):
                    now[name] = max(now.get(name, 0), value)
        for name, value in now.items():
            self.most[name] = max(self.most.get(name, 0), value)
        return now

    def spilled(self) -> int:
        return sum(spill.written for node in self.cluster.nodes.values() if (spill := node.status().spill))

    def spill_bytes(self) -> int:
        return sum(spill.used for node in self.cluster.nodes.values() if (spill := node.status().spill))


async def failing(cluster: FaultyCluster, *, cut: float, heal: float, end: float, host: str = "source:b") -> Memory:
    """Runs a cluster through one cut of a source from everybody."""
    memory = Memory(cluster)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(memory.watch)
        await cluster.start()
        await trio.sleep(cut)
        cluster.cut(host, "*")
        await trio.sleep(heal - cut)
        memory.at_heal = dict(memory.most)
        cluster.heal()
        await trio.sleep(end - heal)
        nursery.cancel_scope.cancel()
    return memory


def assert_small(memory: Memory, limits: Limits, *, inputs: int = 3) -> None:
    """Bounds: the caps, and on top one read of each input of redo data, one slice of redo in a log."""
    assert memory.at_heal["redo data"] <= limits.input_bytes * 1.1
    assert memory.most["redo data"] <= limits.input_bytes + inputs * PULL_BYTES
    assert memory.at_heal["log"] <= limits.output_bytes * 1.2
    assert memory.most["suffix"] <= limits.suffix_bytes * 1.15  # a release may exceed the cap
    assert memory.most["tentative"] <= limits.suffix_bytes * 1.1


@pytest.mark.parametrize("replicas", long_but([1], [1, 2]))
async def test_long_failure_spills_redo_data_and_results_continue(jump_clock: JumpClock, replicas: int) -> None:
    """B6, A9: many times the cap is kept for the redo, and the client's delay stays within X."""
    plan, directory = longer(
        *make_plan(rate=200.0, replicas=replicas, limits=SMALL),
        35,
    )
    async with FaultyCluster(plan, directory) as cluster:
        with cluster.explain():
            memory = await failing(cluster, cut=3, heal=30, end=45)
            outcome = Outcome(cluster)
            outcome.assert_complete()
            assert outcome.longest_wait_us() < X_US + 100_000
            assert memory.spilled() > 20
            assert_small(memory, SMALL)
            assert memory.spill_bytes() == 0


async def test_a_slow_disk_delays_neither_heartbeats_nor_results(
    jump_clock: JumpClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A9: each access to a spill file takes half of the failure time-out of a process."""

    async def slowly(compute: SimCompute, function: Callable[[], Any]) -> Any:
        await trio.sleep(0.2 if HOST.get() == "n1a" else 0)
        return function()

    monkeypatch.setattr(SimCompute, "run", slowly)
    limits = replace(SMALL, input_bytes=120_000)  # room for input while redo waits for the disk
    plan, directory = longer(
        *make_plan(rate=100.0, replicas=1, limits=limits),
        20,
    )
    async with FaultyCluster(plan, directory) as cluster:
        with cluster.explain():
            memory = await failing(cluster, cut=3, heal=15, end=45)
            outcome = Outcome(cluster)
            outcome.assert_complete()
            assert outcome.longest_wait_us() < X_US + 100_000
            assert memory.spilled() > 2
            assert memory.spill_bytes() == 0
            assert not any("peer_lost peer=n1a" in line for line in cluster.log)


async def test_reading_stops_without_spilling_and_all_is_corrected(jump_clock: JumpClock) -> None:
    """A9: fresh results stop when the cap is reached; TCP holds the sources, and nothing is lost."""
    limits = replace(SMALL, spill_bytes=0)
    plan, directory = longer(*make_plan(rate=200.0, limits=limits), 20)
    async with FaultyCluster(plan, directory) as cluster:
        with cluster.explain():
            memory = await failing(cluster, cut=3, heal=15, end=35)
            Outcome(cluster).assert_complete()
            assert memory.spilled() == 0
            assert_small(memory, limits)


async def test_full_disk_stops_reading_and_logs_one_message(jump_clock: JumpClock) -> None:
    limits = replace(SMALL, spill_bytes=50_000)
    plan, directory = longer(*make_plan(rate=200.0, limits=limits), 20)
    async with FaultyCluster(plan, directory) as cluster:
        with cluster.explain():
            memory = await failing(cluster, cut=3, heal=15, end=35)
            Outcome(cluster).assert_complete()
            assert_small(memory, limits)
            for node in ("n1a", "n1b"):
                assert sum("spill_blocked" in line and node in line for line in cluster.log) in (1, 2)


async def test_damaged_redo_data_are_read_from_upstream_again(jump_clock: JumpClock) -> None:
    """A bit flips in a spill file during the failure: upstream sends the rows again, and all is corrected."""
    plan, directory = longer(
        *make_plan(rate=200.0, replicas=1, limits=SMALL),
        20,
    )
    async with FaultyCluster(plan, directory) as cluster:
        with cluster.explain():
            await cluster.start()
            await trio.sleep(3)
            cluster.cut("source:b", "*")
            await trio.sleep(9)
            storage: Any = cluster.env("n1a").storage
            folder = PurePosixPath("spill/n1a")
            for name in storage.list(folder):
                storage.files[folder / name].written[-100] ^= 4
            cluster.heal()
            outcome = await run(cluster, 40)
            assert any("spill_damaged" in line for line in cluster.log)
            outcome.assert_complete()


async def test_large_steps_are_reported_once(jump_clock: JumpClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """B8: rows of one time are one step, however many."""
    monkeypatch.setattr(Replica, "step_too_large", lambda self: self.core.largest_slice > 0)
    async with FaultyCluster(*make_plan()) as cluster:
        with cluster.explain():
            await cluster.start()
            await trio.sleep(3)
            for node in ("n1a", "n1b"):
                assert sum("large_step" in line and node in line for line in cluster.log) == 1
