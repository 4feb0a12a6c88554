"""String functions on columns: computed once per distinct text, and cached as long as the text's dictionary lives.

The caches refer to dictionaries weakly and hold one entry per entry of a living dictionary; new texts go into
dictionaries from a :class:`StringPool`.  So memory stays bounded even for a stream of ever new strings.
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
#: Result of a string function on columns: values, which rows are not null, the dictionary of a string result.
Made = tuple[Array, npt.NDArray[np.bool_] | None, StringDictionary | None]

#: Size of dictionaries up to which translations to another dictionary are cached as a whole.
_WHOLE: Final = 4096


def lookup(table: Array, codes: Array) -> Array:
    """Returns ``table[codes]``; codes under a null may be out of range, and then give any value."""
    if len(table) == 0:
        return np.zeros(len(codes), table.dtype)
    return table.take(codes, mode="clip")


def texts_at(dictionary: StringDictionary, codes: Array) -> list[str]:
    """Returns the texts of codes; codes out of range give any text."""
    texts = dictionary.strings
    if not texts:
        return [""] * len(codes)
    last = len(texts) - 1
    return [texts[min(max(c, 0), last)] for c in codes.tolist()]


class Results:
    """Turns a list of Python results into an array, and a mask of those that are not null."""

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
    """Applies a function of one string, by a table per dictionary, which grows with it.

    Args:
      function: total function; returns None for null if ``partial``.
      type_: type of its result.
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
        """Extends the table by the dictionary's new entries."""
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
    """Applies a function of several columns, or from numbers to strings, once per distinct row of each batch.

    Args:
      function: takes one Python value per column.
      type_: type of its result.
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
    """Returns (a row of each distinct combination, the combination of each row)."""
    key: Array = np.unique(columns[0], return_inverse=True)[1] if len(columns) > 1 else columns[0]
    for column in columns[1:]:
        distinct, at = np.unique(column, return_inverse=True)
        key = np.unique(key * len(distinct) + at, return_inverse=True)[1]
    unique: tuple[Array, Array, Array] = np.unique(key, return_index=True, return_inverse=True)
    return unique[1], unique[2]


class TextEqual:
    """Compares two string columns by codes, with a table from one dictionary to the other."""

    def __init__(self) -> None:
        self._tables: WeakKeyDictionary[StringDictionary, WeakKeyDictionary[StringDictionary, _CodeTable]]
        self._tables = WeakKeyDictionary()

    def __call__(self, a: Array, a_texts: StringDictionary, b: Array, b_texts: StringDictionary) -> Array:
        if a_texts is b_texts:
            return np.equal(a, b)
        by_b = self._tables.get(a_texts)
        if by_b is None:
            by_b = self._tables[a_texts] = WeakKeyDictionary()
        table = by_b.get(b_texts)
        if table is None:
            table = by_b[b_texts] = _CodeTable()
        return np.equal(lookup(table.table(a_texts, b_texts), a), b)


class _CodeTable:
    """For each code of one dictionary the code in another, -1 if that lacks the text (so far).

    Neither dictionary is changed: they belong to other objects, and would grow by unrelated texts.
    """

    __slots__ = ("_checked", "_table")

    def __init__(self) -> None:
        self._table: npt.NDArray[np.int32] = np.empty(0, np.int32)
        self._checked = 0  # number of checked entries of the other dictionary

    def table(self, a: StringDictionary, b: StringDictionary) -> Array:
        done = len(self._table)
        if self._checked != len(b):
            for code, text in enumerate(b.strings[self._checked :], self._checked):
                at = a.find(text)
                if 0 <= at < done:
                    self._table[at] = code
            self._checked = len(b)
        if done != len(a):
            new = np.fromiter((b.find(s) for s in a.strings[done:]), np.int32, len(a) - done)
            self._table = np.concatenate([self._table, new])
        return self._table


def recoded(codes: Array, dictionary: StringDictionary, target: StringDictionary) -> Array:
    """Translates codes to ``target``; a large dictionary adds no more texts to it than a batch has."""
    if dictionary is target:
        return codes
    if len(dictionary) <= _WHOLE:
        return dictionary.translated(codes, target)
    used, at = np.unique(codes, return_inverse=True)
    new: Array = target.encode(texts_at(dictionary, used))
    return new.take(at)
