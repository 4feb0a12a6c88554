"""Rows of an output's log without the texts of other rows."""

from __future__ import annotations

from typing import Final
from weakref import WeakKeyDictionary

from spe.stream.batch import Batch, Column
from spe.stream.strings import SHORT_TEXT, StringDictionary, StringPool

#: A dictionary is kept with the rows where its texts are at most so many times those of the rows.
_TIMES: Final = 4


class OwnTexts:
    """Brings rows into a dictionary of the log where theirs has much else.

    A dictionary of the input has the texts of all its rows, and lives as long as one of them: a filter that lets one
    in a thousand pass would keep a thousand times what is counted.  Where most rows pass, nothing is copied.
    """

    __slots__ = ("_pool", "_taken")

    def __init__(self) -> None:
        self._pool = StringPool()
        #: Bytes of text that came of each dictionary.
        self._taken: WeakKeyDictionary[StringDictionary, int] = WeakKeyDictionary()

    def freed(self, batch: Batch) -> Batch:
        """The same tuples."""
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
