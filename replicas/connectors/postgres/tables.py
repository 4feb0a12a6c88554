"""Tables that a sink writes: made for a schema, or checked to fit it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from psycopg import sql

from replicas.connectors.postgres.session import Connection
from spe.connectors.declaration import CORRECTIONS, CURRENT
from spe.errors import SpeError
from spe.stream.schema import AttributeType, Schema

_TYPES: Final = {
    AttributeType.INT64: "bigint",
    AttributeType.FLOAT64: "double precision",
    AttributeType.BOOL: "boolean",
    AttributeType.STRING: "text",
    AttributeType.TIMESTAMP: "timestamp with time zone",
}
#: PostgreSQL types with the same binary format.
_ALSO: Final = {"character varying": "text"}
#: Order of the changes, in mode corrections.
CHANGE: Final = "_change"


class ColumnOf(NamedTuple):
    """A column of the sink."""

    name: str
    type: str
    nullable: bool = False


def columns_of(schema: Schema, mode: str) -> list[ColumnOf]:
    """Returns the columns of a sink, in order."""
    changes = mode == CORRECTIONS
    columns = [ColumnOf("_kind", "text")] if changes else []
    if mode in (CORRECTIONS, CURRENT):
        columns.append(ColumnOf("_tentative", "boolean"))
    columns += [
        ColumnOf("_partition", "integer"),
        ColumnOf("_id", "bigint"),
        ColumnOf("_time", "timestamp with time zone", changes),
    ]
    return [*columns, *(ColumnOf(a.name, _TYPES[a.type], a.nullable or changes) for a in schema)]


def make_table(connection: Connection, schema: str, name: str, columns: Sequence[ColumnOf], mode: str) -> None:
    """Makes a new table."""
    written = [
        sql.SQL("{} {}{}").format(
            sql.Identifier(c.name),
            sql.SQL(c.type),
            sql.SQL("" if c.nullable else " not null"),
        )
        for c in columns
    ]
    if mode == CORRECTIONS:
        written.insert(0, sql.SQL("{} bigint generated always as identity").format(sql.Identifier(CHANGE)))
    table = sql.Identifier(schema, name)
    connection.execute(sql.SQL("create table {} ({})").format(table, sql.SQL(", ").join(written)))
    if mode == CURRENT:  # an undo finds its rows by it; it does not contain final rows
        connection.execute(sql.SQL("create index on {} (_partition, _id) where _tentative").format(table))


def find_table(connection: Connection, schema: str, name: str) -> int | None:
    """Returns the oid of a table, view or the like; None: there is none."""
    row = connection.execute(
        "select c.oid from pg_class c join pg_namespace n on n.oid = c.relnamespace "
        "where n.nspname = %s and c.relname = %s",
        [schema, name],
    ).fetchone()
    return None if row is None else int(row[0])


class TableShape(NamedTuple):
    """Properties that must not change while a table is written.

    Attributes:
      oid: oid of the table.
      columns: (name, type, not null, has a default) of each column, as at the server.
    """

    oid: int
    columns: tuple[tuple[Any, ...], ...]


def locked_shape(connection: Connection, schema: str, name: str) -> TableShape:
    """Returns the shape of a table, and locks its columns until the end of the transaction.

    Raises psycopg.errors.UndefinedTable.
    """
    cursor = connection.execute(
        sql.SQL(
            "lock table {table} in row exclusive mode; "
            "select attrelid, attname, atttypid, attnotnull, atthasdef or attidentity <> '' from pg_attribute "
            "where attrelid = {name}::regclass and attnum > 0 and not attisdropped order by attnum"
        ).format(
            table=sql.Identifier(schema, name),
            name=sql.Literal(sql.Identifier(schema, name).as_string(connection)),
        )
    )
    cursor.nextset()
    rows = cursor.fetchall()
    return TableShape(int(rows[0][0]) if rows else 0, tuple(tuple(row[1:]) for row in rows))


def has_rows(connection: Connection, schema: str, name: str) -> bool:
    row = connection.execute(sql.SQL("select 1 from {} limit 1").format(sql.Identifier(schema, name))).fetchone()
    return row is not None


def check_table(connection: Connection, oid: int, columns: Sequence[ColumnOf], mode: str, where: str) -> None:
    """Raises SpeError: a table does not fit; names all unsuitable columns."""
    row = connection.execute("select relkind, relpersistence from pg_class where oid = %s", [oid]).fetchone()
    assert row is not None
    kind, persistence = (part.decode() if isinstance(part, bytes) else part for part in row)
    if kind not in "rp":
        raise SpeError(f"{where} is no table; expected one, or a name that is free")
    if persistence != "p":
        raise SpeError(f"{where} is unlogged: a crash of the server would empty it; ALTER TABLE … SET LOGGED")
    there = {
        name: (_ALSO.get(type_, type_), type_, notnull, filled)
        for name, type_, notnull, filled in connection.execute(
            "select attname, format_type(atttypid, null), attnotnull, atthasdef or attidentity <> '' from pg_attribute "
            "where attrelid = %s and attnum > 0 and not attisdropped",
            [oid],
        ).fetchall()
    }
    problems = []
    for column in columns:
        if column.name not in there:
            problems.append(f"column {column.name!r} is missing, {column.type}")
            continue
        like, type_, notnull, _ = there[column.name]
        if like != column.type:
            problems.append(f"column {column.name!r} is {type_}, expected {column.type}")
        elif notnull and column.nullable:
            problems.append(f"column {column.name!r} is not null, but the attribute may be null")
    known = {c.name for c in columns}
    if mode == CORRECTIONS:
        if CHANGE not in there or not there[CHANGE][3]:
            problems.append(f"column {CHANGE!r} is missing, bigint generated always as identity")
        known.add(CHANGE)
    for name, (_, _, notnull, filled) in there.items():
        if name not in known and notnull and not filled:
            problems.append(f"column {name!r} is not null, has no default, and is no attribute")
    if problems:
        raise SpeError(f"{where} does not fit what is to be written: {'; '.join(problems)}")
