"""Reads server-sent events as rows, and resumes after the last event in the source's log (rule S9)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import trio

from replicas.connectors.formats.event_stream import EVENT_BYTES, EventParser, ServerEvent
from replicas.connectors.http.client import HttpClient, header, retry_after_s
from replicas.connectors.reader import CHUNK_ROWS, Accept, Malformed, Resumable
from replicas.connectors.secret import secret
from replicas.connectors.server_sink import GONE
from replicas.connectors.tcp import line_format
from spe.connectors.server import Url
from spe.errors import ServerAway, SpeError
from spe.runtime.env import Env
from spe.runtime.server_trouble import Backoff
from spe.stream.schema import Schema

#: Longest time for the head of an answer.
ANSWER_S: Final = 15.0
#: Longest time between two connections that a server may set.
_RETRY_S: Final = 60.0
#: During a longer pause, time does not pass in the source.
_PAUSE_S: Final = 1.0
_ID_BYTES: Final = 1_024
#: An id that can be sent in a header unchanged.
_ID: Final = re.compile(rb"[\x21-\x7e\x80-\xff]([\t\x20-\x7e\x80-\xff]*[\x21-\x7e\x80-\xff])?")
#: Prefix of a cursor, followed by the last id, if there is one.
_CURSOR: Final = b":"


class _Row(NamedTuple):
    """An event to be taken.

    Attributes:
      data: None: it was too long.
    """

    id: bytes
    data: str | None


class EventReader(Resumable):
    """Reads server-sent events; see the module.  Ends when the server answers 204.

    Args:
      reader: options of ``spe.connectors.http``.
    """

    def __init__(self, schema: Schema, time: str | None, reader: Mapping[str, Any]) -> None:
        self._form = line_format(schema, time, reader)
        self._url = Url.parse(str(reader["url"]))
        self._name = f"sse {self._url}"
        self._options = reader
        self._types = None if reader.get("events") is None else frozenset(reader["events"])
        self._needs_ids = reader.get("ids", "required") == "required"
        self._silence_s = reader.get("silence", 60_000_000) / 1e6
        self._count = 0
        self._last = b""
        #: Whether no row has come over this connection.
        self._fresh = True
        #: Delays before the next connection, from an answer and from the stream; 0: none.
        self._asked_s = self._retry_s = 0.0

    async def read(self, env: Env, accept: Accept) -> None:
        """Reads events.  Raises SpeError: the server refuses the request, or its stream cannot be resumed."""
        place = self._options.get("token")
        token = None if place is None else secret("sse.token", place)
        client = HttpClient(self._name, self._url, token=token, ca=self._options.get("ca"))
        self._last, backoff = self.cursor[len(_CURSOR) :], Backoff(env)
        while True:
            trouble, self._asked_s, self._fresh = "", 0.0, True
            try:
                if await self._listen(env, client, accept):
                    return
            except (ServerAway, *GONE) as error:
                trouble = str(error) or type(error).__name__
            finally:
                await client.close()
            if not self._fresh:
                backoff.over()
            wait_s = max(self._asked_s, self._retry_s)
            if trouble or wait_s > _PAUSE_S:
                reason = trouble or "it has ended the stream"
                self.away = self.away or f"{self._name} does not answer: {reason}; trying again"
            await (env.clock.sleep(wait_s) if wait_s else backoff.wait())

    async def _listen(self, env: Env, client: HttpClient, accept: Accept) -> bool:
        """Takes the events of one connection.  Returns whether the server has said that no more come."""
        await client.connect(env)
        headers = [(b"Accept", b"text/event-stream"), (b"Cache-Control", b"no-store")]
        if self._last:
            headers.append((b"Last-Event-ID", self._last))
        with trio.fail_after(ANSWER_S):
            response = await client.ask("GET", headers)
        if response.status_code == 204:
            return True
        if response.status_code != 200:
            self._asked_s = retry_after_s(response, env.clock.wall_us())
            raise await client.failure(response)
        kind, encoding = header(response, "content-type"), header(response, "content-encoding")
        if kind.partition(";")[0].strip().lower() != "text/event-stream" or encoding:
            raise SpeError(f"{self._name}: expected text/event-stream, got {kind[:100]!r} {encoding[:40]}".rstrip())
        self.away, parser = "", EventParser()
        while data := await self._data(client):
            rows, wrong = self._rows(parser.feed(data))
            if parser.retry_ms is not None:
                self._retry_s = min(parser.retry_ms / 1000, _RETRY_S)
            for at in range(0, len(rows), CHUNK_ROWS):
                await self._take(rows[at : at + CHUNK_ROWS], accept)
            if wrong:
                raise SpeError(f"{self._name}: {wrong}")
        return False

    async def _data(self, client: HttpClient) -> bytes:
        try:
            with trio.fail_after(self._silence_s):
                return await client.data()
        except trio.TooSlowError:
            raise ServerAway(f"nothing came for {self._silence_s:g} s, not even a comment") from None

    def _rows(self, events: Sequence[ServerEvent]) -> tuple[list[_Row], str]:
        """Returns the rows of events, and why the rows after them are refused; "" if none is."""
        rows: list[_Row] = []
        for event in events:
            if self._types is not None and event.type not in self._types:
                continue
            id_ = event.id
            if self._needs_ids:
                if id_ is None or not _ID.fullmatch(id_) or len(id_) > _ID_BYTES:
                    shown = "without an id" if id_ is None else f"with the id {id_[:100]!r}, which no header can have"
                    more = "after a reconnect rows would be missing or come twice; with ids: optional it is taken"
                    return rows, f"an event {shown}: {more}"
                if id_ == self._last:
                    if self._fresh:  # a server that repeats the last one
                        continue
                    return rows, f"two events with the id {id_[:100]!r}; expected one id for each"
            elif id_ is None or not _ID.fullmatch(id_) or len(id_) > _ID_BYTES:
                id_ = self._last
            self._last, self._fresh = id_, False
            rows.append(_Row(id_, event.data))
        return rows, ""

    async def _take(self, rows: Sequence[_Row], accept: Accept) -> None:
        good = [row for row in rows if row.data is not None]
        chunk = self._form.chunk(self._count, [row.data for row in good if row.data is not None])
        chunk.malformed = [_placed(bad, good[bad.line - self._count - 1].id) for bad in chunk.malformed]
        for row in rows:
            if row.data is None:
                reason = f"an event of more than {EVENT_BYTES} bytes"
                chunk.malformed.append(_placed(Malformed(self._count + len(good), reason, ""), row.id))
        first = self._count
        chunk.where = lambda place: _place(good[place].id, f"row {first + place + 1} since the start")
        self._count += len(rows)
        chunk.cursor = _CURSOR + rows[-1].id
        await accept(chunk)


def _placed(row: Malformed, id_: bytes) -> Malformed:
    return row._replace(place=_place(id_, "")) if id_ else row


def _place(id_: bytes, otherwise: str) -> str:
    return f"event {id_.decode('utf-8', 'replace')}" if id_ else otherwise
