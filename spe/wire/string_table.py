"""The string table of a connection: strings are sent once, then referred to by number.

Both ends have the same table; entry 0 is the empty string, which is also the value under a null.  The sender adds only
strings that its rows use: a pool's dictionary may hold a hundred thousand strings of which a stream uses ten.  Before
the table exceeds 131,072 entries or 32 MiB, the sender begins a new one.  The receiver adds strings to its pool's
current dictionary when rows first use them, so a full pool can begin a new dictionary at any time.

A STRINGS body is ``begins, before, count, more`` (``<IIII``), the byte length of each entry (uint32, padded to 8), and
the texts in UTF-8.  ``begins`` = 1 starts a new table; ``more`` = 1 says that the next frame continues a text that is
larger than a frame.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final
from weakref import WeakKeyDictionary, ref

import numpy as np
import numpy.typing as npt

from spe.errors import LocalProtocolError, RemoteProtocolError
from spe.stream.strings import Int32Array, StringDictionary, StringPool
from spe.stream.text_size import ROW_TEXT_BYTES
from spe.wire.framing import Buffer, FrameType, check_length, frame

#: Bounds of a connection's table: entries, and bytes of text.  Part of the protocol: the receiver enforces them.
TABLE_ENTRIES: Final = 1 << 17
TABLE_BYTES: Final = ROW_TEXT_BYTES

#: Rows up to which a Python list is searched faster than an array.
_FEW: Final = 64

#: A STRINGS body: 1 when the table begins anew, entries before these, entries, 1 when it holds a part of one entry that
#: goes on in the next STRINGS frame, then the byte length of each (uint32, padded to 8), then the texts in UTF-8.
_STRINGS: Final = struct.Struct("<IIII")
#: Size of a body with one entry, without its text.
_ONE_ENTRY: Final = _STRINGS.size + 8


_NO_CODES: Final[Int32Array] = np.empty(0, np.int32)


class _Translation:
    """Translates codes of one table to codes in ``target``, and adds missing strings that are used."""

    __slots__ = ("_codes", "_grew", "_same", "_target", "_whole")

    def __init__(self, target: StringDictionary) -> None:
        self._target = target
        #: Number of first entries of ``_whole`` that have the same code in both tables.
        self._same = 0
        #: The first entries, as far as all have been used, so that none is missing.
        self._whole: Int32Array = _NO_CODES
        #: shape (≥ known entries,); -1 where an entry has not been used yet, or does not exist.
        self._codes: Int32Array = _NO_CODES
        #: Have entries been used for the first time since ``_whole`` was made?  A table of one batch never needs it.
        self._grew = False

    def apply(self, codes: npt.NDArray[np.uint32], strings: list[str]) -> Int32Array:
        """Translates codes; the result may be the same memory.  Raises IndexError if a code is outside ``strings``."""
        if self._grew:
            self._make_whole(strings)
        if len(codes) > _FEW and np.maximum.reduce(codes) < self._same:
            return codes.view(np.int32)
        if len(self._whole):
            try:
                return self._whole.take(codes)
            except IndexError:
                pass
        try:
            out = self._codes.take(codes)
        except IndexError:
            if len(self._codes) >= len(strings):
                raise
            grown = np.full(max(len(strings), 2 * len(self._codes)), -1, np.int32)
            grown[: len(self._codes)] = self._codes
            self._codes = grown
            out = grown.take(codes)
        if len(out) <= _FEW:
            known = out.tolist()
            if -1 in known:
                self._use(sorted({code for code, mine in zip(codes.tolist(), known) if mine < 0}), strings)
                return self._codes.take(codes)
        elif np.minimum.reduce(out) < 0:
            self._use(np.unique(codes[out < 0]).tolist(), strings)
            return self._codes.take(codes)
        return out

    def _use(self, new: list[int], strings: list[str]) -> None:
        """Adds entries that are used for the first time."""
        self._codes[new] = self._target.encode([strings[code] for code in new])
        self._grew = True

    def _make_whole(self, strings: list[str]) -> None:
        self._grew = False
        if self._codes[0] < 0 and not strings[0]:  # every table has the empty string, used or not
            self._codes[0] = self._target.find("")
        known = len(self._whole)
        gaps = (self._codes[: len(strings)] < 0).nonzero()[0]
        self._whole = self._codes[: gaps[0] if len(gaps) else len(strings)]
        if self._same == known:  # codes never change, so only new ones can differ
            others = (self._whole[known:] != np.arange(known, len(self._whole))).nonzero()[0]
            self._same = known + int(others[0]) if len(others) else len(self._whole)


class SendTable:
    """The sender's table.  Call :meth:`codes` for each column of a batch, then send :meth:`frames` before the batch."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Begins a new table, here now, and at the receiver with the next frames."""
        self._table = StringDictionary([""])
        self._translations: WeakKeyDictionary[StringDictionary, _Translation] = WeakKeyDictionary()
        #: The translation used last, and its dictionary: usually the next one, too.
        self._last: _Translation | None = None
        self._last_dictionary: ref[StringDictionary] = ref(self._table)
        #: Entries and bytes of text at the receiver, once frames() has been sent.
        self._sent = 1
        self._sent_bytes = 0
        self._begins = True

    def codes(
        self, values: Int32Array, valid: npt.NDArray[np.bool_] | None, dictionary: StringDictionary
    ) -> Int32Array:
        """Returns the connection's code of each row."""
        unsigned = values.view(np.uint32)  # a negative code is then out of range, rather than counted from the end
        translation = self._last
        if translation is None or self._last_dictionary() is not dictionary:
            translation = self._translations.get(dictionary)
            if translation is None:
                translation = self._translations[dictionary] = _Translation(self._table)
            self._last, self._last_dictionary = translation, ref(dictionary)
        try:
            return translation.apply(unsigned, dictionary.strings)
        except IndexError:
            if valid is None or not len(values):
                raise LocalProtocolError("a string column has codes outside its dictionary") from None
        # The code under a null need not be in the dictionary; use the empty string.
        out = np.zeros(len(values), np.int32)
        used = unsigned[valid]
        if len(used):
            out[valid] = translation.apply(used, dictionary.strings)
        return out

    @property
    def pending(self) -> bool:
        """Must :meth:`frames` go out before the next batch?"""
        return self._sent != len(self._table)

    @property
    def is_new(self) -> bool:
        """Has nothing been sent since the table began?"""
        return self._sent == 1

    def texts(self) -> list[bytes] | None:
        """Returns the strings that the receiver lacks, or None if they exceed the table's bounds."""
        new = [s.encode("utf-8", "surrogatepass") for s in self._table.strings[self._sent :]]
        size = self._sent_bytes + sum(map(len, new))
        return new if size <= TABLE_BYTES and len(self._table) <= TABLE_ENTRIES else None

    def frames(self, texts: list[bytes], limit: int) -> list[bytes]:
        """Returns STRINGS frames with :meth:`texts`, each body at most ``limit`` bytes; a longer text is split."""
        out, at = [], 0
        while at < len(texts):
            size, stop = _STRINGS.size + 8, at
            while stop < len(texts) and (stop == at or size + 4 + len(texts[stop]) <= limit):
                size += 4 + len(texts[stop])
                stop += 1
            part = texts[at:stop]
            while len(part[0]) > limit - _ONE_ENTRY and stop == at + 1:
                out.append(self._frame([part[0][: limit - _ONE_ENTRY]], True, limit))
                part = [part[0][limit - _ONE_ENTRY :]]
            out.append(self._frame(part, False, limit))
            at = stop
        return out

    def _frame(self, part: list[bytes], more: bool, limit: int) -> bytes:
        lengths = struct.pack(f"<{len(part)}I", *map(len, part)) + bytes(4 * (len(part) & 1))
        body = b"".join([_STRINGS.pack(self._begins, self._sent, len(part), more), lengths, *part])
        check_length(FrameType.STRINGS, len(body), limit)
        self._begins = False
        self._sent += 0 if more else len(part)
        self._sent_bytes += sum(map(len, part))
        return frame(FrameType.STRINGS, body)


class ReceiveTable:
    """The receiver's table: received strings, and their codes in the pool's current dictionary."""

    __slots__ = ("_begun", "_bytes", "_dictionary", "_pool", "_strings", "_translation")

    def __init__(self, pool: StringPool) -> None:
        self._pool = pool
        self._strings = [""]
        self._bytes = 0
        #: Received part of an entry that comes in pieces.
        self._begun = bytearray()
        self._dictionary = pool.current()
        self._translation = _Translation(self._dictionary)

    def add(self, body: Buffer) -> None:
        """Adds the strings of a STRINGS body.  Raises RemoteProtocolError."""
        try:
            begins, before, count, more = _STRINGS.unpack_from(body)
            lengths = np.frombuffer(body, "<u4", count, _STRINGS.size).tolist()
        except (struct.error, ValueError):
            raise RemoteProtocolError(
                f"STRINGS: a body of {len(body)} bytes is too short for what it announces"
            ) from None
        if begins > 1 or more > 1 or (more and count != 1) or (begins and self._begun):
            raise RemoteProtocolError("STRINGS: nonsense in the header")
        strings, size = ([""], 0) if begins else (self._strings, self._bytes)
        size += sum(lengths)
        if before != len(strings):
            raise RemoteProtocolError(f"STRINGS: expected entries from {len(strings)} on, got {before}")
        if before + count > TABLE_ENTRIES or size > TABLE_BYTES:
            raise RemoteProtocolError(f"STRINGS: more than {TABLE_ENTRIES} entries or {TABLE_BYTES} bytes of text")
        at = _STRINGS.size + 4 * (count + (count & 1))
        if at + sum(lengths) != len(body):
            raise RemoteProtocolError(f"STRINGS: expected {at + sum(lengths)} bytes, got {len(body)}")
        new: list[str] = []
        if more:
            self._begun += body[at:]
        else:
            new = self._texts(body, at, lengths)
        if begins:
            self._translation = _Translation(self._dictionary)
            self._strings = strings
        self._strings += new
        self._bytes = size

    def _texts(self, body: Buffer, at: int, lengths: Sequence[int]) -> list[str]:
        """Reads the entries from ``at`` on; the first may have begun in an earlier frame."""
        new: list[str] = []
        try:
            if lengths and self._begun:
                new.append(str(self._begun + body[at : at + lengths[0]], "utf-8", "surrogatepass"))
                self._begun = bytearray()
                at, lengths = at + lengths[0], lengths[1:]
            for length in lengths:
                new.append(str(body[at : at + length], "utf-8", "surrogatepass"))
                at += length
        except UnicodeDecodeError as e:
            raise RemoteProtocolError(f"STRINGS: entry {len(new)}: {e}") from None
        return new

    def dictionary(self) -> StringDictionary:
        """Returns the dictionary for the strings of the next batch."""
        dictionary = self._pool.current()
        if dictionary is not self._dictionary:
            self._dictionary = dictionary
            self._translation = _Translation(dictionary)
        return dictionary

    def codes(self, codes: npt.NDArray[np.uint32]) -> Int32Array:
        """Returns codes in the dictionary that :meth:`dictionary` last returned.  Raises RemoteProtocolError."""
        try:
            return self._translation.apply(codes, self._strings)
        except IndexError:
            raise RemoteProtocolError(f"BATCH: a string code is outside the table of {len(self._strings)}") from None
