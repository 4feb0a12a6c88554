"""Writes a client's results to PostgreSQL tables, each transaction together with its positions.

``_spe_sinks``, in the schema of the tables, has a row per table: the state of :class:`ServerSink`.  A transaction locks
it first, so an unfinished earlier one is waited for, even when its result is asked for.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

import numpy as np
import psycopg
from psycopg import sql

from replicas.connectors.postgres import copy
from replicas.connectors.postgres.session import Connection, Session, first_line
from replicas.connectors.postgres.tables import (
    CHANGE,
    TableShape,
    check_table,
    columns_of,
    find_table,
    has_rows,
    locked_shape,
    make_table,
)
from replicas.connectors.server_sink import (
    FORGET,
    NOTHING_KEPT,
    ChannelEntry,
    ServerSink,
    ids_of,
    in_groups,
    without_withdrawn,
)
from spe.connectors.declaration import CORRECTIONS, CURRENT
from spe.connectors.postgres import STREAM, table_parts
from spe.errors import ConfigError, ServerAway, SpeError
from spe.runtime.env import Env
from spe.stream.batch import concat_rows
from spe.stream.ids import Channel
from spe.stream.schema import Schema

#: Table of states.
STATES: Final = "_spe_sinks"
_LINE: Final = re.compile(r"^COPY .*, line (\d+)", re.MULTILINE)


class _Target(NamedTuple):
    """A table: its schema in the database, its stream, and its statements."""

    name: str
    owner: str
    schema: Schema
    copy: sql.Composed
    withdraw: sql.Composed


class PostgresSink(ServerSink):
    """PostgreSQL tables as a sink; see the module.

    Args:
      options: ``table`` and ``connection``.

    Raises:
      ConfigError: several streams would be written to one table, or an attribute has the name of a column of the sink.
    """

    def __init__(self, schemas: Mapping[Channel, Schema], mode: str, options: Mapping[str, Any]) -> None:
        super().__init__(schemas, mode)
        self._connection = str(options.get("connection", ""))
        self._schema, self._table = table_parts(str(options["table"]))
        self._streams = {channel.stream: schema for channel, schema in schemas.items()}
        self._targets: dict[str, _Target] = {}
        #: Last known shapes of the tables; by name.
        self._shapes: dict[str, TableShape] = {}
        self._session: Session | None = None
        problems = []
        if STREAM not in self._table and len(self._streams) > 1:
            named = ", ".join(sorted(self._streams))
            problems.append(f"sink postgres: {named} go to one table; expected {STREAM} in its name, or one stream")
        if mode == CORRECTIONS:
            problems += [
                f"stream {stream!r}: attribute {CHANGE!r} has a name that the sink uses itself"
                for stream, schema in self._streams.items()
                if CHANGE in schema.names
            ]
        if problems:
            raise ConfigError(problems)

    async def load(self, env: Env) -> bytes:
        await self.disconnect()
        self._session = await Session.connect(self.name, self._connection, timeout_s=self.answer_s)
        return await self._session.run(self._prepare)

    async def store(self, before: bytes, after: bytes, entries: Sequence[ChannelEntry]) -> bool:
        if self._session is None:
            raise ServerAway("the connection is lost")
        return await self._session.run(lambda connection: self._transaction(connection, before, after, entries))

    async def disconnect(self) -> None:
        if self._session is not None:
            session, self._session = self._session, None
            await session.close()

    async def forget(self, env: Env) -> str:
        await self.disconnect()
        self._session = await Session.connect(self.name, self._connection, timeout_s=self.answer_s)
        return await self._session.run(self._forget)

    # --- in a thread ---

    def _forget(self, connection: Connection) -> str:
        """Deletes our rows and our state, in one transaction."""
        done = []
        with connection.transaction():
            schema = self._schema or self._current_schema(connection)
            states = sql.Identifier(schema, STATES)
            if find_table(connection, schema, STATES) is None:
                return NOTHING_KEPT
            for name in [self._table.replace(STREAM, stream) for stream in self._streams]:
                statement = sql.SQL("delete from {} where name = %s returning made").format(states)
                known = connection.execute(statement, [name]).fetchone()
                if known is None or known[0] != find_table(connection, schema, name):
                    done.append(f"{name}: {NOTHING_KEPT if known is None else 'its position is removed'}")
                    continue
                rows = connection.execute(sql.SQL("delete from {}").format(sql.Identifier(schema, name))).rowcount
                done.append(f"{name}: its position and {rows:,} rows are removed")
        return "; ".join(done)

    def _prepare(self, connection: Connection) -> bytes:
        """Finds or makes the tables, and returns the state."""
        with connection.transaction():
            connection.execute(
                "select pg_advisory_xact_lock(hashtext('tentative-spe'))"
            )  # no other process makes them now
            schema = self._schema or self._current_schema(connection)
            if find_table(connection, schema, STATES) is None:
                connection.execute(
                    sql.SQL("create table {} (name text primary key, made oid not null, state bytea not null)").format(
                        sql.Identifier(schema, STATES)
                    )
                )
            self._targets = {
                stream: _target(schema, self._table.replace(STREAM, stream), schema_of_stream, self.mode)
                for stream, schema_of_stream in self._streams.items()
            }
            for target in self._targets.values():
                self._shapes[target.name] = self._find(connection, schema, target)
            self._select = sql.SQL("select state from {} where name = any(%s) order by name for update").format(
                sql.Identifier(schema, STATES)
            )
            self._update = sql.SQL("update {} set state = %s where name = any(%s)").format(
                sql.Identifier(schema, STATES)
            )
            return self._state(connection)

    def _current_schema(self, connection: Connection) -> str:
        row = connection.execute("select current_schema()").fetchone()
        if row is None or row[0] is None:
            raise SpeError(f"{self.name}: no schema of the search path exists; expected SCHEMA.TABLE")
        return str(row[0])

    def _find(self, connection: Connection, schema: str, target: _Target) -> TableShape:
        """Finds or makes a table.  Raises SpeError: it does not fit, or is another one than before."""
        columns = columns_of(target.schema, self.mode)
        oid = find_table(connection, schema, target.name)
        where = f"{self.name}: table {schema}.{target.name}"
        states = sql.Identifier(schema, STATES)
        known = connection.execute(
            sql.SQL("select made, state from {} where name = %s").format(states), [target.name]
        ).fetchone()
        if oid is not None:
            shape = locked_shape(connection, schema, target.name)
            check_table(connection, oid, columns, self.mode, where)
        if known is not None and known[1] and known[0] != oid:
            raise self._lost(target, "dropped" if oid is None else "made anew")
        if oid is not None and not (known and known[1]) and has_rows(connection, schema, target.name):
            raise SpeError(
                f"{where} has rows, and {schema}.{STATES} does not say how far they go; expected an empty table, or a "
                "name that is free"
            )
        if oid is None:
            make_table(connection, schema, target.name, columns, self.mode)
            shape = locked_shape(connection, schema, target.name)
            oid = shape.oid
        connection.execute(
            sql.SQL(
                "insert into {} (name, made, state) values (%s, %s, '') on conflict (name) do update set made = %s"
            ).format(states),
            [target.name, oid, oid],
        )
        return shape

    def _still_fits(self, connection: Connection, target: _Target) -> None:
        """Checks that a table has not changed: COPY data has no types, and a changed column would misread its bytes.

        Raises:
          SpeError: the table, or a column of the sink, is another one than before.
        """
        try:
            shape = locked_shape(connection, target.owner, target.name)
        except psycopg.errors.UndefinedTable as error:
            raise self._lost(target, "dropped") from error
        known = self._shapes[target.name]
        if shape == known:
            return
        if shape.oid != known.oid:
            raise self._lost(target, "made anew")
        where = f"{self.name}: table {target.owner}.{target.name} was changed, and"
        try:
            check_table(connection, shape.oid, columns_of(target.schema, self.mode), self.mode, where)
        except SpeError as error:
            raise SpeError(f"{error}. ALTER TABLE puts that right; the client, started again, loses nothing") from error
        self._shapes[target.name] = shape

    def _lost(self, target: _Target, how: str) -> SpeError:
        return SpeError(
            f"{self.name}: table {target.owner}.{target.name} was {how} since, and rows that it had will not come "
            f"again; restore it, and set made to its oid in {target.owner}.{STATES}, or begin anew: {FORGET}"
        )

    def _state(self, connection: Connection) -> bytes:
        """Returns the state, and locks it until the end of the transaction."""
        names = [target.name for target in self._targets.values()]
        states = {bytes(row[0]) for row in connection.execute(self._select, [names]).fetchall()} - {b""}
        if len(states) > 1:
            raise SpeError(f"{self.name}: its tables were written by different sinks; give it tables of its own")
        return states.pop() if states else b""

    def _transaction(
        self, connection: Connection, before: bytes, after: bytes, entries: Sequence[ChannelEntry]
    ) -> bool:
        with connection.transaction():
            if self._state(connection) != before:
                return False
            for stream, target in self._targets.items():
                ours = [entry for entry in entries if entry.channel.stream == stream]
                if ours:
                    self._still_fits(connection, target)
                if self.mode == CURRENT:
                    ours = self._withdraw(connection, target, ours)
                if ours:
                    self._copy(connection, target, ours)
            connection.execute(self._update, [after, [target.name for target in self._targets.values()]])
        return True

    def _withdraw(self, connection: Connection, target: _Target, entries: Sequence[ChannelEntry]) -> list[ChannelEntry]:
        """Deletes withdrawn rows, and returns the remaining entries to insert."""
        remaining = without_withdrawn(entries)
        for entry in remaining:
            if entry.batch is None:
                connection.execute(target.withdraw, [entry.channel.partition])
        return [entry for entry in remaining if entry.batch is not None]

    def _copy(self, connection: Connection, target: _Target, entries: Sequence[ChannelEntry]) -> None:
        whole = _Rows(self.mode, target.schema, entries)
        with self._naming_the_row(whole), connection.cursor() as cursor:
            data = whole.encoded()
            with cursor.copy(target.copy) as into:
                into.write(copy.HEADER)
                for block in data:
                    into.write(block)
                into.write(copy.TRAILER)

    @contextmanager
    def _naming_the_row(self, rows: _Rows) -> Iterator[None]:
        try:
            yield
        except (psycopg.DataError, psycopg.IntegrityError) as error:
            line = _LINE.search(error.diag.context or "")
            which = "a row" if line is None else rows.row(int(line[1]) - 1)
            detail = error.diag.message_detail
            raise SpeError(f"{self.name}: {which}: {first_line(error)}{f'; {detail}' if detail else ''}") from error
        except copy.CellRefused as error:
            column = columns_of(rows.schema, self.mode)[error.field].name
            raise SpeError(f"{self.name}: {rows.row(error.row)}, {column}: {error}") from error


class _Rows:
    """Entries of one stream as rows of its table."""

    def __init__(self, mode: str, schema: Schema, entries: Sequence[ChannelEntry]) -> None:
        self.schema = schema
        self._mode = mode
        self._groups = in_groups(entries)
        #: Number of rows of the encoded groups.
        self._before = 0

    def encoded(self) -> list[bytes]:
        """Encodes the rows.  Raises CellRefused, with the row counted over all groups."""
        blocks = []
        for group in self._groups:
            try:
                blocks.append(self._block(group))
            except copy.CellRefused as error:
                error.row += self._before
                raise
            self._before += sum(e.rows for e in group)
        return blocks

    def row(self, place: int) -> str:
        """Identifies a row: ``row 7 of out/0``."""
        for group in self._groups:
            for entry in group:
                if place < entry.rows:
                    id_ = entry.id if entry.batch is None else int(entry.batch.row_ids()[place])
                    return f"row {id_} of {entry.channel}"
                place -= entry.rows
        return "a row"

    def _block(self, group: Sequence[ChannelEntry]) -> bytes:
        counts = [e.rows for e in group]
        n, batches = sum(counts), [e.batch for e in group if e.batch is not None]
        fields: list[copy.Field] = []
        if self._mode == CORRECTIONS:
            fields.append(copy.constant(group[0].kind, n))
        if self._mode in (CORRECTIONS, CURRENT):
            fields.append(copy.bools(np.repeat([e.tentative for e in group], counts)))
        fields.append(copy.ints(np.repeat([e.channel.partition for e in group], counts), width=4))
        fields.append(copy.ints(ids_of(group)))
        if not batches:
            return copy.tuples([*fields, *(copy.nulls(n) for _ in range(1 + len(self.schema.names)))])
        rows = concat_rows([b.rows for b in batches])
        fields.append(copy.moments(rows.time, len(fields)))
        for attribute, column in zip(self.schema, rows.columns):
            fields.append(copy.attribute(column, attribute.type, len(fields)))
        return copy.tuples(fields)


def _target(schema: str, name: str, attributes: Schema, mode: str) -> _Target:
    table = sql.Identifier(schema, name)
    columns = sql.SQL(", ").join(sql.Identifier(c.name) for c in columns_of(attributes, mode))
    return _Target(
        name,
        schema,
        attributes,
        sql.SQL("copy {} ({}) from stdin (format binary)").format(table, columns),
        sql.SQL("delete from {} where _partition = %s and _tentative").format(table),
    )
