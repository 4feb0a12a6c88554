"""Stores unanswered requests to a receiver, so that a request is the same each time, even after a crash."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePosixPath
from random import Random
from typing import Final

import msgpack

from spe.errors import LogCorrupt, ServerAway, other_version
from spe.runtime.env import Storage

OUTBOX_VERSION: Final = 1


class Outbox:
    """Requests that are numbered 1, 2, 3, … and sent one after the other.

    Attributes:
      sender: name of the sender; a new one each time that the file is made.
      state: state of the sink after all requests up to ``number``.
      number: number of the last answered request.
      bodies: bodies of the requests after it.
    """

    def __init__(self, storage: Storage, path: PurePosixPath, sender: str) -> None:
        self._storage = storage
        self._path = path
        self.sender = sender
        self.state = b""
        self.number = 0
        self.bodies: list[bytes] = []
        self._after = b""

    @classmethod
    def open(cls, storage: Storage, folder: PurePosixPath, id_: str, random: Random) -> Outbox:
        """Opens an outbox.

        Args:
          id_: beginning of the name of a new sender.

        Raises:
          LogError: another process has it.
          LogCorrupt: the file is damaged.
        """
        storage.lock(folder / "lock")
        path = folder / "outbox"
        made = cls(storage, path, f"{id_}-{random.getrandbits(48):012x}")
        if storage.exists(path):
            made._read()
        return made

    def _read(self) -> None:
        try:
            stored = msgpack.unpackb(self._storage.read(self._path))
            if why := other_version(self._path, stored["version"], OUTBOX_VERSION):
                raise LogCorrupt(why)
            self.sender, self.number = str(stored["sender"]), int(stored["number"])
            self.state, self._after = bytes(stored["state"]), bytes(stored["after"])
            self.bodies = [bytes(body) for body in stored["bodies"]]
        except (ValueError, KeyError, TypeError) as error:
            raise LogCorrupt(f"{self._path} is no outbox of a sink: {error}") from error

    async def put(self, after: bytes, bodies: Sequence[bytes]) -> None:
        """Stores requests to be sent, and the state after all of them.  Raises ServerAway: the disk is full."""
        self.bodies, self._after = list(bodies), after
        if not bodies:
            self.state = after
        await self._write()

    def answered(self) -> None:
        """Notes that the first request was answered."""
        self.number += 1
        del self.bodies[0]

    async def done(self) -> None:
        """Notes that all requests were answered.  Raises as :meth:`put`."""
        assert not self.bodies
        self.state = self._after
        await self._write()

    async def _write(self) -> None:
        outbox = {
            "version": OUTBOX_VERSION,
            "sender": self.sender,
            "number": self.number,
            "state": self.state,
            "after": self._after,
            "bodies": self.bodies,
        }
        try:
            await self._storage.write_atomic(self._path, msgpack.packb(outbox))
        except OSError as error:
            raise ServerAway(f"{self._path} cannot be written: {error.strerror or error}") from error
