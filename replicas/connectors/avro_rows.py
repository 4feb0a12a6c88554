"""Records of Avro to columns.  fastavro decodes them, and gives a dict per record; columns are made of many at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

from replicas.connectors.file_format import is_of_storage
from replicas.connectors.jsonl import JsonLines
from replicas.connectors.reader import RowChunk
from spe.errors import SpeError
from spe.stream.schema import Attribute, AttributeType, Schema

#: Unit of a timestamp by its logical type; one without a time zone is taken for one of UTC.
_UNITS: Final = {
    f"{local}timestamp-{long}": unit
    for local in ("", "local-")
    for long, unit in (("millis", "ms"), ("micros", "us"), ("nanos", "ns"))
}
#: Types of Avro that an attribute takes.
_TAKES: Final = {
    AttributeType.INT64: ("int", "long"),
    AttributeType.FLOAT64: ("float", "double", "int", "long"),
    AttributeType.BOOL: ("boolean",),
    AttributeType.STRING: ("string", "enum"),
}
#: What a type has besides its kind: without it fastavro gives numbers, not an object for each timestamp.
_LOGICAL: Final = ("logicalType", "precision", "scale")


class AvroRows:
    """Makes chunks of records that were written with one schema after the other."""

    def __init__(self, schema: Schema, time: str | None, reader: Mapping[str, Any]) -> None:
        self._schema = schema
        self._time = time
        self._reader = reader
        mapping: Mapping[str, Any] = reader.get("columns") or {}
        self._names = {a.name: str(mapping.get(a.name, a.name)) for a in schema}

    def of(self, written: Any, where: str) -> JsonLines:
        """What makes chunks of records of a schema.

        Raises:
          SpeError: it is no schema, or lacks a field, or has one of another type; begins with ``where``.
        """
        import fastavro

        with avro_reads(where):
            record = fastavro.parse_schema(written, expand=True)
        if not isinstance(record, dict) or record.get("type") != "record":
            raise SpeError(f"{where}: expected records, got {_named(record)}")
        fields = {f["name"]: f["type"] for f in record["fields"]}
        if missing := sorted(set(self._names.values()) - set(fields)):
            raise SpeError(f"{where}: no field {', '.join(missing)}; the schema has: {', '.join(fields)}")
        units = {a.name: self._unit(a, fields[self._names[a.name]], where) for a in self._schema}
        return JsonLines(self._schema, self._time, self._reader, {k: u for k, u in units.items() if u})

    def _unit(self, attribute: Attribute, field: Any, where: str) -> str:
        """The unit of a timestamp, where the type of its field says it, else "".  Raises SpeError."""
        units = set()
        for one in field if isinstance(field, list) else [field]:
            kind = one.get("type") if isinstance(one, dict) else one
            if kind == "null":
                continue
            unit = _UNITS.get(one.get("logicalType", ""), "") if isinstance(one, dict) else ""
            if not self._fits(attribute.type, kind, unit):
                hint = ""
                if attribute.type is AttributeType.TIMESTAMP:
                    hint = "; for numbers since the epoch say timestamps: s, ms, us or ns, for texts timestamps: iso"
                raise SpeError(
                    f"{where}: field {self._names[attribute.name]} is {_named(field)}; {attribute.type.value} was "
                    f"expected{hint}"
                )
            units.add(unit)
        if len(units) > 1:
            raise SpeError(f"{where}: field {self._names[attribute.name]} has timestamps of several units")
        return units.pop() if attribute.type is AttributeType.TIMESTAMP and units else ""

    def _fits(self, wanted: AttributeType, kind: Any, unit: str) -> bool:
        if wanted is not AttributeType.TIMESTAMP:
            return kind in _TAKES[wanted]
        given = self._reader.get("timestamps")
        if kind == "string":
            return given in (None, "iso")
        return bool(unit) or (given not in (None, "iso") and kind in _TAKES[AttributeType.FLOAT64])


def chunk_of_records(made: JsonLines, records: Sequence[Any], first: int) -> RowChunk:
    return made.chunk_of_values(records, first, str)


def plain(schema: Any) -> Any:
    """A schema without logical types: the bytes of a value are the same."""
    if isinstance(schema, dict):
        return {key: plain(value) for key, value in schema.items() if key not in _LOGICAL}
    return [plain(one) for one in schema] if isinstance(schema, list) else schema


def _named(type_: Any) -> str:
    if isinstance(type_, list):
        return f"[{', '.join(map(_named, type_))}]"
    if not isinstance(type_, dict):
        return str(type_)
    return f"{_named(type_.get('type'))}{' of ' + type_['logicalType'] if 'logicalType' in type_ else ''}"


@contextmanager
def avro_reads(where: str) -> Iterator[None]:
    """Errors of fastavro in words, which raises what it likes for bytes that are not what they should be.

    Raises:
      SpeError: they are not; or fastavro is not installed.
      OSError: they could not be read.
    """
    try:
        import fastavro  # noqa: F401
    except ImportError as error:
        raise SpeError(f"{where}: reading Avro needs fastavro: pip install 'tentative-spe[avro]'") from error
    try:
        yield
    except SpeError:
        raise
    except Exception as error:
        if is_of_storage(error):
            raise
        raise SpeError(f"{where}: cannot be read: {type(error).__name__}: {error}".rstrip(": ")) from error
