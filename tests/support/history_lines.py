"""A history as JSON lines: equal histories give equal bytes.

The first line names the schemas of the streams; each further line is an event, ``{"event": "Received", …}``,
with its fields in the order of their definition.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, get_args

from spe.stream.batch import Batch, Boundary, Element, RecDone, Undo
from spe.stream.history import Event
from spe.stream.ids import Channel
from spe.stream.names import NodeState, StreamId
from spe.stream.schema import Schema

_FIELDS: Final = {one: tuple(f.name for f in dataclasses.fields(one)) for one in get_args(Event)}


def write_lines(history: Iterable[Event], schemas: Mapping[StreamId, Schema]) -> Iterator[str]:
    """The lines of a history, without their ends."""
    yield _dump({"schemas": {s: schemas[s].to_wire() for s in sorted(schemas)}})
    for event in history:
        fields = {field: _plain(getattr(event, field)) for field in _FIELDS[type(event)]}
        yield _dump({"event": type(event).__name__} | fields)


def _dump(data: Mapping[str, Any]) -> str:
    return json.dumps(data, separators=(",", ":"), ensure_ascii=False)


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
