"""Objects of a source at the server: a publication, a slot, and a copy of the table at the beginning of the slot.

The copy is a table, ``_spe_SLOT``, numbered by row: so a source that is killed during reading continues at its
position. The copy is dropped once all of it is in the source's log.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from psycopg import sql

from replicas.connectors.postgres.changes import lsn_of, lsn_text
from replicas.connectors.postgres.session import Connection, Session
from spe.errors import ServerAway, SpeError

#: Pseudo-columns: the kind of a change, and its commit time.
KIND: Final = "_change"
COMMIT: Final = "_commit"
#: Prefix of the advisory lock that one source holds.
_LOCK: Final = "tentative-spe slot"


class Watched(NamedTuple):
    """The table to read.

    Attributes:
      columns: required columns of the table, without pseudo-columns.
      order: column that orders the copy; None: any order.
      changes: refuse, ignore or rows.
      key: columns of the primary key, if changes are rows.
    """

    name: str
    schema: str
    table: str
    columns: tuple[str, ...]
    order: str | None
    slot: str
    changes: str
    key: tuple[str, ...] = ()

    @property
    def copy(self) -> sql.Identifier:
        return sql.Identifier(self.schema, f"_spe_{self.slot}")

    @property
    def identifier(self) -> sql.Identifier:
        return sql.Identifier(self.schema, self.table)


def with_schema(connection: Connection, watched: Watched) -> Watched:
    """Adds the schema, if not configured: the first one of the search path."""
    if watched.schema:
        return watched
    (schema,) = connection.execute("select current_schema()").fetchone() or (None,)
    if schema is None:
        raise SpeError(f"{watched.name}: no schema of the search path exists; expected SCHEMA.TABLE")
    return watched._replace(schema=schema)


def checked(connection: Connection, watched: Watched) -> Watched:
    """Adds the key.  Raises SpeError: the server or the table is unsuitable; says what to do."""
    name, table = watched.name, f"{watched.schema}.{watched.table}"
    (level,) = connection.execute("select current_setting('wal_level')").fetchone() or ("",)
    if level != "logical":
        raise SpeError(
            f"{name}: wal_level is {level}; expected logical: ALTER SYSTEM SET wal_level = logical, then restart "
            "the server"
        )
    row = connection.execute(
        "select c.oid, c.relkind::text, c.relpersistence::text, c.relreplident::text, exists (select 1 from pg_index i "
        "where i.indrelid = c.oid and i.indisprimary) from pg_class c join pg_namespace n on n.oid = c.relnamespace "
        "where n.nspname = %s and c.relname = %s",
        [watched.schema, watched.table],
    ).fetchone()
    if row is None:
        raise SpeError(f"{name}: table {table} does not exist; create it, or correct `table`")
    oid, kind, persistence, identity, primary = row
    if kind not in "rp" or persistence != "p":
        raise SpeError(f"{name}: {table} is a view, or has no log; expected a table that is not unlogged")
    columns_there = connection.execute(
        "select attname from pg_attribute where attrelid = %s and attnum > 0 and not attisdropped", [oid]
    ).fetchall()
    there = {column for (column,) in columns_there}
    if missing := [c for c in watched.columns if c not in there]:
        raise SpeError(f"{name}: {table} has no column {', '.join(map(repr, missing))}; it has {', '.join(there)}")
    if watched.changes == "rows" and identity != "f":
        raise SpeError(
            f"{name}: of a deleted row only its key would be known; ALTER TABLE {table} REPLICA IDENTITY FULL"
        )
    if watched.changes == "refuse" and identity == "d" and not primary:
        raise SpeError(
            f"{name}: {table} has no primary key, so PostgreSQL would refuse all updates of what is published; ALTER "
            f"TABLE {table} REPLICA IDENTITY FULL, or `changes: ignore`"
        )
    return watched._replace(key=_primary_key(connection, oid)) if watched.changes == "rows" else watched


def _primary_key(connection: Connection, oid: int) -> tuple[str, ...]:
    columns = connection.execute(
        "select a.attname from pg_index i join pg_attribute a on a.attrelid = i.indrelid and a.attnum = any(i.indkey) "
        "where i.indrelid = %s and i.indisprimary order by a.attnum",
        [oid],
    ).fetchall()
    return tuple(column for (column,) in columns)


def column_types(connection: Connection, watched: Watched) -> dict[str, int]:
    """The oid of the type of each column that is read."""
    types = connection.execute(
        "select attname, atttypid::bigint from pg_attribute where attrelid = %s::regclass and attname = any(%s)",
        [watched.identifier.as_string(connection), list(watched.columns)],
    ).fetchall()
    return {str(name): int(type_) for name, type_ in types}


def lock(connection: Connection, watched: Watched) -> None:
    """For this session.  Raises ServerAway where another one has it."""
    row = connection.execute(
        "select pg_try_advisory_lock(hashtext(%s), hashtext(%s))", [_LOCK, watched.slot]
    ).fetchone()
    if row is None or not row[0]:
        raise ServerAway(f"another process reads slot {watched.slot}")


def server_id(connection: Connection) -> str:
    """Returns an id that is the same after restarts, and another one for another server."""
    row = connection.execute("select system_identifier::text from pg_control_system()").fetchone()
    return "" if row is None else str(row[0])


def find_slot(connection: Connection, watched: Watched) -> int | None:
    """Returns the position before which nothing will come again; None: there is no slot.

    Raises:
      SpeError: it has another use, or has lost changes.
    """
    row = connection.execute(
        "select plugin, database = current_database(), confirmed_flush_lsn - '0/0'::pg_lsn, wal_status "
        "from pg_replication_slots where slot_name = %s",
        [watched.slot],
    ).fetchone()
    if row is None:
        return None
    plugin, here, confirmed, status = row
    if plugin != "pgoutput" or not here:
        raise SpeError(f"{watched.name}: slot {watched.slot} is of another database or plugin; give another `slot`")
    if status == "lost":
        raise SpeError(
            f"{watched.name}: the server has removed what slot {watched.slot} had yet to read "
            f"(max_slot_wal_keep_size); {_anew(watched)}"
        )
    return int(confirmed or 0)


def lost(watched: Watched, why: str) -> SpeError:
    """Returns an error about changes that are lost."""
    return SpeError(f"{watched.name}: {why}; {_anew(watched)}")


def _anew(watched: Watched) -> str:
    return (
        "changes are missing, so the table has to be read anew: begin with a new log of the source, after "
        f"SELECT pg_drop_replication_slot('{watched.slot}')"
    )


def publish(connection: Connection, watched: Watched) -> None:
    """Makes the publication, unless there is one with the table."""
    exists = connection.execute("select 1 from pg_publication where pubname = %s", [watched.slot]).fetchone()
    if exists is None:
        what = "insert" if watched.changes == "ignore" else "insert, update, delete, truncate"
        connection.execute(
            sql.SQL("create publication {} for table {} with (publish = {}, publish_via_partition_root = true)").format(
                sql.Identifier(watched.slot), watched.identifier, sql.Literal(what)
            )
        )
        return
    table = connection.execute(
        "select 1 from pg_publication_tables where pubname = %s and schemaname = %s and tablename = %s",
        [watched.slot, watched.schema, watched.table],
    ).fetchone()
    if table is None:
        raise SpeError(
            f"{watched.name}: publication {watched.slot} is there without {watched.schema}.{watched.table}; drop it, "
            "or give another `slot`"
        )


def drop_leftovers(connection: Connection, watched: Watched) -> None:
    """Drops the objects of an earlier attempt to begin, through which nothing was read."""
    connection.execute(
        "select pg_drop_replication_slot(slot_name) from pg_replication_slots where slot_name = %s", [watched.slot]
    )
    drop_copy(connection, watched)


def drop_copy(connection: Connection, watched: Watched) -> None:
    connection.execute(sql.SQL("drop table if exists {}").format(watched.copy))


async def make_slot(session: Session, watched: Watched, connection: str, snapshot: bool) -> int:
    """Makes the slot, and the copy of the table at its beginning, which is returned."""
    wal = await Session.connect(watched.name, connection, replication=True)
    try:
        command = f'CREATE_REPLICATION_SLOT "{watched.slot}" LOGICAL pgoutput EXPORT_SNAPSHOT'
        row = await wal.run(lambda c: c.execute(command.encode()).fetchone())
        assert row is not None
        if snapshot:  # the exported snapshot exists while its connection is idle
            await session.run(lambda c: _copy_table(c, watched, str(row[2])))
        return lsn_of(str(row[1]))
    finally:
        await wal.close()


def _copy_table(connection: Connection, watched: Watched, snapshot: str) -> None:
    order = sql.SQL("order by {}").format(sql.Identifier(watched.order)) if watched.order else sql.SQL("")
    columns = [
        sql.SQL("{}::text as {}").format(sql.Identifier(column), sql.Identifier(f"c{i}"))
        for i, column in enumerate(watched.columns)
    ]
    numbered = sql.SQL("row_number() over ({}) as n").format(order)
    with connection.transaction():
        connection.execute("set transaction isolation level repeatable read")
        connection.execute("set local statement_timeout = 0")  # the table may be large
        connection.execute(sql.SQL("set transaction snapshot {}").format(sql.Literal(snapshot)))
        connection.execute(
            sql.SQL("create table {} as select {}, now()::text as at from {}").format(
                watched.copy, sql.SQL(", ").join([numbered, *columns]), watched.identifier
            )
        )
        connection.execute(sql.SQL("alter table {} add primary key (n)").format(watched.copy))


def copied_rows(connection: Connection, watched: Watched, after: int, count: int) -> Sequence[tuple[object, ...]]:
    """Returns rows of the copy: their cells, and when it was made."""
    columns = [sql.Identifier(f"c{i}") for i in range(len(watched.columns))]
    return connection.execute(
        sql.SQL("select {} from {} where n > %s and n <= %s order by n").format(
            sql.SQL(", ").join([*columns, sql.Identifier("at")]), watched.copy
        ),
        [after, after + count],
    ).fetchall()


def ends(connection: Connection) -> tuple[int, int]:
    """Returns (end of the last record of the server's log, end of its synced part)."""
    row = connection.execute(
        "select pg_current_wal_insert_lsn() - '0/0'::pg_lsn, pg_current_wal_flush_lsn() - '0/0'::pg_lsn"
    ).fetchone()
    assert row is not None
    return int(row[0]), int(row[1])


def advance(connection: Connection, watched: Watched, lsn: int) -> None:
    """Lets the server delete its log before a position."""
    connection.execute("select pg_replication_slot_advance(%s, %s::pg_lsn)", [watched.slot, lsn_text(lsn)])
