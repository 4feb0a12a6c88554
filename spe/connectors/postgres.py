"""Tables of PostgreSQL: a reader of rows and changes, and a sink."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, Literal

from pydantic import BeforeValidator, Field

from spe.connectors.declaration import (
    CORRECTIONS,
    CURRENT,
    LEFT_OUT,
    STABLE,
    Guarantees,
    Reader,
    SinkDeclaration,
    shorthand,
)
from spe.values import Model

_PART: Final = r'(?:"(?:[^"]|"")+"|[^".]+)'
_TABLE: Final = re.compile(rf"({_PART})(?:\.({_PART}))?")
#: ``user:secret@`` in a URI, or a key with a secret.
_SECRET: Final = re.compile(r"://[^/@]*:[^/@]*@|\b(ssl)?password\s*=", re.IGNORECASE)
#: Placeholder for the name of the stream in the name of a table.
STREAM: Final = "{stream}"


def table_parts(text: str) -> tuple[str, str]:
    """Splits ``schema.table`` into (schema, table); "" without a schema.  Names are case-sensitive.

    Raises:
      ValueError: the text is no name of a table.
    """
    if (match := _TABLE.fullmatch(text)) is None:
        raise ValueError(f"expected TABLE or SCHEMA.TABLE, quoted where a name has a dot, got {text!r}")
    first, second = (_plain(part) for part in match.groups(default=""))
    return (first, second) if second else ("", first)


def _plain(part: str) -> str:
    return part[1:-1].replace('""', '"') if part.startswith('"') else part


def _table(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"expected TABLE or SCHEMA.TABLE, got {value!r}")
    if STREAM in table_parts(value)[0]:
        raise ValueError(f"{STREAM} stands in the name of the table, not of the schema")
    return value


def _connection(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"expected a connection string of PostgreSQL, such as service=shop, got {value!r}")
    if _SECRET.search(value):  # the error does not repeat it
        raise ValueError("expected no password here; PGPASSWORD, a password file or a service file gives it")
    return value


class PostgresKeys(Model):
    """A table."""

    table: Annotated[str, BeforeValidator(_table)] = Field(
        description="`TABLE` or `SCHEMA.TABLE`, with quotes where a name has a dot; case counts. `{stream}` in the "
        "name of a sink's table stands for the stream, where its client reads several"
    )
    connection: Annotated[str, BeforeValidator(_connection)] = Field(
        default="",
        description="a connection string of PostgreSQL, such as `host=db1 dbname=shop` or `service=shop`, without a "
        "password; what it lacks comes from the environment (`PGHOST`, `PGPASSFILE`, …)",
    )


class PostgresReaderKeys(PostgresKeys):
    """A table, its rows and all that changes in it."""

    slot: Annotated[str, Field(pattern=r"^[a-z0-9_]{1,50}$")] | None = Field(
        default=None,
        description="name of the replication slot and publication that are made; none: `spe_` and the table. Each "
        "source needs its own",
    )
    changes: Literal["refuse", "ignore", "rows"] = Field(
        default="refuse",
        description="updates and deletes stop the source (`refuse`), are left out (`ignore`), or are rows (`rows`)",
    )
    snapshot: bool = Field(default=True, description="rows that are there already come first")


def _at(options: Mapping[str, Any]) -> str:
    return f"{options['table']} at {options['connection']}" if options.get("connection") else str(options["table"])


class PostgresSinkDeclaration(SinkDeclaration):
    """Writes rows to a table, in one transaction with their position."""

    def place(self, sink: Mapping[str, Any]) -> str:
        return _at(sink)


@dataclass(frozen=True)
class PostgresReaderDeclaration(Reader):
    """Reads rows and changes, each once: positions go into the log of the source."""

    live: ClassVar = True

    def check(self, options: Mapping[str, Any]) -> None:
        super().check(options)
        if numbered := [a for a, c in options.get("columns", {}).items() if not isinstance(c, str)]:
            raise ValueError(f"columns: expected the name of a column for {', '.join(numbered)}, not a number")

    def reader(self, value: PostgresReaderKeys, data: Path) -> dict[str, Any]:
        table = table_parts(value.table)[1].lower()
        slot = value.slot or f"spe_{re.sub('[^a-z0-9_]', '_', table)}"[:50]
        return {**value.model_dump(), "slot": slot}

    def stored(self, reader: Mapping[str, Any]) -> bool:
        return bool(reader["snapshot"])

    def describe(self, reader: Mapping[str, Any]) -> str:
        return f"postgres {_at(reader)}"


POSTGRES: Final = PostgresReaderDeclaration(
    "postgres",
    Annotated[PostgresReaderKeys, shorthand("table")],
    "TABLE, or {table: …}",
    "[a table of PostgreSQL](../how-to/postgres.md#read-a-table): its rows, then each change. An attribute whose "
    "column is `_change` says `insert`, `update` or `delete`; one whose column is `_commit` has the time of the commit",
    ("columns",),
    Guarantees(
        durable="the server keeps what follows the slot; it is advanced when rows are on the disk of the source",
        own_crash="goes on behind the last row of the log, also in the middle of a transaction or of the first rows: "
        "no row twice, none missing",
        other_crash="what was committed comes, once; a standby that takes over must have the slot, and not be behind",
        failures={
            "the server is away": "the source says so, asks again and again, and goes on; no time passes by silence",
            "`wal_level` is too low, the table or a column is missing, the password is wrong": "the source stops and "
            "says what to do; what it has logged is still served",
            "an update, a delete or a truncation, with `changes: refuse`": "the rows before it are taken, then the "
            "source stops; started again with another `changes`, it goes on there",
            "a column is dropped or renamed during a run": "the source stops before the first row without it; columns "
            "that are added are left out",
            "the type of a column changes during a run": "the source stops before the first row after it, and names "
            "both types; started again, it goes on there, and takes the values that fit. Between types of integers, of "
            "floats or of texts it goes on",
            "a value does not fit its attribute": LEFT_OUT,
            "the slot is lost, or was read by another": "the source stops: rows are missing, so it says what to do",
            "the disk of the source is full": "the slot is not advanced; the server keeps what follows",
            "the table is idle": "nothing is held up, with `watermark: clock` or `idle`; the slot is advanced past "
            "what happens to other tables",
        },
    ),
    opens="replicas.connectors.postgres.source:PostgresReader",
    example="from: {postgres: {table: public.orders, connection: service=shop, changes: ignore}}",
)

POSTGRES_SINK: Final = PostgresSinkDeclaration(
    "postgres",
    Annotated[PostgresKeys, shorthand("table")],
    "TABLE, or {table: …}",
    "[a table of PostgreSQL](../how-to/postgres.md#write-a-table)",
    {
        STABLE: "final rows only, each exactly once, with `_partition`, `_id` and `_time`",
        CURRENT: "the newest answer: rows that may still change have `_tentative`, and a correction replaces them, in "
        "one transaction unless it takes longer than a second; no result is ever there twice",
        CORRECTIONS: "every insert, undo and done, with its `_kind`: applied in the order of `_change` they give the "
        "newest answer",
    },
    Guarantees(
        durable="the table, once a transaction is committed, in which `_spe_sinks` says how far it goes; only then are "
        "rows acknowledged",
        own_crash="what was committed is there; what was not is written again: each row stands once. Rows that were "
        "tentative are withdrawn at the start",
        other_crash="what was committed is there (`fsync` on; a standby that takes over needs synchronous "
        "replication); after an unknown commit the sink asks which it was",
        failures={
            "the server is away, slow, full, or a standby": "the client says so, waits longer and longer, up to 5 s, "
            "and goes on where the table ends; its buffer fills, then it takes nothing more",
            "another process writes to the table": "the one that came last goes on; the other one ends and says so",
            "the table does not exist": "it is made; one that is there must have the columns, with their types",
            "a column is dropped or renamed, or its type changed, during a run": "the client ends and names it, and "
            "nothing of its transaction is there; started again once the column is back, it goes on. Columns that are "
            "added may be null or need a default, and are left alone",
            "the table was dropped, or made again, or has rows of another query, mode or client": (
                "the client refuses it and ends"
            ),
            "a text has a NUL character, a timestamp lies before 4713 BC, or a constraint is violated": "the client "
            "ends and names the row; nothing of its transaction is there",
            "the password is wrong, or a privilege is missing": "the client ends and says what to do",
        },
    ),
    opens="replicas.connectors.postgres.sink:PostgresSink",
    example="sinks: [{postgres: {table: public.totals, connection: service=shop}, mode: current}]",
)
