"""Where tuples come from.  ``open_reader`` makes the reader that a source's configuration names.

Kinds: ``generator``, ``csv``, ``jsonl``, ``parquet`` (replayed: they can be read again from any row), ``tcp``,
``stdin`` (live: they happen once).
"""

from __future__ import annotations

from typing import Final

from replicas.connectors.reader import Live, Malformed, Replay, RowChunk
from spe.errors import SpeError
from spe.plan.plan import LIVE_KINDS, Source

__all__ = ["KINDS", "Live", "Malformed", "Replay", "RowChunk", "open_reader"]

REPLAY_KINDS: Final = ("generator", "csv", "jsonl", "parquet")
KINDS: Final = REPLAY_KINDS + LIVE_KINDS


def open_reader(source: Source, start_us: int | None = None) -> Replay | Live:
    """The reader of a source; nothing is opened yet.

    Args:
      start_us: event time of a generator's first row, where the configuration gives none.

    Raises:
      SpeError: the configuration does not name a reader, or lacks or misstates one of its options.
    """
    schema, time, reader = source.schema, source.time, source.reader
    kind = reader.get("kind")
    try:
        match kind:
            case "generator":
                from replicas.connectors.generator import GeneratorReplay

                return GeneratorReplay(reader, start_us, schema, time)
            case "csv":
                from replicas.connectors.csv import CsvReplay

                return CsvReplay(schema, time, reader)
            case "jsonl":
                from replicas.connectors.jsonl import JsonReplay

                return JsonReplay(schema, time, reader)
            case "parquet":
                from replicas.connectors.parquet_source import ParquetReplay

                return ParquetReplay(schema, time, reader)
            case "tcp":
                from replicas.connectors.tcp import TcpListener

                return TcpListener(schema, time, reader)
            case "stdin":
                from replicas.connectors.tcp import StandardInput

                return StandardInput(schema, time, reader)
    except KeyError as error:
        raise SpeError(f"source {source.stream}: reader {kind} needs the option {error}") from error
    raise SpeError(f"source {source.stream}: expected a reader kind of {', '.join(KINDS)}, got {kind!r}")
