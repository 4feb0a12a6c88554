"""A sink on a server: each row once, whatever is lost on the way; one process writes, and waits while it is away."""

from __future__ import annotations

import json

import pytest
import trio
import trio.testing

from replicas.connectors.server_sink import ServerSink
from spe.connectors.declaration import CORRECTIONS, CURRENT, STABLE
from spe.errors import ServerAway, SpeError
from spe.runtime.production import ThreadCompute
from spe.stream.change import Change
from spe.stream.ids import Channel
from spe.stream.names import StreamId
from tests.support.source_env import source_env
from tests.support.streams import PAYLOAD, parse
from tests.support.table_server import TableServer, TableSink

ONE, TWO = Channel(StreamId("out"), 0), Channel(StreamId("out"), 1)
SCHEMAS = {ONE: PAYLOAD, TWO: PAYLOAD}
QUERIES = {ONE: "q1", TWO: "q1"}
STORY = "S1/5a S2/6b B10(2) T/12c T/13d b20 U(2) S3/12e B20(3) R+ T/22f b30"
COMPUTE = ThreadCompute()


def feed(sink: ServerSink, text: str, channel: Channel = ONE, position: int = 0) -> None:
    for element in parse(text, PAYLOAD, position=position):
        sink.write(Change(channel, element, 0))


async def opened(
    server: TableServer, mode: str = STABLE, queries: dict[Channel, str] = QUERIES, client: str = ""
) -> TableSink:
    sink = TableSink(SCHEMAS, mode, server)
    sink.name = "table"
    env = source_env()
    env.random.seed(id(sink))
    await sink.open(env, queries, client)
    return sink


def held(server: TableServer) -> str:
    return " ".join(f"{'T' if tentative else 'S'}{i}{row[0]}" for (_, i), (tentative, row) in server.rows.items())


@pytest.mark.parametrize(
    ("mode", "expected"), [(STABLE, "S1a S2b S3e"), (CURRENT, "S1a S2b S3e T4f")], ids=[STABLE, CURRENT]
)
async def test_server_holds_rows_of_the_mode(mode: str, expected: str) -> None:
    server = TableServer()
    sink = await opened(server, mode)
    feed(sink, STORY)
    await sink.commit(COMPUTE)
    assert held(server) == expected
    assert (sink.position(ONE), sink.position(TWO)) == (3, 0)


async def test_corrections_come_as_they_are() -> None:
    server = TableServer()
    sink = await opened(server, CORRECTIONS)
    feed(sink, "S1/5a B10(1) T/12c b20 U(1) S2/12e B20(2) R+")
    await sink.commit(COMPUTE)
    assert server.changes == [
        *("insert out/0 1", "insert out/0 2 tentative", "undo out/0 1", "insert out/0 2", "done out/0 2"),
    ]


@pytest.mark.parametrize("mode", [CURRENT, CORRECTIONS])
async def test_tentative_rows_of_a_session_are_withdrawn_by_next(mode: str) -> None:
    server = TableServer()
    sink = await opened(server, mode)
    feed(sink, "S1/5a T/6b")
    await sink.commit(COMPUTE)
    again = await opened(server, mode)
    assert again.reached(ONE) == again.position(ONE) == 1
    assert held(server) == "S1a" if mode == CURRENT else server.changes[-1] == "undo out/0 1"


@pytest.mark.parametrize("lost", ["the request", "the answer"])
@pytest.mark.parametrize("mode", [STABLE, CURRENT])
async def test_rows_stand_once_though_a_request_or_an_answer_is_lost(
    mode: str, lost: str, autojump_clock: trio.testing.MockClock
) -> None:
    server = TableServer()
    sink = await opened(server, mode)
    feed(sink, "S1/5a S2/6b T/7c")
    server.delay_s = 1.0

    async def interrupt() -> None:
        await trio.sleep(0.5 if lost == "the request" else 1.5)
        server.away = True

    async with trio.open_nursery() as nursery:
        nursery.start_soon(interrupt)
        with pytest.raises(ServerAway, match=r"^\[Errno 111\] Connection refused$"):
            await sink.commit(COMPUTE)
    assert sink.disconnected == 1
    assert sink.position(ONE) == 0
    with pytest.raises(ServerAway):
        await sink.commit(COMPUTE)
    server.away = False
    feed(sink, "U(2) S3/7d R+", position=2)  # goes with the next transaction
    for _ in range(2):
        await sink.commit(COMPUTE)
    assert sink.position(ONE) == 3
    assert held(server) == "S1a S2b S3d"
    assert server.transactions == 3


@pytest.mark.parametrize("ends", ["R+", "T/13g", "Binf", "after a second", "with many rows"])
async def test_correction_and_replaced_rows_share_one_transaction(
    ends: str, autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = TableServer()
    sink = await opened(server, CURRENT)
    feed(sink, "S1/5a B10(1) T/12c b20")
    await sink.commit(COMPUTE)
    for text in ("U(1)", "S2/12e"):
        feed(sink, text, position=1)
        await sink.commit(COMPUTE)
        assert held(server) == "S1a T2c"
        assert sink.position(ONE) == 1
    if ends == "after a second":
        await trio.sleep(1)
    elif ends == "with many rows":
        monkeypatch.setattr(TableSink, "rows_max", 1)
    else:
        feed(sink, ends, position=2)
    await sink.commit(COMPUTE)
    assert held(server) == ("S1a S2e T3g" if ends == "T/13g" else "S1a S2e")
    assert sink.position(ONE) == 2


async def test_nothing_is_sent_while_nothing_comes() -> None:
    server = TableServer()
    sink = await opened(server)
    feed(sink, "S1/5a B10(1)")
    await sink.commit(COMPUTE)
    before = server.transactions
    feed(sink, "B20(1) T/30b")
    await sink.commit(COMPUTE)
    assert server.transactions == before


async def test_tentative_rows_alone_are_sent() -> None:
    server = TableServer()
    sink = await opened(server, CURRENT)
    for text in ("T/5a", "T/6b"):
        feed(sink, text)
        await sink.commit(COMPUTE)
    assert held(server) == "T1a T2b"


async def test_a_server_that_never_answers_counts_as_away(autojump_clock: trio.testing.MockClock) -> None:
    server = TableServer()
    sink = await opened(server)
    feed(sink, "S1/5a")
    server.delay_s = 1e6
    with pytest.raises(ServerAway, match="no answer within 30 s"):
        await sink.commit(COMPUTE)


@pytest.mark.parametrize(("late_s", "done"), [(0.5, True), (1.5, True), (2.5, False)])
async def test_a_transaction_that_is_done_after_we_gave_up_is_ours(
    late_s: float, done: bool, autojump_clock: trio.testing.MockClock
) -> None:
    """The server hangs for longer than we wait.  Then it does what it was asked to: before we ask for its state, before
    what we send again comes, or not any more, for that has come."""
    server = TableServer()
    sink = await opened(server)
    feed(sink, "S1/5a")
    before, server.delay_s, begun = server.state, 1e6, trio.current_time()

    async def do_it_late() -> None:
        await trio.sleep(1)
        assert sink._sent is not None
        after, _, entries = sink._sent
        await trio.sleep_until(begun + sink.answer_s + late_s)
        assert server.apply(before, after, entries, STABLE) == done

    async with trio.open_nursery() as nursery:
        nursery.start_soon(do_it_late)
        with pytest.raises(ServerAway, match="no answer within 30 s"):
            await sink.commit(COMPUTE)
        server.delay_s = 1.0
        await sink.commit(COMPUTE)
    assert held(server) == "S1a"
    assert sink.position(ONE) == 1


async def test_a_process_that_was_superseded_writes_nothing_more(autojump_clock: trio.testing.MockClock) -> None:
    """Also what it had under way when the next one asked: that arrives later, and is refused."""
    server = TableServer()
    first = await opened(server)
    feed(first, "S1/5a")
    server.delay_s = 1.0
    async with trio.open_nursery() as nursery:

        async def commit() -> None:
            with pytest.raises(SpeError, match="table: another process writes to it since"):
                await first.commit(COMPUTE)

        nursery.start_soon(commit)
        await trio.sleep(0.1)
        server.delay_s = 0.1
        second = await opened(server)
        feed(second, "S1/5a")
        await second.commit(COMPUTE)
    assert held(server) == "S1a"


async def test_a_superseded_process_that_lost_its_connection_ends_too() -> None:
    server = TableServer()
    first = await opened(server)
    feed(first, "S1/5a")
    server.away = True
    with pytest.raises(ServerAway):
        await first.commit(COMPUTE)
    server.away = False
    await opened(server)
    with pytest.raises(SpeError, match="another process writes to it since") as caught:
        await first.commit(COMPUTE)
    assert not isinstance(caught.value, ServerAway)


async def test_two_clients_do_not_take_a_sink_from_each_other() -> None:
    server = TableServer()
    await opened(server, client="client:app")
    await opened(server, client="client:app")
    for other, named in (("client:screen", "client:screen"), ("", "this client")):
        with pytest.raises(SpeError, match=f"table is written by client:app; give {named} another place, or remove"):
            await opened(server, client=other)


async def test_results_of_another_query_or_mode_are_refused() -> None:
    server = TableServer()
    await opened(server)
    with pytest.raises(
        SpeError, match="table holds out/0 of another query: it was made for q1, and the plan now has q2"
    ):
        await opened(server, queries={ONE: "q2", TWO: "q1"})
    with pytest.raises(SpeError, match="table was written in the mode stable; the configuration has current"):
        await opened(server, CURRENT)
    server.state = b"hello"
    with pytest.raises(SpeError, match="no state of a sink"):
        await opened(server)


async def test_origin_of_rows_is_stored_with_them() -> None:
    server = TableServer()
    sink = await opened(server)
    assert sink.origin(ONE) == ""
    await sink.keep({ONE: "log-1"})
    feed(sink, "S1/5a")
    assert (await opened(server)).origin(ONE) == ""  # nothing was sent

    sink = await opened(server)
    await sink.keep({ONE: "log-1"})
    feed(sink, "S1/5a")
    await sink.commit(COMPUTE)
    again = await opened(server)
    assert (again.origin(ONE), again.origin(TWO)) == ("log-1", "")


async def test_channels_of_another_configuration_are_left_alone() -> None:
    server = TableServer()
    sink = await opened(server)
    feed(sink, "S1/5a", TWO)
    await sink.commit(COMPUTE)
    other = TableSink({ONE: PAYLOAD}, STABLE, server)
    await other.open(source_env(), {ONE: "q1"})
    await other.commit(COMPUTE)
    assert json.loads(server.state)["channels"]["out/1"]["id"] == 1
    assert (await opened(server)).reached(TWO) == 1


async def test_after_so_many_rows_a_commit_is_due() -> None:
    sink = await opened(TableServer())
    sink.rows_max = 2  # type: ignore[misc]
    feed(sink, "S1/5a")
    assert not sink.due
    feed(sink, "S1/5a S2/6b")
    assert sink.due
    await sink.commit(COMPUTE)
    assert not sink.due


async def test_after_so_many_bytes_a_commit_is_due() -> None:
    sink = await opened(TableServer())
    sink.bytes_max = 3_000  # type: ignore[misc]
    feed(sink, f"S1/5{'a' * 500}")
    assert not sink.due
    feed(sink, f"S1/5a S2/6{'b' * 3000}")
    assert sink.due
    await sink.commit(COMPUTE)
    assert not sink.due
