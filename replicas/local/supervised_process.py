"""The link of a process to its supervisor: reports readiness, receives the beginning, and ends with the supervisor.

The link is one end of a socket pair that the supervisor opened; its end of file means that the supervisor is gone.
On Linux the kernel kills us as well, so that even a frozen process does not stay behind.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
from typing import Any, Final

import trio

from spe.errors import LinkClosed, RemoteProtocolError

_PR_SET_PDEATHSIG: Final = 1
#: Maximum length of a line on the link.
_LINE_BYTES: Final = 64 << 10


def die_with_parent() -> bool:
    """Asks the kernel to kill this process when its parent dies, whatever state it is in.  Returns False if impossible.

    Call early, in the main thread; a parent that is gone already shows as the end of the link.
    """
    try:
        prctl = ctypes.CDLL(None, use_errno=True).prctl
    except (OSError, AttributeError):
        return False
    return bool(prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) == 0)


class LineLink:
    """JSON objects, one per line, over a local socket.  Both sides use it."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream = stream
        self._buffer = bytearray()

    async def send(self, message: dict[str, Any]) -> None:
        """Sends a message.  Raises LinkClosed when the other side is gone."""
        try:
            await self._stream.send_all(json.dumps(message).encode() + b"\n")
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise LinkClosed("the other side of the supervision link is gone") from error

    async def receive(self) -> dict[str, Any]:
        """Receives a message.  Raises LinkClosed when the other side is gone, RemoteProtocolError for anything else."""
        while (end := self._buffer.find(b"\n")) < 0:
            try:
                data = await self._stream.receive_some(4096)
            except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
                raise LinkClosed("the other side of the supervision link is gone") from error
            if not data:
                raise LinkClosed("the other side of the supervision link is gone")
            self._buffer += data
            if len(self._buffer) > _LINE_BYTES:
                raise RemoteProtocolError("a line on the supervision link is too long")
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 1]
        message = json.loads(line)
        if not isinstance(message, dict):
            raise RemoteProtocolError(f"expected an object on the supervision link, got {message!r:.100}")
        return message

    async def aclose(self) -> None:
        await self._stream.aclose()


class Supervision:
    """The supervisor, for its process.

    Attributes:
      begun_us: wall time at which the sources begin, once :meth:`wait_begin` has returned.
    """

    def __init__(self, link: LineLink) -> None:
        self._link = link
        self._begin = trio.Event()
        self.begun_us: int | None = None

    @classmethod
    def adopt(cls, descriptor: int) -> Supervision:
        """Takes over the descriptor inherited from the supervisor.  Raises OSError: it is no socket."""
        os.set_inheritable(descriptor, False)
        ours = trio.socket.from_stdlib_socket(socket.socket(fileno=descriptor))
        return cls(LineLink(trio.SocketStream(ours)))

    async def run(self, gone: trio.CancelScope) -> None:
        """Receives messages; cancels ``gone`` when the supervisor is gone."""
        try:
            while True:
                message = await self._link.receive()
                if "begin_us" in message:
                    self.begun_us = int(message["begin_us"])
                    self._begin.set()
        except LinkClosed:
            gone.cancel()

    async def ready(self, **facts: Any) -> None:
        """Reports that everything is loaded and the process waits for the beginning."""
        await self._link.send({"ready": facts})

    async def wait_begin(self) -> int:
        """Returns the wall time at which the sources begin, microseconds."""
        await self._begin.wait()
        assert self.begun_us is not None
        return self.begun_us
