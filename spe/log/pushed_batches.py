"""Files of a source for pushed batches (rules W1, W2 and W4): parts, and a ledger of the committed batches.

A *part* holds the rows of a batch from one task of a writer: encoded rows and, once they are on the disk of the source,
a trailer that names the writer and the batch.  The *ledger* is one small file that is replaced as a whole: all rows of
the batches in it are part of the source's input, in the order that the ledger implies.
"""

from __future__ import annotations

import hashlib
import json
import re
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath
from typing import Any, Final

from spe.errors import LogCorrupt, other_version
from spe.stream.batch import Batch, Rows
from spe.stream.names import Kind
from spe.stream.schema import Schema
from spe.stream.strings import StringPool
from spe.wire.codec import decode_standalone, encode_standalone

#: Largest part.
PART_BYTES: Final = 256 << 20
#: Largest batch: it is sorted in memory.
BATCH_BYTES: Final = 512 << 20
#: Most bytes that a writer may stage: a committed batch, the next one, and as much again from failed attempts.
STAGED_BYTES: Final = 3 * BATCH_BYTES
#: Longest trailer.
TRAILER_BYTES: Final = 16 << 10
#: Bytes that a part counts for in addition to its rows.
PART_OVERHEAD: Final = 4096
#: Most rows in one encoded piece.
PIECE_ROWS: Final = 65_536
_LENGTH: Final = struct.Struct("<I")
_END: Final = b"SPEPART1"
_DIGEST_BYTES: Final = 16
#: Version of the ledger, and of the parts that it names.
PUSH_VERSION: Final = 1
_NAME: Final = re.compile(r"[0-9a-f]{32}")


def push_folder(source: PurePosixPath) -> PurePosixPath:
    """Returns the folder of the ledger and the parts, in the folder of a source."""
    return source / "push"


def is_part_name(name: str) -> bool:
    """Is this the name of a part, 32 hexadecimal digits?"""
    return _NAME.fullmatch(name) is not None


def encode_part(rows: Sequence[Rows], schema: Schema) -> bytes:
    """Encodes the rows of a part.  Raises LocalProtocolError if they do not fit the schema."""
    pieces = []
    for block in rows:
        for at in range(0, len(block), PIECE_ROWS):
            piece = block.slice(at, min(len(block), at + PIECE_ROWS))
            data = encode_standalone(Batch(Kind.STABLE, 0, len(piece), None, piece), schema)
            pieces += [_LENGTH.pack(len(data)), data]
    return b"".join(pieces)


class PartReader:
    """Reads the rows of a part piece by piece, so that its bytes are never all in memory.

    Args:
      read: returns bytes of the part, given an offset and a length.
      size: bytes of the part, without the trailer.
    """

    def __init__(self, read: Callable[[int, int], bytes], size: int, schema: Schema, pool: StringPool) -> None:
        self._read = read
        self._size = size
        self._schema = schema
        self._pool = pool
        self._hash = hashlib.blake2b(digest_size=_DIGEST_BYTES)

    @property
    def digest(self) -> str:
        """Digest of the bytes read so far."""
        return self._hash.hexdigest()

    def rows(self) -> Iterator[Rows]:
        """Reads the rows; to be called once.

        Raises:
          ValueError: the bytes are no part.
          RemoteProtocolError: the rows do not fit the schema.
        """
        at = 0
        while at < self._size:
            head = self._read(at, min(_LENGTH.size, self._size - at))
            begin = at + _LENGTH.size
            if len(head) < _LENGTH.size or begin + (size := _LENGTH.unpack(head)[0]) > self._size:
                raise ValueError(f"{self._size} bytes end in the middle of a piece that begins at byte {at}")
            data = self._read(begin, size)
            self._hash.update(head)
            self._hash.update(data)
            element = decode_standalone(data, self._schema, self._pool)
            if not isinstance(element, Batch) or element.kind is not Kind.STABLE:
                raise ValueError(f"byte {begin} begins no stable rows")
            yield element.rows
            at = begin + size


def decode_part(data: bytes, schema: Schema, pool: StringPool) -> list[Rows]:
    """Decodes all rows of a part in memory.  Raises as :meth:`PartReader.rows` does."""
    return list(PartReader(lambda at, size: data[at : at + size], len(data), schema, pool).rows())


@dataclass(frozen=True)
class Part:
    """The trailer of a part.

    Attributes:
      digest: digest of its encoded rows.
    """

    writer: str
    query: str
    batch: int
    rows: int
    bytes: int
    digest: str


def digest_of(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=_DIGEST_BYTES).hexdigest()


def trailer_of(part: Part) -> bytes:
    """Returns the trailer of a complete, checked part."""
    text = json.dumps(part.__dict__).encode()
    return text + hashlib.blake2b(text, digest_size=_DIGEST_BYTES).digest() + _LENGTH.pack(len(text)) + _END


def read_trailer(data: bytes, whole: int) -> Part | None:
    """Reads the trailer of a part on the disk; None if the part is incomplete.

    Args:
      data: the last ``TRAILER_BYTES``, or all.
      whole: bytes of the file.
    """
    behind = _DIGEST_BYTES + _LENGTH.size + len(_END)
    if len(data) < behind or not data.endswith(_END):
        return None
    (size,) = _LENGTH.unpack_from(data, len(data) - len(_END) - _LENGTH.size)
    text, digest = data[-behind - size : -behind], data[-behind : -behind + _DIGEST_BYTES]
    if len(text) != size or hashlib.blake2b(text, digest_size=_DIGEST_BYTES).digest() != digest:
        return None
    try:
        part = Part(**json.loads(text))
    except (ValueError, TypeError):
        return None
    return part if part.bytes + size + behind == whole else None


@dataclass(frozen=True)
class PushedBatch:
    """A committed batch whose rows are not all in the source's log yet.

    Attributes:
      after: count of the rows of all batches before it.
      parts: names and digests, in order.
    """

    after: int
    rows: int
    bytes: int
    parts: tuple[tuple[str, str], ...]

    @property
    def upto(self) -> int:
        """Count of the rows of all batches up to and including this one."""
        return self.after + self.rows


@dataclass(frozen=True)
class LastPushed:
    """The last batch of a writer, and its query.

    Attributes:
      earlier: last batch of each replaced query; such a query may become the current one again.
    """

    query: str
    batch: int
    earlier: Mapping[str, int] = field(default_factory=dict)

    def of(self, query: str) -> int | None:
        """Returns the last batch of a query; None if it has none."""
        return self.batch if query == self.query else self.earlier.get(query)

    def followed_by(self, query: str, batch: int) -> LastPushed:
        earlier = {name: last for name, last in {**self.earlier, self.query: self.batch}.items() if name != query}
        return LastPushed(query, batch, earlier)


@dataclass(frozen=True)
class PushLedger:
    """Records the committed batches.  Pure.

    Attributes:
      rows: count of the rows of all committed batches.
      pending: batches that are still needed, oldest first.
      ended: writers that have ended their stream (W6).
    """

    rows: int = 0
    writers: Mapping[str, LastPushed] = field(default_factory=dict)
    pending: tuple[PushedBatch, ...] = ()
    ended: frozenset[str] = frozenset()

    def refuse(self, writer: str, query: str, batch: int, replaces: str) -> str:
        """The reason why a batch cannot be the next one of its writer; "" if it can, or is committed already."""
        known = self.writers.get(writer)
        if writer in self.ended and not self.has(writer, query, batch):
            behind = "before its first batch" if known is None else f"behind batch {known.batch} of query {known.query}"
            return f"{writer} has ended its stream {behind}: batch {batch} of query {query} is not taken"
        if known is None:
            return ""
        last = known.of(query)
        if query != known.query and replaces != known.query:
            return (
                f"{writer} has pushed batches up to {known.batch} of query {known.query}, and this is query {query}, "
                "whose batches may have the same rows: go on with the checkpoint of that query; or, to begin another "
                f"one, give the option replaces={known.query}"
            )
        if last is not None and batch < last:
            return (
                f"{writer} has pushed batch {last} of query {query}, and Spark repeats no other than its last one: the "
                f"checkpoint is an older copy, by which batch {batch} may have other rows; go on with the newest one, "
                f"or begin another query, with another checkpoint, with the option replaces={known.query}"
            )
        return ""

    def has(self, writer: str, query: str, batch: int) -> bool:
        """Is this batch committed?"""
        known = self.writers.get(writer)
        last = None if known is None else known.of(query)
        return last is not None and batch <= last

    def committed(
        self, writer: str, query: str, batch: int, parts: Sequence[tuple[str, Part]], consumed: int
    ) -> PushLedger:
        """Returns the ledger with one more batch.

        Args:
          consumed: count of the rows in the source's log; batches that are entirely in it are dropped.
        """
        rows = sum(part.rows for _, part in parts)
        size = sum(part.bytes for _, part in parts)
        new = PushedBatch(self.rows, rows, size, tuple((name, part.digest) for name, part in parts))
        pending = tuple(earlier for earlier in self.pending if earlier.upto > consumed) + ((new,) if rows else ())
        known = self.writers.get(writer)
        last = LastPushed(query, batch) if known is None else known.followed_by(query, batch)
        return replace(self, rows=self.rows + rows, writers={**self.writers, writer: last}, pending=pending)

    def without(self, consumed: int) -> PushLedger:
        """Returns the ledger without batches that are entirely in the source's log."""
        return replace(self, pending=tuple(batch for batch in self.pending if batch.upto > consumed))

    def fault(self, consumed: int) -> str:
        """The reason why a log with so many rows does not belong to this ledger; "" if it does."""
        first = self.pending[0].after if self.pending else self.rows
        if consumed > self.rows:
            return f"the log has {consumed} pushed rows, and {self.rows} were committed: the ledger is an older copy"
        if consumed < first:
            return f"the log has {consumed} pushed rows, and the parts that are left begin behind row {first}"
        return ""

    def encode(self) -> bytes:
        data = {
            "version": PUSH_VERSION,
            "rows": self.rows,
            "writers": {name: [last.query, last.batch, dict(last.earlier)] for name, last in self.writers.items()},
            "pending": [
                [batch.after, batch.rows, batch.bytes, [list(p) for p in batch.parts]] for batch in self.pending
            ],
            "ended": sorted(self.ended),
        }
        text = json.dumps(data)
        return json.dumps({"digest": digest_of(text.encode()), "ledger": text}).encode()


def read_ledger(data: bytes) -> PushLedger:
    """Decodes a ledger.  Raises LogCorrupt."""
    try:
        outer: Any = json.loads(data)
        text = outer["ledger"]
        if digest_of(text.encode()) != outer["digest"]:
            raise LogCorrupt("the checksum does not match")
        ledger: Any = json.loads(text)
        if why := other_version("the ledger", ledger["version"], PUSH_VERSION):
            raise LogCorrupt(why)
        return PushLedger(
            int(ledger["rows"]),
            {str(name): _last_pushed(*entry) for name, entry in ledger["writers"].items()},
            tuple(
                PushedBatch(int(after), int(rows), int(size), tuple((str(n), str(d)) for n, d in parts))
                for after, rows, size, parts in ledger["pending"]
            ),
            frozenset(str(writer) for writer in ledger["ended"]),
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise LogCorrupt(f"no ledger of pushed batches: {error!r}") from None


def _last_pushed(query: str, batch: int, earlier: Mapping[str, int]) -> LastPushed:
    return LastPushed(str(query), int(batch), {str(q): int(b) for q, b in earlier.items()})
