"""Converts Avro messages to columns: each is a record, preceded by the id of its schema, or all have one schema."""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from replicas.connectors.formats.avro_rows import AvroRows, avro_reads, parsed, plain
from replicas.connectors.formats.jsonl import JsonLines
from replicas.connectors.formats.text_columns import epoch_number
from replicas.connectors.reader import RowChunk
from spe.errors import SpeError
from spe.runtime.env import Env
from spe.stream.schema import Schema
from spe.stream.strings import StringDictionary

if TYPE_CHECKING:
    from replicas.connectors.formats.schema_registry import SchemaRegistry

#: Head of a message in Confluent's format: a byte of zero, and the id of its schema.
_HEAD: Final = struct.Struct(">bI")
#: The id if all messages have one schema.
_ONE: Final = -1


class _Writer(NamedTuple):
    """Reads the messages written with one schema.

    Attributes:
      made: makes chunks of them.
      units: units of timestamps, by field.
    """

    schema: Any
    made: JsonLines
    units: Mapping[str, str]


class AvroMessages:
    """Converts messages to chunks.

    Args:
      keys: keys of ``spe.connectors.avro.AvroKeys``.

    Raises:
      SpeError: the schema file cannot be used, or fastavro is missing.
    """

    def __init__(self, schema: Schema, time: str | None, reader: Mapping[str, Any], keys: Mapping[str, Any]) -> None:
        self._rows = AvroRows(schema, time, reader, nulls=True)
        self._registry: SchemaRegistry | None = None
        if "registry" in keys:
            from replicas.connectors.formats.schema_registry import SchemaRegistry  # it needs h11

            self._registry = SchemaRegistry(keys["registry"])
        self._writers: dict[int, _Writer | str] = {}
        if self._registry is None:
            path = str(keys["file"])
            try:
                written = json.loads(Path(path).read_bytes())
            except (OSError, ValueError) as error:
                raise SpeError(f"avro.file: {path} cannot be read: {error}") from error
            self._writers[_ONE] = self._writer(written, path)

    def unknown(self, values: Sequence[bytes | None], now_us: int) -> set[int]:
        """Returns the ids of schemas that must be fetched first.

        Args:
          now_us: time of ``Clock.monotonic_us``.
        """
        if self._registry is None:
            return set()
        ids = {self._head(value)[0] for value in values if value is not None}
        return {id_ for id_ in ids if id_ >= 0 and id_ not in self._writers and self._registry.missing(id_, now_us)}

    async def learn(self, env: Env, ids: Collection[int]) -> None:
        """Fetches schemas from the registry.  Raises ServerAway; SpeError: a retry does not help."""
        assert self._registry is not None
        await self._registry.fetch(env, ids)

    def chunk(self, values: Sequence[bytes | None], dictionary: StringDictionary | None = None) -> RowChunk:
        """Returns rows of messages whose schemas were fetched, numbered from 1; a None value is malformed, for the
        caller.
        """
        records: list[Any] = [{}] * len(values)
        writers: list[_Writer | None] = [None] * len(values)
        bad: dict[int, str] = {}
        for i, value in enumerate(values):
            if value is None:
                bad[i] = "no value"
                continue
            id_, start = self._head(value)
            try:
                writers[i] = writer = self._writer_of(id_)
                records[i] = _record(writer, value, start)
            except SpeError as error:
                bad[i] = str(error)
        used = {id(writer): writer for writer in writers if writer is not None}
        made = next(iter(used.values())).made if used else self._rows.made({})
        if len({tuple(sorted(writer.units.items())) for writer in used.values()}) > 1:
            records = [r if w is None else _in_us(r, w.units) for r, w in zip(records, writers)]
            made = self._rows.made(dict.fromkeys({name for writer in used.values() for name in writer.units}, "us"))
        return made.chunk_of_values(records, 0, str, bad, dictionary)

    def _head(self, value: bytes) -> tuple[int, int]:
        """Returns the id of a message's schema, -2: it has none; and the offset of the record."""
        if self._registry is None:
            return _ONE, 0
        if len(value) < _HEAD.size or value[0]:
            return -2, 0
        return int(_HEAD.unpack_from(value)[1]), _HEAD.size

    def _writer_of(self, id_: int) -> _Writer:
        writer = self._writers.get(id_)
        if writer is None:
            if id_ < 0 or self._registry is None:
                raise SpeError("expected a byte of zero and the id of a schema")
            written = self._registry.schema(id_)  # its refusals expire
            try:
                writer = self._writer(written, f"schema {id_}")
            except SpeError as error:
                writer = str(error)
            self._writers[id_] = writer
        if isinstance(writer, str):
            raise SpeError(writer)
        return writer

    def _writer(self, written: Any, where: str) -> _Writer:
        made, units = self._rows.of(written, where)
        with avro_reads(where):
            return _Writer(parsed(plain(written)), made, self._rows.by_field(units))


def _record(writer: _Writer, value: bytes, start: int) -> Any:
    """Decodes a record.  Raises SpeError."""
    import fastavro

    file = io.BytesIO(value)
    file.seek(start)
    with avro_reads("the record"):
        record = fastavro.schemaless_reader(file, writer.schema, None)
    if file.tell() != len(value):
        raise SpeError(f"{len(value) - file.tell()} bytes behind the record; was it written with another schema?")
    return record


def _in_us(record: Mapping[str, Any], units: Mapping[str, str]) -> Mapping[str, Any]:
    """Converts timestamps to one unit, if messages of several schemas came together."""
    converted = dict(record)
    for name, unit in units.items():
        if isinstance(converted.get(name), int):
            converted[name] = epoch_number(converted[name], unit)
    return converted
