"""Tables of PostgreSQL: read with all their changes, and written."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Final

from pydantic import BeforeValidator, Field

from spe.connectors.declaration import CORRECTIONS, CURRENT, STABLE, Guarantees, SinkDeclaration
from spe.values import Model

_PART: Final = r'(?:"(?:[^"]|"")+"|[^".]+)'
_TABLE: Final = re.compile(rf"({_PART})(?:\.({_PART}))?")
#: ``user:secret@`` in a URI, or a key that has a secret.
_SECRET: Final = re.compile(r"://[^/@]*:[^/@]*@|\b(ssl)?password\s*=", re.IGNORECASE)
#: Stands for the name of the stream in the name of a table.
STREAM: Final = "{stream}"


def table_parts(text: str) -> tuple[str, str]:
    """(schema, table) of ``schema.table``; "" where no schema is given.  Names are taken as they are written.

    Raises:
      ValueError: it is no name of a table.
    """
    if (found := _TABLE.fullmatch(text)) is None:
        raise ValueError(f"expected TABLE or SCHEMA.TABLE, quoted where a name has a dot, got {text!r}")
    first, second = (_plain(part) for part in found.groups(default=""))
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
    if _SECRET.search(value):  # and it is not repeated here
        raise ValueError("expected no password here; PGPASSWORD, a password file or a service file gives it")
    return value


def _shorthand(value: Any) -> Any:
    return {"table": value} if isinstance(value, str) else value


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


def _at(options: Mapping[str, Any]) -> str:
    return f"{options['table']} at {options['connection']}" if options.get("connection") else str(options["table"])


class PostgresSinkDeclaration(SinkDeclaration):
    """Rows in a table, in one transaction with how far they go."""

    def place(self, sink: Mapping[str, Any]) -> str:
        return _at(sink)


POSTGRES_SINK: Final = PostgresSinkDeclaration(
    "postgres",
    Annotated[PostgresKeys, BeforeValidator(_shorthand)],
    "TABLE, or {table: …}",
    "a table of PostgreSQL",
    {
        STABLE: "final rows only, each exactly once, with `_partition`, `_id` and `_time`",
        CURRENT: "the newest answer: rows that may still change have `_tentative`, and a correction removes them; no "
        "result is ever there twice",
        CORRECTIONS: "every insert and every undo, in the order of `_change`, with its `_kind`: who applies them in "
        "order holds the newest answer",
    },
    Guarantees(
        durable="the table, once a transaction is committed, in which `_spe_sinks` says how far it goes; only then are "
        "rows acknowledged",
        own_crash="what was committed is there; what was not is written again: each row stands once. Rows that were "
        "tentative are withdrawn at the start",
        other_crash="what was committed is there, as PostgreSQL promises (`fsync` on; a standby that takes over needs "
        "synchronous replication); after an unknown commit the sink asks which it was",
        failures={
            "the server is away, slow, full, or a standby": "the client says so, waits longer and longer, up to 5 s, "
            "and goes on where the table ends; its buffer fills, then it takes nothing more",
            "another process writes to the table": "the one that came last goes on; the other one ends and says so",
            "the table does not exist": "it is made; one that is there must have the columns, with their types",
            "the table was dropped and made again, or has rows of another query or mode": "the client refuses it and "
            "ends",
            "a text has a NUL character, a timestamp lies before 4713 BC, or a constraint is violated": "the client "
            "ends and names the row; nothing of its transaction is there",
            "the password is wrong, or a privilege is missing": "the client ends and says what to do",
        },
    ),
)
