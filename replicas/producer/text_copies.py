"""Rows of an output's log without the texts of other rows."""

from __future__ import annotations

from typing import Final
from weakref import WeakKeyDictionary

from spe.stream.batch import Batch, Column
from spe.stream.strings import SHORT_TEXT, StringDictionary, StringPool

#: Rows keep their dictionary while its texts are at most this many times those of the rows.
_TIMES: Final = 4


class OwnTexts:
    """Copies rows into a dictionary of the log if theirs has many other texts.

    A dictionary of the input has the texts of all its rows, and lives as long as one of them: a filter that passes one
    row in a thousand would keep a thousand times the counted memory.  Where most rows pass, nothing is copied.
    """

    __slots__ = ("_pool", "_taken")

    def __init__(self) -> None:
        self._pool = StringPool()
        #: Bytes of text that were taken from each dictionary.
        self._taken: WeakKeyDictionary[StringDictionary, int] = WeakKeyDictionary()

    def freed(self, batch: Batch) -> Batch:
        """Returns the same tuples, with texts copied where needed."""
        for column in batch.rows.columns:
            if column.dictionary is not None and column.dictionary.longest > SHORT_TEXT:
                break
        else:
            return batch
        rows = batch.rows
        columns = tuple([self._column(c) for c in rows.columns])
        return Batch(batch.kind, batch.from_id, batch.upto_id, batch.ids, rows.with_columns(columns))

    def _column(self, column: Column) -> Column:
        dictionary = column.dictionary
        if dictionary is None or dictionary.longest <= SHORT_TEXT:
            return column
        taken = self._taken[dictionary] = self._taken.get(dictionary, 0) + column.text_bytes
        return column if dictionary.text_bytes <= _TIMES * taken else column.in_dictionary(self._pool.current())
