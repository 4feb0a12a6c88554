"""Where tuples come from.  ``open_reader`` makes the reader that a source's configuration names: a line for each.

What each is, and whether it can be read again from any row, its declaration in ``spe.connectors`` says.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from replicas.connectors.csv import CsvReplay
from replicas.connectors.generator import GeneratorReplay
from replicas.connectors.jsonl import JsonReplay
from replicas.connectors.parquet_source import ParquetReplay
from replicas.connectors.reader import Live, Malformed, Replay, RowChunk
from replicas.connectors.tcp import StandardInput, TcpListener
from spe.errors import SpeError
from spe.plan.plan import Source

__all__ = ["KINDS", "Live", "Malformed", "Replay", "RowChunk", "open_reader"]

#: (source, event time of a generator's first row) -> its reader.
_CONSTRUCTIONS: Final[Mapping[str, Callable[[Source, int | None], Replay | Live]]] = {
    "generator": lambda source, start_us: GeneratorReplay(source.reader, start_us, source.schema, source.time),
    "csv": lambda source, _: CsvReplay(source.schema, source.time, source.reader),
    "jsonl": lambda source, _: JsonReplay(source.schema, source.time, source.reader),
    "parquet": lambda source, _: ParquetReplay(source.schema, source.time, source.reader),
    "tcp": lambda source, _: TcpListener(source.schema, source.time, source.reader),
    "stdin": lambda source, _: StandardInput(source.schema, source.time, source.reader),
}
KINDS: Final = tuple(_CONSTRUCTIONS)


def open_reader(source: Source, start_us: int | None = None) -> Replay | Live:
    """The reader of a source; nothing is opened yet.

    Args:
      start_us: event time of a generator's first row, where the configuration gives none.

    Raises:
      SpeError: the configuration does not name a reader, or lacks or misstates one of its options.
    """
    kind: Any = source.reader.get("kind")
    if kind not in _CONSTRUCTIONS:
        raise SpeError(f"source {source.stream}: expected a reader kind of {', '.join(KINDS)}, got {kind!r}")
    try:
        return _CONSTRUCTIONS[kind](source, start_us)
    except KeyError as error:
        raise SpeError(f"source {source.stream}: reader {kind} needs the option {error}") from error
