"""Reads bodies of requests in Avro: a container file, or one message."""

from __future__ import annotations

import io
from collections.abc import Mapping
from itertools import islice
from typing import Any, BinaryIO, Final, cast

from replicas.connectors.files.avro_source import MAGIC, AvroFiles
from replicas.connectors.formats.avro_messages import AvroMessages
from replicas.connectors.reader import RowChunk
from spe.runtime.env import Env
from spe.stream.batch import Rows
from spe.stream.schema import Schema

_NAME: Final = "the body"


class AvroBodies:
    """Reads bodies.

    Args:
      reader: options of ``spe.connectors.http``.
    """

    def __init__(self, schema: Schema, time: str | None, reader: Mapping[str, Any]) -> None:
        self._schema = schema
        self._files = AvroFiles(schema, time, reader, ("null",))  # the size of compressed blocks has no limit
        self._messages = AvroMessages(schema, time, reader, reader["avro"]) if "avro" in reader else None

    async def learn(self, env: Env, body: bytes) -> None:
        """Asks for the schema of a message.  Raises ServerAway; SpeError: the registry refuses access."""
        if self._messages is None or body.startswith(MAGIC):
            return
        if ids := self._messages.unknown([body], env.clock.monotonic_us()):
            await self._messages.learn(env, ids)

    def chunk(self, body: bytes) -> RowChunk | int:
        """Returns the rows of a body; their least number, if they are too many for a chunk.  Raises SpeError: not
        Avro.
        """
        if self._messages is not None and not body.startswith(MAGIC):
            return self._messages.chunk([body])
        # Two chunks are enough to know that there are too many rows.
        chunks = list(islice(self._files.rows(cast(BinaryIO, io.BytesIO(body)), _NAME, 0), 2))
        if not chunks:
            return RowChunk(0, 0, None, Rows.empty(self._schema).columns, [])
        if len(chunks) > 1:
            return sum(chunk.taken for chunk in chunks)
        return chunks[0]
