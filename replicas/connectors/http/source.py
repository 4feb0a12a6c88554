"""Takes rows in the bodies of POST requests, each answered when its rows are in the source's log and synced (rule S9).

A request is one chunk, and so one record of the log: it is taken whole or not at all.  The record also has the
positions of the senders, so that a request that is repeated, because its answer was lost, is recognized.
"""

from __future__ import annotations

import json
import ssl
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Final

import trio

from replicas.connectors.formats.jsonl import JsonLines, number_or_text
from replicas.connectors.http.senders import OutOfTurn, RequestKey, SenderNumbers, count_of, digest_of
from replicas.connectors.http.server import Answer, Post, RequestServer
from replicas.connectors.http.server_certificate import ServerCertificate
from replicas.connectors.reader import CHUNK_ROWS, Accept, Resumable, RowChunk
from replicas.connectors.secret import secret
from replicas.connectors.tcp import LineFormat, line_format
from replicas.link.signal import Signal
from spe.errors import SpeError
from spe.runtime.env import Env
from spe.runtime.server_trouble import outside
from spe.stream.schema import Schema

if TYPE_CHECKING:
    from replicas.connectors.formats.avro_bodies import AvroBodies

#: Longest time until a request's turn comes, and until its rows are synced.
TURN_S: Final = 5.0
ANSWER_S: Final = 30.0
#: How long repeats are answered after the end of the stream.
LINGER_S: Final = 5.0
#: Number of bad rows in an answer.
_BAD_ROWS: Final = 20
_JSON: Final = ("application/json", "application/x-ndjson", "application/jsonl", "application/jsonlines")
_CSV: Final = ("text/csv",)
_BEHIND: Final = "the source is behind, or its disk is full; send it again"


class _Arrived:
    """A request that waits for its turn.

    Attributes:
      decided: set when the following are valid.
      answer: a refusal; None: it is taken, or was taken before (``repeated``).
      chunk: its rows; without refused ones once it is decided.
      count: number of requests in the log, once it is there.
    """

    def __init__(self, key: RequestKey | None, digest: bytes, chunk: RowChunk) -> None:
        self.key = key
        self.digest = digest
        self.chunk = chunk
        self.decided = trio.Event()
        self.answer: Answer | None = None
        self.repeated = False
        self.count = 0


class HttpReceiver(Resumable):
    """Serves POST requests; see the module.  Ends only with ``until``.

    Args:
      reader: options of ``spe.connectors.http``.

    Attributes:
      address: bound address while it listens.
    """

    def __init__(self, schema: Schema, time: str | None, reader: Mapping[str, Any]) -> None:
        self._listen_on = str(reader["listen"])
        self._avro: AvroBodies | None = None
        self._form: LineFormat | None = None
        if reader.get("format") == "avro":
            from replicas.connectors.formats.avro_bodies import AvroBodies  # it needs more packages

            self._avro = AvroBodies(schema, time, reader)
        else:
            self._form = line_format(schema, time, reader)
        self._options = reader
        self._until: Mapping[str, int] = reader.get("until") or {}
        self._passes = reader.get("bad_rows") == "pass"
        self._positions = SenderNumbers()
        self._durable = 0
        self._synced = Signal()
        self._rows = 0
        self._parsing = trio.Lock()
        self.address: str | None = None

    def durable(self, cursor: bytes) -> None:
        self._durable = count_of(cursor)
        self._synced.wake()

    async def read(self, env: Env, accept: Accept) -> None:
        """Reads requests.  Raises SpeError: the address is in use, or a secret or a certificate cannot be read."""
        self._env = env
        self._positions = SenderNumbers.decode(self.cursor)
        server = RequestServer(
            self._get,
            self._post,
            token=self._token(),
            max_body=int(self._options.get("max_body", 4 << 20)),
            tls=self._tls(),
        )
        self._send, arrived = trio.open_memory_channel[_Arrived](0)
        async with trio.open_nursery() as nursery:
            serve = partial(outside(env).serve, self._listen_on, server.attend)
            self.address = await nursery.start(serve)
            env.trace.event("listening_for_rows", address=self.address)
            while not self._is_over():
                await self._decide(await arrived.receive(), accept)
            # A sender whose last answer is lost asks again.
            with trio.move_on_after(LINGER_S):
                async for request in arrived:
                    await self._decide(request, accept)
            nursery.cancel_scope.cancel()

    def _is_over(self) -> bool:
        return bool(self._until) and self._positions.reached(self._until)

    def _token(self) -> str | None:
        if (place := self._options.get("token")) is None:
            return None
        if not (token := secret("http.token", place)):
            raise SpeError("http.token: it is empty; expected at least one character")
        return token

    def _tls(self) -> Callable[[], ssl.SSLContext] | None:
        if (certificate := self._options.get("certificate")) is None:
            return None
        return ServerCertificate("http.certificate", str(certificate), str(self._options["key"])).context

    # --- one request ---

    async def _get(self) -> Answer:
        """Answers with the position of each sender."""
        positions, numbers = self._positions.count, self._positions.numbers()
        if not await self._is_synced(positions):
            return Answer.later(_BEHIND)
        return Answer(200, {"last": numbers})

    async def _post(self, post: Post) -> Answer:
        try:
            key = None if post.key is None else RequestKey.parse(post.key)
        except ValueError as error:
            return Answer.error(400, str(error))
        if wrong := self._wrong_type(post.type):
            return Answer.error(415, wrong)
        if self._avro is not None:
            try:
                await self._avro.learn(self._env, bytes(post.body))
            except SpeError as error:
                self.away = f"{error}; senders are asked to try again"
                return Answer.later(str(error))
            self.away = ""
        async with self._parsing:
            chunk = await self._env.compute.run(partial(self._chunk, post))
        if isinstance(chunk, Answer):
            return chunk
        if chunk.malformed and not self._passes:
            return _refused(chunk)
        where = "a request without a key" if key is None else f"request {key}"
        chunk.where = lambda row: f"{where}, row {row + 1}"
        if chunk.malformed:
            chunk.malformed = [row._replace(place=f"{where}, row {row.line}") for row in chunk.malformed]
        request = _Arrived(key, digest_of(post.body), chunk)
        with trio.move_on_after(TURN_S) as turn:
            await self._send.send(request)
        if turn.cancelled_caught:
            return Answer.later(_BEHIND)
        await request.decided.wait()
        if request.answer is not None:
            return request.answer
        if not await self._is_synced(request.count):
            return Answer.later(f"the rows are not synced yet; {_BEHIND}")
        return _taken(request.chunk, repeated=request.repeated)

    async def _is_synced(self, count: int) -> bool:
        with trio.move_on_after(ANSWER_S):
            while True:
                token = self._synced.token()
                if self._durable >= count:
                    return True
                await self._synced.wait(token)
        return False

    async def _decide(self, request: _Arrived, accept: Accept) -> None:
        """Takes a request, if it is not in the log yet.  Waits while too much is not synced."""
        positions, chunk = self._positions, request.chunk
        request.answer = self._beyond(request.key)
        try:
            request.repeated = (
                request.key is not None and request.answer is None and positions.repeated(request.key, request.digest)
            )
        except OutOfTurn as error:
            request.answer = Answer.error(error.status, str(error), expected=error.expected)
        now_us = self.now_us()
        if request.repeated:
            self._recall(request)
        elif request.answer is None:
            request.chunk = chunk = self.admit(chunk, now_us)
            if chunk.malformed and not self._passes:
                request.answer = _refused(chunk)
        taken = request.answer is None and not request.repeated
        if taken:
            positions.take(request.key, request.digest, now_us if any(row.refused for row in chunk.malformed) else 0)
            chunk.first, chunk.cursor = self._rows, positions.encode()
            self._rows += chunk.taken
        request.count = positions.count
        request.decided.set()
        if taken:
            await accept(chunk)

    def _recall(self, request: _Arrived) -> None:
        """Finds the refused rows of a repeated request again, from its body and the time of the refusal."""
        assert request.key is not None
        refused_us = self._positions.refused_us(request.key)
        if refused_us is None:  # the body may be another one
            request.chunk.malformed = []
        elif refused_us:
            request.chunk = self.admit(request.chunk, refused_us)

    def _beyond(self, key: RequestKey | None) -> Answer | None:
        """Refuses a request that does not belong to a stream that ends; None: it belongs."""
        if not self._until:
            return None
        if key is None or key.sender not in self._until:
            senders = ", ".join(self._until)
            return Answer.error(403, f"the stream ends by requests of {senders}; expected an Idempotency-Key of these")
        last = self._until[key.sender]
        return Answer.error(410, f"{key}: the stream ends with number {last}") if key.number > last else None

    # --- bodies; in a thread ---

    def _wrong_type(self, kind: str) -> str:
        """Explains why a body of a media type is not read; "" if it is, as one of an unknown type."""
        strange: Sequence[str]
        strange, expected = (_CSV, _JSON[0]) if isinstance(self._form, JsonLines) else (_JSON, _CSV[0])
        if self._avro is not None:
            strange, expected = (*_JSON, *_CSV), "avro/binary"
        return f"expected {expected}, for the source's format is another one, got {kind}" if kind in strange else ""

    def _chunk(self, post: Post) -> RowChunk | Answer:
        """Returns the rows of a body, numbered from 1; an answer if it has none, or too many."""
        if self._avro is not None:
            try:
                rows = self._avro.chunk(bytes(post.body))
            except SpeError as error:
                return Answer.error(400, str(error))
            return rows if isinstance(rows, RowChunk) else _too_many(rows) or Answer.error(413, "too large")
        assert self._form is not None
        text = post.body.decode("utf-8", "surrogateescape").removeprefix("\ufeff")
        if isinstance(self._form, JsonLines) and (values := _values(text, post.type)) is not None:
            if isinstance(values, Answer):
                return values
            again = cache(lambda: _values(text, post.type, number_or_text))
            return _too_many(len(values)) or self._form.chunk_of_values(values, exact=lambda i: again()[i])
        lines = [line.removesuffix("\r") for line in text.split("\n") if line.strip()]
        return _too_many(len(lines)) or self._form.chunk(0, lines)


def _values(text: str, kind: str, parse_float: Callable[[str], Any] | None = None) -> Any:
    """Returns the elements of a JSON array, or a JSON object over several lines; None: the body has lines."""
    stripped = text.lstrip()
    if not stripped.startswith("[") and (kind != "application/json" or "\n" not in stripped.rstrip()):
        return None
    try:
        value = json.loads(stripped, parse_float=parse_float)
    except (ValueError, RecursionError) as error:
        if stripped.startswith("["):
            return Answer.error(400, f"no JSON array: {error}")
        return None  # one object per line
    return value if isinstance(value, list) else [value]


def _too_many(count: int) -> Answer | None:
    if count <= CHUNK_ROWS:
        return None
    return Answer.error(413, f"{count} rows; expected at most {CHUNK_ROWS}, for a request is one record of the log")


def _refused(chunk: RowChunk) -> Answer:
    rows = _named(chunk)
    why = f"{len(chunk.malformed)} of {chunk.taken} rows cannot be taken; nothing of the request was taken"
    return Answer.error(400, why, rows=rows)


def _taken(chunk: RowChunk, *, repeated: bool) -> Answer:
    rows: dict[str, Any] = {"rows": 0, "repeated": True} if repeated else {"rows": len(chunk)}
    return Answer(200, {**rows, **({"left_out": _named(chunk)} if chunk.malformed else {})})


def _named(chunk: RowChunk) -> list[dict[str, Any]]:
    return [{"row": row.line, "reason": row.reason} for row in chunk.malformed[:_BAD_ROWS]]
