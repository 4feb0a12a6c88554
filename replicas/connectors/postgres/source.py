"""Reads a PostgreSQL table as a stream: its rows at the beginning, then each change, by logical decoding.

The slot is read by ``pg_logical_slot_peek_binary_changes``, which deletes nothing, and is advanced when the rows are on
the source's disk (rule S9).  A cursor identifies the last transaction in the log, and the last of its rows.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

import trio

from replicas.connectors.formats.text_columns import CellFormat, ColumnsOfCells
from replicas.connectors.postgres import slot as slots
from replicas.connectors.postgres.changes import NULL, lsn_text
from replicas.connectors.postgres.rows import ChangeRows, Row, Taken, parts
from replicas.connectors.postgres.session import Connection, Session
from replicas.connectors.reader import Accept, Resumable, RowChunk
from spe.connectors.postgres import table_parts
from spe.errors import ServerAway, SpeError
from spe.runtime.env import Env
from spe.runtime.server_trouble import Backoff
from spe.stream.schema import AttributeType, Schema
from spe.stream.strings import StringDictionary

T = TypeVar("T")

#: Time between two looks while nothing comes.
_LOOK_S: Final = 0.05
#: A longer delay of an answer is reported.
_SILENCE_S: Final = 30.0
#: Decoding many changes of other tables takes long; only after this time is a silent server given up.
_ANSWER_S: Final = 900.0
#: Messages that are fetched at once, and rows after which a look ends, with their transaction.
_FETCHED: Final = 2048
_LOOK_ROWS: Final = 50_000
#: The server may retain so many bytes of other tables' changes for us.
_IDLE_BYTES: Final = 1 << 20


class SlotPosition(NamedTuple):
    """A cursor.

    Attributes:
      phase: ``begun``: the slot may be half made; ``copy``: ``row`` rows of the copy are read; ``log``: see below.
      lsn: commit of the last transaction with rows read.
      row: number of its rows that are read.
      end: next position in the server's log after transactions read as a whole.
      server, slot: server and slot of the position.
    """

    phase: str
    slot: str
    server: str
    lsn: int = 0
    row: int = 0
    end: int = 0

    def encoded(self) -> bytes:
        return json.dumps(self._asdict(), separators=(",", ":")).encode()

    @classmethod
    def decoded(cls, data: bytes) -> SlotPosition:
        return cls(**json.loads(data))


class PostgresReader(Resumable):
    """Reads a table; see the module.

    Raises:
      SpeError: options and schema do not fit.
    """

    def __init__(self, schema: Schema, time: str | None, reader: Mapping[str, Any]) -> None:
        column_of = _columns_of(schema, reader)
        wanted, changes = list(column_of.values()), str(reader["changes"])
        owner, table = table_parts(str(reader["table"]))
        columns = tuple(dict.fromkeys(c for c in wanted if c not in (slots.KIND, slots.COMMIT)))
        order = None if time is None else column_of[time]
        at = f" at {reader['connection']}" if reader.get("connection") else ""
        self._connection = str(reader.get("connection", ""))
        self._snapshot = bool(reader["snapshot"])
        self._watched = slots.Watched(
            f"postgres {reader['table']}{at}",
            owner,
            table,
            columns,
            order if order in columns else None,
            str(reader["slot"]),
            changes,
        )
        places = {column: i for i, column in enumerate((*columns, slots.KIND, slots.COMMIT))}
        #: Index of each attribute's cell: columns, then the kind of change, then its time.
        self._places = [places[column] for column in wanted]
        self._columns = ColumnsOfCells(schema, time, CellFormat(frozenset([NULL]), "iso"))
        self._session: Session | None = None
        self._first = 0
        #: Cursors of the last rows passed on, and of the last on disk.
        self._given = self._durable = b""
        self._synced = trio.Event()
        #: When the server was asked a question without an answer so far; None: it has answered.
        self._asked_s: float | None = None
        #: The slot holds nothing before this position.
        self._confirmed = 0
        #: Synced end of the server's log at the last look.
        self._looked = -1
        #: Types of columns as they are read, since this process began.
        self._types: dict[str, int] = {}

    def durable(self, cursor: bytes) -> None:
        self._durable = cursor
        self._synced.set()

    async def read(self, env: Env, accept: Accept) -> None:
        self._given = self.cursor
        self.first_reading = True
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._notice_silence, env)
            self._backoff = Backoff(env)
            while True:
                try:
                    await self._follow(env, accept)
                except ServerAway as error:
                    self.away = f"{self._watched.name} does not answer: {error}; trying again"
                    self._asked_s = None
                finally:
                    if self._session is not None:
                        session, self._session = self._session, None
                        await session.close()
                await self._backoff.wait()

    # --- one connection ---

    async def _follow(self, env: Env, accept: Accept) -> None:
        """Reads until the connection is lost."""
        self._session = await Session.connect(self._watched.name, self._connection, timeout_s=_ANSWER_S)
        server = await self._ask(self._check)
        self._looked = -1
        if not self._given:
            await self._begin(accept, server)
        position = SlotPosition.decoded(self._given)
        if (position.slot, position.server) != (self._watched.slot, server):
            raise SpeError(
                f"{self._watched.name}: the log of the source is of slot {position.slot} of server {position.server}; "
                f"this is slot {self._watched.slot} of server {server}"
            )
        if position.phase == "begun":
            await self._make(accept, position)
        await self._go_on()
        if SlotPosition.decoded(self._given).phase == "copy":
            await self._read_copy(accept)
        await self._until_durable()
        await self._ask(lambda c: slots.drop_copy(c, self._watched))
        while True:
            any_new = await self._look(accept)
            self._is_there()
            self.first_reading = any_new and self.first_reading  # until there is nothing more
            if not any_new:
                await env.clock.sleep(_LOOK_S)

    def _is_there(self) -> None:
        """Notes that the server gave rows, or has none: only accepting a connection does not count as an answer."""
        self._backoff.over()
        self.away = ""

    def _check(self, connection: Connection) -> str:
        self._watched = slots.with_schema(connection, self._watched)
        slots.lock(connection, self._watched)
        self._watched = slots.checked(connection, self._watched)
        return slots.server_id(connection)

    async def _begin(self, accept: Accept, server: str) -> None:
        """Notes the slot as ours before it is made, so that an interrupted attempt is recognized."""
        if await self._ask(lambda c: slots.find_slot(c, self._watched)) is not None:
            slot = self._watched.slot
            raise SpeError(
                f"{self._watched.name}: slot {slot} is there, and the log of this source has nothing of it: another "
                "source reads it, or the log is lost. Give another `slot`, or SELECT "
                f"pg_drop_replication_slot('{slot}')"
            )
        await self._hand_over(accept, self._empty(), SlotPosition("begun", self._watched.slot, server))
        await self._until_durable()

    async def _make(self, accept: Accept, position: SlotPosition) -> None:
        session = self._session
        assert session is not None
        await self._ask(lambda c: slots.drop_leftovers(c, self._watched))
        await self._ask(lambda c: slots.publish(c, self._watched))
        self._types = await self._ask(lambda c: slots.column_types(c, self._watched))
        begins = await self._heard(slots.make_slot(session, self._watched, self._connection, self._snapshot))
        phase = "copy" if self._snapshot else "log"
        await self._hand_over(accept, self._empty(), position._replace(phase=phase, end=begins))

    async def _go_on(self) -> None:
        """Continues reading.  Raises SpeError: the slot lacks changes after the log."""
        position, watched = SlotPosition.decoded(self._given), self._watched
        confirmed: int | None = await self._ask(lambda c: slots.find_slot(c, watched))
        if confirmed is None:
            raise slots.lost(watched, f"slot {watched.slot} is gone")
        self._confirmed, reached = confirmed, max(position.lsn, position.end)
        if confirmed > reached:
            raise slots.lost(
                watched, f"somebody else read slot {watched.slot}, to {lsn_text(confirmed)}; we were at "
                f"{lsn_text(reached)}",
            )  # fmt: skip
        end, _ = await self._ask(slots.ends)
        if end < reached:
            raise slots.lost(
                watched, f"the server is at {lsn_text(end)}, and the log of the source at {lsn_text(reached)}: it was "
                "restored from a backup, or a standby took over too early",
            )  # fmt: skip

    async def _read_copy(self, accept: Accept) -> None:
        position = SlotPosition.decoded(self._given)
        while rows := await self._ask(partial(_copied, self._watched, position.row)):
            for start, stop in parts(rows):
                position = position._replace(row=position.row + stop - start)
                await self._hand_over(accept, await self._chunk(rows[start:stop]), position)
        await self._hand_over(accept, self._empty(), position._replace(phase="log", row=0))

    async def _look(self, accept: Accept) -> bool:
        """Reads new changes; returns False if there were none.  The slot is advanced once they are on disk."""
        position = SlotPosition.decoded(self._given)
        end, flushed = await self._ask(slots.ends)
        if flushed == self._looked:
            return False
        rows = ChangeRows(self._watched, position.lsn, position.row, self._types)
        await self._ask(lambda c: _open(c, self._watched, end))
        count = 0
        while messages := await self._ask(_fetch):
            count += len(messages)
            for taken in await trio.to_thread.run_sync(_decoded, rows, messages):
                position = position._replace(lsn=taken.lsn, row=taken.row, end=taken.end or position.end)
                await self._hand_over(accept, await self._chunk(taken.rows), position)
            if rows.refused:
                raise SpeError(f"{self._watched.name}: {rows.refused}")
        await self._ask(lambda c: c.execute("commit"))
        if not count and flushed >= end and end - self._confirmed >= _IDLE_BYTES:
            await self._hand_over(accept, self._empty(), position._replace(end=end))
        await self._until_durable()
        if (end := SlotPosition.decoded(self._given).end) > self._confirmed:
            await self._ask(lambda c: slots.advance(c, self._watched, end))
            self._confirmed = end
        self._looked = flushed
        return bool(count)

    # --- helpers ---

    async def _chunk(self, rows: Sequence[Row]) -> RowChunk:
        if not rows:
            return self._empty()
        return await trio.to_thread.run_sync(partial(self._made, rows))

    def _made(self, rows: Sequence[Row]) -> RowChunk:
        cells = list(zip(*rows))
        numbers = range(self._first + 1, self._first + 1 + len(rows))
        return self._columns.chunk(
            self._first,
            [cells[place] for place in self._places],
            numbers,
            lambda i: ", ".join(rows[i]).replace(NULL, "null"),
            StringDictionary(),
            {},
        )

    def _empty(self) -> RowChunk:
        return self._columns.chunk(self._first, [[] for _ in self._places], [], str, StringDictionary(), {})

    async def _hand_over(self, accept: Accept, chunk: RowChunk, position: SlotPosition) -> None:
        chunk.cursor = position.encoded()
        taken = chunk.taken
        chunk.where = lambda row: self._place(position, row + 1 - taken)
        if chunk.malformed:
            chunk.malformed = [
                row._replace(place=self._place(position, row.line - self._first - chunk.taken))
                for row in chunk.malformed
            ]
        self._first += chunk.taken
        self._is_there()
        await accept(chunk)
        self._given = chunk.cursor

    def _place(self, position: SlotPosition, behind: int) -> str:
        """Describes the place of a row, a number of rows after a position."""
        table = f"{self._watched.schema}.{self._watched.table}"
        if position.phase == "copy":
            return f"{table}, row {position.row + behind} of the copy"
        return f"{table}, committed at {lsn_text(position.lsn)} or shortly before"

    async def _until_durable(self) -> None:
        while self._durable != self._given:
            self._synced = trio.Event()
            await self._synced.wait()

    async def _ask(self, work: Callable[[Connection], Any]) -> Any:
        if self._session is None:
            raise ServerAway("the connection is lost")
        return await self._heard(self._session.run(work))

    async def _heard(self, answer: Awaitable[T]) -> T:
        """Awaits an answer of the server; a long delay is reported."""
        self._asked_s = trio.current_time()
        result = await answer
        if self._asked_s is None:
            self.away = ""
        self._asked_s = None
        return result

    async def _notice_silence(self, env: Env) -> None:
        while True:
            await env.clock.sleep(1.0)
            if self._asked_s is not None and trio.current_time() - self._asked_s > _SILENCE_S:
                self.away = f"{self._watched.name} does not answer: nothing for {_SILENCE_S:g} s; waiting"
                self._asked_s = None


def _columns_of(schema: Schema, reader: Mapping[str, Any]) -> dict[str, str]:
    """Returns the column of each attribute.  Raises SpeError: the options do not fit the schema."""
    configured = {str(a): str(c) for a, c in reader.get("columns", {}).items()}
    if stray := [a for a in configured if a not in schema.names]:
        raise SpeError(f"reader.columns: {', '.join(map(repr, stray))} is no attribute")
    columns = {a.name: configured.get(a.name, a.name) for a in schema}
    for pseudo, type_ in ((slots.KIND, AttributeType.STRING), (slots.COMMIT, AttributeType.TIMESTAMP)):
        for attribute in schema:
            if columns[attribute.name] == pseudo and attribute.type is not type_:
                raise SpeError(f"attribute {attribute.name!r}: {pseudo} is a {type_.value}, not {attribute.type}")
    if reader["changes"] == "rows" and slots.KIND not in columns.values():
        raise SpeError(
            f"changes: rows needs a string attribute that says what happened: `columns: {{kind: {slots.KIND}}}`"
        )
    return columns


def _copied(watched: slots.Watched, after: int, connection: Connection) -> list[Row]:
    """Returns the next rows of the copy, as ChangeRows gives them."""
    cells_of = slots.copied_rows(connection, watched, after, _FETCHED)
    rows = [[NULL if cell is None else str(cell) for cell in row] for row in cells_of]
    return [(*row[:-1], "insert", row[-1]) for row in rows]


def _decoded(rows: ChangeRows, messages: Sequence[bytes]) -> list[Taken]:
    return list(rows.taken(messages))


def _open(connection: Connection, watched: slots.Watched, end: int) -> None:
    connection.execute("begin")
    connection.execute(
        "declare spe_changes no scroll cursor for select data from pg_logical_slot_peek_binary_changes("
        f"%s, %s::pg_lsn, {_LOOK_ROWS}, 'proto_version', '1', 'publication_names', %s)",
        [watched.slot, lsn_text(end), '"' + watched.slot + '"'],
    )


def _fetch(connection: Connection) -> list[bytes]:
    cursor = connection.cursor(binary=True)
    return [row[0] for row in cursor.execute(f"fetch {_FETCHED} from spe_changes").fetchall()]
