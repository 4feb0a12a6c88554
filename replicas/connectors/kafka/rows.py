"""Converts Kafka messages to columns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np

from replicas.connectors.formats.csv import CsvLines
from replicas.connectors.formats.jsonl import JsonLines
from replicas.connectors.formats.text_columns import encode_texts, note_nulls, printable, without_idle_mask
from replicas.connectors.kafka.merge import Arrived
from replicas.connectors.reader import Malformed
from spe.connectors.kafka import HEADER
from spe.errors import SpeError
from spe.stream.batch import Column, Int64Array
from spe.stream.schema import Attribute, AttributeType, Schema
from spe.stream.strings import StringDictionary, StringPool
from spe.stream.text_size import refusal, too_large

if TYPE_CHECKING:
    from replicas.connectors.formats.avro_messages import AvroMessages


class KafkaMessage(Protocol):
    """The used part of ``confluent_kafka.Message``."""

    def topic(self) -> str: ...
    def partition(self) -> int: ...
    def offset(self) -> int: ...
    def key(self) -> bytes | None: ...
    def value(self) -> bytes | None: ...
    def timestamp(self) -> tuple[int, int]: ...
    def headers(self) -> list[tuple[str, bytes | None]] | None: ...


#: Attribute types of the parts of a message.
_TYPES: Final = {
    "timestamp": AttributeType.TIMESTAMP,
    "partition": AttributeType.INT64,
    "offset": AttributeType.INT64,
}
#: Timestamp type of a message without a timestamp.
_NO_TIMESTAMP: Final = 0
#: Replaces a line that cannot be a row: no format takes it.
_NO_ROW: Final = '"'


class MessageRows:
    """Converts messages to rows: some attributes are parts of the message itself, the others are in its value.

    Args:
      reader: options, as declared in ``spe.connectors.kafka``.

    Attributes:
      avro: reads Avro values; None: they have another format.

    Raises:
      SpeError: ``attributes`` does not fit the schema.
    """

    def __init__(self, schema: Schema, time: str | None, reader: Mapping[str, Any]) -> None:
        self._schema = schema
        self._time = None if time is None else schema.index(time)
        self._parts: Mapping[str, str] = reader.get("attributes") or {}
        for name, part in self._parts.items():
            _check(schema, name, part)
        inside = Schema(tuple(a for a in schema if a.name not in self._parts))
        self._lines: JsonLines | CsvLines | None = None
        self.avro: AvroMessages | None = None
        if len(inside) and "avro" in reader:
            from replicas.connectors.formats.avro_messages import AvroMessages  # it needs more packages

            self.avro = AvroMessages(inside, None, reader, reader["avro"])
        elif len(inside):
            line_reader = CsvLines if reader.get("format") == "csv" else JsonLines
            self._lines = line_reader(inside, None, reader)
        #: Texts of successive batches: known ones need not be encoded again.
        self._pool = StringPool()

    def arrived(self, messages: Sequence[KafkaMessage], partition: Int64Array, offset: Int64Array) -> Arrived:
        """Converts messages.

        Args:
          partition, offset: shape (n,): of each message; the caller defines the partition numbers.
        """
        values = [m.value() for m in messages]
        bad = {i: "no value: it deletes a key" for i, value in enumerate(values) if value is None}
        texts = [_NO_ROW if value is None else _text(value) for value in values]
        dictionary = self._pool.current()
        outside = {n: self._part(self._schema[n], p, messages, texts, dictionary, bad) for n, p in self._parts.items()}
        columns, row = self._columns(values, texts, outside, dictionary, bad)
        for i, bytes_ in too_large(columns).items() if outside else ():
            bad[int(np.flatnonzero(row == i)[0])] = refusal(bytes_)
        if self._time is not None and (valid := columns[self._time].valid) is not None:
            for i in np.flatnonzero(row >= 0)[~valid].tolist():
                bad.setdefault(i, "no event time")
        if stray := [i for i in bad if row[i] >= 0]:
            columns, row = _without(columns, row, stray)
        malformed = {i: _malformed(messages[i], bad[i], texts[i] if values[i] is not None else "") for i in bad}
        size = np.fromiter((0 if value is None else len(value) for value in values), np.int64, len(values))
        events = None if self._time is None else columns[self._time].values
        return Arrived(partition, offset, size, row, columns, events, malformed)

    def _columns(
        self,
        values: list[bytes | None],
        texts: list[str],
        outside: Mapping[str, Column],
        dictionary: StringDictionary,
        bad: dict[int, str],
    ) -> tuple[tuple[Column, ...], Int64Array]:
        """Returns columns of the rows with good values, and the row of each message; -1: none."""
        n = len(texts)
        if self.avro is not None:
            chunk = self.avro.chunk(values, dictionary)
        elif self._lines is not None:
            lines = [text.rstrip("\r\n") for text in texts]
            if not all(lines):
                bad.update((i, "an empty value") for i, line in enumerate(lines) if not line)
                lines = [line or _NO_ROW for line in lines]
            chunk = self._lines.chunk(0, lines, dictionary=dictionary)
        else:
            return tuple(outside[name] for name in self._schema.names), np.arange(n)
        for row_report in chunk.malformed:
            bad.setdefault(row_report.line - 1, row_report.reason)
        good = np.arange(n) if chunk.places is None else chunk.places
        row = np.full(n, -1, np.int64)
        row[good] = np.arange(len(good))
        inside = iter(chunk.columns)
        columns = []
        for name in self._schema.names:
            column = outside.get(name)
            columns.append(
                next(inside) if column is None else column if len(good) == n else without_idle_mask(column.take(good))
            )
        return tuple(columns), row

    def _part(
        self,
        attribute: Attribute,
        part: str,
        messages: Sequence[KafkaMessage],
        texts: list[str],
        dictionary: StringDictionary,
        bad: dict[int, str],
    ) -> Column:
        known = _ITEMS.get(part)
        items: list[Any] = (
            list(texts) if part == "value" else _header(part, messages) if known is None else known(messages)
        )
        if attribute.type is AttributeType.STRING and part not in ("value", "topic"):
            items = [item if item is None else _text(item) for item in items]
        filler: Any = "" if attribute.type is AttributeType.STRING else 0
        valid = None
        if None in items:
            valid = np.array([item is not None for item in items], np.bool_)
            note_nulls(attribute, valid, bad)
            items = [filler if item is None else item for item in items]
        if attribute.type is AttributeType.STRING:
            return Column(encode_texts(attribute, items, dictionary, bad), valid, dictionary)
        return Column(np.array(items, attribute.type.dtype), valid)


def _check(schema: Schema, name: str, part: str) -> None:
    """Raises SpeError: an attribute cannot be that part of a message."""
    if name not in schema:
        raise SpeError(f"from.kafka.attributes: no attribute {name!r}; expected one of: {', '.join(schema.names)}")
    wanted = _TYPES.get(part, AttributeType.STRING)
    if schema[name].type is not wanted:
        raise SpeError(f"from.kafka.attributes.{name}: the {part} of a message is {wanted}, got {schema[name].type}")


def _timestamps(messages: Sequence[KafkaMessage]) -> list[Any]:
    stamps = [m.timestamp() for m in messages]
    return [None if kind == _NO_TIMESTAMP else ms * 1000 for kind, ms in stamps]


_ITEMS: Final[Mapping[str, Callable[[Sequence[KafkaMessage]], list[Any]]]] = {
    "timestamp": _timestamps,
    "key": lambda messages: [m.key() for m in messages],
    "topic": lambda messages: [m.topic() for m in messages],
    "partition": lambda messages: [m.partition() for m in messages],
    "offset": lambda messages: [m.offset() for m in messages],
}


def _header(part: str, messages: Sequence[KafkaMessage]) -> list[Any]:
    """Returns headers; the last one of a name counts, as in Kafka's own clients."""
    name = part.removeprefix(HEADER)
    return [dict(m.headers() or ()).get(name) for m in messages]


def _text(value: bytes) -> str:
    """Decodes a text; bytes that are not UTF-8 become lone surrogates, which make the row malformed."""
    return value.decode("utf-8", "surrogateescape")


def place_of(topic: str, partition: int, offset: int) -> str:
    """Describes the place of a message."""
    return f"{topic}/{partition} offset {offset}"


def _malformed(message: KafkaMessage, reason: str, text: str) -> Malformed:
    place = place_of(message.topic(), message.partition(), message.offset())
    return Malformed(message.offset(), reason, printable(text), place)


def _without(
    columns: tuple[Column, ...], row: Int64Array, stray: Sequence[int]
) -> tuple[tuple[Column, ...], Int64Array]:
    """Removes the rows of some messages."""
    keep = np.ones(len(columns[0]), np.bool_)
    keep[row[list(stray)]] = False
    places = np.flatnonzero(row >= 0)[keep]
    row = np.full(len(row), -1, np.int64)
    row[places] = np.arange(len(places))
    return tuple(without_idle_mask(c.select(keep)) for c in columns), row
