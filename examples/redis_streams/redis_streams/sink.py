"""Writes rows into sorted sets, with the position, by a script: all of it happens, or nothing."""

from collections.abc import Mapping, Sequence
from typing import Any

from redis_streams.resp import Redis
from replicas.connectors.formats.json_text import json_lines
from replicas.connectors.server_sink import ChannelEntry, ServerSink
from spe.connectors.declaration import STABLE
from spe.runtime.env import Env
from spe.runtime.server_trouble import outside
from spe.stream.ids import Channel
from spe.stream.schema import Schema

#: KEYS: the state.  ARGV: the state before and after; then a set, an id and a row, or "" to remove what has larger ids.
STORE = """
if (redis.call('GET', KEYS[1]) or '') ~= ARGV[1] then return 0 end
for i = 3, #ARGV, 3 do
  if ARGV[i + 2] == '' then redis.call('ZREMRANGEBYSCORE', ARGV[i], '(' .. ARGV[i + 1], '+inf')
  else redis.call('ZADD', ARGV[i], ARGV[i + 1], ARGV[i + 2]) end
end
redis.call('SET', KEYS[1], ARGV[2])
return 1
"""


class SortedSetSink(ServerSink):
    def __init__(self, schemas: Mapping[Channel, Schema], mode: str, options: Mapping[str, Any]) -> None:
        super().__init__(schemas, mode)
        self._address, self._key = options["address"], options["key"]
        self._redis: Redis | None = None

    async def load(self, env: Env) -> bytes:
        await self.disconnect()
        self._redis = Redis(await outside(env).connect(self._address, 5.0))
        return await self._redis.ask("GET", f"{self._key}:state") or b""

    async def store(self, before: bytes, after: bytes, entries: Sequence[ChannelEntry]) -> bool:
        words: list[str | int] = []
        for entry in entries:
            key = f"{self._key}:{entry.channel.stream}:{entry.channel.partition}"
            if entry.batch is None:  # an undo
                words += [key, entry.id, ""]
            else:
                lines = json_lines(entry.batch, self.schemas[entry.channel], self.mode != STABLE)
                for id_, line in zip(entry.batch.row_ids().tolist(), lines):
                    words += [key, id_, line]
        assert self._redis is not None
        return bool(await self._redis.ask("EVAL", STORE, 1, f"{self._key}:state", before, after, *words))

    async def disconnect(self) -> None:
        if self._redis is not None:
            await self._redis.aclose()
