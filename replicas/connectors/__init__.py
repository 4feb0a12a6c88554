"""Readers and sinks.  ``open_reader`` makes the reader that a source's configuration names.

The declarations in ``spe.connectors`` describe them, and say which readers can be read again from any row.
"""

from __future__ import annotations

from typing import Any

from replicas.connectors.reader import Live, Malformed, Replay, Resumable, RowChunk
from spe.connectors import READERS, find_reader
from spe.connectors.installed_connectors import construction
from spe.errors import SpeError
from spe.log.source_log import source_folder
from spe.plan.plan import Source

__all__ = ["Live", "Malformed", "Replay", "Resumable", "RowChunk", "open_reader"]


def open_reader(source: Source, start_us: int | None = None) -> Replay | Live:
    """Makes the reader of a source; nothing is opened yet.

    Args:
      start_us: event time of a generator's first row, if not configured.

    Raises:
      SpeError: the configuration names no reader, or an option is missing or wrong.
    """
    kind: Any = source.reader.get("kind")
    if (declared := find_reader(str(kind))) is None:
        raise SpeError(f"source {source.stream}: expected a reader kind of {', '.join(READERS)}, got {kind!r}")
    try:
        reader: Replay | Live = construction(declared)(source.schema, source.time, source.reader)
    except KeyError as error:
        raise SpeError(f"source {source.stream}: reader {kind} needs the option {error}") from error
    if isinstance(reader, Resumable):
        reader.folder, reader.ahead_us = source_folder(source.stream), source.ahead_us
    if isinstance(reader, Replay):
        reader.begin(start_us)
    return reader
