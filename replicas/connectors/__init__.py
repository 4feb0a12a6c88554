"""Readers and sinks.  ``open_reader`` makes the reader that a source's configuration names.

The declarations in ``spe.connectors`` describe them, and say which readers can be read again from any row.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, Final

from replicas.connectors.reader import Live, Malformed, Replay, Resumable, RowChunk
from spe.connectors import find_reader
from spe.connectors.installed_connectors import construction
from spe.errors import SpeError
from spe.log.source_log import source_folder
from spe.plan.plan import Source

__all__ = ["KINDS", "Live", "Malformed", "Replay", "Resumable", "RowChunk", "open_reader"]

#: Module and class of each kind.  A module is imported on first use: a simulated run opens no files.
_READERS: Final = {
    "generator": ("replicas.connectors.generator", "GeneratorReplay"),
    "csv": ("replicas.connectors.formats.csv", "CsvReplay"),
    "jsonl": ("replicas.connectors.formats.jsonl", "JsonReplay"),
    "parquet": ("replicas.connectors.files.parquet_source", "ParquetReplay"),
    "arrow": ("replicas.connectors.files.arrow_source", "ArrowReplay"),
    "avro": ("replicas.connectors.files.avro_source", "AvroReplay"),
    "directory": ("replicas.connectors.files.directory_source", "DirectoryReader"),
    "tcp": ("replicas.connectors.tcp", "TcpListener"),
    "stdin": ("replicas.connectors.tcp", "StandardInput"),
    "postgres": ("replicas.connectors.postgres.source", "PostgresReader"),
    "http": ("replicas.connectors.http.source", "HttpReceiver"),
    "sse": ("replicas.connectors.http.events", "EventReader"),
    "push": ("replicas.source.push", "PushIntake"),
    "kafka": ("replicas.connectors.kafka.source", "KafkaReader"),
}
KINDS: Final = tuple(_READERS)


def open_reader(source: Source, start_us: int | None = None) -> Replay | Live:
    """Makes the reader of a source; nothing is opened yet.

    Args:
      start_us: event time of a generator's first row, if not configured.

    Raises:
      SpeError: the configuration names no reader, or an option is missing or wrong.
    """
    kind: Any = source.reader.get("kind")
    if kind in _READERS:
        module, name = _READERS[kind]
        make = getattr(import_module(module), name)
    elif (declared := find_reader(str(kind))) is not None:
        make = construction(declared)
    else:
        raise SpeError(f"source {source.stream}: expected a reader kind of {', '.join(KINDS)}, got {kind!r}")
    try:
        if kind == "generator":
            reader: Replay | Live = make(source.reader, start_us, source.schema, source.time)
        else:
            reader = make(source.schema, source.time, source.reader)
        if isinstance(reader, Resumable):
            reader.folder, reader.ahead_us = source_folder(source.stream), source.ahead_us
        return reader
    except KeyError as error:
        raise SpeError(f"source {source.stream}: reader {kind} needs the option {error}") from error
