"""Readers that come later, and clients that come again: where they begin, and what they are told (F8)."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
import trio

from consistency.checking.counters import Counters
from consistency.checking.protocol.feeds import check_feeds
from replicas.client import StableRows, TentativeRows, UndoneRows, connect
from replicas.simulation.world.clock import JumpClock
from spe.errors import ConfigError, NotReachable, SpeError
from spe.plan.deploy import Deployed
from spe.stream.batch import Batch
from spe.stream.names import Kind
from tests.simulation.test_connect import shop
from tests.support.faulty_cluster import FaultyCluster

#: Windows of half a second of eight seconds.
RESULTS = 16


def small(tail: int) -> Deployed:
    plan, directory = shop()
    return Deployed(replace(plan, limits=replace(plan.limits, tail_bytes=tail)), directory)


class Seen:
    """What a reader of one channel was given."""

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.rows: list[tuple[object, ...]] = []
        self.tentative = self.undos = 0

    def take(self, change: StableRows | TentativeRows | UndoneRows) -> None:
        if isinstance(change, StableRows):
            self.ids += change.batch.row_ids().tolist()
            self.rows += change.rows.to_tuples()
        self.tentative += isinstance(change, TentativeRows)
        self.undos += isinstance(change, UndoneRows)


async def read(cluster: FaultyCluster, deployed: Deployed, name: str, start: str, host: str = "") -> Seen:
    """All until the end, as a client of a name."""
    seen = Seen()
    async with connect(deployed, client=name, start=start, env=cluster.env(host or f"client:{name}")) as changes:
        async for change in changes:
            seen.take(change)
    return seen


def board(cluster: FaultyCluster) -> list[tuple[object, ...]]:
    """The stable rows that the configured client got."""
    elements = [c.element for c in cluster.changes["board"]]
    return [row for e in elements if isinstance(e, Batch) and e.kind is Kind.STABLE for row in e.rows.to_tuples()]


@pytest.mark.parametrize("start", ["now", "stored", "beginning"])
async def test_a_late_reader_begins_where_it_says(jump_clock: JumpClock, start: str) -> None:
    deployed = small(1 << 20)
    async with FaultyCluster(*deployed) as cluster:
        with cluster.explain():
            await cluster.start()
            await trio.sleep(3.3)
            before = len(board(cluster))
            seen = await read(cluster, deployed, "late", start)
            await trio.sleep(0.5)
            first = before + 1 if start == "now" else 1

            assert before > 3
            assert seen.ids == list(range(first, RESULTS + 1))
            assert seen.rows == board(cluster)[first - 1 :]


async def test_a_late_reader_gets_the_stable_stream_under_faults(jump_clock: JumpClock) -> None:
    """It switches between replicas, and sees tentative rows and their undo, as any client."""
    deployed = small(1 << 20)
    async with FaultyCluster(*deployed) as cluster, trio.open_nursery() as nursery:

        async def faults() -> None:
            await trio.sleep(0.6)
            read_from = next(i.main.producer for i in [late.client.inputs[0]] if i.main is not None)
            cluster.kill(read_from)
            await trio.sleep(0.8)
            cluster.restart(read_from)
            cluster.cut("source:b", "*")
            await trio.sleep(2.5)
            cluster.heal()

        with cluster.explain():
            await cluster.start()
            await trio.sleep(2.3)
            seen = Seen()
            async with connect(deployed, client="late", start="now", env=cluster.env("client:late")) as late:
                nursery.start_soon(faults)
                async for change in late:
                    seen.take(change)
                switches = late.client.inputs[0].switches
            await trio.sleep(1)

            assert seen.ids == list(range(seen.ids[0], RESULTS + 1))
            assert 1 < seen.ids[0] < RESULTS // 2
            assert seen.rows == board(cluster)[seen.ids[0] - 1 :]
            assert switches >= 2
            assert seen.tentative
            assert seen.undos
            assert not list(check_feeds(cluster.history, cluster.plan, Counters()))


@pytest.mark.parametrize("seed", range(4))
async def test_readers_come_and_go_at_random(jump_clock: JumpClock, seed: int) -> None:
    """Whenever they come and whatever fails meanwhile, what each gets is a piece of the stable stream."""
    deployed, random = small(1 << 20), Random(seed)
    pieces: list[Seen] = []

    async def come_and_go(number: int) -> None:
        await trio.sleep(random.uniform(0.1, 6))
        seen = Seen()
        pieces.append(seen)
        start, stay = random.choice(["now", "stored"]), random.uniform(0.2, 4)
        with trio.move_on_after(stay):
            async with connect(deployed, start=start, env=cluster.env(f"client:{number}")) as changes:
                async for change in changes:
                    seen.take(change)

    async def kill_in_turn() -> None:
        for node in ("n1", "n2", "n1"):
            await trio.sleep(random.uniform(0.5, 1.5))
            cluster.kill(node)
            await trio.sleep(random.uniform(0.2, 0.8))
            cluster.restart(node)

    async with FaultyCluster(*deployed) as cluster:
        with cluster.explain():
            await cluster.start()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(kill_in_turn)
                for number in range(6):
                    nursery.start_soon(come_and_go, number)
            await trio.sleep(12)
            answer = board(cluster)

            assert len(answer) == RESULTS
            assert sum(bool(seen.ids) for seen in pieces) >= 3
            for seen in (seen for seen in pieces if seen.ids):
                assert seen.ids == list(range(seen.ids[0], seen.ids[-1] + 1))
                assert seen.rows == answer[seen.ids[0] - 1 : seen.ids[-1]]


async def test_a_reader_holds_no_log(jump_clock: JumpClock) -> None:
    """One that takes nothing keeps nothing, and a configured client gets all that it would have got."""
    deployed = small(0)
    async with FaultyCluster(*deployed) as cluster:
        with cluster.explain():
            await cluster.start()
            await trio.sleep(2)
            async with connect(deployed, start="now", env=cluster.env("client:idle")) as changes:
                changes.client._waiting_max = 1  # it reads no more than one
                await trio.sleep(12)
            logs = [log for replica in cluster.replicas().values() for log in replica.logs]

            assert len(board(cluster)) == RESULTS
            assert all(log.first == log.last_id + 1 == RESULTS + 1 for log in logs)
            assert not any(log.unknown_acks for log in logs)


async def test_the_beginning_that_is_gone_is_an_error_with_an_id(jump_clock: JumpClock) -> None:
    deployed = small(0)
    async with FaultyCluster(*deployed) as cluster:
        with cluster.explain():
            await cluster.start()
            await trio.sleep(4)
            with pytest.raises(
                SpeError,
                match=r"sums/0 is stored from id [5-9] on, not from the beginning: start='stored' begins there",
            ):
                await read(cluster, deployed, "late", "beginning")


async def test_slow_reader_is_told_what_it_missed(jump_clock: JumpClock) -> None:
    deployed = small(0)
    async with FaultyCluster(*deployed) as cluster:
        with cluster.explain():
            await cluster.start()
            await trio.sleep(2)
            async with connect(deployed, client="late", start="now", env=cluster.env("client:late")) as changes:
                await anext(changes)
                cluster._hosts.append("client:late")
                cluster.cut("client:late", "*")
                await trio.sleep(3)
                cluster.heal()
                with pytest.raises(SpeError, match=r"client:late has read sums/0 up to id \d+, but .* Read faster"):
                    async for _ in changes:
                        pass


@pytest.mark.parametrize("tail", [0, 1 << 20])
async def test_a_client_that_left_goes_on_where_it_left(jump_clock: JumpClock, tail: int) -> None:
    """Also where results from before are still stored."""
    deployed = small(tail)
    async with FaultyCluster(*deployed) as cluster:
        with cluster.explain():
            await cluster.start()
            await trio.sleep(0.1)
            cluster.kill("client:board")
            first, second = Seen(), Seen()
            for seen, most in ((first, 5), (second, RESULTS)):
                async with connect(deployed, client="board", env=cluster.env(f"client:board {most}")) as changes:
                    async for change in changes:
                        seen.take(change)
                        if len(seen.ids) >= most:
                            break
                    await trio.sleep(1)

            # What was taken last was not yet asked to be acknowledged.
            assert first.ids[-1] in (second.ids[0], second.ids[0] - 1)
            assert second.ids == list(range(second.ids[0], RESULTS + 1))


async def test_unknown_client_name_is_reported(jump_clock: JumpClock) -> None:
    """The program's configuration has the client, that of the running cluster has not."""
    deployed = small(1 << 20)
    board_of = deployed.directory.clients["board"]
    other = replace(deployed.directory, clients={"new": replace(board_of, name="new")})
    async with FaultyCluster(*deployed) as cluster:
        with cluster.explain():
            await cluster.start()
            await trio.sleep(2)
            with pytest.raises(SpeError, match=r"client:new is not in the configuration that n\d runs with"):
                await read(cluster, Deployed(deployed.plan, other), "new", "")


async def test_excess_reader_is_reported(jump_clock: JumpClock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("replicas.producer.connection_limits.READERS_MAX", 1)
    deployed = small(1 << 20)
    async with FaultyCluster(*deployed) as cluster:
        with cluster.explain():
            await cluster.start()
            await trio.sleep(1)
            async with connect(deployed, start="now", env=cluster.env("client:one")):
                await trio.sleep(0.5)
                with pytest.raises(NotReachable, match="clients that the configuration does not have are served"):
                    async with connect(deployed, start="now", env=cluster.env("client:two"), wait_s=2):
                        pass
            assert len((await read(cluster, deployed, "three", "stored")).ids) == RESULTS


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"start": "soon"}, "no start 'soon'; expected one of: now, stored, beginning"),
        ({"start": "now", "streams": ["sum"]}, r"no stream 'sum' \(did you mean 'sums'\?\)"),
        ({"client": "board", "streams": ["sums"]}, "client board reads what its configuration says"),
        ({}, "or say where a reader of any name starts: now, stored, beginning"),
    ],
)
async def test_mistakes_of_a_reader_are_named(options: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        async with connect(shop(), **options):  # type: ignore[arg-type]
            pass
