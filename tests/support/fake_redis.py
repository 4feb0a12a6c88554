"""A server in memory that speaks the protocol of Redis, as far as the example's connectors need it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import trio

from spe.runtime.env import Network

ADDRESS = "redis:6379"
#: Of the entries.
SCHEMA = {"ts": "timestamp!", "n": "int64!", "text": "string"}


class FakeRedis:
    """Attributes:
    stream: (id, JSON) of each entry of the only stream.
    sets: key -> score -> member, of sorted sets.
    values: of plain keys.
    """

    def __init__(self, entries: int = 0) -> None:
        self.stream = [(f"{1 + n // 3}-{n % 3}".encode(), json.dumps(row_of(n)).encode()) for n in range(entries)]
        self.added = entries
        self.sets: dict[bytes, dict[int, bytes]] = {}
        self.values: dict[bytes, bytes] = {}
        #: Entries beyond this number come later, one after the other.
        self.there = min(entries, 4)

    async def serve(self, network: Network, *, task_status: trio.TaskStatus[str]) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._producer)
            await network.serve(ADDRESS, self._handle, task_status=task_status)

    async def _producer(self) -> None:
        while self.there < self.added:
            await trio.sleep(0.05)
            self.there += 1

    async def _handle(self, stream: trio.abc.Stream) -> None:
        buffer = bytearray()
        while data := await stream.receive_some(65_536):
            buffer += data
            while (words := _request(buffer)) is not None:
                await stream.send_all(_encoded(await self._answer([bytes(w) for w in words])))

    async def _answer(self, words: list[bytes]) -> Any:
        match words:
            case [b"XREAD", b"COUNT", count, b"BLOCK", block, b"STREAMS", key, after]:
                for _ in range(max(1, int(block) // 10)):
                    found = [e for e in self._entries() if _number(e[0]) > _number(after)][: int(count)]
                    if found:
                        return [[key, [[id_, [b"json", body]] for id_, body in found]]]
                    await trio.sleep(0.01)
                return None
            case [b"XTRIM", _, b"MINID", first]:
                kept = [e for e in self.stream if _number(e[0]) >= _number(first)]
                self.there -= len(self.stream) - len(kept)
                self.added -= len(self.stream) - len(kept)
                self.stream = kept
                return 0
            case [b"GET", key]:
                return self.values.get(key)
            case [b"EVAL", _, b"1", state, before, after, *changes]:
                return self._store(state, before, after, changes)
        raise AssertionError(words)

    def _entries(self) -> list[tuple[bytes, bytes]]:
        return self.stream[: self.there]

    def _store(self, state: bytes, before: bytes, after: bytes, changes: list[bytes]) -> int:
        """What the script does."""
        if self.values.get(state, b"") != before:
            return 0
        for key, id_, member in zip(changes[::3], changes[1::3], changes[2::3], strict=True):
            rows = self.sets.setdefault(key, {})
            if member:
                rows[int(id_)] = member
            else:
                self.sets[key] = {i: m for i, m in rows.items() if i <= int(id_)}
        self.values[state] = after
        return 1

    def rows(self) -> list[Mapping[str, Any]]:
        """What a reader of the sets sees."""
        return [
            json.loads(member) | {"_partition": int(key.rpartition(b":")[2])}
            for key, rows in self.sets.items()
            for member in rows.values()
        ]


def row_of(n: int) -> dict[str, Any]:
    return {"ts": f"2026-01-01T12:00:{n:02}", "n": n, "text": f"é{n}" if n % 3 else None}


def _number(id_: bytes) -> tuple[int, int]:
    milliseconds, _, number = id_.partition(b"-")
    return int(milliseconds), int(number)


def _request(buffer: bytearray) -> list[bytearray] | None:
    """The first whole request, which leaves the buffer."""
    lines = buffer.split(b"\r\n", 1)
    if len(lines) < 2:
        return None
    at, words = len(lines[0]) + 2, []
    for _ in range(int(lines[0][1:])):
        end = buffer.find(b"\r\n", at)
        if end < 0:
            return None
        size = int(buffer[at + 1 : end])
        if len(buffer) < end + 4 + size:
            return None
        words.append(buffer[end + 2 : end + 2 + size])
        at = end + 4 + size
    del buffer[:at]
    return words


def _encoded(answer: Any) -> bytes:
    match answer:
        case None:
            return b"*-1\r\n"
        case int():
            return b":%d\r\n" % answer
        case bytes():
            return b"$%d\r\n%b\r\n" % (len(answer), answer)
    return b"*%d\r\n" % len(answer) + b"".join(map(_encoded, answer))
