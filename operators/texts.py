"""Maps any number of strings to dense ids: stores their concatenated bytes, and an index of hashes.

B8: arrays can be enlarged, freed, copied and stored in portions, unlike a list or a dict of ten million Python strings.
Python strings are made of results only, in dictionaries of bounded size.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from operators import steps
from operators.columns import Columns, Leaf, copied
from operators.ids import IdTables, IndexArray, IntegerIds, first_appearances, id_table
from operators.steps import Steps, finished, portions
from spe.stream.batch import Column
from spe.stream.frozen import Derived
from spe.stream.strings import DICTIONARY_LIMIT, Int32Array, StringDictionary

#: Ids in state have half the bits of an index.
AnyIds = IndexArray | Int32Array
#: Bytes of the first piece of text and of the largest; each is as long as all earlier pieces together.
_LEAST_PIECE: Final = 1 << 10
_LARGEST_PIECE: Final = 1 << 24
#: Python's hash, which differs by process, so that no peer can prepare colliding texts.  Ids do not depend on it.
_hash: Callable[[str], int] = hash


class TextIds:
    """Maps strings to ids from 1 upwards, in order of arrival.

    Streams change their dictionaries; state must outlive them.  Per source dictionary there is a table from its codes
    to our ids, filled on first use.  Results are in a dictionary that is replaced by a new one when it is full, so that
    none is ever large.
    """

    __slots__ = ("_bases", "_coded", "_codes", "_dictionary", "_ends", "_pieces", "_tables", "_values")

    def __init__(self) -> None:
        #: A value per text: its hash, or, if another text has this value, the next free one (:func:`_next`).
        self._values = IntegerIds(start=1)
        #: The text of an id is the bytes [end of the previous id, end) of the concatenated pieces, within one piece.
        self._ends = Columns([(np.int64, 0)])
        self._ends.add(1)
        self._pieces: list[npt.NDArray[np.uint8]] = []
        self._bases: list[int] = []
        #: Code of each id in the dictionary for results; −1 for none.  Id 0 is null, with the text "".
        self._codes = Columns([(np.int32, -1)])
        self._codes.add(1)
        self._codes.arrays[0][0] = 0
        self._dictionary = StringDictionary([""])
        #: Ids with a code.
        self._coded: list[IndexArray] = []
        self._tables: IdTables = WeakKeyDictionary()

    @property
    def count(self) -> int:
        """One past the largest id."""
        return self._ends.count

    def reserve(self, more: int) -> Steps[None]:
        """Makes room for ``more`` texts, in portions.  Pieces of text never grow."""
        if self.count > steps.INDEXED:
            yield from self._values.reserve(more)
            yield from self._ends.reserve(more)
            yield from self._codes.reserve(more)

    def ids(self, column: Column) -> IndexArray:
        """Returns the id of each text; any number for a null."""
        return finished(self.ids_in_portions(column))

    def ids_in_portions(self, column: Column) -> Steps[IndexArray]:
        """Returns the id of each text, in portions if many entries of a dictionary are new."""
        source = column.dictionary
        assert source is not None
        table = id_table(self._tables, source)
        got = table.take(column.values, mode="clip")
        if len(got) and got.min() < 0:
            new = got < 0 if column.valid is None else (got < 0) & column.valid
            codes, strings = first_appearances(column.values[new]), source.strings
            for start, stop in portions(len(codes), steps.RELEASED):
                some = codes[start:stop]
                table[some] = self.ids_of([strings[c] for c in some.tolist()])
                if len(codes) > steps.RELEASED:
                    yield
            got = table.take(column.values, mode="clip")
        return got

    def ids_of(self, texts: Sequence[str]) -> IndexArray:
        """Returns the ids of distinct texts; new ones get the next ids, in this order."""
        values = np.fromiter(map(_hash, texts), np.int64, len(texts))
        ids = self._values.find(values)
        known, new = (ids >= 0).nonzero()[0], (ids < 0).nonzero()[0]
        if self.texts(ids[known]) != [texts[i] for i in known.tolist()] or len(np.unique(values[new])) < len(new):
            return np.array([self._id_of(text, value) for text, value in zip(texts, values.tolist())], np.intp)
        if len(new):
            ids[new] = self._add([texts[i] for i in new.tolist()], values[new])
        return ids

    def _id_of(self, text: str, value: int) -> int:
        """Returns the id of one text, also if its value collides."""
        while True:
            ids = self._values.find(np.array([value]))
            if ids[0] < 0:
                return int(self._add([text], np.array([value]))[0])
            if self.texts(ids) == [text]:
                return int(ids[0])
            value = _next(value)

    def _add(self, texts: list[str], values: npt.NDArray[np.int64]) -> IndexArray:
        data, lengths = _encoded(texts)
        first = self._ends.add(len(texts))
        self._codes.add(len(texts))
        ends = self._ends.arrays[0]
        base = int(ends[first - 1])
        ends[first : self.count] = lengths.cumsum() + base
        self._write(data, base)
        self._values.add(values)
        return np.arange(first, self.count)

    def _write(self, data: bytes, at: int) -> None:
        if not self._pieces or at + len(data) > self._bases[-1] + len(self._pieces[-1]):
            size = max(len(data), min(max(at, _LEAST_PIECE), _LARGEST_PIECE))
            self._pieces.append(np.empty(size, np.uint8))
            self._bases.append(at)
        at -= self._bases[-1]
        self._pieces[-1][at : at + len(data)] = np.frombuffer(data, np.uint8)

    def texts(self, ids: AnyIds) -> list[str]:
        """Returns the texts of ids from 1 on."""
        if not len(ids):
            return []
        ends = self._ends.arrays[0]
        starts, stops = ends.take(ids - 1), ends.take(ids)
        bases = np.array(self._bases)
        # An empty text at the end of a piece may be looked up in the next one, where it is empty, too.
        which = bases.searchsorted(starts, side="right") - 1
        starts -= bases.take(which)
        stops -= bases.take(which)
        data = [piece.data for piece in self._pieces]
        if which[0] == which[-1] and len(ids) == ids[-1] - ids[0] + 1 and (ids[1:] > ids[:-1]).all():
            together = data[which[0]][starts[0] : stops[-1]].tobytes()
            if together.isascii():  # one byte per character
                text, first = together.decode("ascii"), starts[0]
                return [text[start:stop] for start, stop in zip((starts - first).tolist(), (stops - first).tolist())]
        return [
            str(data[piece][start:stop], "utf-8", "surrogatepass")
            for piece, start, stop in zip(which.tolist(), starts.tolist(), stops.tolist())
        ]

    def column(self, ids: AnyIds) -> tuple[Int32Array, StringDictionary]:
        """Returns codes of ids (0 is ""), and their dictionary."""
        return finished(self.column_in_portions(ids))

    def column_in_portions(self, ids: AnyIds) -> Steps[tuple[Int32Array, StringDictionary]]:
        """Returns codes of ids and their dictionary, in portions if many texts are new in it."""
        if len(self._dictionary) >= DICTIONARY_LIMIT or self._dictionary.crowded:
            self._begin_dictionary()
        table = self._codes.arrays[0]
        codes: Int32Array = table.take(ids)
        if len(codes) and codes.min() < 0:
            new: IndexArray = np.unique(ids[codes < 0].astype(np.intp))
            for start, stop in portions(len(new), steps.RELEASED):
                if start:
                    yield
                some = new[start:stop]
                # Joining batches may have added texts of other rows to the dictionary.
                table[some] = self._dictionary.extend(self.texts(some))
                self._coded.append(some)
            codes = table.take(ids)
        return codes, self._dictionary

    def _begin_dictionary(self) -> None:
        for ids in self._coded:
            self._codes.arrays[0][ids] = -1
        self._dictionary, self._coded = StringDictionary([""]), []

    def compacted(self, live: IndexArray) -> Steps[TextIds]:
        """Returns ids of the texts of ``live`` (ascending, from 1 on) only; they become 1, 2, 3, … in this order."""
        fresh = TextIds()
        for start, stop in portions(len(live), steps.RELEASED):
            if start:
                yield
            yield from fresh.reserve(stop - start)
            fresh.ids_of(self.texts(live[start:stop]))
        return fresh

    def close(self) -> None:
        """Frees the lookup tables until the next call of :meth:`ids`, or of :meth:`reserve`."""
        self._tables = WeakKeyDictionary()
        self._values.close()

    def snapshot(self) -> Mapping[str, Any]:
        """Returns the state by reference: written parts never change."""
        size = int(self._ends.arrays[0][self.count - 1])
        text = [piece[: end - base] for piece, base, end in zip(self._pieces, self._bases, [*self._bases[1:], size])]
        return {"ends": self._ends.freeze()[0], "text": text, "values": Derived(self._values.snapshot())}

    @classmethod
    def restoring(cls, state: Mapping[str, Any]) -> Steps[TextIds]:
        """Restores a snapshot of this or another process."""
        ids = cls()
        yield from ids._load(state["ends"], state["text"])
        if isinstance(state["values"], Derived):
            ids._values = yield from IntegerIds.restoring(state["values"].value)
            yield from ids._codes.reserve(ids.count)
            for start, stop in portions(ids.count - 1, steps.COPIED):
                ids._codes.add(stop - start)
                yield
            return ids
        again = cls()
        for start, stop in portions(ids.count - 1, steps.RELEASED):
            yield from again.reserve(stop - start)
            again.ids_of(ids.texts(np.arange(start + 1, stop + 1)))
            yield
        return again

    def _load(self, ends: Leaf, text: Sequence[npt.NDArray[np.uint8]]) -> Steps[None]:
        """Copies the texts, into one piece."""
        yield from self._ends.load([ends])
        self._pieces, self._bases, at = [np.empty(sum(map(len, text)), np.uint8)], [0], 0
        for piece in text:
            yield from copied(piece, self._pieces[0][at:], len(piece))
            at += len(piece)
            yield


def _encoded(texts: list[str]) -> tuple[bytes, npt.NDArray[np.int64]]:
    """Concatenates texts in UTF-8; returns the bytes and the length of each."""
    together = "".join(texts)
    if together.isascii():
        return together.encode("ascii"), np.fromiter(map(len, texts), np.int64, len(texts))
    encoded = [text.encode("utf-8", "surrogatepass") for text in texts]
    return b"".join(encoded), np.fromiter(map(len, encoded), np.int64, len(encoded))


def _next(value: int) -> int:
    """Returns the next value of a sequence through all 64-bit values."""
    value = (value * 6364136223846793005 + 1442695040888963407) & (2**64 - 1)
    return value - 2**64 if value >= 2**63 else value
