"""A schema registry on loopback, and messages that were written with its schemas."""

from __future__ import annotations

import io
import json
import struct
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import fastavro
import h11
import trio

from tests.support.http_peers import message


def record(unit: str = "micros", **more: Any) -> dict[str, Any]:
    fields = {"ts": {"type": "long", "logicalType": f"timestamp-{unit}"}, "n": "long", "name": ["null", "string"]}
    return {
        "type": "record",
        "name": "row",
        "fields": [{"name": k, "type": t} for k, t in {**fields, **more}.items() if t is not None],
    }


def written(schema: Any, row: Mapping[str, Any], id_: int | None = None) -> bytes:
    """A row, after the id of its schema; None: without one."""
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), row)
    return (b"" if id_ is None else struct.pack(">bI", 0, id_)) + out.getvalue()


class Registry:
    """A schema registry over the loopback.

    Attributes:
      answers: by path.
      asked: paths and headers.
    """

    def __init__(self) -> None:
        self.answers: dict[str, tuple[int, Any]] = {}
        self.asked: list[tuple[str, Mapping[str, str]]] = []
        self.address = ""

    def add(self, id_: int, schema: Any, **more: Any) -> None:
        self.answers[f"/schemas/ids/{id_}"] = 200, {"schema": json.dumps(schema), **more}

    async def serve(self, port: int = 0, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        listeners = await trio.open_tcp_listeners(port, host="127.0.0.1")
        self.address = f"127.0.0.1:{listeners[0].socket.getsockname()[1]}"
        task_status.started()
        await trio.serve_listeners(self._answer, listeners)

    async def _answer(self, stream: trio.SocketStream) -> None:
        http = h11.Connection(h11.SERVER)
        if (found := await message(http, stream)) is None:
            return
        path = found[0].target.decode()
        self.asked.append((path, found[1]))
        status, body = self.answers.get(path, (404, {"error_code": 40403, "message": "Schema not found"}))
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        head = h11.Response(status_code=status, headers=[("Content-Length", str(len(data)))])
        sent = (
            (http.send(head) or b"") + (http.send(h11.Data(data=data)) or b"") + (http.send(h11.EndOfMessage()) or b"")
        )
        await stream.send_all(sent)


@asynccontextmanager
async def registry() -> AsyncIterator[Registry]:
    one = Registry()
    async with trio.open_nursery() as nursery:
        await nursery.start(one.serve)
        yield one
        nursery.cancel_scope.cancel()
