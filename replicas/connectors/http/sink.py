"""Sends a client's results as webhooks: POST requests, each with a key by which the receiver recognizes a repeat.

The server of this sink is the outbox on our disk: it has the state of :class:`ServerSink`, and its requests.  A request
is stored there before it is sent, and sent again, the same bytes with the same key, until it is answered.  Only then is
the state valid.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from hashlib import blake2b
from pathlib import PurePosixPath
from typing import Any, ClassVar, Final

import trio

from replicas.connectors.http.client import HttpClient, retry_after_s
from replicas.connectors.http.outbox import Outbox
from replicas.connectors.secret import secret
from replicas.connectors.server_sink import ChannelEntry, ServerSink, without_withdrawn
from replicas.connectors.sink import named_lines
from spe.connectors.declaration import CURRENT, STABLE
from spe.connectors.server import Url
from spe.errors import ConfigError, ServerAway
from spe.runtime.env import Env
from spe.stream.ids import Channel
from spe.stream.schema import Schema

#: Largest number of lines in a request: as many as an HTTP source takes.
_LINES_MAX: Final = 8_000
_RESERVED: Final = "_stream"


class HttpSink(ServerSink):
    """A webhook as a sink; see the module.

    Args:
      options: options of ``spe.connectors.http``.

    Raises:
      ConfigError: an attribute has a reserved name.
    """

    rows_max: ClassVar[int] = 5_000

    def __init__(self, schemas: Mapping[Channel, Schema], mode: str, options: Mapping[str, Any]) -> None:
        super().__init__(schemas, mode)
        if taken := sorted({c.stream for c, schema in schemas.items() if _RESERVED in schema.names}):
            raise ConfigError([f"stream {taken[0]!r}: attribute {_RESERVED!r} has a name that the sink uses itself"])
        self._options = options
        self._url = Url.parse(str(options["url"]))
        self._id = str(options.get("id") or "spe")
        self._max_body = int(options.get("max_body", 1 << 20))
        self.answer_s = options.get("timeout", 30_000_000) / 1e6
        self._env: Env
        self._client: HttpClient | None = None
        self._outbox: Outbox | None = None
        #: Time of the next allowed request, by the clock of deadlines.
        self._not_before_us = 0

    async def load(self, env: Env) -> bytes:
        if self._outbox is None or self._client is None:
            place = self._options.get("token")
            token = None if place is None else secret("http.token", place)
            self._client = HttpClient(self.name, self._url, token=token, ca=self._options.get("ca"))
            self._env = env
            self._outbox = Outbox.open(env.storage, self._folder(), self._id, env.random)
        if self._outbox.bodies:
            await self._deliver(self._client, self._outbox)
        return self._outbox.state

    def _folder(self) -> PurePosixPath:
        which = blake2b(f"{self._options['url']}\0{self._id}".encode(), digest_size=8).hexdigest()
        return PurePosixPath("sinks", f"http-{which}")

    async def store(self, before: bytes, after: bytes, entries: Sequence[ChannelEntry]) -> bool:
        client, outbox = self._client, self._outbox
        assert client is not None and outbox is not None  # noqa: PT018
        if outbox.state != before or outbox.bodies:
            return False
        bodies = await self._env.compute.run(partial(self._bodies, entries))
        await outbox.put(after, bodies)
        if bodies:
            await self._deliver(client, outbox)
        return True

    async def forget(self, env: Env) -> str:
        return "its position is in the storage of its client; start that with an empty one"

    async def disconnect(self) -> None:
        if self._client is not None:
            await self._client.close()

    async def _deliver(self, client: HttpClient, outbox: Outbox) -> None:
        """Sends the stored requests, until all are answered."""
        if (wait_us := self._not_before_us - self._env.clock.monotonic_us()) > 0:
            raise ServerAway(f"the receiver asks to wait {wait_us / 1e6:.0f} s")
        while outbox.bodies:
            await self._post(client, f"{outbox.sender}:{outbox.number + 1}", outbox.bodies[0])
            outbox.answered()
        await outbox.done()

    async def _post(self, client: HttpClient, key: str, body: bytes) -> None:
        headers = [(b"Content-Type", b"application/x-ndjson"), (b"Idempotency-Key", f'"{key}"'.encode())]
        ask = partial(client.ask, "POST", headers, body)
        reused = client.connected
        if not reused:
            await client.connect(self._env)
        try:
            response = await ask()
        except (OSError, EOFError, trio.BrokenResourceError):
            if not reused:
                raise
            await client.connect(self._env)  # the receiver has closed the last one
            response = await ask()
        if not 200 <= response.status_code < 300:
            clock = self._env.clock
            self._not_before_us = clock.monotonic_us() + round(1e6 * retry_after_s(response, clock.wall_us()))
            raise await client.failure(response, f"request {key}")
        await client.done()

    # --- bodies; in a thread ---

    def _bodies(self, entries: Sequence[ChannelEntry]) -> list[bytes]:
        """Returns lines of JSON, in requests that are not too large."""
        bodies: list[bytes] = []
        lines: list[bytes] = []
        size = 0
        for line in self._lines(without_withdrawn(entries) if self.mode == CURRENT else entries):
            if lines and (size + len(line) > self._max_body or len(lines) >= _LINES_MAX):
                bodies.append(b"".join(lines))
                lines, size = [], 0
            lines.append(line)
            size += len(line)
        return [*bodies, b"".join(lines)] if lines else bodies

    def _lines(self, entries: Sequence[ChannelEntry]) -> Iterator[bytes]:
        for entry in entries:
            for text in named_lines(entry, self.schemas[entry.channel], self.mode != STABLE):
                yield from text.splitlines(keepends=True)
