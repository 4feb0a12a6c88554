"""Converts Avro records to columns.  fastavro decodes them to a dict per record; columns are made of many at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

from replicas.connectors.formats.file_format import is_of_storage
from replicas.connectors.formats.jsonl import JsonLines
from replicas.connectors.reader import RowChunk
from spe.errors import SpeError
from spe.stream.schema import Attribute, AttributeType, Schema

#: Unit of a timestamp by its logical type; one without a time zone is taken as UTC.
_UNITS: Final = {
    f"{local}timestamp-{long}": unit
    for local in ("", "local-")
    for long, unit in (("millis", "ms"), ("micros", "us"), ("nanos", "ns"))
}
#: Avro types that an attribute takes.
_TAKES: Final = {
    AttributeType.INT64: ("int", "long"),
    AttributeType.FLOAT64: ("float", "double", "int", "long"),
    AttributeType.BOOL: ("boolean",),
    AttributeType.STRING: ("string", "enum"),
}
#: Attributes of logical types: without them fastavro returns numbers, not an object for each timestamp.
_LOGICAL: Final = ("logicalType", "precision", "scale")


class AvroRows:
    """Makes chunks of records that were written with various schemas.

    Args:
      nulls: a field that a schema lacks is null, if its attribute may be.
    """

    def __init__(self, schema: Schema, time: str | None, reader: Mapping[str, Any], *, nulls: bool = False) -> None:
        self._nulls = nulls
        self._schema = schema
        self._time = time
        self._reader = reader
        mapping: Mapping[str, Any] = reader.get("columns") or {}
        self._names = {a.name: str(mapping.get(a.name, a.name)) for a in schema}

    def of(self, written: Any, where: str) -> tuple[JsonLines, Mapping[str, str]]:
        """Returns a chunk maker for records of a schema, and the units of its timestamps, by attribute.

        Raises:
          SpeError: not a schema, or a field is missing or of another type; begins with ``where``.
        """
        with avro_reads(where):
            if name := _itself(parsed(written), frozenset()):
                raise SpeError(f"{where}: {name} contains itself; expected types that do not")
            record = parsed(written, expand=True)
        if not isinstance(record, dict) or record.get("type") != "record":
            raise SpeError(f"{where}: expected records, got {_named(record)}")
        if not _has_bytes(record) or _has_empty_items(record):  # a few bytes could hold any number of them
            raise SpeError(f"{where}: expected records, and items of arrays, each of which has bytes")
        fields = {f["name"]: f["type"] for f in record["fields"]}
        needed = {
            self._names[a.name] for a in self._schema if not (self._nulls and a.nullable and a.name != self._time)
        }
        if missing := sorted(needed - set(fields)):
            raise SpeError(f"{where}: no field {', '.join(missing)}; the schema has: {', '.join(fields)}")
        there = [a for a in self._schema if self._names[a.name] in fields]
        unit_of = {a.name: self._unit(a, fields[self._names[a.name]], where) for a in there}
        units = {name: unit for name, unit in unit_of.items() if unit}
        return JsonLines(self._schema, self._time, self._reader, units), units

    def by_field(self, units: Mapping[str, str]) -> Mapping[str, str]:
        return {self._names[attribute]: unit for attribute, unit in units.items()}

    def made(self, units: Mapping[str, str]) -> JsonLines:
        """Returns a chunk maker for records whose timestamps have these units, by field."""
        known = {a: units[field] for a, field in self._names.items() if field in units}
        return JsonLines(self._schema, self._time, self._reader, known)

    def _unit(self, attribute: Attribute, field: Any, where: str) -> str:
        """Returns the unit of a timestamp, if the type of its field determines it, else "".  Raises SpeError."""
        units = set()
        for branch in field if isinstance(field, list) else [field]:
            kind = branch.get("type") if isinstance(branch, dict) else branch
            if kind == "null":
                continue
            unit = _UNITS.get(branch.get("logicalType", ""), "") if isinstance(branch, dict) else ""
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
        configured = self._reader.get("timestamps")
        if kind == "string":
            return configured in (None, "iso")
        return bool(unit) or (configured not in (None, "iso") and kind in _TAKES[AttributeType.FLOAT64])


def chunk_of_records(made: JsonLines, records: Sequence[Any], first: int) -> RowChunk:
    return made.chunk_of_values(records, first, str).in_rows()


def parsed(schema: Any, *, expand: bool = False) -> Any:
    import fastavro

    return fastavro.parse_schema(schema, expand=expand)


def plain(schema: Any) -> Any:
    """Returns a schema without logical types, which have no effect on the encoding."""
    if isinstance(schema, dict):
        return {key: plain(value) for key, value in schema.items() if key not in _LOGICAL}
    return [plain(branch) for branch in schema] if isinstance(schema, list) else schema


def _itself(schema: Any, around: frozenset[str]) -> str:
    """Returns a type that contains itself; "" if there is none.  fastavro crashes on deeply nested values of such
    types.

    Args:
      around: names of the enclosing types.
    """
    if isinstance(schema, str):
        return schema if schema in around else ""
    if isinstance(schema, list):
        return next((name for branch in schema if (name := _itself(branch, around))), "")
    kind = schema.get("type")
    if kind in ("array", "map"):
        return _itself(schema["items" if kind == "array" else "values"], around)
    if kind not in ("record", "error"):
        return ""
    return _itself([field["type"] for field in schema["fields"]], around | {schema["name"]})


def _has_bytes(schema: Any) -> bool:
    """Returns whether each value of an expanded schema takes at least a byte."""
    if isinstance(schema, list):
        return True  # the index of the branch
    if not isinstance(schema, dict):
        return bool(schema != "null")
    if schema["type"] == "fixed":
        return bool(schema["size"])
    if schema["type"] in ("record", "error"):
        return any(_has_bytes(field["type"]) for field in schema["fields"])
    return bool(schema["type"] != "null")


def _has_empty_items(schema: Any) -> bool:
    """Returns whether an expanded schema has an array with any number of items in a few bytes."""
    if isinstance(schema, list):
        return any(map(_has_empty_items, schema))
    if not isinstance(schema, dict):
        return False
    match schema["type"]:
        case "array":
            return not _has_bytes(schema["items"]) or _has_empty_items(schema["items"])
        case "map":
            return _has_empty_items(schema["values"])
        case "record" | "error":
            return any(_has_empty_items(field["type"]) for field in schema["fields"])
    return False


def _named(type_: Any) -> str:
    if isinstance(type_, list):
        return f"[{', '.join(map(_named, type_))}]"
    if not isinstance(type_, dict):
        return str(type_)
    return f"{_named(type_.get('type'))}{' of ' + type_['logicalType'] if 'logicalType' in type_ else ''}"


@contextmanager
def avro_reads(where: str) -> Iterator[None]:
    """Converts errors of fastavro, which raises various types for invalid data.

    Raises:
      SpeError: the data is invalid, or fastavro is not installed.
      OSError: the data could not be read.
    """
    try:
        import fastavro  # noqa: F401
    except ImportError as error:
        raise SpeError(f"{where}: reading Avro needs fastavro: pip install '.[avro]'") from error
    try:
        yield
    except SpeError:
        raise
    except Exception as error:
        if is_of_storage(error):
            raise
        raise SpeError(f"{where}: cannot be read: {type(error).__name__}: {error}".rstrip(": ")) from error
