"""Programs that speak HTTP with a connector, over any Network: a sender of rows, a server of events, a receiver."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import h11
import trio

from replicas.connectors.server_sink import GONE
from spe.runtime.env import Network

SCHEMA = {"ts": "timestamp!", "n": "int64!", "text": "string"}


def row_of(n: int) -> dict[str, Any]:
    return {"ts": f"2026-01-01T12:00:{n:02}", "n": n, "text": f"é{n}" if n % 3 else None}


class Reply(NamedTuple):
    status: int
    body: dict[str, Any]
    headers: Mapping[str, str]


async def message(http: h11.Connection, stream: trio.abc.Stream) -> tuple[Any, dict[str, str], bytes] | None:
    """The next request or answer: its head, headers and body; None: the connection was closed before it."""
    head, body = None, b""
    while True:
        event = http.next_event()
        if event is h11.NEED_DATA:
            http.receive_data(await stream.receive_some(65_536))
        elif isinstance(event, h11.Request | h11.Response):
            head = event
        elif isinstance(event, h11.Data):
            body += event.data
        elif isinstance(event, h11.EndOfMessage):
            assert head is not None
            return head, {k.decode(): v.decode() for k, v in head.headers}, body
        elif not isinstance(event, h11.InformationalResponse):
            return None  # nothing more comes


class Peer:
    """A client over a stream."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self.stream = stream
        self._http = h11.Connection(h11.CLIENT)

    async def ask(self, method: str, headers: Mapping[str, str] | None = None, body: bytes | None = None) -> Reply:
        """Raises one of GONE, h11.RemoteProtocolError."""
        if self._http.our_state is h11.DONE:
            self._http.start_next_cycle()
        given = {"Host": "source", **(headers or {})}
        if body is not None:
            given.setdefault("Content-Length", str(len(body)))
        data = self._http.send(h11.Request(method=method, target="/", headers=list(given.items()))) or b""
        if body:
            data += self._http.send(h11.Data(data=body)) or b""
        await self.stream.send_all(data + (self._http.send(h11.EndOfMessage()) or b""))
        return await self.reply()

    async def reply(self) -> Reply:
        found = await message(self._http, self.stream)
        if found is None:
            raise EOFError("closed without an answer")
        head, headers, body = found
        return Reply(head.status_code, json.loads(body) if body else {}, headers)


class Sender:
    """Posts rows in order, each request again until it is answered; what it keeps is how far it is.

    Attributes:
      number: of the last request that was answered.
    """

    def __init__(self, address: str, rows: Sequence[Mapping[str, Any]], each: int, *, twice: bool = False) -> None:
        self._address = address
        self._bodies = [
            "".join(json.dumps(row) + "\n" for row in rows[at : at + each]).encode() for at in range(0, len(rows), each)
        ]
        self._twice = twice
        self.number = 0

    async def serve(self, network: Network, *, task_status: trio.TaskStatus[str]) -> None:
        task_status.started("")
        while self.number < len(self._bodies):
            try:
                stream = await network.connect(self._address, 1.0)
                try:
                    with trio.fail_after(40):
                        await self._post_all(Peer(stream))
                finally:
                    await trio.aclose_forcefully(stream)
            except (*GONE, h11.RemoteProtocolError):
                await trio.sleep(0.05)
        await trio.sleep_forever()

    async def _post_all(self, peer: Peer) -> None:
        while self.number < len(self._bodies):
            for _ in range(1 + self._twice):
                key = f'"sender:{self.number + 1}"'
                reply = await peer.ask("POST", {"Idempotency-Key": key}, self._bodies[self.number])
                if reply.status == 503:
                    raise EOFError("the source is behind")
                assert reply.status == 200, reply
            self.number += 1


class Asked(NamedTuple):
    """A request, as a server has it."""

    method: str
    target: str
    headers: Mapping[str, str]
    body: bytes


class ServedPeer:
    """A server over a stream."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self.stream = stream
        self._http = h11.Connection(h11.SERVER)

    async def asked(self) -> Asked | None:
        """The next request; None: there is none."""
        if self._http.our_state is h11.DONE:
            self._http.start_next_cycle()
        if (found := await message(self._http, self.stream)) is None:
            return None
        head, headers, body = found
        return Asked(head.method.decode(), head.target.decode(), headers, body)

    async def begin(self, status: int, headers: Mapping[str, str] | None = None) -> None:
        head = h11.Response(status_code=status, headers=list((headers or {}).items()))
        await self.stream.send_all(self._http.send(head) or b"")

    async def data(self, data: bytes) -> None:
        await self.stream.send_all(self._http.send(h11.Data(data=data)) or b"")

    async def end(self) -> None:
        await self.stream.send_all(self._http.send(h11.EndOfMessage()) or b"")

    async def answer(self, status: int, body: bytes = b"", headers: Mapping[str, str] | None = None) -> None:
        await self.begin(status, {"Content-Length": str(len(body)), **(headers or {})})
        if body:
            await self.data(body)
        await self.end()


class EventServer:
    """Sends events behind the one that is named, a few over each connection, and 204 when there are no more."""

    def __init__(self, address: str, rows: Sequence[Mapping[str, Any]], each: int) -> None:
        self._address = address
        self._rows = rows
        self._each = each

    async def serve(self, network: Network, *, task_status: trio.TaskStatus[str]) -> None:
        await network.serve(self._address, self._handle, task_status=task_status)

    async def _handle(self, stream: trio.abc.Stream) -> None:
        peer = ServedPeer(stream)
        if (asked := await peer.asked()) is None:
            return
        after = int(asked.headers.get("last-event-id", "e0")[1:])
        if after == len(self._rows):
            await peer.answer(204)
            return
        await peer.begin(200, {"Content-Type": "text/event-stream; charset=utf-8"})
        for n in range(after, min(after + self._each, len(self._rows))):
            lines = f": a comment\nid: e{n + 1}\ndata: {json.dumps(self._rows[n])}\n\n".encode()
            at = len(lines) // 2
            await peer.data(lines[:at])
            await trio.sleep(0.01)
            await peer.data(lines[at:])
        await peer.end()


class WebhookServer:
    """Takes requests: each once, by the number of its sender, which it keeps with the rows.

    Attributes:
      keeps: whether it does.
      held: of who applies what came in order.
      taken: (key, body) of each request that was applied; ``repeats``: of others.
    """

    def __init__(self, address: str = "receiver:8000", *, keeps: bool = True, corrections: bool = False) -> None:
        self._address = address
        self._corrections = corrections
        self.keeps = keeps
        self.held: list[dict[str, Any]] = []
        self.numbers: dict[str, int] = {}
        self.taken: list[tuple[str, bytes]] = []
        self.repeats: list[tuple[str, bytes]] = []

    async def serve(self, network: Network, *, task_status: trio.TaskStatus[str]) -> None:
        await network.serve(self._address, self.handle, task_status=task_status)

    async def handle(self, stream: trio.abc.Stream) -> None:
        peer = ServedPeer(stream)
        while (asked := await peer.asked()) is not None:
            self.take(asked)
            await trio.sleep(0.001)  # between that and the answer it may be killed
            await peer.answer(200, b'{"rows": 1}\n')

    def take(self, asked: Asked) -> None:
        key = asked.headers["idempotency-key"].strip('"')
        sender, _, number = key.rpartition(":")
        last = self.numbers.get(sender, 0)
        assert int(number) <= last + 1, f"{key} comes after {last}"
        if int(number) <= last:
            assert next(body for one, body in self.taken if one == key) == asked.body, "other bytes"
            self.repeats.append((key, asked.body))
            if self.keeps:
                return
        else:
            self.numbers[sender] = int(number)
            self.taken.append((key, asked.body))
        for line in asked.body.decode().splitlines():
            row = json.loads(line)
            if row.get("_kind") == "undo" and not self._corrections:
                self.held = [r for r in self.held if r["_partition"] != row["_partition"] or r["_id"] <= row["_id"]]
            else:
                self.held.append(row)

    def rows(self) -> list[Mapping[str, Any]]:
        return list(self.held)
