"""A table as a stream, from a real server: each row once, wherever the source or the server is killed."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterator
from itertools import count
from random import Random
from typing import Any

import pytest
import trio

from examples.servers.postgres import PASSWORD, PostgresServer
from replicas.connectors import open_reader
from replicas.connectors.postgres import slot as slots
from replicas.connectors.postgres import source as postgres_source
from replicas.connectors.postgres.source import PostgresReader
from replicas.connectors.reader import RowChunk
from replicas.simulation.world.disk import SimDisk
from replicas.source.proxy import SourceProxy
from spe.connectors import READERS
from spe.errors import ServerAway, SpeError, leaves
from spe.log import read_log
from spe.log.source_log import check_record, decode_source_batch, decode_source_state, source_folder
from spe.plan.plan import Source, Watermark
from spe.stream.names import StreamId
from spe.stream.schema import Schema
from spe.stream.strings import StringPool
from tests.support.postgres_server import environment, running_server
from tests.support.source_env import source_env

pytestmark = [pytest.mark.servers, pytest.mark.usefixtures("connected")]

_NAMES = count()
N = Schema.of(n="int64!", name="string")


@pytest.fixture
def table(server: PostgresServer) -> Iterator[str]:
    name = f"orders_{next(_NAMES)}"
    server.query(f"create table {name} (n bigint primary key, name text)")
    yield name
    # A backend that is told to end holds its slot for a while yet, longer on a busy machine.
    for _ in range(300):
        if not server.query("select pg_terminate_backend(active_pid) from pg_replication_slots where active"):
            break
        server.query("select pg_sleep(0.1)")
    server.query("select pg_drop_replication_slot(slot_name) from pg_replication_slots")


def options(table: str, **given: Any) -> dict[str, Any]:
    columns = given.pop("columns", None)
    declared = READERS["postgres"]
    keys = {"table": table, "connection": "", "slot": f"spe_{table}", "changes": "refuse", "snapshot": True, **given}
    return {"kind": declared.kind, **keys, **({"columns": columns} if columns else {})}


def source(table: str, schema: Schema = N, time: str | None = None, **given: Any) -> Source:
    return Source(
        stream=StreamId("orders"),
        schema=schema,
        boundary_us=10_000,
        disorder_us=0,
        ahead_us=None,
        time=time,
        reader=options(table, **given),
        replay={},
        on_malformed="skip",
        watermark=Watermark.CLOCK,
        idle_us=None,
    )


def logged(storage: SimDisk) -> list[tuple[Any, ...]]:
    """Rows in the log; each record continues the one before it and accounts for its rows."""
    rows, last, pool = list[tuple[Any, ...]](), 0, StringPool()
    for record in read_log(storage, source_folder(StreamId("orders"))):
        state, batch = decode_source_state(record.body), decode_source_batch(record.body, N, pool)
        check_record(last, state, batch)
        last = state.last_id
        if batch is not None:
            rows += batch.rows.to_tuples()
    return rows


class Intake:
    """What a source does with a reader, in memory: rows and cursor together; another task syncs them (S3).

    Attributes:
      synced: the cursor that a power failure leaves, and how many rows.
    """

    def __init__(
        self, reader: PostgresReader, cursor: bytes = b"", *, keep: int | None = None, syncs: bool = True
    ) -> None:
        self.reader = reader
        reader.cursor = cursor
        if cursor:
            reader.durable(cursor)
        self.cursor = cursor
        self.rows: list[tuple[Any, ...]] = []
        self.malformed: list[str] = []
        self.places: list[str] = []
        self.rows_at: list[str] = []
        self._keep = keep
        self._chunks = 0
        self.synced = cursor, 0
        self._syncs = syncs
        self._appended = trio.Event()

    async def read(self) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._sync)
            await self.reader.read(source_env(), self.accept)
            nursery.cancel_scope.cancel()

    async def _sync(self) -> None:
        while self._syncs:
            await self._appended.wait()
            self._appended = trio.Event()
            now = self.cursor, len(self.rows)
            await trio.to_thread.run_sync(lambda: None)  # more may be appended meanwhile
            self.synced = now
            self.reader.durable(now[0])

    async def accept(self, chunk: RowChunk) -> None:
        assert chunk.cursor
        await trio.lowlevel.checkpoint()
        self._chunks += 1
        self.rows += zip(*[c.to_list() for c in chunk.columns])
        self.malformed += [m.reason for m in chunk.malformed]
        self.places += [m.where for m in chunk.malformed]
        assert chunk.where is not None
        self.rows_at += [chunk.where(n) for n in range(chunk.taken)]
        self.cursor = chunk.cursor
        if self._keep is not None and self._chunks >= self._keep:
            raise Killed
        self._appended.set()


class Killed(Exception):
    """As if the process was."""


def reader_of(table: str, schema: Schema = N, time: str | None = None, **given: Any) -> PostgresReader:
    found = open_reader(source(table, schema, time, **given))
    assert isinstance(found, PostgresReader)
    return found


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - of other tasks, and of the server
        await trio.sleep(0.02)


async def take(intake: Intake, count: int, seconds: float = 60) -> None:
    """Reads until there are so many rows."""
    with trio.fail_after(seconds):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(intake.read)
            await until(lambda: len(intake.rows) >= count)
            nursery.cancel_scope.cancel()


async def stopped(intake: Intake) -> str:
    """Why it ends."""
    why = ""
    with trio.fail_after(30):
        try:
            await intake.read()
        except* SpeError as group:
            why = str(next(leaves(group)))
    assert why
    return why


async def stopped_by(intake: Intake, script: Callable[[], Awaitable[None]]) -> str:
    """Why it ends, with what happens while it reads."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(script)
        return await stopped(intake)


async def test_rows_that_are_there_come_first_then_each_insert(server: PostgresServer, table: str) -> None:
    server.query(f"insert into {table} select n, 'old' || n from generate_series(1, 5) n")
    intake = Intake(reader_of(table))
    await take(intake, 5)
    server.query(f"insert into {table} values (6, null), (7, 'tab\t, quote '' and 🦆')")
    intake = Intake(reader_of(table), intake.cursor)
    await take(intake, 2)
    assert intake.rows == [(6, None), (7, "tab\t, quote ' and 🦆")]
    server.query(f"insert into {table} values (8, 'new')")
    again = Intake(reader_of(table), intake.cursor)
    await take(again, 1)
    assert again.rows == [(8, "new")]
    assert server.query("select count(*) from pg_class where relname = %s", f"_spe_spe_{table}") == [(0,)]


async def test_without_a_snapshot_only_changes_come(server: PostgresServer, table: str) -> None:
    server.query(f"insert into {table} values (1, 'old')")
    intake = Intake(reader_of(table, snapshot=False))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(intake.read)
        with trio.fail_after(30):
            await until(lambda: b'"log"' in intake.cursor)
            server.query(f"insert into {table} values (2, 'new')")
            await until(lambda: intake.rows)
        nursery.cancel_scope.cancel()
    assert intake.rows == [(2, "new")]


ALL = Schema.of(i="int64", f="float64", b="bool", t="string", m="timestamp")


async def test_each_type_comes_as_it_is_over_both_ways(server: PostgresServer, table: str) -> None:
    server.query(f"create table {table}_all (i bigint, f double precision, b boolean, t varchar, m timestamptz)")
    server.query(f"alter table {table}_all replica identity full")
    row = (
        "(-9223372036854775808, '-Infinity', true, 'é', '2026-01-02 03:04:05.678901+02'), (7, 1e-300, false, '', null)"
    )
    server.query(f"insert into {table}_all values {row}")
    intake = Intake(reader_of(f"{table}_all", ALL))
    await take(intake, 2)
    server.query(f"insert into {table}_all values {row}")
    after = Intake(reader_of(f"{table}_all", ALL), intake.cursor)
    await take(after, 2)
    expected = [(-(2**63), float("-inf"), True, "é", 1_767_315_845_678_901), (7, 1e-300, False, "", None)]
    assert (intake.rows, after.rows) == (expected, expected)


async def test_a_server_that_gives_nothing_stays_away(
    server: PostgresServer, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that lets us in, and whose slot another program reads: said once, and tried more and more rarely."""
    intake, reader = Intake(reader_of(table)), reader_of(table)
    server.query(f"insert into {table} values (1, 'a')")
    await take(intake, 1)
    seen: list[str] = []

    def refuse(connection: Any, *args: Any) -> None:
        seen.append(reader.away)
        if len(seen) < 4:
            raise ServerAway("replication slot is active")
        opened(connection, *args)

    opened = postgres_source._open
    monkeypatch.setattr(postgres_source, "_open", refuse)
    server.query(f"insert into {table} values (2, 'b')")
    after = Intake(reader, intake.cursor)
    await take(after, 1)
    assert after.rows == [(2, "b")]
    assert [away.endswith("replication slot is active; trying again") for away in seen[:4]] == [False, True, True, True]
    assert reader.away == ""


async def test_values_that_do_not_fit_are_malformed(server: PostgresServer, table: str) -> None:
    server.query(f"insert into {table} values (1, 'x'), (2, null), (3, '9')")
    intake = Intake(reader_of(table, Schema.of(n="int64", name="int64!")))
    await take(intake, 1)
    assert intake.rows == [(3, 9)]
    assert intake.malformed == ["name: expected int64, got 'x'", "name: null, but the attribute is not nullable"]
    assert intake.places == [f"public.{table}, row {n} of the copy" for n in (1, 2)]
    assert intake.rows_at == [*intake.places, f"public.{table}, row 3 of the copy"]
    server.query(f"insert into {table} values (4, 'y'), (5, '5')")
    after = Intake(reader_of(table, Schema.of(n="int64", name="int64!")), intake.cursor)
    await take(after, 1)
    (place,) = after.places
    assert re.fullmatch(rf"public\.{table}, committed at [0-9A-F]+/[0-9A-F]+ or shortly before", place)


# --- updates and deletes ---


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("update {} set name = 'x' where n = 1", "an update of a row, at .*, and `changes` is refuse; `changes: rows`"),
        ("delete from {} where n = 1", "a delete of a row, at .*, and `changes` is refuse"),
        ("truncate {}", "the table was truncated, at"),
    ],
)
async def test_change_other_than_insert_stops_source_without_loss(
    server: PostgresServer, table: str, statement: str, said: str
) -> None:
    server.query(f"insert into {table} values (1, 'a')")
    intake = Intake(reader_of(table))
    await take(intake, 1)
    with server.connect() as connection, connection.transaction():
        connection.execute(f"insert into {table} values (2, 'b')")
        connection.execute(statement.format(table))
        connection.execute(f"insert into {table} values (3, 'c')")
    for rows in ([(2, "b")], []):
        intake = Intake(reader_of(table), intake.cursor)
        why = await stopped(intake)
        assert pytest.raises(AssertionError, match=said).matches(AssertionError(why)), why
        assert intake.rows == rows
    intake = Intake(reader_of(table, changes="ignore"), intake.cursor)
    await take(intake, 1)
    assert intake.rows == [(3, "c")]


async def test_changes_as_rows(server: PostgresServer, table: str) -> None:
    """Also of a large value that an update does not touch, and of a key that becomes another one."""
    server.query(f"alter table {table} replica identity full")
    server.query(f"alter table {table} alter name set storage external")
    large = "x" * 20_000
    server.query(f"insert into {table} values (1, '{large}')")
    schema = Schema.of(n="int64", name="string", kind="string", at="timestamp")
    given: dict[str, Any] = {"changes": "rows", "columns": {"kind": "_change", "at": "_commit"}}
    intake = Intake(reader_of(table, schema, **given))
    await take(intake, 1)
    with server.connect() as connection, connection.transaction():
        connection.execute(f"insert into {table} values (2, 'b')")
        connection.execute(f"update {table} set name = 'c' where n = 2")
        connection.execute(f"update {table} set n = 3 where n = 1")
        connection.execute(f"delete from {table} where n = 2")
    after = Intake(reader_of(table, schema, **given), intake.cursor)
    await take(after, 5)
    ((now,),) = server.query("select extract(epoch from now())::float")
    assert [row[:3] for row in [*intake.rows, *after.rows]] == [
        (1, large, "insert"),
        *((2, "b", "insert"), (2, "c", "update"), (1, large, "delete"), (3, large, "insert"), (2, "c", "delete")),
    ]
    assert all(now - 60 < row[3] / 1e6 <= now for row in [*intake.rows, *after.rows])
    assert len({row[3] for row in after.rows}) == 1


# --- failures ---


async def test_the_slot_is_not_advanced_before_rows_are_synced(
    server: PostgresServer, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S9: the server would delete what only the memory of a source has."""
    advanced: list[int] = []
    advance = slots.advance

    def noted(connection: Any, watched: slots.Watched, end: int) -> None:
        advanced.append(end)
        advance(connection, watched, end)

    server.query(f"insert into {table} values (1, 'copied')")
    first = Intake(reader_of(table))
    await take(first, 1)
    server.query(f"insert into {table} values (2, 'from the log')")
    first = Intake(reader_of(table), first.cursor)
    await take(first, 1)
    monkeypatch.setattr(slots, "advance", noted)
    server.query(f"insert into {table} select n, 'r' || n from generate_series(6, 9) n")
    lost = Intake(reader_of(table), first.cursor, syncs=False)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lost.read)
        with trio.fail_after(30):
            await until(lambda: len(lost.rows) >= 4)
            await until(lambda: bool(advanced or lost.reader._synced.statistics().tasks_waiting))
        nursery.cancel_scope.cancel()
    assert advanced == []
    again = Intake(reader_of(table), first.cursor)
    await take(again, 4)
    assert again.rows == lost.rows


@pytest.mark.parametrize("seed", [0, *(pytest.param(s, marks=pytest.mark.long) for s in range(1, 4))])
async def test_each_row_comes_once_wherever_the_source_is_killed(
    server: PostgresServer, table: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed after any chunk, synced or not, from the first on; large transactions are cut into chunks."""
    monkeypatch.setattr("replicas.connectors.postgres.rows.CHUNK_ROWS", 7)
    monkeypatch.setattr("replicas.connectors.postgres.source._FETCHED", 10)
    random = Random(seed)
    server.query(f"insert into {table} select n, 'r' || n from generate_series(1, 25) n")
    got: list[tuple[Any, ...]] = []
    cursor, last, most = b"", 25, 120
    while len(got) < most:
        if cursor and last < most:
            size = min(random.choice([1, 3, 30]), most - last)
            server.query(f"insert into {table} select n, 'r' || n from generate_series({last + 1}, {last + size}) n")
            last += size
        intake = Intake(reader_of(table), cursor, keep=random.randrange(1, 6))
        with trio.move_on_after(1.0 if last == most else random.uniform(0.1, 1.0)):
            try:
                await intake.read()
            except* Killed:
                pass
        # The power fails as well, or the log is written to its end.
        cursor, rows = random.choice([intake.synced, (intake.cursor, len(intake.rows))])
        got += intake.rows[:rows]
    assert got == [(n, f"r{n}") for n in range(1, most + 1)]


async def test_each_row_comes_once_though_server_is_killed(
    server: PostgresServer, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Transactions that were rolled back, or not finished when it was killed, do not come."""
    monkeypatch.setattr("replicas.connectors.postgres.source._SILENCE_S", 0.5)
    intake = Intake(reader_of(table))
    said: list[str] = []

    async def events() -> None:
        for step in range(4):
            first = 10 * step
            await trio.to_thread.run_sync(
                server.query, f"insert into {table} select n, 'r' from generate_series({first}, {first + 9}) n"
            )
            if step == 1:
                other = server.connect()
                other.execute("begin")
                other.execute(f"insert into {table} values (1000, 'never')")
                await trio.to_thread.run_sync(server.kill)
                other.close()
                await until(lambda: intake.reader.away)
                said.append(intake.reader.away)
                await trio.to_thread.run_sync(server.start)
            if step == 2:
                await until(lambda: len(intake.rows) == 30)
                with server.stopped():
                    await until(lambda: intake.reader.away != "")
                    said.append(intake.reader.away)
            await trio.sleep(0.1)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(events)
        await take(intake, 40)
    assert [row[0] for row in intake.rows] == list(range(40))
    assert said[0].startswith(f"postgres {table} does not answer: ")
    assert said[0].endswith("; trying again")
    assert said[1:] == [f"postgres {table} does not answer: nothing for 0.5 s; waiting"]
    assert intake.reader.away == ""


async def test_an_idle_table_does_not_make_the_server_keep_its_log(server: PostgresServer, table: str) -> None:
    server.query(f"create table {table}_other (t text)")
    intake = Intake(reader_of(table))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(intake.read)
        with trio.fail_after(60):
            await until(lambda: b'"log"' in intake.cursor)
            server.query(f"insert into {table}_other select repeat(n::text, 200) from generate_series(1, 20000) n")
            ((end,),) = server.query("select pg_current_wal_insert_lsn() - '0/0'")
            text = "select confirmed_flush_lsn - '0/0' from pg_replication_slots where slot_name = %s"
            await until(lambda: server.query(text, f"spe_{table}")[0][0] >= end - (1 << 20))
        nursery.cancel_scope.cancel()
    server.query(f"insert into {table} values (1, 'a')")
    again = Intake(reader_of(table), intake.cursor)
    await take(again, 1)
    assert again.rows == [(1, "a")]


# --- what does not fit ---


async def test_a_column_that_is_dropped_during_a_run_stops_the_source(server: PostgresServer, table: str) -> None:
    intake = Intake(reader_of(table))
    server.query(f"insert into {table} values (1, 'a')")
    await take(intake, 1)
    server.query(f"alter table {table} add more int default 3")
    server.query(f"insert into {table} values (2, 'b', 4)")
    server.query(f"alter table {table} rename name to title")
    server.query(f"insert into {table} values (3, 'c', 4)")
    after = Intake(reader_of(table), intake.cursor)
    assert f"public.{table} has no column 'name'; it has " in await stopped(after)
    server.query(f"alter table {table} add name text")
    server.query(f"insert into {table} values (4, 'd', 5, 'e')")
    for rows in ([(2, "b")], []):
        after = Intake(reader_of(table), after.cursor)
        assert f"public.{table} has no column 'name' any more: it was dropped or renamed" in await stopped(after)
        assert after.rows == rows


async def test_column_type_changed_during_run_stops_source(server: PostgresServer, table: str) -> None:
    """1. a wider integer is read on; 2. a numeric stops it, also beside rows that would fit; 3. started again, it goes
    on there with the values that fit.
    """
    intake = Intake(reader_of(table))
    server.query(f"alter table {table} alter n type integer")
    server.query(f"insert into {table} values (1, 'a')")

    async def script() -> None:
        await until(lambda: len(intake.rows) == 1)
        server.query(f"alter table {table} alter n type bigint")
        server.query(f"insert into {table} values (2, 'b')")
        await until(lambda: len(intake.rows) == 2)
        server.query(f"alter table {table} alter n type numeric")
        server.query(f"insert into {table} values (3, 'c'), (3.5, 'd')")

    why = await stopped_by(intake, script)
    assert re.search(rf"from \S+ on, of public.{table} column 'n' is numeric, and was bigint: change that back", why)
    assert (intake.rows, intake.malformed) == ([(1, "a"), (2, "b")], [])
    after = Intake(reader_of(table), intake.cursor)
    await take(after, 1)
    assert after.rows == [(3, "c")]
    assert after.malformed == ["n: expected int64, got '3.5'"]


async def test_a_type_that_changes_behind_the_first_rows_is_noticed(server: PostgresServer, table: str) -> None:
    """It was read in the copy only."""
    server.query(f"insert into {table} values (1, 'a')")
    intake = Intake(reader_of(table))

    async def script() -> None:
        await until(lambda: b'"log"' in intake.cursor)
        server.query(f"alter table {table} alter name type jsonb using to_jsonb(name)")
        server.query(f"""insert into {table} values (2, '"b"')""")

    why = await stopped_by(intake, script)
    assert f"of public.{table} column 'name' is jsonb, and was text" in why
    assert intake.rows == [(1, "a")]


@pytest.mark.parametrize(
    ("given", "schema", "said"),
    [
        ({"table": "nothing"}, N, "table public.nothing does not exist; create it, or correct `table`"),
        ({}, Schema.of(m="int64", n="int64"), "has no column 'm'; it has "),
        ({"connection": "dbname=nowhere"}, N, 'database "nowhere" does not exist'),
        ({"changes": "rows", "columns": {"name": "_change"}}, N, "ALTER TABLE public.orders_.* REPLICA IDENTITY FULL"),
    ],
)
async def test_missing_objects_are_named(table: str, given: dict[str, Any], schema: Schema, said: str) -> None:
    why = await stopped(Intake(reader_of(given.pop("table", table), schema, slot=f"spe_{table}", **given)))
    assert pytest.raises(AssertionError, match=said).matches(AssertionError(why)), why


async def test_a_table_without_a_key_is_refused_before_it_is_published(server: PostgresServer, table: str) -> None:
    server.query(f"create table {table}_bare (n bigint, name text)")
    assert "has no primary key, so PostgreSQL would refuse all updates" in await stopped(
        Intake(reader_of(f"{table}_bare"))
    )
    intake = Intake(reader_of(f"{table}_bare", changes="ignore"))
    server.query(f"insert into {table}_bare values (1, 'a')")
    await take(intake, 1)
    server.query(f"update {table}_bare set name = 'b'")


@pytest.mark.parametrize(
    ("given", "schema", "said"),
    [
        ({"changes": "rows"}, N, "changes: rows needs a string attribute"),
        ({"columns": {"x": "n"}}, N, "reader.columns: 'x' is no attribute"),
        ({"columns": {"n": "_commit"}}, N, "attribute 'n': _commit is a timestamp, not int64"),
    ],
)
def test_options_and_schema_go_together(given: dict[str, Any], schema: Schema, said: str) -> None:
    with pytest.raises(SpeError, match=said):
        reader_of("t", schema, **given)


async def test_a_user_needs_no_more_than_the_page_says(server: PostgresServer, table: str) -> None:
    server.query(f"create role plain_{table} login replication password '{PASSWORD}'")
    server.query(f"grant create on schema public to plain_{table}")
    reader = reader_of(table, connection=f"user=plain_{table}")
    assert "permission denied for database shop" in await stopped(Intake(reader))
    server.query("select pg_drop_replication_slot(slot_name) from pg_replication_slots")
    server.query(f"grant create on database shop to plain_{table}")
    server.query(f"alter table {table} owner to plain_{table}")
    server.query(f"insert into {table} values (1, 'a')")
    intake = Intake(reader_of(table, connection=f"user=plain_{table}"))
    await take(intake, 1)
    server.query(f"insert into {table} values (2, 'b')")
    after = Intake(reader_of(table, connection=f"user=plain_{table}"), intake.cursor)
    await take(after, 1)
    assert [*intake.rows, *after.rows] == [(1, "a"), (2, "b")]


async def test_slot_without_needed_changes_is_reported(server: PostgresServer, table: str) -> None:
    intake = Intake(reader_of(table))
    server.query(f"insert into {table} values (1, 'a')")
    await take(intake, 1)
    server.query("alter system set max_slot_wal_keep_size = '1MB'")
    server.query("select pg_reload_conf()")
    try:
        for _ in range(8):
            server.query(f"insert into {table} select n, repeat('x', 500) from generate_series(2, 60000) n")
            server.query(f"truncate {table}")
            server.query("select pg_switch_wal()")
            server.query("checkpoint")
            if server.query("select 1 from pg_replication_slots where wal_status = 'lost'"):
                break
    finally:
        server.query("alter system reset max_slot_wal_keep_size")
        server.query("select pg_reload_conf()")
    why = await stopped(Intake(reader_of(table), intake.cursor))
    assert "the server has removed what slot" in why
    assert "the table has to be read anew" in why


async def test_missing_or_foreign_read_slot_is_reported(server: PostgresServer, table: str) -> None:
    intake = Intake(reader_of(table))
    server.query(f"insert into {table} values (1, 'a')")
    await take(intake, 1)
    server.query(f"insert into {table} values (2, 'b')")
    slot = f"spe_{table}"
    server.query("select pg_replication_slot_advance(%s, pg_current_wal_lsn())", slot)
    assert "somebody else read slot" in await stopped(Intake(reader_of(table), intake.cursor))
    server.query("select pg_drop_replication_slot(%s)", slot)
    why = await stopped(Intake(reader_of(table), intake.cursor))
    assert f"slot {slot} is gone; changes are missing, so the table has to be read anew" in why


async def test_a_slot_that_is_not_ours_is_refused(server: PostgresServer, table: str) -> None:
    server.query("select pg_create_logical_replication_slot(%s, 'pgoutput')", f"spe_{table}")
    why = await stopped(Intake(reader_of(table)))
    assert f"slot spe_{table} is there, and the log of this source has nothing of it" in why


async def test_two_sources_do_not_share_a_slot(server: PostgresServer, table: str) -> None:
    intake = Intake(reader_of(table))
    server.query(f"insert into {table} values (1, 'a')")
    await take(intake, 1)
    intake, other = (Intake(reader_of(table), intake.cursor) for _ in range(2))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(intake.read)
        await trio.sleep(1)
        nursery.start_soon(other.read)
        with trio.fail_after(30):
            await until(lambda: other.reader.away)
        nursery.cancel_scope.cancel()
    assert f"another process reads slot spe_{table}; trying again" in other.reader.away


async def test_server_with_too_low_wal_level_is_reported() -> None:
    with (
        running_server("wal_level = replica\n") as other,
        pytest.MonkeyPatch.context() as patch,
        environment(patch, other.environment),
    ):
        other.query("create table t (n bigint primary key, name text)")
        why = await stopped(Intake(reader_of("t")))
    assert "wal_level is replica; expected logical: ALTER SYSTEM SET wal_level = logical, then restart" in why


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.long)])
async def test_the_log_of_a_source_that_is_killed_holds_each_row_once(
    server: PostgresServer, table: str, seed: int
) -> None:
    """The real source, with a disk that loses what was not synced."""
    random, storage = Random(seed), SimDisk()
    of = source(table)
    last = 0
    for _ in range(8):
        server.query(f"insert into {table} select n, 'r' || n from generate_series({last + 1}, {last + 20}) n")
        last += 20
        proxy = await SourceProxy.open(source_env(storage), of)
        with trio.move_on_after(random.uniform(0.05, 1.5)):
            await proxy.run()
        storage = storage.power_loss(lambda _, synced, written: synced).restarted()
    proxy = await SourceProxy.open(source_env(storage), of)
    with trio.move_on_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(proxy.run)
            await until(lambda: proxy.last_id >= last)
            await trio.sleep(0.3)
            nursery.cancel_scope.cancel()
    assert proxy.fault is None
    assert logged(storage) == [(n, f"r{n}") for n in range(1, last + 1)]
