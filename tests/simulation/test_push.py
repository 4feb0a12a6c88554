"""A writer pushes batches over the network in virtual time, while source and links fail: each row is logged once."""

from __future__ import annotations

from dataclasses import replace
from pathlib import PurePosixPath
from random import Random

import pytest
import trio

from consistency.faults.kind import LinkFaults
from replicas.client.push import Pusher
from replicas.link.connection import Identity, dial
from replicas.producer.server import WRITER_SILENT_S
from replicas.simulation.world.clock import JumpClock
from replicas.simulation.world.stream import WINDOW_BYTES
from spe.errors import NotReachable, SpeError
from spe.log.pushed_batches import encode_part
from spe.log.source_log import read_source_log
from spe.plan.deploy import Deployed
from spe.plan.plan import Watermark
from spe.stream.batch import Batch, Boundary, Rows
from spe.stream.names import StreamId
from spe.stream.times import END_OF_TIME
from spe.wire.messages.pushes import PartStaged, PushEnded, StagePart
from tests.simulation.test_cluster import SCHEMA, make_plan
from tests.support.faulty_cluster import FaultyCluster
from tests.support.long_forms import long_but

A = StreamId("a")
BATCHES = 12


def plan_with_writer() -> Deployed:
    """Source ``a`` takes what ``etl`` pushes, and goes by the clock otherwise."""
    plan, directory = make_plan()
    pushed = replace(
        plan.sources[A],
        reader={"kind": "push", "writers": ("etl",)},
        time="ts",
        watermark=Watermark.DATA,
        idle_us=1_000_000,
    )
    return Deployed(replace(plan, sources={**plan.sources, A: pushed}), directory)


def pusher(cluster: FaultyCluster, patience_s: float = 30.0) -> Pusher:
    """From the host of the client, which this test does not need."""
    return Pusher(cluster.env("client:c"), cluster.plan, cluster.directory, A, "etl", patience_s=patience_s)


def part(numbers: list[int], now_us: int) -> bytes:
    width = len(SCHEMA.names)
    rows = [tuple(now_us + n if name == "ts" else n for name in SCHEMA.names) for n in numbers]
    assert all(len(row) == width for row in rows)
    return encode_part([Rows.from_tuples(SCHEMA, [r[SCHEMA.index("ts")] for r in rows], rows)], SCHEMA)


def logged(cluster: FaultyCluster) -> list[int]:
    storage, number = cluster.env(f"source:{A}").storage, SCHEMA.index("n")
    elements = read_source_log(storage, PurePosixPath(A), SCHEMA)
    return [row[number] for e in elements if isinstance(e, Batch) for row in e.rows.to_tuples()]


@pytest.mark.parametrize("seed", long_but([0, 1], range(4)))
async def test_each_row_is_logged_once_despite_failures(jump_clock: JumpClock, seed: int) -> None:
    """1. the writer pushes batches of two parts, and ends; 2. the source dies, loses power, hangs, is cut off"""
    (plan, directory), draw, names = plan_with_writer(), Random(seed), list[str]()
    async with FaultyCluster(plan, directory, seed=seed) as cluster:
        with cluster.explain():
            await cluster.start()
            one = pusher(cluster, 60)

            async def push() -> None:
                for batch in range(BATCHES):
                    names.clear()
                    for at in range(2):
                        numbers = list(range(100 * batch + 50 * at, 100 * batch + 50 * at + 50))
                        now_us = cluster.env("client:c").clock.wall_us()
                        names.append(await one.stage("query", batch, part(numbers, now_us)))
                        await trio.sleep(draw.random() / 4)
                    await one.commit("query", batch, names)
                    if draw.random() < 0.3:
                        await one.commit("query", batch, names)  # the driver did not get the answer
                assert await one.end() == await one.end() == PushEnded(100 * BATCHES, (), "")
                done.set()

            done = trio.Event()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(push)
                while not done.is_set():
                    await trio.sleep(draw.random())
                    fault = draw.choice(["kill", "power", "freeze", "cut"])
                    if fault == "freeze":
                        cluster.freeze("source:a")
                        await trio.sleep(draw.random())
                        cluster.thaw("source:a")
                    elif fault == "cut":
                        cluster.cut("client:c", "source:a")
                        await trio.sleep(draw.random())
                        cluster.heal()
                    else:
                        cluster.kill("source:a", power=fault == "power")
                        await trio.sleep(draw.random())
                        cluster.restart("source:a")
            await trio.sleep(5)
            assert sorted(logged(cluster)) == list(range(100 * BATCHES))
            assert [n // 100 for n in logged(cluster)] == [b for b in range(BATCHES) for _ in range(100)]
            *_, last = read_source_log(cluster.env("source:a").storage, PurePosixPath(A), SCHEMA)
            assert isinstance(last, Boundary)
            assert last.time == END_OF_TIME
            await one.commit("query", BATCHES - 1, names)  # Spark runs its last batch again
            with pytest.raises(SpeError, match=f"ended its stream behind batch {BATCHES - 1} of query query: batch"):
                await one.commit("query", BATCHES, [])


async def test_a_source_that_refuses_or_is_gone_is_named(jump_clock: JumpClock) -> None:
    plan, directory = plan_with_writer()
    async with FaultyCluster(plan, directory) as cluster:
        with cluster.explain():
            await cluster.start()
            await trio.sleep(1)
            one = pusher(cluster, 2)
            with pytest.raises(SpeError, match=r"source:a refuses what writer:etl pushes: .* middle of a piece"):
                await one.stage("query", 0, b"nonsense")
            with pytest.raises(SpeError, match="takes no rows from writer 'x'; it takes them from etl"):
                Pusher(cluster.env("client:c"), plan, directory, A, "x", patience_s=1)
            with pytest.raises(SpeError, match="takes no rows from writer 'etl'; it takes them from nobody"):
                Pusher(cluster.env("client:c"), plan, directory, StreamId("b"), "etl", patience_s=1)
            cluster.kill("source:a")
            with pytest.raises(NotReachable, match=r"source:a at \S+ did not answer writer:etl for 2 s: "):
                await one.commit("query", 0, [])
            await one.drop(["0" * 32])


async def test_tasks_beyond_the_limit_wait_until_others_are_through(
    jump_clock: JumpClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Thirty tasks and three places; a task that hangs loses its place, and no task that is at work."""
    monkeypatch.setattr("replicas.producer.connection_limits.WRITER_PLACES", 3)
    (plan, directory), tasks = plan_with_writer(), 30
    async with FaultyCluster(plan, directory) as cluster:
        with cluster.explain():
            await cluster.start()
            await trio.sleep(1)
            one, names = pusher(cluster, 20), dict[int, str]()
            me = Identity("writer", "writer:etl", 1, "")
            address = directory.sources[A]
            hanging, _ = await dial(cluster.env("client:c"), plan, me, f"source:{A}", address)
            await hanging.send(StagePart("query", 0, "f" * 32, 0, False, b"x"))

            async def task(number: int) -> None:
                env = cluster.env("client:c")
                if number < 2:  # their connections last longer than anybody's patience
                    connection, _ = await dial(env, plan, me, f"source:{A}", address)
                    data = part([number], env.clock.wall_us())
                    name = names[number] = f"{number:032x}"
                    for index in range(3):
                        await connection.send(StagePart("query", 0, name, index, False, data[index : index + 1]))
                        await trio.sleep(20)
                    await connection.send(StagePart("query", 0, name, 3, True, data[3:]))
                    assert await connection.receive_message() == PartStaged(name, "")
                    await connection.aclose()
                else:
                    names[number] = await one.stage("query", 0, part([number], env.clock.wall_us()))

            begun = trio.current_time()
            async with trio.open_nursery() as nursery:
                for number in range(tasks):
                    nursery.start_soon(task, number)
                    await trio.sleep(0.5 if number < 2 else 0)
            assert WRITER_SILENT_S <= trio.current_time() - begun < WRITER_SILENT_S + 40
            await one.commit("query", 0, [names[n] for n in range(tasks)])
            await trio.sleep(5)
            assert sorted(logged(cluster)) == list(range(tasks))
            await hanging.aclose()


async def test_patience_is_for_a_source_that_gets_no_further(jump_clock: JumpClock) -> None:
    """A part that takes longer than that to leave is not given up while more of it leaves."""
    plan, directory = plan_with_writer()
    async with FaultyCluster(plan, directory) as cluster:
        with cluster.explain():
            await cluster.start()
            await trio.sleep(1)
            one, numbers = pusher(cluster, 4), list(range(100_000))
            data = part(numbers, cluster.env("client:c").clock.wall_us())
            rate = WINDOW_BYTES / 2  # what waits in the network has arrived before patience ends
            cluster.network.set_links({("client:c", "source:a"): LinkFaults(bytes_per_s=rate)})
            begun = trio.current_time()
            await one.stage("query", 0, data)
            assert trio.current_time() - begun > 6
            cluster.cut("client:c", "source:a")
            begun = trio.current_time()
            with pytest.raises(NotReachable, match="did not answer writer:etl for 4 s"):
                await one.stage("query", 1, data)
            assert trio.current_time() - begun < 6


async def test_a_source_that_is_slow_or_has_no_room_is_waited_for(
    jump_clock: JumpClock, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """1. its disk is full for much longer than patience, while a part comes; 2. again, while the batch is committed;
    3. its log takes longer than patience for what is committed"""
    monkeypatch.setattr("replicas.source.push.PENDING_BYTES", 10)
    plan, directory = plan_with_writer()
    async with FaultyCluster(plan, directory) as cluster:
        with cluster.explain():
            await cluster.start()
            await trio.sleep(1)
            one, disk = pusher(cluster, 4), cluster.disks["source:a"]

            async def room() -> None:
                await trio.sleep(20)
                disk.space_left = None

            async with trio.open_nursery() as nursery:
                disk.space_left = 10
                nursery.start_soon(room)
                name = await one.stage("query", 0, part([1], cluster.env("client:c").clock.wall_us()))
            assert trio.current_time() >= 21
            assert "source:a has not taken yet what writer:etl pushes: " in capsys.readouterr().err
            async with trio.open_nursery() as nursery:
                disk.space_left = 10
                nursery.start_soon(room)
                await one.commit("query", 0, [name])
            assert trio.current_time() >= 41
            disk.sync_s = 7.0
            name = await one.stage("query", 1, part([2], cluster.env("client:c").clock.wall_us()))
            begun = trio.current_time()
            await one.commit("query", 1, [name])
            assert trio.current_time() - begun >= 14  # the ledger, and the log
            assert "MiB of committed batches are not in the log yet" in capsys.readouterr().err
            disk.sync_s = 0.0
            assert logged(cluster) == [1, 2]
            cluster.freeze("source:a")
            with pytest.raises(NotReachable, match="did not answer writer:etl for 4 s"):
                await one.commit("query", 2, [])
