"""Positions and excerpts in virtual time: micro-batches with a checkpoint read each stable tuple exactly once."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest
import trio

from replicas.client.client import FEW_CHANGES, Client
from replicas.client.excerpt import Excerpt, excerpt
from replicas.client.positions import OutputPositions
from replicas.simulation.world.clock import JumpClock
from replicas.spark.offsets import ahead
from spe.errors import NotReachable, OtherOrigin, SpeError
from spe.plan.directory import Directory
from spe.stream.ids import Channel
from spe.stream.names import StreamId
from tests.simulation.test_cluster import SECONDS, make_plan
from tests.simulation.test_moves import order, phases, two_units
from tests.support.faulty_cluster import FaultyCluster
from tests.support.long_forms import long_but
from tests.support.situations import until

OUT = Channel(StreamId("s1"), 0)


@dataclass
class Checkpoint:
    """What a query of micro-batches keeps: the batch under way, and what its sink holds of finished ones."""

    start: int = 0
    origin: str = ""
    planned: int | None = None
    finished: list[tuple[int, ...]] = field(default_factory=list)
    batches: int = 0


async def read(
    cluster: FaultyCluster, what: Excerpt, patience_s: float = 60.0, directory: Directory | None = None
) -> list[int]:
    ids: list[int] = []
    env, directory = cluster.env("client:c"), cluster.directory if directory is None else directory
    async with excerpt(env, cluster.plan, directory, "c", what, patience_s=patience_s) as batches:
        async for batch in batches:
            ids += batch.row_ids().tolist()
    return ids


def query(
    cluster: FaultyCluster, kept: Checkpoint, rows: int, stream: StreamId = OUT.stream
) -> Callable[[], Awaitable[None]]:
    """The driver of such a query: plans a batch, reads it, finishes it, acknowledges it."""

    async def main() -> None:
        one = OutputPositions(cluster.env("client:c"), cluster.plan, cluster.directory, "c", stream)
        async with trio.open_nursery() as nursery:
            await nursery.start(one.run)
            await one.heard_of_all()
            while True:
                if kept.planned is None:
                    origin = await one.origin(one.channels[0], kept.start, kept.origin)
                    upto = ahead({0: kept.start}, one.latest(), rows)[0] if origin else kept.start
                    if upto == kept.start:
                        await trio.sleep(0.05)
                        continue
                    kept.origin, kept.planned = origin, upto
                ids = await read(
                    cluster,
                    Excerpt(stream, 0, kept.start, kept.planned, kept.origin),
                    directory=one.directory,
                )
                kept.batches += 1
                kept.finished.append(tuple(ids))
                kept.start, kept.planned = kept.planned, None
                one.acknowledge({0: kept.start}, {0: kept.origin})

    return main


async def without_client(cluster: FaultyCluster) -> None:
    """Starts it; the test reads in the place of its client."""
    await cluster.start()
    await trio.sleep(0.01)
    cluster.wipe("client:c")


async def started(cluster: FaultyCluster, kept: Checkpoint, rows: int = 40) -> None:
    await without_client(cluster)
    cluster.launch("client:c", query(cluster, kept, rows))


def held(kept: Checkpoint) -> list[int]:
    return [i for ids in kept.finished for i in ids]


@pytest.mark.parametrize("seed", long_but([0, 1], range(4)))
async def test_each_tuple_is_read_once_despite_failures(jump_clock: JumpClock, seed: int) -> None:
    """The query dies at random moments; replicas die, hang and come back; a source is cut off, so that there are
    tentative tuples, too."""
    kept, draw = Checkpoint(), Random(seed)
    plan, directory = make_plan(rate=50.0)
    nodes = list(directory.nodes)
    async with FaultyCluster(plan, directory, seed=seed) as cluster:
        with cluster.explain():
            await started(cluster, kept)
            for step in range(8):
                await trio.sleep(0.3 + draw.random())
                cluster.kill("client:c")
                if step == 2:
                    cluster.cut("source:a", "*")
                elif step == 6:
                    cluster.heal()
                else:
                    node = draw.choice(nodes)
                    cluster.kill(node)
                    await trio.sleep(draw.random() / 2)
                    cluster.restart(node)
                cluster.restart("client:c")
            await trio.sleep(SECONDS + 10)
            count = len(cluster.reference()[OUT][0])
            assert held(kept) == list(range(1, count + 1))
            assert max(map(len, kept.finished)) <= 40
            assert kept.batches > 10


async def test_move_to_previously_unknown_node_is_not_noticed(jump_clock: JumpClock) -> None:
    """Every partition leaves the only node that ran it; excerpts are read by the directory that the driver knows."""
    kept = Checkpoint()
    plan, directory = two_units()
    async with FaultyCluster(plan, directory) as cluster:
        with cluster.explain():
            await without_client(cluster)
            cluster.launch("client:c", query(cluster, kept, 40, StreamId("s2")))
            await trio.sleep(3)
            before = kept.start
            assert before > 0
            await order(cluster, "move", "u2/0", "n2a", "n2c")
            await until(lambda: phases(cluster) == ["done"], within_s=10)
            cluster.kill("n2a")
            await trio.sleep(5)
            assert kept.start > before + 300
            assert held(kept) == list(range(1, kept.start + 1))


async def test_a_query_that_knows_no_host_of_its_output_finds_it(jump_clock: JumpClock) -> None:
    """It begins with the configuration's directory when the partition has left its only node, and that node is gone."""
    plan, directory = two_units()
    async with FaultyCluster(plan, directory) as cluster:
        with cluster.explain():
            await cluster.start()
            await trio.sleep(3)
            await order(cluster, "move", "u2/0", "n2a", "n2c")
            await until(lambda: phases(cluster) == ["done"], within_s=10)
            cluster.kill("n2a")
            one = OutputPositions(cluster.env("client:c"), plan, directory, "c", StreamId("s2"))
            async with trio.open_nursery() as nursery:
                await nursery.start(one.run)
                with trio.fail_after(10):
                    await one.heard_of_all()
                await until(lambda: set(one.lookout.peers()) == {"n2c"}, within_s=5)
                assert one.states() == {0: "STABLE"}
                nursery.cancel_scope.cancel()


async def test_only_finished_batches_are_acknowledged(jump_clock: JumpClock) -> None:
    """A query that plans and reads, but finishes nothing, keeps the nodes from forgetting; they forget what is
    acknowledged."""
    kept = Checkpoint()
    plan, directory = make_plan(rate=50.0)
    async with FaultyCluster(plan, directory) as cluster:
        with cluster.explain():
            await started(cluster, kept)
            await trio.sleep(4)
            cluster.kill("client:c")
            await trio.sleep(1)
            line = {r.logs[0].truncation_line for r in cluster.replicas().values()}
            assert max(line) <= kept.start
            assert min(line) > 0
            again = await read(cluster, Excerpt("s1", 0, kept.start, kept.start + 10, kept.origin))
            assert again == list(range(kept.start + 1, kept.start + 11))
            assert await read(cluster, Excerpt("s1", 0, kept.start, kept.start + 10, kept.origin)) == again
            assert {r.logs[0].truncation_line for r in cluster.replicas().values()} == line


@pytest.mark.parametrize("dead", [False, True])
async def test_departing_client_informs_nodes_first(jump_clock: JumpClock, dead: bool) -> None:
    """A node that is dead does not hear it, and is not waited for."""
    plan, directory = make_plan(rate=50.0)
    async with FaultyCluster(plan, directory) as cluster:
        with cluster.explain():
            await without_client(cluster)
            await trio.sleep(4)
            if dead:
                cluster.kill("n1b")
                await trio.sleep(1)
            one = OutputPositions(cluster.env("client:c"), plan, directory, "c", OUT.stream)
            async with trio.open_nursery() as nursery:
                await nursery.start(one.run)
                await one.heard_of_all()
                origin = await one.origin(OUT, 0, "")
                upto = one.latest()[0]
                assert max(r.logs[0].truncation_line for r in cluster.replicas().values()) < upto
                one.acknowledge({0: upto}, {0: origin})
                with trio.fail_after(2):
                    await one.told()
                nursery.cancel_scope.cancel()
            lines = {r.logs[0].truncation_line for r in cluster.replicas().values()}
            assert lines == {upto}
            assert len(cluster.replicas()) == 2 - dead


async def test_departing_client_does_not_wait_for_ending_nodes(jump_clock: JumpClock) -> None:
    """As at the end of a run, which waits for what an external client acknowledges, and for no more."""
    plan, directory = make_plan(rate=50.0)
    async with FaultyCluster(plan, directory) as cluster:
        with cluster.explain():
            await without_client(cluster)
            await trio.sleep(4)
            one = OutputPositions(cluster.env("client:c"), plan, directory, "c", OUT.stream)
            async with trio.open_nursery() as nursery:
                await nursery.start(one.run)
                await one.heard_of_all()
                one.acknowledge(one.latest(), {0: await one.origin(OUT, 0, "")})
                for host in (*directory.nodes, *(f"source:{stream}" for stream in plan.sources)):
                    nursery.start_soon(_kill_soon, cluster, host)
                with trio.fail_after(10):
                    await one.told()
                nursery.cancel_scope.cancel()
            assert not cluster.replicas()


async def _kill_soon(cluster: FaultyCluster, host: str) -> None:
    await trio.sleep(0.001)
    cluster.kill(host)


async def test_acknowledged_rows_are_refused_with_available_start(jump_clock: JumpClock) -> None:
    kept = Checkpoint()
    plan, directory = make_plan(rate=50.0)
    async with FaultyCluster(plan, directory) as cluster:
        with cluster.explain():
            await started(cluster, kept)
            await trio.sleep(4)
            cluster.kill("client:c")
            one = OutputPositions(cluster.env("client:c"), plan, directory, "c", OUT.stream)
            async with trio.open_nursery() as nursery:
                await nursery.start(one.run)
                await one.heard_of_all()
                first = one.oldest()[0]
                with pytest.raises(OtherOrigin, match=rf"from id 1 on, .* the nodes begin at id {first}"):
                    await one.origin(OUT, 0, "")
                assert await one.origin(OUT, first - 1, kept.origin) == kept.origin
                with pytest.raises(OtherOrigin, match="elsewhere"):
                    await one.origin(OUT, first - 1, "elsewhere")
                nursery.cancel_scope.cancel()
            with pytest.raises(SpeError, match="an earlier process of this name has acknowledged"):
                await read(cluster, Excerpt("s1", 0, 0, 5, kept.origin))


async def test_acknowledged_rows_are_refused_while_replica_is_dead(jump_clock: JumpClock) -> None:
    """It is waited for, since it might have what is needed; for good only as long as the user has patience."""
    kept = Checkpoint()
    plan, directory = make_plan(rate=50.0)
    async with FaultyCluster(plan, directory) as cluster:
        with cluster.explain():
            await started(cluster, kept)
            await trio.sleep(4)
            cluster.kill("client:c")
            cluster.kill("n1b")
            one = OutputPositions(cluster.env("client:c"), plan, directory, "c", OUT.stream)
            async with trio.open_nursery() as nursery:
                await nursery.start(one.run)
                await one.heard_of_all()
                begun = trio.current_time()
                with pytest.raises(
                    OtherOrigin, match=r"from id 1 on, .* begin at id \d+ \(n1b did not serve it for 8 s\)"
                ):
                    await raised_by(one)
                assert 8 <= trio.current_time() - begun < 12
                assert await one.origin(OUT, one.oldest()[0] - 1, kept.origin, 8.0) == kept.origin
                assert await one.origin(OUT, 0, "", 8.0) == ""  # it begins anew
                nursery.cancel_scope.cancel()


async def raised_by(one: OutputPositions) -> None:
    with trio.fail_after(30):
        while True:
            assert await one.origin(OUT, 0, "", 8.0) == ""
            await trio.sleep(0.5)


async def test_missing_rows_are_reported_with_their_producer(jump_clock: JumpClock) -> None:
    plan, directory = make_plan(rate=50.0)
    async with FaultyCluster(plan, directory) as cluster:
        with cluster.explain():
            await without_client(cluster)
            await trio.sleep(2)
            with pytest.raises(NotReachable, match=r"s1/0 gave nothing after id \d+ for 1 s, and ids up to 100000"):
                await read(cluster, Excerpt("s1", 0, 0, 100_000, ""), patience_s=1)
            for node in directory.nodes:
                cluster.kill(node)
            with pytest.raises(NotReachable, match="it is read from nobody"):
                await read(cluster, Excerpt("s1", 0, 0, 10, ""), patience_s=1)


async def test_an_unreachable_output_says_so_and_keeps_its_last_ids(jump_clock: JumpClock) -> None:
    plan, directory = make_plan(rate=50.0)
    async with FaultyCluster(plan, directory) as cluster:
        with cluster.explain():
            await cluster.start()
            one = OutputPositions(cluster.env("client:c"), plan, directory, "c", OUT.stream)
            async with trio.open_nursery() as nursery:
                await nursery.start(one.run)
                await one.heard_of_all()
                await trio.sleep(2)
                latest = one.latest()
                assert latest[0] > 0
                assert one.states() == {0: "STABLE"}
                assert one.said() == {"n1a at n1a:1": "s1/0 STABLE", "n1b at n1b:1": "s1/0 STABLE"}
                for node in directory.nodes:
                    cluster.kill(node)
                await trio.sleep(3)
                assert one.states() == {0: "unreachable"}
                assert "refused" in one.said()["n1a at n1a:1"]
                assert "serves none of it" in one.said()["source:a at source-a:1"]  # all are asked by now (D2)
                assert one.latest()[0] >= latest[0]
                nursery.cancel_scope.cancel()


async def test_second_reader_is_refused_and_restarted_reader_resumes(
    jump_clock: JumpClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1. a query reads; 2. another one of the same client is refused, while a node restarts; 3. the first one loses no
    row; 4. it dies without a word, and begins again"""
    monkeypatch.setattr("replicas.client.positions.TAKEN_S", 1.0)
    kept = Checkpoint()
    plan, directory = make_plan(rate=50.0)
    async with FaultyCluster(plan, directory) as cluster:
        with cluster.explain():
            await started(cluster, kept)
            await trio.sleep(2)
            other = OutputPositions(cluster.env("client:c"), plan, directory, "c", OUT.stream)
            async with trio.open_nursery() as nursery:
                await nursery.start(other.run)
                nursery.start_soon(restarts, cluster)
                with pytest.raises(SpeError, match=r"client:c is in use: another process .* says n1[ab]"):
                    await other.heard_of_all()
                assert "says n1" in other.in_use()
                other.committed[0] = 10**6  # whatever it says does not count
                await trio.sleep(0.5)
                nursery.cancel_scope.cancel()
            line = max(r.logs[0].truncation_line for r in cluster.replicas().values())
            assert 0 < line <= kept.start
            before = kept.start
            await trio.sleep(1)
            assert kept.start > before
            assert trio.current_time() < SECONDS - 1
            # the node that began anew may have heard the other one first
            await until(
                lambda: min(r.logs[0].truncation_line for r in cluster.replicas().values()) > before, within_s=3
            )
            cluster.kill("client:c", power=True)
            cluster.restart("client:c")
            await trio.sleep(SECONDS + 15)
            assert held(kept) == list(range(1, len(cluster.reference()[OUT][0]) + 1))


async def restarts(cluster: FaultyCluster) -> None:
    await trio.sleep(0.5)
    cluster.kill("n1a")
    await trio.sleep(0.5)
    cluster.restart("n1a")


async def test_a_reader_that_keeps_nothing_takes_no_name(jump_clock: JumpClock) -> None:
    kept = Checkpoint()
    plan, directory = make_plan(rate=50.0)
    async with FaultyCluster(plan, directory) as cluster:
        with cluster.explain():
            await started(cluster, kept)
            await trio.sleep(3)
            one = OutputPositions(cluster.env("client:c"), plan, directory, "c", OUT.stream, acknowledges=False)
            async with trio.open_nursery() as nursery:
                await nursery.start(one.run)
                with trio.fail_after(2):
                    await one.heard_of_all()
                await trio.sleep(15)
                one.check()
                assert kept.start > 300
                nursery.cancel_scope.cancel()


async def test_wiped_logs_are_reported_and_not_acknowledged(jump_clock: JumpClock) -> None:
    """Sources and nodes lose their disks: ids of the new logs mean other tuples (S6)."""
    plan, directory = make_plan(rate=50.0)
    async with FaultyCluster(plan, directory) as cluster:
        with cluster.explain():
            await without_client(cluster)
            one = OutputPositions(cluster.env("client:c"), plan, directory, "c", OUT.stream)
            async with trio.open_nursery() as nursery:
                await nursery.start(one.run)
                await one.heard_of_all()
                await trio.sleep(3)
                origin, last = await one.origin(OUT, 0, ""), one.latest()[0]
                one.acknowledge({0: last}, {0: origin})
                await trio.sleep(1)
                assert {r.logs[0].truncation_line for r in cluster.replicas().values()} == {last}
                for host in ("source:a", "source:b", "source:c", "n1a", "n1b"):
                    cluster.wipe(host)
                await trio.sleep(2)
                for host in ("source:a", "source:b", "source:c", "n1a", "n1b"):
                    cluster.restart(host)
                await trio.sleep(3)
                assert min(r.logs[0].last_id for r in cluster.replicas().values()) > 0
                assert {r.logs[0].truncation_line for r in cluster.replicas().values()} == {0}
                with pytest.raises(OtherOrigin, match=r"client:c cannot go on with s1/0: .* other source logs"):
                    one.latest()
                nursery.cancel_scope.cancel()


async def test_a_slow_reader_of_an_excerpt_holds_a_few_changes_only(
    jump_clock: JumpClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, directory = make_plan(rate=50.0)
    made: list[Client] = []

    def client(*arguments: Any, **options: Any) -> Client:
        made.append(Client(*arguments, **options))
        return made[-1]

    monkeypatch.setattr("replicas.client.excerpt.Client", client)
    async with FaultyCluster(plan, directory) as cluster:
        with cluster.explain():
            await without_client(cluster)
            await trio.sleep(2)
            env, what = cluster.env("client:c"), Excerpt("s1", 0, 0, 400, "")
            ids: list[int] = []
            async with excerpt(env, plan, directory, "c", what, patience_s=20) as batches:
                async for batch in batches:
                    ids += batch.row_ids().tolist()
                    await trio.sleep(0.1)
                    assert len(made[0]._waiting) <= 2 * FEW_CHANGES
            assert ids == list(range(1, 401))
