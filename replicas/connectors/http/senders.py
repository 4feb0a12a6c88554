"""Positions of the senders: the cursor of an HTTP source."""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping
from hashlib import blake2b
from typing import Final, NamedTuple

import msgpack

from spe.connectors.http import SENDER
from spe.errors import LogCorrupt

#: Largest number of senders with keys: each record of the source's log has all of them.
SENDERS_MAX: Final = 256
_DIGEST_BYTES: Final = 8
_KEY: Final = re.compile(rf'"?({SENDER}):([1-9][0-9]{{0,17}})"?')
#: Number of requests in the log.
_COUNT: Final = struct.Struct("<Q")


class RequestKey(NamedTuple):
    """Identifies a request of a sender, which numbers its requests from 1 on."""

    sender: str
    number: int

    @classmethod
    def parse(cls, text: str) -> RequestKey:
        """Parses a key.  Raises ValueError."""
        if (match := _KEY.fullmatch(text)) is None:
            raise ValueError(
                "Idempotency-Key: expected SENDER:NUMBER, 64 letters, digits, '.', '_' or '-' at most, and a number "
                f"that begins with 1 and grows by 1, got {text[:100]!r}"
            )
        return cls(match[1], int(match[2]))

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
    """The last request of each sender.

    Attributes:
      count: number of requests in the log.
    """

    def __init__(self, count: int = 0, senders: Mapping[str, _Last] | None = None) -> None:
        self.count = count
        self._senders = dict(senders or {})

    def numbers(self) -> dict[str, int]:
        """Returns the last number of each sender."""
        return {sender: last.number for sender, last in self._senders.items()}

    def reached(self, until: Mapping[str, int]) -> bool:
        """Returns whether each of these senders has reached its number."""
        return all((last := self._senders.get(s)) is not None and last.number >= n for s, n in until.items())

    def repeated(self, key: RequestKey, digest: bytes) -> bool:
        """Returns whether the request is in the log already.

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
        """Returns when rows of a repeated request were refused; 0: none were; None: it is not the last request."""
        last = self._senders[key.sender]
        return last.refused_us if key.number == last.number else None

    def take(self, key: RequestKey | None, digest: bytes, refused_us: int = 0) -> None:
        """Notes that a request is taken, without the rows that were refused at that time."""
        self.count += 1
        if key is not None:
            self._senders[key.sender] = _Last(key.number, digest, refused_us)

    def encode(self) -> bytes:
        return _COUNT.pack(self.count) + bytes(msgpack.packb(self._senders))

    @classmethod
    def decode(cls, cursor: bytes) -> SenderNumbers:
        """Decodes a cursor.  Raises LogCorrupt."""
        if not cursor:
            return cls()
        try:
            stored = msgpack.unpackb(cursor[_COUNT.size :])
            senders = {str(s): _Last(int(n), bytes(digest), int(at)) for s, (n, digest, at) in stored.items()}
            return cls(count_of(cursor), senders)
        except (struct.error, ValueError, TypeError, AttributeError) as error:
            raise LogCorrupt(f"the cursor of an HTTP source cannot be read: {error}") from error


class OutOfTurn(Exception):
    """A request must not be taken; has the status, the reason, and the expected number."""

    def __init__(self, status: int, why: str, expected: int | None) -> None:
        super().__init__(why)
        self.status = status
        self.expected = expected


def count_of(cursor: bytes) -> int:
    """Returns the number of requests in the log up to the record with this cursor."""
    return int(_COUNT.unpack_from(cursor)[0])


def digest_of(body: bytes | bytearray) -> bytes:
    """Returns a digest that distinguishes bodies."""
    return blake2b(body, digest_size=_DIGEST_BYTES).digest()
