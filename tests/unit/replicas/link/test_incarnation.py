"""The incarnation of a process grows with each start, whatever the clock and the disk do."""

from __future__ import annotations

from pathlib import PurePosixPath

import trio

from replicas.link.incarnation import claim
from replicas.simulation.world.clock import JumpClock
from spe.stream.names import NodeState
from tests.simulation.test_cluster import SECONDS, make_plan, run
from tests.support.faulty_cluster import FaultyCluster

PATH = PurePosixPath("nodes/n1/incarnation")


async def test_an_incarnation_grows_although_the_clock_steps_back(jump_clock: JumpClock) -> None:
    cluster = FaultyCluster(*make_plan())
    env = cluster.env("n1a")
    first = await claim(env, PATH)
    cluster.skew("n1a", -3_600_000_000)
    second = await claim(env, PATH)
    cluster.skew("n1a", 0)
    await trio.sleep(1)
    third = await claim(env, PATH)
    assert second == first + 1
    assert third > second


async def test_a_flipped_digit_does_not_make_a_later_incarnation(jump_clock: JumpClock) -> None:
    """Once that file were damaged again, the clock's would be smaller, and nobody would hear the process any more."""
    cluster = FaultyCluster(*make_plan())
    env = cluster.env("n1a")
    await claim(env, PATH)
    kept = env.storage.read(PATH)
    await env.storage.write_atomic(PATH, bytes([kept[0] ^ 4]) + kept[1:])
    await trio.sleep(1)
    assert await claim(env, PATH) == env.clock.wall_us()
    assert any("incarnation_damaged" in line for line in cluster.log)


async def test_clock_gives_incarnation_if_disk_is_damaged_or_full(jump_clock: JumpClock) -> None:
    cluster = FaultyCluster(*make_plan())
    env = cluster.env("n1a")
    await env.storage.write_atomic(PATH, b"nonsense")
    cluster.disks["n1a"].space_left = 0
    assert await claim(env, PATH) == env.clock.wall_us()
    assert any("incarnation_damaged" in line for line in cluster.log)
    assert any("incarnation_not_kept" in line for line in cluster.log)


async def test_node_whose_clock_stepped_back_is_still_heard(jump_clock: JumpClock) -> None:
    """Its acknowledgements count, so upstream's buffers shrink again."""
    plan, directory = make_plan(2)
    async with FaultyCluster(plan, directory) as cluster:
        with cluster.explain():
            await cluster.start()
            await trio.sleep(2)
            cluster.kill("n2a")
            cluster.skew("n2a", -3_600_000_000)
            await trio.sleep(0.5)
            cluster.restart("n2a")
            outcome = await run(cluster, SECONDS + 5)
            outcome.assert_complete()
            for name, replica in cluster.replicas().items():
                assert replica.state is NodeState.STABLE
                kept = max(log.stable.end - log.stable.start for log in replica.logs)
                assert kept <= 1, f"{name} keeps {kept} entries"
