"""Strings as int32 codes into an append-only dictionary.

A code is valid only with its dictionary, inside this process.  It never decides an order, a tie or a partition: these
depend on the text (:meth:`StringDictionary.texts`, :meth:`StringDictionary.hashes_of`).

A dictionary only grows, so new strings go into the current dictionary of a :class:`StringPool`: when that is full a new
one begins, and the old one is freed with the last column that refers to it.
"""

from __future__ import annotations

import ctypes
import hashlib
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

Int32Array = npt.NDArray[np.int32]
Int64Array = npt.NDArray[np.int64]
UInt64Array = npt.NDArray[np.uint64]

#: Entries after which a pool begins a new dictionary.  Large enough that steady key sets never rotate, small
#: enough (some 20 MB of text and tables) that a stream of unique strings stays bounded.
DICTIONARY_LIMIT: Final = 1 << 17
#: Bytes of long texts after which a pool begins a new dictionary: the number of entries alone does not bound memory.
DICTIONARY_TEXT_BYTES: Final = 16 << 20
#: Characters up to which a text is not counted in bytes: the tables take about as much for any text.
SHORT_TEXT: Final = 32
#: Number of new texts up to which all are hashed when some hashes are needed; beyond it only the needed ones.
_HASHED_AT_ONCE: Final = 1 << 13


#: Exempts an object from Python's cycle collector for good.  Texts refer to nothing; otherwise the collector visits
#: every text of every list at once, which has taken 340 ms for ten million.
_untrack: Final = ctypes.PYFUNCTYPE(None, ctypes.py_object)(("PyObject_GC_UnTrack", ctypes.pythonapi))


class StringDictionary:
    """An append-only table of distinct strings; entry ``i`` is the text of code ``i``."""

    __slots__ = (
        "__weakref__",
        "_by_string",
        "_hashed_upto",
        "_hashes",
        "_object_array",
        "_sized_upto",
        "_sizes",
        "_text_bytes",
        "_translations",
        "longest",
        "strings",
    )

    def __init__(self, strings: Iterable[str] = ()) -> None:
        self.strings: list[str] = []
        _untrack(self.strings)
        #: Characters of the longest entry.
        self.longest = 0
        self._by_string: dict[str, int] = {}
        #: With room for more entries; 0 where a text is not hashed yet.  All before _hashed_upto are hashed.
        self._hashes: UInt64Array = np.empty(0, np.uint64)
        self._hashed_upto = 0
        #: Bytes of each long text, with room for more entries; number of known sizes; and their sum.
        self._sizes: Int32Array = np.empty(0, np.int32)
        self._sized_upto = 0
        self._text_bytes = 0
        self._object_array: npt.NDArray[np.object_] = np.empty(0, np.object_)
        #: Our code -> code in another dictionary, -1 if not looked up yet; with room for more.
        self._translations: WeakKeyDictionary[StringDictionary, Int32Array] = WeakKeyDictionary()
        for s in strings:
            self.code(s)

    def __len__(self) -> int:
        return len(self.strings)

    def code(self, string: str) -> int:
        """Returns the code of ``string``, and adds it if it is new."""
        code = self._by_string.get(string)
        if code is None:
            code = self._by_string[string] = len(self.strings)
            self.strings.append(string)
            if len(string) > self.longest:
                self.longest = len(string)
        return code

    def find(self, string: str) -> int:
        """Returns the code of ``string``, or -1."""
        return self._by_string.get(string, -1)

    def encode(self, strings: Sequence[str]) -> Int32Array:
        """Returns the codes of many strings, and adds the new ones."""
        code = self.code
        return np.fromiter((code(s) for s in strings), np.int32, len(strings))

    def extend(self, strings: Sequence[str]) -> Int32Array:
        """Adds distinct strings, most of them new; returns the codes of all."""
        if not self._by_string.keys().isdisjoint(strings):
            return self.encode(strings)
        first = len(self.strings)
        self.strings.extend(strings)
        self._by_string.update(zip(strings, range(first, len(self.strings))))
        self.longest = max(self.longest, max(map(len, strings), default=0))
        return np.arange(first, len(self.strings), dtype=np.int32)

    def texts(self) -> npt.NDArray[np.object_]:
        """Returns all entries as an object array, for bulk access; valid until the next addition."""
        if len(self._object_array) != len(self.strings):
            grown = np.empty(len(self.strings), np.object_)
            grown[:] = self.strings
            self._object_array = grown
        return self._object_array

    def hashes_of(self, codes: npt.NDArray[Any]) -> UInt64Array:
        """Returns a 64-bit hash of each code's text, the same on every machine and release.

        B8: the work of a step is bounded; if many texts are new, only the needed ones are hashed.
        """
        new = range(self._hashed_upto, len(self.strings))
        if len(new):
            self._make_room()
            if len(new) <= _HASHED_AT_ONCE:
                self._hash(np.arange(new.start, new.stop))
                self._hashed_upto = len(self.strings)
            else:
                self._hash(np.unique(codes[self._hashes.take(codes) == 0]))
        return self._hashes.take(codes)

    def _make_room(self) -> None:
        if len(self._hashes) < len(self.strings):
            larger = np.zeros(max(len(self.strings), 2 * len(self._hashes)), np.uint64)
            larger[: len(self._hashes)] = self._hashes
            self._hashes = larger

    def _hash(self, codes: npt.NDArray[Any]) -> None:
        digest, strings = hashlib.blake2b, self.strings
        texts = [strings[code].encode("utf-8", "surrogatepass") for code in codes.tolist()]
        if texts:
            self._hashes[codes] = np.frombuffer(b"".join([digest(t, digest_size=8).digest() for t in texts]), "<u8")

    @property
    def crowded(self) -> bool:
        """Has it so much text that further strings should go into a new dictionary?"""
        return self.longest > SHORT_TEXT and self.text_bytes >= DICTIONARY_TEXT_BYTES

    @property
    def text_bytes(self) -> int:
        """Memory of the long texts, bytes."""
        self._size_new()
        return self._text_bytes

    def sizes_of(self, codes: npt.NDArray[Any]) -> Int32Array:
        """Returns the memory of each code's text in bytes, 0 for a text of at most ``SHORT_TEXT`` characters.

        Depends on the text alone.  A code out of range gets the size of another one.
        """
        if self.longest <= SHORT_TEXT:
            return np.zeros(len(codes), np.int32)
        self._size_new()
        return self._sizes[: self._sized_upto].take(codes, mode="clip")

    def _size_new(self) -> None:
        done, count = self._sized_upto, len(self.strings)
        if done == count:
            return
        if len(self._sizes) < count:
            larger = np.zeros(max(count, 2 * len(self._sizes)), np.int32)
            larger[:done] = self._sizes[:done]
            self._sizes = larger
        new = self.strings[done:]
        sizes = np.fromiter(map(sys.getsizeof, new), np.int32, len(new))
        sizes[np.fromiter(map(len, new), np.int32, len(new)) <= SHORT_TEXT] = 0
        self._sizes[done:count] = sizes
        self._text_bytes += int(sizes.sum(dtype=np.int64))
        self._sized_upto = count

    def translated(self, codes: npt.NDArray[Any], target: StringDictionary) -> Int32Array:
        """Returns the same texts as codes of ``target``, and adds missing ones; codes out of range get any code.

        B8: the work of a step is bounded; only the codes at hand are looked up.
        """
        count = len(self.strings)
        if not count:
            return np.zeros(len(codes), np.int32)
        table = self._translations.get(target)
        if table is None or len(table) < count:
            known = 0 if table is None else len(table)
            larger = np.full(max(count, 2 * known), -1, np.int32)
            if table is not None:
                larger[:known] = table
            table = self._translations[target] = larger
        translated: Int32Array = table[:count].take(codes, mode="clip")
        if len(translated) and translated.min() < 0:
            new, strings = np.unique(codes[translated < 0].clip(0, count - 1)), self.strings
            table[new] = target.encode([strings[code] for code in new.tolist()])
            translated = table[:count].take(codes, mode="clip")
        return translated

    def map_entries(self, function: Callable[[str], Any], done: int = 0) -> list[Any]:
        """Applies ``function`` to each entry from ``done`` on: string functions cost per distinct text, not per row."""
        return [function(s) for s in self.strings[done:]]


class StringPool:
    """Returns the dictionary for new strings, and begins a new one when it is full.

    Each begins with the empty string, as every connection's table does: strings that first come in the same order then
    have the same codes, and need no translation.
    """

    __slots__ = ("_current", "_limit")

    def __init__(self, limit: int = DICTIONARY_LIMIT) -> None:
        self._current = StringDictionary([""])
        self._limit = limit

    def current(self) -> StringDictionary:
        if len(self._current) >= self._limit or self._current.crowded:
            self._current = StringDictionary([""])
        return self._current
