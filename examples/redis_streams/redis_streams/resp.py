"""The protocol of Redis: one request, one answer."""

from typing import Any

import trio

from spe.errors import SpeError


class Redis(trio.abc.AsyncResource):
    """A connection.  Raises one of ``server_sink.GONE`` where it is lost, or no answer comes."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self._stream, self._rest = stream, b""

    async def aclose(self) -> None:
        await trio.aclose_forcefully(self._stream)

    async def ask(self, *words: str | bytes | int) -> Any:
        """The answer: bytes, an int, None, or a list of these.  Raises SpeError where redis refuses."""
        encoded = [word if isinstance(word, bytes) else str(word).encode() for word in words]
        request = b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in encoded)
        with trio.fail_after(10):
            await self._stream.send_all(request)
            return await self._answer()

    async def _answer(self) -> Any:
        line = await self._take(b"\r\n")
        kind, rest = line[:1], line[1:]
        if kind == b"-":
            raise (EOFError if rest.startswith(b"LOADING") else SpeError)(f"redis: {rest.decode()}")
        if rest == b"-1" and kind in b"$*":
            return None
        if kind == b"*":
            return [await self._answer() for _ in range(int(rest))]
        return await self._take(int(rest)) if kind == b"$" else int(rest) if kind == b":" else rest

    async def _take(self, end: bytes | int) -> bytes:
        """Bytes up to a mark, or so many and a line end."""
        while (at := self._rest.find(end) if isinstance(end, bytes) else end) < 0 or len(self._rest) < at + 2:
            data = await self._stream.receive_some(65_536)
            if not data:
                raise EOFError("redis closed the connection")
            self._rest += data
        taken, self._rest = self._rest[:at], self._rest[at + 2 :]
        return taken
