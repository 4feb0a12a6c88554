"""A browser of a few lines: asks the dashboard for something, and may misbehave."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import trio


@dataclass(frozen=True)
class Answer:
    """What came back.

    Attributes:
      status: 0 where the connection was closed without an answer.
      headers: by name in small letters.
    """

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode()

    @property
    def json(self) -> Any:
        return json.loads(self.body)


async def dial(address: str) -> trio.SocketStream:
    """A connection to ``http://host:port/…``."""
    host, _, port = address.removeprefix("http://").partition("/")[0].rpartition(":")
    return await trio.open_tcp_stream(host, int(port))


def request_text(method: str, path: str, headers: Mapping[str, str], body: bytes = b"") -> bytes:
    given = {
        "Host": "127.0.0.1",
        "Connection": "close",
        **({"Content-Length": str(len(body))} if body else {}),
        **headers,
    }
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in given.items())]
    return "\r\n".join([*lines, "", ""]).encode() + body


async def ask(
    address: str, path: str, *, method: str = "GET", headers: Mapping[str, str] | None = None, body: bytes = b""
) -> Answer:
    """One request on a connection of its own."""
    async with await dial(address) as stream:
        try:
            await stream.send_all(request_text(method, path, headers or {}, body))
            data = b"".join([part async for part in stream])
        except trio.BrokenResourceError:
            data = b""
    return parsed(data)


def parsed(data: bytes) -> Answer:
    head, _, body = data.partition(b"\r\n\r\n")
    if not head:
        return Answer(0, {}, b"")
    first, *lines = head.decode().split("\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    if headers.get("transfer-encoding") == "chunked":
        body = _joined(body)
    return Answer(int(first.split()[1]), headers, body)


def _joined(data: bytes) -> bytes:
    """Chunks without their lengths, as far as they have come."""
    found = b""
    while data:
        length, _, data = data.partition(b"\r\n")
        if not length.strip():
            break
        size = int(length, 16)
        found, data = found + data[:size], data[size + 2 :]
        if size == 0:
            break
    return found


async def first_events(stream: trio.SocketStream, count: int) -> list[tuple[str, Any]]:
    """Server-sent events of ``/api/events``, each with its kind."""
    await stream.send_all(request_text("GET", "/api/events", {}))
    data, found = b"", list[tuple[str, Any]]()
    while len(found) < count:
        data += await stream.receive_some()
        *done, _ = _joined(data.partition(b"\r\n\r\n")[2]).decode(errors="replace").split("\n\n")
        events = [dict(line.partition(": ")[::2] for line in event.split("\n")) for event in done]
        found = [(event["event"], json.loads(event["data"])) for event in events if "event" in event]
    return found[:count]
