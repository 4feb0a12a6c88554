"""Prints rows as JSON lines, as a client's sinks write them, with the stream's name in front."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable

from replicas.connectors.json_text import json_text
from replicas.connectors.sink import SinkCursor, SinkEntry
from spe.connectors.declaration import CORRECTIONS, STABLE
from spe.plan.plan import Plan
from spe.stream.change import Change
from spe.stream.ids import Channel


def change_text(plan: Plan, entry: SinkEntry, channel: Channel, corrections: bool) -> Iterable[bytes]:
    """``{"_stream": "totals", "_partition": 0, "_id": 7, …}``: one line per tuple, undo or end of a correction."""
    begin = json.dumps({"_stream": channel.stream, "_partition": channel.partition}, ensure_ascii=False)
    if entry.batch is None:
        return [f'{begin[:-1]}, "_kind": "{entry.kind}", "_id": {entry.id}}}\n'.encode()]
    return json_text(entry.batch, plan.query.schema_of(channel.stream), corrections, begin)


def printer(plan: Plan, *, corrections: bool) -> Callable[[Change], None]:
    """Prints each change that it is given; final tuples only, or all with their undos."""
    cursors: dict[Channel, SinkCursor] = {}

    def show(change: Change) -> None:
        cursor = cursors.setdefault(change.channel, SinkCursor(CORRECTIONS if corrections else STABLE))
        entry = cursor.take(change)
        if entry is not None:
            sys.stdout.buffer.writelines(change_text(plan, entry, change.channel, corrections))
            sys.stdout.buffer.flush()

    return show
