"""String functions on columns: once per distinct text, kept as long as the dictionary that the text is in.

The caches refer to dictionaries weakly and hold one entry per entry of a living dictionary; new texts go into
dictionaries from a :class:`StringPool`.  So a stream of ever new strings stays bounded here as well.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from spe.stream.schema import AttributeType
from spe.stream.strings import StringDictionary, StringPool

Array = npt.NDArray[Any]
#: What a string function makes of columns: values, which rows are not null, the dictionary of a string result.
Made = tuple[Array, npt.NDArray[np.bool_] | None, StringDictionary | None]

#: Of dictionaries up to this size it is kept which codes their texts have in another one.
_WHOLE: Final = 4096


def lookup(table: Array, codes: Array) -> Array:
    """``table[codes]``; under a null a code may lie outside, and then gives anything."""
    if len(table) == 0:
        return np.zeros(len(codes), table.dtype)
    return table.take(codes, mode="clip")


def texts_at(dictionary: StringDictionary, codes: Array) -> list[str]:
    """The texts of codes; anything where a code lies outside."""
    texts = dictionary.strings
    if not texts:
        return [""] * len(codes)
    last = len(texts) - 1
    return [texts[min(max(c, 0), last)] for c in codes.tolist()]


class Results:
    """Turns a list of a function's Python results into an array, and which of them are not null."""

    def __init__(self, type_: AttributeType, partial: bool) -> None:
        self._type = type_
        self._partial = partial

    def made(self, items: list[Any], target: StringDictionary | None) -> tuple[Array, npt.NDArray[np.bool_] | None]:
        valid = None
        if self._partial:
            valid = np.fromiter((x is not None for x in items), np.bool_, len(items))
            nothing: Any = "" if self._type is AttributeType.STRING else 0
            items = [nothing if x is None else x for x in items]
        if target is not None:
            return target.encode(items), valid
        return np.array(items, self._type.dtype), valid


class PerEntry:
    """A function of one string: a table per dictionary, which grows with it.

    Args:
      function: total; None for null if ``partial``.
      type_: of its result.
    """

    def __init__(self, function: Callable[[str], Any], type_: AttributeType, partial: bool) -> None:
        self._function = function
        self._results = Results(type_, partial)
        self._pool = StringPool() if type_ is AttributeType.STRING else None
        self._tables: WeakKeyDictionary[StringDictionary, Made] = WeakKeyDictionary()

    def __call__(self, codes: Array, dictionary: StringDictionary) -> Made:
        known = self._tables.get(dictionary)
        if known is None or len(known[0]) != len(dictionary):
            known = self._tables[dictionary] = self._grown(known, dictionary)
        values, valid, target = known
        return lookup(values, codes), None if valid is None else lookup(valid, codes), target

    def _grown(self, known: Made | None, dictionary: StringDictionary) -> Made:
        """The table with what has been added to the dictionary since."""
        if known is None:
            target = self._pool.current() if self._pool is not None else None
            values, valid = self._results.made(dictionary.map_entries(self._function), target)
            return values, valid, target
        old_values, old_valid, target = known
        values, valid = self._results.made(dictionary.map_entries(self._function, len(old_values)), target)
        if valid is not None and old_valid is not None:
            valid = np.concatenate([old_valid, valid])
        return np.concatenate([old_values, values]), valid, target


class PerRow:
    """A function of several columns, or from numbers to strings: once per distinct row of each batch.

    Args:
      function: takes one Python value per column.
      type_: of its result.
    """

    def __init__(self, function: Callable[..., Any], type_: AttributeType, partial: bool) -> None:
        self._function = function
        self._results = Results(type_, partial)
        self._pool = StringPool() if type_ is AttributeType.STRING else None

    def __call__(self, *columns: tuple[Array, StringDictionary | None]) -> Made:
        first, row_of = _distinct([values for values, _ in columns])
        arguments = [
            values.take(first).tolist() if dictionary is None else texts_at(dictionary, values.take(first))
            for values, dictionary in columns
        ]
        target = self._pool.current() if self._pool is not None else None
        values, valid = self._results.made(list(map(self._function, *arguments)), target)
        return values.take(row_of), None if valid is None else valid.take(row_of), target


def _distinct(columns: Sequence[Array]) -> tuple[Array, Array]:
    """(one row of each distinct combination, the combination that each row has)."""
    key: Array = np.unique(columns[0], return_inverse=True)[1] if len(columns) > 1 else columns[0]
    for column in columns[1:]:
        distinct, at = np.unique(column, return_inverse=True)
        key = np.unique(key * len(distinct) + at, return_inverse=True)[1]
    unique: tuple[Array, Array, Array] = np.unique(key, return_index=True, return_inverse=True)
    return unique[1], unique[2]


class TextEqual:
    """Equality of two string columns, by codes: those of the one are looked up among those of the other."""

    def __init__(self) -> None:
        self._tables: WeakKeyDictionary[StringDictionary, WeakKeyDictionary[StringDictionary, _Found]]
        self._tables = WeakKeyDictionary()

    def __call__(self, a: Array, a_texts: StringDictionary, b: Array, b_texts: StringDictionary) -> Array:
        if a_texts is b_texts:
            return np.equal(a, b)
        by_b = self._tables.get(a_texts)
        if by_b is None:
            by_b = self._tables[a_texts] = WeakKeyDictionary()
        found = by_b.get(b_texts)
        if found is None:
            found = by_b[b_texts] = _Found()
        return np.equal(lookup(found.table(a_texts, b_texts), a), b)


class _Found:
    """For each code of one dictionary the code in another, -1 where that has not got the text (yet).

    Nothing is added to either: they belong to others, and would grow by what these do not hold.
    """

    __slots__ = ("_seen", "_table")

    def __init__(self) -> None:
        self._table: npt.NDArray[np.int32] = np.empty(0, np.int32)
        self._seen = 0  # entries of the other dictionary that have been looked at

    def table(self, a: StringDictionary, b: StringDictionary) -> Array:
        done = len(self._table)
        if self._seen != len(b):
            for code, text in enumerate(b.strings[self._seen :], self._seen):
                at = a.find(text)
                if 0 <= at < done:
                    self._table[at] = code
            self._seen = len(b)
        if done != len(a):
            new = np.fromiter((b.find(s) for s in a.strings[done:]), np.int32, len(a) - done)
            self._table = np.concatenate([self._table, new])
        return self._table


def recoded(codes: Array, dictionary: StringDictionary, target: StringDictionary) -> Array:
    """The same strings in ``target``, which gets no more than a batch's worth of texts from a large dictionary."""
    if dictionary is target:
        return codes
    if len(dictionary) <= _WHOLE:
        return dictionary.translated(codes, target)
    used, at = np.unique(codes, return_inverse=True)
    new: Array = target.encode(texts_at(dictionary, used))
    return new.take(at)
