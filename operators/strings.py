"""Stores the strings of an operator's state as ids, and drops unused ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from operators import steps
from operators.columns import chosen, picked
from operators.ids import IndexArray
from operators.steps import StepPace, Steps, finished, portions
from operators.texts import TextIds
from spe.stream.batch import Column, Rows
from spe.stream.strings import Int32Array


class KeptStrings:
    """Maps strings to int32 ids, 0 for null, in stored rows and in aggregates.

    Streams change their dictionaries, and a dictionary of all stored strings could not grow in portions (rule B8).  A
    column of ids has no dictionary; only ids have 32 bits then.
    """

    __slots__ = ("_compact_at", "_ids")

    def __init__(self) -> None:
        self._ids = TextIds()
        self._compact_at = steps.SPARE

    @property
    def count(self) -> int:
        """One past the largest id."""
        return self._ids.count

    def reserve(self, more: int) -> Steps[None]:
        """Makes room for ``more`` strings, in portions."""
        yield from self._ids.reserve(more)

    def ids(self, column: Column) -> Int32Array:
        """Returns the ids of strings, after :meth:`reserve`; 0 for null."""
        return finished(self._ids_of(column))

    def _ids_of(self, column: Column) -> Steps[Int32Array]:
        ids = (yield from self._ids.ids_in_portions(column)).astype(np.int32)
        return ids if column.valid is None else np.where(column.valid, ids, np.int32(0))

    def adopt(self, rows: Rows) -> Steps[Rows]:
        """Returns the rows with ids in place of strings."""
        count = sum(c.dictionary is not None for c in rows.columns)
        if not count:
            return rows
        yield from self.reserve(count * len(rows))
        columns = []
        for column in rows.columns:
            if column.dictionary is not None:
                column = Column((yield from self._ids_of(column)), column.valid)
            columns.append(column)
        return rows.with_columns(tuple(columns))

    def column(self, ids: Int32Array) -> Column:
        """Returns the strings of ids; "" for 0."""
        codes, dictionary = self._ids.column(ids)
        return Column(codes, None, dictionary)

    def texts(self, ids: Int32Array) -> list[str]:
        """Returns the strings of ids as Python objects."""
        codes, dictionary = self._ids.column(ids)
        strings = dictionary.strings
        return [strings[code] for code in codes.tolist()]

    def given_back(self, rows: Rows, which: Sequence[int] | None = None) -> Steps[Rows]:
        """Returns the rows with strings in place of ids, in the columns ``which``, or in all."""
        columns = list(rows.columns)
        some = [at for at in (range(len(columns)) if which is None else which) if _has_ids(columns[at])]
        for at in some:
            codes, dictionary = yield from self._ids.column_in_portions(columns[at].values)
            columns[at] = Column(codes, columns[at].valid, dictionary)
        return rows.with_columns(tuple(columns)) if some else rows

    @property
    def crowded(self) -> bool:
        """Should :meth:`compacted` be called?"""
        return self._ids.count > self._compact_at

    def compacted(self, used: Sequence[Int32Array]) -> Steps[list[Int32Array] | None]:
        """Drops unused strings, if they are the majority; ``used`` has all ids in use.

        Returns the replacements of the arrays in ``used``; None: they stay.
        """
        count, pace = self._ids.count, StepPace(steps.INDEXED)
        is_live = np.zeros(count, np.bool_)
        for ids in used:
            for start, stop in portions(len(ids), steps.INDEXED):
                is_live[ids[start:stop]] = True
                if pace.is_through(stop - start):
                    yield
        is_live[0] = False
        live: IndexArray = yield from chosen(is_live)
        made: list[Int32Array] | None = None
        if 2 * len(live) < count:
            self._ids = yield from self._ids.compacted(live)
            numbers = np.zeros(count, np.int32)
            for start, stop in portions(len(live), steps.INDEXED):
                if start:
                    yield
                numbers[live[start:stop]] = np.arange(start + 1, stop + 1)
            made = []
            for ids in used:
                made.append((yield from picked([numbers], [ids])))
        self._compact_at = 2 * self._ids.count + steps.SPARE
        return made

    def compacted_rows(self, used: Sequence[Rows]) -> Steps[list[Rows]]:
        """Drops unused strings, where all ids in use are in rows; returns the replacements of the rows."""
        made = yield from self.compacted([c.values for rows in used for c in rows.columns if _has_ids(c)])
        if made is None:
            return list(used)
        ids = iter(made)
        return [
            rows.with_columns(tuple([Column(next(ids), c.valid) if _has_ids(c) else c for c in rows.columns]))
            for rows in used
        ]

    def snapshot(self) -> Mapping[str, Any] | None:
        """Returns the state by reference; None: there are no strings."""
        return self._ids.snapshot() if self._ids.count > 1 else None

    def load(self, state: Mapping[str, Any] | None) -> Steps[None]:
        """Restores a snapshot, in portions."""
        if state is not None:
            self._ids = yield from TextIds.restoring(state)
        self._compact_at = 2 * self._ids.count + steps.SPARE


def _has_ids(column: Column) -> bool:
    return column.dictionary is None and column.values.dtype == np.int32
