"""The connectors that a configuration can name: built-in ones, and those of other installed packages."""

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

#: Built-in readers, by the key below ``from``.
READERS: Final[Mapping[str, Reader]] = {
    reader.kind: reader
    for reader in (CSV, JSONL, PARQUET, ARROW, AVRO, DIRECTORY, GENERATOR, TCP, STDIN, HTTP, SSE, PUSH, KAFKA, POSTGRES)
}
#: Built-in sinks, by the key of an entry of ``sinks``.
SINKS: Final[Mapping[str, SinkDeclaration]] = {
    sink.kind: sink for sink in (PARQUET_SINK, JSONL_SINK, DELTA_SINK, POSTGRES_SINK, KAFKA_SINK, HTTP_SINK)
}


def find_reader(kind: str) -> Reader | None:
    """Returns the declaration of a reader; None: unknown.  Raises ConfigError if a package's declaration is broken."""
    return READERS.get(kind) or load_connector(READERS_GROUP, kind, Reader)


def find_sink(kind: str) -> SinkDeclaration | None:
    """Returns the declaration of a sink, in the same way."""
    return SINKS.get(kind) or load_connector(SINKS_GROUP, kind, SinkDeclaration)
