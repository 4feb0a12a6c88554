"""How far each sender is: what the cursor of an HTTP source says."""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping
from hashlib import blake2b
from typing import Final, NamedTuple

import msgpack

from spe.connectors.http import SENDER
from spe.errors import LogCorrupt

#: Senders that are known by their keys: each record of the source's log has them all.
SENDERS_MAX: Final = 256
_DIGEST_BYTES: Final = 8
_KEY: Final = re.compile(rf'"?({SENDER}):([1-9][0-9]{{0,17}})"?')
#: Requests in the log.
_COUNT: Final = struct.Struct("<Q")


class RequestKey(NamedTuple):
    """Which request of which sender: its first one is 1, and each next one a number more."""

    sender: str
    number: int

    @classmethod
    def parse(cls, text: str) -> RequestKey:
        """Raises ValueError."""
        if (found := _KEY.fullmatch(text)) is None:
            raise ValueError(
                "Idempotency-Key: expected SENDER:NUMBER, 64 letters, digits, '.', '_' or '-' at most, and a number "
                f"that begins with 1 and grows by 1, got {text[:100]!r}"
            )
        return cls(found[1], int(found[2]))

    def __str__(self) -> str:
        return f"{self.sender}:{self.number}"


class _Last(NamedTuple):
    """The last request of a sender.

    Attributes:
      refused_us: the time of the source's clock at which rows of it were refused; 0: none were.
    """

    number: int
    digest: bytes
    refused_us: int = 0


class SenderNumbers:
    """Attributes:
    count: requests in the log.
    """

    def __init__(self, count: int = 0, senders: Mapping[str, _Last] | None = None) -> None:
        self.count = count
        self._senders = dict(senders or {})

    def numbers(self) -> dict[str, int]:
        """The last number of each sender."""
        return {sender: last.number for sender, last in self._senders.items()}

    def reached(self, until: Mapping[str, int]) -> bool:
        """Has each of these senders come to its number?"""
        return all((last := self._senders.get(s)) is not None and last.number >= n for s, n in until.items())

    def repeated(self, key: RequestKey, digest: bytes) -> bool:
        """Is the request there already?

        Raises:
          OutOfTurn: it must not be taken.
        """
        last = self._senders.get(key.sender)
        if last is None and len(self._senders) >= SENDERS_MAX:
            raise OutOfTurn(403, f"{SENDERS_MAX} senders are known; send without an Idempotency-Key", None)
        number = 0 if last is None else last.number
        if key.number > number + 1:
            raise OutOfTurn(409, f"{key}: expected number {number + 1} of {key.sender}", number + 1)
        if last is not None and key.number == number and digest != last.digest:
            raise OutOfTurn(422, f"{key} was taken with another body; expected number {number + 1}", number + 1)
        return key.number <= number

    def refused_us(self, key: RequestKey) -> int | None:
        """The time at which rows of a repeated request were refused; 0: none were; None: it is not the last one."""
        last = self._senders[key.sender]
        return last.refused_us if key.number == last.number else None

    def take(self, key: RequestKey | None, digest: bytes, refused_us: int = 0) -> None:
        """A request is taken, without the rows that were refused at that time."""
        self.count += 1
        if key is not None:
            self._senders[key.sender] = _Last(key.number, digest, refused_us)

    def encode(self) -> bytes:
        return _COUNT.pack(self.count) + bytes(msgpack.packb(self._senders))

    @classmethod
    def decode(cls, cursor: bytes) -> SenderNumbers:
        """Raises LogCorrupt."""
        if not cursor:
            return cls()
        try:
            found = msgpack.unpackb(cursor[_COUNT.size :])
            # A cursor of an earlier version has no refused_us.
            senders = {str(s): _Last(int(n), bytes(digest), *map(int, at)) for s, (n, digest, *at) in found.items()}
            return cls(count_of(cursor), senders)
        except (struct.error, ValueError, TypeError, AttributeError) as error:
            raise LogCorrupt(f"the cursor of an HTTP source cannot be read: {error}") from error


class OutOfTurn(Exception):
    """A request that must not be taken: the status, why, and the number that is expected."""

    def __init__(self, status: int, why: str, expected: int | None) -> None:
        super().__init__(why)
        self.status = status
        self.expected = expected


def count_of(cursor: bytes) -> int:
    """Requests in the log up to the record with this cursor."""
    return int(_COUNT.unpack_from(cursor)[0])


def digest_of(body: bytes | bytearray) -> bytes:
    """Tells bodies apart."""
    return blake2b(body, digest_size=_DIGEST_BYTES).digest()
