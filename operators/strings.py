"""Strings of rows that are kept: in one dictionary of the operator's own, which forgets what no row refers to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from operators.ids import StringIds
from spe.stream.batch import Column, Rows
from spe.stream.strings import StringDictionary

#: Texts that may be unused beyond half of all.
_SPARE_TEXTS: Final = 4096


class KeptStrings:
    """Brings rows into our dictionary before they are kept, so that rows kept at different times can be joined.

    Writing into a stream's own dictionary would let that grow by what others hold.
    """

    __slots__ = ("_compact_at", "_ids")

    def __init__(self) -> None:
        self._ids = StringIds()
        self._compact_at = _SPARE_TEXTS

    def adopt(self, rows: Rows) -> Rows:
        """The same rows, strings in our dictionary."""
        if all(c.dictionary is None for c in rows.columns):
            return rows
        return rows.with_columns(tuple([c if c.dictionary is None else self._ids.adopt(c) for c in rows.columns]))

    @property
    def dictionary(self) -> StringDictionary:
        return self._ids.dictionary

    @property
    def crowded(self) -> bool:
        """Is it time for :meth:`compacted`?"""
        return len(self._ids.dictionary) > self._compact_at

    def compacted(self, kept: Sequence[Rows]) -> list[Rows]:
        """``kept``, all rows that refer to our dictionary, in a new one that holds only what they use."""
        old = self._ids.dictionary
        used = np.zeros(len(old), np.bool_)
        for rows in kept:
            for column in rows.columns:
                if column.dictionary is old:
                    used[column.values] = True
        codes = used.nonzero()[0]
        self._ids = StringIds()
        table = np.zeros(len(old), np.int32)
        table[codes] = self._ids.dictionary.encode([old.strings[c] for c in codes.tolist()])
        self._compact_at = 2 * len(self._ids.dictionary) + _SPARE_TEXTS
        return [_recoded(rows, old, table, self._ids.dictionary) for rows in kept]


def _recoded(rows: Rows, old: StringDictionary, table: np.ndarray, new: StringDictionary) -> Rows:
    def recode(column: Column) -> Column:
        return Column(table.take(column.values), column.valid, new) if column.dictionary is old else column

    return rows.with_columns(tuple([recode(c) for c in rows.columns]))
