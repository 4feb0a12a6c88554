"""The connectors that a configuration can name: built in, a line for each, or installed with another package."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from spe.connectors.declaration import Reader, SinkDeclaration
from spe.connectors.delta import DELTA_SINK
from spe.connectors.directory import DIRECTORY
from spe.connectors.files import ARROW, AVRO, CSV, JSONL, JSONL_SINK, PARQUET, PARQUET_SINK
from spe.connectors.generator import GENERATOR
from spe.connectors.http import HTTP, HTTP_SINK, SSE
from spe.connectors.installed_connectors import READERS_GROUP, SINKS_GROUP, load_connector
from spe.connectors.kafka import KAFKA, KAFKA_SINK
from spe.connectors.lines import STDIN, TCP
from spe.connectors.postgres import POSTGRES, POSTGRES_SINK
from spe.connectors.push import PUSH

#: By the key below ``from``: those that are built in.
READERS: Final[Mapping[str, Reader]] = {
    one.kind: one
    for one in (CSV, JSONL, PARQUET, ARROW, AVRO, DIRECTORY, GENERATOR, TCP, STDIN, HTTP, SSE, PUSH, KAFKA, POSTGRES)
}
#: By the key of an entry of ``sinks``: those that are built in.
SINKS: Final[Mapping[str, SinkDeclaration]] = {
    one.kind: one for one in (PARQUET_SINK, JSONL_SINK, DELTA_SINK, POSTGRES_SINK, KAFKA_SINK, HTTP_SINK)
}


def find_reader(kind: str) -> Reader | None:
    """The declaration of a reader; None: there is none.  Raises ConfigError where that of a package is broken."""
    return READERS.get(kind) or load_connector(READERS_GROUP, kind, Reader)


def find_sink(kind: str) -> SinkDeclaration | None:
    """The declaration of a sink, in the same way."""
    return SINKS.get(kind) or load_connector(SINKS_GROUP, kind, SinkDeclaration)
