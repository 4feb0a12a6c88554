"""A history as JSON lines, both ways.  The same history is the same bytes.

The first line names the schemas of the streams, so that a file can be read by itself; each further line is an event:
``{"event": "Received", "at_us": …, …}``, with its fields in the order of their definition.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, get_args

import numpy as np

from spe.errors import SpeError
from spe.stream.batch import Batch, Boundary, Element, RecDone, Rows, Undo
from spe.stream.history import Event, History
from spe.stream.ids import Channel
from spe.stream.names import Kind, NodeState, StreamId
from spe.stream.schema import Schema
from spe.stream.strings import StringPool

#: Changes when a line means something else.
VERSION: Final = 2

_TYPES: Final[Mapping[str, type[Event]]] = {one.__name__: one for one in get_args(Event)}
_FIELDS: Final = {name: tuple(f.name for f in dataclasses.fields(one)) for name, one in _TYPES.items()}


def write_lines(history: Iterable[Event], schemas: Mapping[StreamId, Schema]) -> Iterator[str]:
    """The lines of a history, without their ends."""
    yield _dump({"history": VERSION, "schemas": {s: schemas[s].to_wire() for s in sorted(schemas)}})
    for event in history:
        name = type(event).__name__
        yield _dump({"event": name} | {field: _plain(getattr(event, field)) for field in _FIELDS[name]})


def read_lines(lines: Iterable[str]) -> History:
    """The history that :func:`write_lines` wrote.

    Raises:
      SpeError: a line is none of a history; says which, and what was expected.
    """
    history, pool = History(), StringPool()
    schemas: dict[StreamId, Schema] | None = None
    for number, line in enumerate(lines, 1):
        try:
            data = json.loads(line)
            if schemas is None:
                schemas = _schemas(data)
            else:
                history(_event(data, schemas, pool))
        except (ValueError, KeyError, TypeError, IndexError, AttributeError, OverflowError) as error:
            raise SpeError(f"line {number} of the history: expected an event, got {line[:80]!r} ({error!r})") from error
    return history


def _dump(data: Mapping[str, Any]) -> str:
    return json.dumps(data, separators=(",", ":"), ensure_ascii=False)


def _schemas(data: Mapping[str, Any]) -> dict[StreamId, Schema]:
    if data["history"] != VERSION:
        raise ValueError(f"version {VERSION} is read here, not {data['history']}")
    return {StreamId(s): Schema.from_wire(wire) for s, wire in data["schemas"].items()}


def _plain(value: Any) -> Any:
    if isinstance(value, Channel):
        return str(value)
    if isinstance(value, Batch | Boundary | Undo | RecDone):
        return _plain_element(value)
    if isinstance(value, NodeState):
        return value.name
    if isinstance(value, tuple):
        return [_plain(v) for v in value]
    return value


def _plain_element(element: Element) -> dict[str, Any]:
    if isinstance(element, Undo):
        return {"undo": element.upto_id}
    if isinstance(element, RecDone):
        return {"rec_done": element.state.name}
    if isinstance(element, Boundary):
        return {"boundary": element.kind.name, "time": element.time, "upto": element.upto_id}
    rows = element.rows
    data: dict[str, Any] = {"batch": element.kind.name, "from": element.from_id, "upto": element.upto_id}
    if element.ids is not None:
        data["ids"] = element.ids.tolist()
    data["time"] = rows.time.tolist()
    if rows.t_max is not rows.time:
        data["t_max"] = rows.t_max.tolist()
    return data | {"rows": rows.to_tuples()}


def _event(data: Mapping[str, Any], schemas: Mapping[StreamId, Schema], pool: StringPool) -> Event:
    name = data["event"]
    values = {field: data[field] for field in _FIELDS[name]}
    if "channel" in values:
        values["channel"] = _channel(values["channel"])
    for field, read in _READERS.items():
        if field in values:
            values[field] = read(values[field])
    if "element" in values:
        values["element"] = _element(values["element"], schemas[values["channel"].stream], pool)
    return _TYPES[name](**values)


def _channel(text: str) -> Channel:
    stream, _, partition = text.rpartition("/")
    return Channel(StreamId(stream), int(partition))


_READERS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "state": lambda name: NodeState[name],
    "hosts": tuple,
    "links": lambda pairs: tuple((a, b) for a, b in pairs),
    "digests": lambda entries: tuple((_channel(c), count, digest) for c, count, digest in entries),
}


def _element(data: Mapping[str, Any], schema: Schema, pool: StringPool) -> Element:
    if "undo" in data:
        return Undo(data["undo"])
    if "rec_done" in data:
        return RecDone(NodeState[data["rec_done"]])
    if "boundary" in data:
        return Boundary(Kind[data["boundary"]], data["time"], data["upto"])
    rows = Rows.from_tuples(schema, data["time"], data["rows"], pool)
    if "t_max" in data:
        rows = Rows(rows.time, np.array(data["t_max"], np.int64), rows.columns)
    ids = np.array(data["ids"], np.int64) if "ids" in data else None
    return Batch(Kind[data["batch"]], data["from"], data["upto"], ids, rows)
