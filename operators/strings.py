"""Keeps the strings of kept rows in a dictionary of the operator, which forgets those that no row refers to."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from operators import steps
from operators.ids import StringIds
from operators.steps import StepPace, Steps, portions
from spe.stream.batch import Column, Rows
from spe.stream.strings import Int32Array, StringDictionary


class KeptStrings:
    """Brings rows into our dictionary before they are kept, so that rows kept at different times can be joined.

    Writing into a stream's own dictionary would let that grow by what others hold.
    """

    __slots__ = ("_compact_at", "_ids")

    def __init__(self) -> None:
        self._ids = StringIds()
        self._compact_at = steps.SPARE

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

    def share(self, rows: Rows) -> None:
        """Takes the dictionary of rows that were kept, as they were restored: they need not be coded anew."""
        for column in rows.columns:
            if column.dictionary is not None:
                self._ids = StringIds.sharing(column.dictionary)
                self._compact_at = 2 * len(column.dictionary) + steps.SPARE
                return

    def compacted(self, kept: Sequence[Rows]) -> Steps[list[Rows]]:
        """Recodes ``kept``, which are all rows that refer to our dictionary, to a new one with only what they use."""
        old, fresh = self._ids.dictionary, StringIds()
        used = np.zeros(len(old), np.bool_)
        pace = StepPace(steps.INDEXED)
        for rows in kept:
            for start, stop in portions(len(rows), steps.INDEXED):
                for column in rows.columns:
                    if column.dictionary is old:
                        used[column.values[start:stop]] = True
                if pace.is_through(stop - start):
                    yield
        codes = used.nonzero()[0]
        table = np.zeros(len(old), np.int32)
        for start, stop in portions(len(codes), steps.RELEASED):
            if start:
                yield
            some = codes[start:stop]
            table[some] = fresh.dictionary.encode([old.strings[c] for c in some.tolist()])
        out = []
        for rows in kept:
            out.append((yield from _recoded(rows, old, table, fresh.dictionary, pace)))
        self._ids = fresh
        self._compact_at = 2 * len(fresh.dictionary) + steps.SPARE
        return out


def _recoded(
    rows: Rows, old: StringDictionary, table: Int32Array, new: StringDictionary, pace: StepPace
) -> Steps[Rows]:
    columns = []
    for column in rows.columns:
        if column.dictionary is old:
            values = np.empty(len(rows), np.int32)
            for start, stop in portions(len(rows), steps.INDEXED):
                values[start:stop] = table.take(column.values[start:stop])
                if pace.is_through(stop - start):
                    yield
            column = Column(values, column.valid, new)
        columns.append(column)
    return rows.with_columns(tuple(columns))
