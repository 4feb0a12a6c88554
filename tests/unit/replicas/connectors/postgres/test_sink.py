"""A real server: each row once though it is killed, stopped or cut off; what does not fit is refused by name."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from itertools import count
from random import Random
from typing import Any

import pytest
import trio

from examples.servers.postgres import PASSWORD, PostgresServer
from replicas.connectors.server_sink import NOTHING_KEPT, ServerSink
from replicas.connectors.sink_registry import open_sink
from spe.connectors.declaration import CORRECTIONS, CURRENT, STABLE
from spe.errors import ConfigError, ServerAway, SpeError
from spe.runtime.production import ThreadCompute
from spe.stream.batch import Batch, Rows
from spe.stream.change import Change
from spe.stream.ids import Channel
from spe.stream.names import Kind, StreamId
from spe.stream.schema import Schema
from tests.support.slow_link import SlowLink, Turns
from tests.support.source_env import source_env
from tests.support.streams import PAYLOAD, parse

pytestmark = [pytest.mark.servers, pytest.mark.usefixtures("connected")]

ONE, TWO = Channel(StreamId("out"), 0), Channel(StreamId("out"), 1)
STORY = "S1/5a S2/6b B10(2) T/12c T/13d b20 U(2) S3/12e B20(3) R+ T/22f b30"
COMPUTE = ThreadCompute()
_NAMES = count()


@pytest.fixture
def table() -> str:
    return f"results_{next(_NAMES)}"


Schemas = dict[Channel, Schema]
BOTH: Schemas = {ONE: PAYLOAD, TWO: PAYLOAD}


def made(table: str, mode: str = STABLE, schemas: Schemas = BOTH, connection: str = "") -> ServerSink:
    spec = {"kind": "postgres", "table": table, "connection": connection, "mode": mode}
    sink = open_sink(spec, schemas, lambda _: pytest.fail("no folder is needed"))
    assert isinstance(sink, ServerSink)
    return sink


async def opened(
    table: str, mode: str = STABLE, schemas: Schemas = BOTH, query: str = "q1", connection: str = ""
) -> ServerSink:
    sink = made(table, mode, schemas, connection)
    env = source_env()
    env.random.seed(next(_NAMES))
    try:
        await sink.open(env, dict.fromkeys(schemas, query))
    except BaseException:
        await sink.disconnect()
        raise
    return sink


def feed(sink: ServerSink, text: str, channel: Channel = ONE, position: int = 0, schema: Schema = PAYLOAD) -> None:
    for element in parse(text, schema, position=position):
        sink.write(Change(channel, element, 0))


async def forgotten(table: str, schemas: Schemas = BOTH) -> str:
    sink = made(table, schemas=schemas)
    try:
        return await sink.forget(source_env())
    finally:
        await sink.disconnect()


async def written(table: str, story: str, mode: str = STABLE, schemas: Schemas = BOTH) -> None:
    sink = await opened(table, mode, schemas)
    schema = schemas[ONE]
    feed(sink, story, schema=schema)
    try:
        await sink.commit(COMPUTE)
    finally:
        await sink.disconnect()


def held(server: PostgresServer, table: str) -> str:
    rows = server.query(f"select _id, x from {table} order by _partition, _id")
    return " ".join(f"{id_}{x}" for id_, x in rows)


@pytest.mark.parametrize(("mode", "expected"), [(STABLE, "1a 2b 3e"), (CURRENT, "1a 2b 3e 4f")])
async def test_table_holds_rows_of_its_mode(server: PostgresServer, table: str, mode: str, expected: str) -> None:
    await written(table, STORY, mode)
    assert held(server, table) == expected
    if mode == CURRENT:
        assert server.query(f"select x from {table} where _tentative") == [("f",)]


async def test_changes_come_as_they_are_in_their_order(server: PostgresServer, table: str) -> None:
    await written(table, "S1/5a B10(1) T/12c b20 U(1) S2/12e B20(2) R+", CORRECTIONS)
    assert server.query(f"select _kind, _tentative, _id, x from {table} order by _change") == [
        ("insert", False, 1, "a"),
        ("insert", True, 2, "c"),
        ("undo", False, 1, None),
        ("insert", False, 2, "e"),
        ("done", False, 2, None),
    ]


async def test_a_correction_is_one_transaction_for_readers(server: PostgresServer, table: str) -> None:
    sink = await opened(table, CURRENT)
    feed(sink, "S1/5a B10(1) T/12c T/13d b20")
    await sink.commit(COMPUTE)
    with server.connect() as reader:
        before = reader.execute(f"select count(*) from {table}").fetchone()
        for text, position in (("U(1)", 1), ("S2/12e", 1), ("S3/13g B20(3) R+", 2)):
            assert reader.execute(f"select count(*) from {table}").fetchone() == before
            feed(sink, text, position=position)
            await sink.commit(COMPUTE)
        after = reader.execute(f"select string_agg(x, '' order by _id), bool_or(_tentative) from {table}").fetchone()
    await sink.disconnect()
    assert (before, after) == ((3,), ("aeg", False))


async def test_tentative_rows_of_a_session_are_withdrawn_by_next(server: PostgresServer, table: str) -> None:
    await written(table, "S1/5a T/6b", CURRENT)
    assert held(server, table) == "1a 2b"
    again = await opened(table, CURRENT)
    assert (again.reached(ONE), held(server, table)) == (1, "1a")
    await again.disconnect()


ALL = Schema.of(i="int64", f="float64", b="bool", t="string", m="timestamp")


async def test_each_type_and_each_extreme(server: PostgresServer, table: str) -> None:
    long = "é" * 700_000
    rows: list[tuple[Any, ...]] = [
        (-(2**63), float("inf"), True, long, -62_135_596_800_000_000),
        (2**63 - 1, float("-inf"), False, "", 253_402_300_799_999_999),
        (0, float("nan"), None, "tab\t newline\n backslash\\ \\N 🦆", 1),
        (None, None, None, None, None),
        (7, 5e-324, True, "null", -1),
    ]
    sink = await opened(table, STABLE, {ONE: ALL})
    sink.write(Change(ONE, Batch(Kind.STABLE, 0, 5, None, Rows.from_tuples(ALL, [1, 2, 3, 4, 5], rows)), 0))
    await sink.commit(COMPUTE)
    await sink.disconnect()
    epoch = datetime(1970, 1, 1, tzinfo=UTC)

    def us(moment: datetime | None) -> int | None:
        return None if moment is None else (moment - epoch) // timedelta(microseconds=1)

    found = server.query(f"select i, f, b, t, m from {table} order by _id")
    assert [repr((*row[:4], us(row[4]))) for row in found] == [repr(row) for row in rows]


async def test_names_are_taken_as_they_are(server: PostgresServer) -> None:
    server.query('create schema if not exists "Odd ""one"""')
    odd = Schema.of(**{"select": "string", 'quo"te': "int64", "Größe": "bool"})
    name = '"Odd ""one"""."a.b; drop"'
    sink = await opened(name, CURRENT, {ONE: odd})
    feed(sink, "S1/5:a,1,true", schema=odd)
    await sink.commit(COMPUTE)
    await sink.disconnect()
    assert server.query(f'select "select", "quo""te", "Größe" from {name}') == [("a", 1, True)]


async def test_each_stream_has_its_table(server: PostgresServer, table: str) -> None:
    other, schemas = (
        Channel(StreamId("alerts"), 0),
        {ONE: PAYLOAD, Channel(StreamId("alerts"), 0): Schema.of(n="int64")},
    )
    with pytest.raises(ConfigError, match=r"alerts, out go to one table; expected \{stream\} in its name"):
        made(table, schemas=schemas)
    sink = await opened(table + "_{stream}", schemas=schemas)
    feed(sink, "S1/5a")
    feed(sink, "S1/5:3", other, schema=schemas[other])
    await sink.commit(COMPUTE)
    await sink.disconnect()
    assert server.query(f"select x from {table}_out") == [("a",)]
    assert server.query(f"select n from {table}_alerts") == [(3,)]


# --- what does not fit ---


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ("_partition integer, _id bigint, _time timestamptz, x integer", "column 'x' is integer, expected text"),
        (
            "_partition bigint, _time timestamptz, x text",
            "column '_partition' is bigint, expected integer; column '_id' is ",
        ),
        ("_partition integer, _id bigint, _time timestamptz, x text not null", "column 'x' is not null, but the attr"),
        (
            "_partition integer, _id bigint, _time timestamptz, x text, y int not null",
            "column 'y' is not null, has no default, and is no attribute",
        ),
    ],
)
async def test_a_table_that_does_not_fit_is_refused_by_column(
    server: PostgresServer, table: str, columns: str, said: str
) -> None:
    server.query(f"create table {table} ({columns})")
    with pytest.raises(SpeError, match=f"table public.{table} does not fit what is to be written: .*{said}"):
        await opened(table)


async def test_a_table_of_the_user_s_that_fits_is_taken(server: PostgresServer, table: str) -> None:
    server.query(
        f"create table {table} (x varchar, more int default 3, _time timestamptz, _id bigint, _partition integer, "
        "primary key (_partition, _id))"
    )
    await written(table, "S1/5a")
    assert server.query(f"select x, more from {table}") == [("a", 3)]


@pytest.mark.parametrize(
    ("before", "said"),
    [
        ("create view {} as select 1", "is no table"),
        ("create unlogged table {} (x int)", "is unlogged: a crash of the server would empty it"),
        (
            "create table {0} (_partition integer, _id bigint, _time timestamptz, x text); insert into {0} values (0)",
            "has rows, and public._spe_sinks does not say how far they go",
        ),
    ],
)
async def test_unsafe_table_is_refused(server: PostgresServer, table: str, before: str, said: str) -> None:
    for one in before.format(table).split(";"):
        server.query(one)
    with pytest.raises(SpeError, match=said):
        await opened(table)


async def test_a_table_that_was_dropped_is_noticed(server: PostgresServer, table: str) -> None:
    await written(table, "S1/5a")
    server.query(f"drop table {table}")
    with pytest.raises(SpeError, match=r"was dropped since, and rows that it had will not come again"):
        await opened(table)
    server.query(f"create table {table} (_partition integer, _id bigint, _time timestamptz, x text)")
    with pytest.raises(SpeError, match="was made anew since"):
        await opened(table)


@pytest.mark.parametrize(
    ("change", "said", "back"),
    [
        ("drop column x", "column 'x' is missing, text", "add column x text"),
        ("rename column x to y", "column 'x' is missing, text", "rename column y to x"),
        # eight bytes in COPY, as before: they would be taken for another number
        ("alter column f type bigint", "column 'f' is bigint, expected double prec", "alter column f type float8"),
        (
            "drop column _id, drop column f",
            "column '_id' is missing, .*; column 'f' is",
            "add _id bigint, add f float8",
        ),
        ("add more int default 3, add need int not null", "column 'need' is not null, has no default", "drop need"),
    ],
)
async def test_column_changed_during_run_ends_client_without_loss(
    server: PostgresServer, table: str, change: str, said: str, back: str
) -> None:
    schema = Schema.of(x="string", f="float64")
    # A column that may not be null can be added to an empty table only.
    first = 0 if "not null" in change else 1
    sink = await opened(table, CURRENT, {ONE: schema})
    feed(sink, "S1/5:a,1.5"[: 100 * first], schema=schema)
    await sink.commit(COMPUTE)
    server.query(f"alter table {table} {change}")
    rest = " ".join(f"S{n}/{n}5:{'ab'[n - 1]},{n}.5" for n in range(first + 1, 3))
    feed(sink, rest, position=first, schema=schema)
    with pytest.raises(SpeError, match=f"public.{table} was changed, and does not fit .*{said}.* loses not") as caught:
        await sink.commit(COMPUTE)
    assert not isinstance(caught.value, ServerAway)
    await sink.disconnect()
    assert server.query(f"select count(*) from {table}") == [(first,)]
    with pytest.raises(SpeError, match=f"does not fit what is to be written: .*{said}"):
        await opened(table, CURRENT, {ONE: schema})
    server.query(f"alter table {table} {back}")
    again = await opened(table, CURRENT, {ONE: schema})
    assert again.reached(ONE) == first
    feed(again, rest, position=first, schema=schema)
    await again.commit(COMPUTE)
    await again.disconnect()
    assert server.query(f"select x, f from {table} where _id > {first}") == [("a", 1.5), ("b", 2.5)][first:]


async def test_a_column_that_is_added_during_a_run_is_left_alone(server: PostgresServer, table: str) -> None:
    sink = await opened(table)
    server.query(f"alter table {table} add more int default 3")
    feed(sink, "S1/5a")
    await sink.commit(COMPUTE)
    await sink.disconnect()
    assert server.query(f"select x, more from {table}") == [("a", 3)]


@pytest.mark.parametrize("how", ["dropped", "made anew"])
async def test_a_table_that_is_dropped_during_a_run_ends_the_client(
    server: PostgresServer, table: str, how: str
) -> None:
    """Also where another one has its name: the rows that were there will not come again."""
    sink = await opened(table)
    feed(sink, "S1/5a")
    await sink.commit(COMPUTE)
    server.query(f"drop table {table}")
    if how == "made anew":
        server.query(f"create table {table} (_partition integer, _id bigint, _time timestamptz, x text)")
    feed(sink, "S2/6b", position=1)
    with pytest.raises(SpeError, match=f"public.{table} was {how} since, and rows that it had will not come again"):
        await sink.commit(COMPUTE)
    await sink.disconnect()


@pytest.mark.parametrize(
    ("constraint", "text", "said"),
    [
        ("check (x <> 'c')", "c", "row 3 of out/0: new row for relation .* violates check constraint"),
        ("unique (x)", "a", "row 3 of out/0: duplicate key value violates unique constraint .*; Key .x.=.a. already"),
        ("check (x <> 'c')", "", "row 3 of out/0, x: the text has a NUL character"),
    ],
)
async def test_refused_row_is_named_and_its_transaction_undone(
    server: PostgresServer, table: str, constraint: str, text: str, said: str
) -> None:
    sink = await opened(table)
    server.query(f"alter table {table} add {constraint}")
    rows = Rows.from_tuples(PAYLOAD, [5, 6, 7], [("a",), ("b",), (text or "x\0",)])
    sink.write(Change(ONE, Batch(Kind.STABLE, 0, 3, None, rows), 0))
    with pytest.raises(SpeError, match=said) as caught:
        await sink.commit(COMPUTE)
    assert not isinstance(caught.value, ServerAway)
    await sink.disconnect()
    assert held(server, table) == ""


@pytest.mark.parametrize(
    ("variables", "connection", "said"),
    [
        ({"PGPASSWORD": "wrong"}, "", "password authentication failed for user .*; set PGPASSWORD, or a password file"),
        ({"PGPASSWORD": ""}, "", "no password supplied; set PGPASSWORD"),
        ({}, "dbname=nowhere", 'database "nowhere" does not exist; create it'),
        ({}, "service=none", "definition of service .none. not found; correct the service file"),
        ({}, "host=127.0.0.1 colour=red", 'invalid connection option "colour"; correct the connection'),
    ],
)
async def test_failed_connection_says_what_to_do(
    table: str, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], connection: str, said: str
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SpeError, match=said) as caught:
        await opened(table, connection=connection)
    assert not isinstance(caught.value, ServerAway)
    assert PASSWORD not in str(caught.value)


async def test_a_privilege_that_is_missing_is_named(server: PostgresServer, table: str) -> None:
    server.query(f"create role reader_{table} login password '{PASSWORD}'")
    with pytest.raises(SpeError, match="permission denied for "):
        await opened(table, connection=f"user=reader_{table}")


# --- failures ---


async def until_there(sink: ServerSink) -> None:
    """As the client does it: what was on its way first, then what came since."""
    for _ in range(2):
        while True:
            try:
                await sink.commit(COMPUTE)
            except ServerAway:
                await trio.sleep(0.05)
            else:
                break


@pytest.mark.parametrize("moment", ["before", "in the transaction", "at the commit", "after"])
@pytest.mark.parametrize("mode", [STABLE, CURRENT])
async def test_each_row_stands_once_wherever_the_server_is_killed(
    server: PostgresServer, table: str, mode: str, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A commit whose answer is lost is asked after."""
    sink = await opened(table, mode)
    feed(sink, "S1/5a B10(1) T/12c b20")
    await sink.commit(COMPUTE)
    feed(sink, "U(1) S2/12e B20(2) R+ T/22f", position=1)
    if moment == "before":
        server.restart()
    elif moment == "after":
        await _lose_the_answer(sink, monkeypatch)
    else:
        server.query(
            f"create function wait_{table}() returns trigger language plpgsql as "
            "$$ begin perform pg_sleep(1.5); return null; end $$"
        )
        when = "initially deferred" if moment == "at the commit" else ""
        server.query(
            f"create constraint trigger waits after insert on {table} deferrable {when} for each row "
            f"when (new._id = 2) execute function wait_{table}()"
        )
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_expect_away, sink)
            await trio.sleep(0.5)
            await trio.to_thread.run_sync(server.restart)
        server.query(f"drop trigger waits on {table}")
    await until_there(sink)
    await sink.disconnect()
    assert held(server, table) == ("1a 2e" if mode == STABLE else "1a 2e 3f")


async def _expect_away(sink: ServerSink) -> None:
    with pytest.raises(ServerAway):
        await sink.commit(COMPUTE)


async def _lose_the_answer(sink: ServerSink, monkeypatch: pytest.MonkeyPatch) -> None:
    """The transaction is committed, and we do not hear of it."""
    real: Callable[..., Any] = sink._transaction  # type: ignore[attr-defined]

    def lost(connection: Any, *given: Any) -> bool:
        real(connection, *given)
        connection.close()
        raise ServerAway("the answer is lost")

    monkeypatch.setattr(sink, "_transaction", lost)
    await _expect_away(sink)
    monkeypatch.undo()


async def test_a_server_that_was_stopped_counts_as_away_and_comes_back(server: PostgresServer, table: str) -> None:
    sink = await opened(table)
    sink.answer_s = 0.5
    feed(sink, "S1/5a")
    with server.stopped(), pytest.raises(ServerAway, match=r"no answer within 0.5 s"):
        await sink.commit(COMPUTE)
    sink.answer_s = 30
    feed(sink, "S2/6b", position=1)
    await until_there(sink)
    await sink.disconnect()
    assert held(server, table) == "1a 2b"


async def test_slow_server_gets_each_row_once_and_blocks_only_itself(server: PostgresServer, table: str) -> None:
    """Each piece of what it says, or is told, waits until another client has written a row.

    Transactions are given up on the way, after more pieces each time, and asked after.
    """
    other, written, given_up = await opened(f"{table}_other"), Turns(), 0

    async def write() -> None:
        for n in count(1):
            feed(other, f"S{n}/{n}a", position=n - 1)
            await other.commit(COMPUTE)
            written.one_more()

    link = SlowLink(server.port, written.next)
    with trio.fail_after(120):
        async with trio.open_nursery() as nursery:
            await nursery.start(link.serve)
            nursery.start_soon(write)
            slow = await opened(table, connection=f"port={link.port}")
            for n in range(1, 7):
                feed(slow, f"S{n}/{n}a", position=n - 1)
                with trio.CancelScope() as scope:
                    link.after(2 * n - 1, scope.cancel)
                    await slow.commit(COMPUTE)
                given_up += scope.cancelled_caught
                await until_there(slow)
            await slow.disconnect()
            nursery.cancel_scope.cancel()
    await other.disconnect()
    assert given_up >= 4
    assert held(server, table) == "1a 2a 3a 4a 5a 6a"
    there = held(server, f"{table}_other").split()
    assert there == [f"{n}a" for n in range(1, len(there) + 1)]
    assert len(there) >= written.count > link.passed / 4 > 20


async def test_a_cancelled_commit_leaves_no_thread_and_no_half(server: PostgresServer, table: str) -> None:
    """The client is told to end while the server waits for a lock."""
    sink = await opened(table)
    feed(sink, "S1/5a")
    with server.connect() as other, other.transaction():
        other.execute(f"lock table {table}")
        with trio.move_on_after(0.3) as scope:
            await sink.commit(COMPUTE)
        assert scope.cancelled_caught
        await sink.disconnect()
    again = await opened(table)
    assert held(server, table) in ("", "1a")
    assert again.reached(ONE) == len(held(server, table).split())
    await again.disconnect()


async def test_a_process_that_was_superseded_writes_nothing_more(server: PostgresServer, table: str) -> None:
    first = await opened(table)
    feed(first, "S1/5a")
    second = await opened(table)
    with pytest.raises(SpeError, match="another process writes to it since"):
        await first.commit(COMPUTE)
    feed(second, "S1/5b")
    await second.commit(COMPUTE)
    await first.disconnect()
    await second.disconnect()
    assert held(server, table) == "1b"


async def test_another_query_or_mode_is_refused(table: str) -> None:
    await written(table, "S1/5a")
    with pytest.raises(SpeError, match="of another query: it was made for q1, and the plan now has q2"):
        await opened(table, query="q2")


async def test_acknowledged_rows_are_synced_despite_server_default(server: PostgresServer, table: str) -> None:
    server.query("alter system set synchronous_commit = off")
    server.query("select pg_reload_conf()")
    try:
        await trio.sleep(0.2)
        sink = await opened(table)
        for n in range(1, 6):
            feed(sink, f"S{n}/{n}a", position=n - 1)
            await sink.commit(COMPUTE)
        server.restart()
        await sink.disconnect()
    finally:
        server.query("alter system reset synchronous_commit")
        server.query("select pg_reload_conf()")
    assert held(server, table) == "1a 2a 3a 4a 5a"


@pytest.mark.parametrize("seed", range(2))
async def test_clients_and_servers_that_are_killed_at_random(server: PostgresServer, table: str, seed: int) -> None:
    """Somebody looks at each step: no id is ever there twice, and what is final never goes away."""
    random, sink, final = Random(seed), await opened(table, CURRENT), 0
    events = ["server", *random.choices(["nothing", "client", "cancel"], k=14), "server"]
    random.shuffle(events)
    for step in range(8):
        first, last = 2 * step + 1, 2 * step + 2
        stable = f"S{first}/{10 * first}a S{last}/{10 * last}b"
        for position, text in (
            (first - 1, f"{stable} B{10 * last}({last}) T/{10 * last + 5}x"),
            (last, f"U({last}) R+"),
        ):
            what = events.pop()
            feed(sink, text, position=position)
            if what == "server":
                await trio.to_thread.run_sync(server.restart)
            elif what == "client":
                await sink.disconnect()
                sink = await opened(table, CURRENT)
                assert sink.reached(ONE) >= final
                feed(sink, stable, position=first - 1)
            elif what == "cancel":
                with trio.move_on_after(random.uniform(0, 0.03)), suppress(ServerAway):
                    await sink.commit(COMPUTE)
            await until_there(sink)
            assert server.query(f"select _id from {table} group by _id having count(*) > 1") == []
            ((count_final,),) = server.query(f"select count(*) from {table} where not _tentative")
            assert count_final >= final
            final = count_final
    await sink.disconnect()
    assert held(server, table) == " ".join(f"{n}{'ba'[n % 2]}" for n in range(1, 17))


# -- beginning anew --------------------------------------------------------------------------------------------------


async def test_a_forgotten_table_is_written_from_the_first_row(server: PostgresServer, table: str) -> None:
    await written(table, "S1/5a S2/6b B10(2)", CURRENT)
    other = await opened(table, CURRENT)
    assert await forgotten(table) == f"{table}: its position and 2 rows are removed"
    feed(other, "S3/7c", position=2)
    with pytest.raises(SpeError, match="another process writes to it since"):
        await other.commit(COMPUTE)
    await other.disconnect()
    await written(table, "S1/8x B10(1)", CURRENT)
    assert [row[0] for row in server.query(f"select _id from {table}")] == [1]


async def test_only_our_rows_and_positions_are_forgotten(server: PostgresServer, table: str) -> None:
    server.query(f"create table {table}_kept (n bigint)")
    server.query(f"insert into {table}_kept values (1)")
    await written(table, "S1/5a B10(1)")
    assert await forgotten(f"{table}_kept") == f"{table}_kept: {NOTHING_KEPT}"
    assert server.query(f"select n from {table}_kept") == [(1,)]
    server.query(f"drop table {table}")
    server.query(f"create table {table} (n bigint)")
    server.query(f"insert into {table} values (7)")
    assert await forgotten(table) == f"{table}: its position is removed"
    assert server.query(f"select n from {table}") == [(7,)]


async def test_dropped_table_error_names_the_way_to_restart(server: PostgresServer, table: str) -> None:
    await written(table, "S1/5a B10(1)")
    server.query(f"drop table {table}")
    with pytest.raises(SpeError, match=r"was dropped since, .* or begin anew: spe forget CONFIG PROCESS"):
        await opened(table)
    assert await forgotten(table) == f"{table}: its position is removed"
    await written(table, "S1/5a B10(1)")
