"""Reads a stream behind the entry that the source's log ends with."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from redis_streams.resp import Redis
from replicas.connectors.formats.jsonl import JsonLines
from replicas.connectors.reader import Resumable, RowChunk
from replicas.connectors.server_sink import GONE
from spe.runtime.env import Env
from spe.runtime.server_trouble import Backoff, outside
from spe.stream.schema import Schema


class StreamReader(Resumable):
    def __init__(self, schema: Schema, time: str | None, reader: Mapping[str, Any]) -> None:
        self._address, self._stream, self._trim = reader["address"], reader["stream"], reader["trim"]
        self._lines = JsonLines(schema, time, reader)
        self._durable = b""

    def durable(self, cursor: bytes) -> None:
        self._durable = cursor

    async def read(self, env: Env, accept: Callable[[RowChunk], Awaitable[None]]) -> None:
        backoff, count = Backoff(env), 0
        while True:
            try:
                async with Redis(await outside(env).connect(self._address, 5.0)) as redis:
                    while True:
                        await self._trim_what_is_durable(redis)
                        after = self.cursor or b"0-0"
                        found = await redis.ask("XREAD", "COUNT", 1000, "BLOCK", 500, "STREAMS", self._stream, after)
                        self.away = ""
                        backoff.over()
                        if found is not None:
                            entries = found[0][1]  # of our only stream
                            chunk = self._lines.chunk(count, [_json(fields) for _, fields in entries])
                            count += len(entries)
                            chunk.cursor = self.cursor = entries[-1][0]
                            await accept(chunk)
            except GONE as error:
                why = f"redis at {self._address} does not answer: {error or type(error).__name__}; trying again"
                self.away = self.away or why
                await backoff.wait()

    async def _trim_what_is_durable(self, redis: Redis) -> None:
        if self._trim and self._durable:
            await redis.ask("XTRIM", self._stream, "MINID", self._durable)
        self._durable = b""


def _json(fields: Sequence[bytes]) -> str:
    return dict(zip(fields[::2], fields[1::2])).get(b"json", b"").decode("utf-8", "surrogateescape")
