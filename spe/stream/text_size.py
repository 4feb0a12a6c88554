"""The size of a row's text, and its limit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from spe.errors import SpeError
from spe.stream.batch import Column, Int64Array, Rows

#: Most text of one row, in UTF-8; a text in several columns counts once: the capacity of a connection's string table.
#: Part of the protocol, so it must be equal in all processes, and is not a setting.
ROW_TEXT_BYTES: Final = 32 << 20

#: Most bytes of a character in UTF-8.
_WIDEST: Final = 4


class RowTooLarge(SpeError):
    """A row has more text than can be sent."""


def too_large(columns: Sequence[Column]) -> dict[int, int]:
    """Returns rows with more text than allowed: their numbers and sizes."""
    texts = [c for c in columns if c.dictionary is not None]
    if _WIDEST * _longest(texts) <= ROW_TEXT_BYTES:
        return {}
    sizes: dict[int, int] = {}
    for row in np.flatnonzero(sum(map(_text_bytes, texts)) > ROW_TEXT_BYTES).tolist():
        size = sum(map(_utf8_bytes, {_text(c, row) for c in texts}))
        if size > ROW_TEXT_BYTES:
            sizes[row] = size
    return sizes


def row_bytes(columns: Sequence[Column]) -> int | Int64Array:
    """Upper bound of each row's bytes in a log, every occurrence of a text counted; or a single bound for all rows."""
    fixed = 2 * 8 + 9 * len(columns)  # two times; 8 bytes and a bit of a mask for each attribute
    texts = [c for c in columns if c.dictionary is not None]
    longest = _WIDEST * _longest(texts)
    return fixed + longest if longest <= _SHORT else fixed + sum(map(_text_bytes, texts))


def rows_within(rows: Rows, max_bytes: int) -> int:
    """Number of rows from the first on that fit ``max_bytes`` of :attr:`Rows.nbytes`; at least one.

    If the first alone is larger, the rows after it may have ``max_bytes`` in addition.
    """
    count, texts = len(rows), [c for c in rows.columns if c.text_bytes]
    if not texts:
        return max(1, count * max_bytes // rows.nbytes)
    fixed = (1 + (rows.t_max is not rows.time)) * rows.time.itemsize
    fixed += sum(c.values.itemsize + (c.valid is not None) for c in rows.columns)
    stop = max(1, max_bytes // (fixed + max(c.dictionary.longest for c in texts if c.dictionary is not None)))
    while True:  # in growing steps: rows far behind the end are not examined
        stop = min(count, 2 * stop)
        sizes = np.full(stop, fixed)
        for column in texts:
            _add_first(sizes, column.slice(0, stop))
        # Rows that share a text larger than max_bytes stay together: one by one, each would repeat it.
        fitting = int(sizes.cumsum().searchsorted(max_bytes + (sizes[0] if sizes[0] > max_bytes else 0), "right"))
        if fitting < stop or stop == count:
            return max(1, fitting)


def _add_first(sizes: Int64Array, column: Column) -> None:
    """Adds the bytes of each text at its first occurrence."""
    assert column.dictionary is not None
    codes, places = column.values, None
    if column.valid is not None:
        places = np.flatnonzero(column.valid)
        codes = codes[places]
    used, first = np.unique(codes, return_index=True)
    sizes[first if places is None else places[first]] += column.dictionary.sizes_of(used)


#: Rows with less text are not measured individually.
_SHORT: Final = 1 << 10


def refusal(size: int) -> str:
    """Error text for a row with too much text."""
    return f"{size} bytes of text in one row; at most {ROW_TEXT_BYTES} can be sent"


def check_text(columns: Sequence[Column]) -> None:
    """Raises RowTooLarge for rows with too much text."""
    for size in too_large(columns).values():
        raise RowTooLarge(refusal(size))


def _longest(texts: Sequence[Column]) -> int:
    """Upper bound of the characters of a row."""
    return sum(c.dictionary.longest for c in texts if c.dictionary is not None)


def _text_bytes(column: Column) -> Int64Array:
    """UTF-8 bytes of each row's text."""
    assert column.dictionary is not None
    codes = column.values if column.valid is None else column.values[column.valid]
    used, places = np.unique(codes, return_inverse=True)
    strings = column.dictionary.strings
    sizes = np.array([_utf8_bytes(strings[code]) for code in used.tolist()], np.int64)
    if column.valid is None:
        return sizes.take(places)
    out = np.zeros(len(column.values), np.int64)
    if len(used):
        out[column.valid] = sizes.take(places)
    return out


def _utf8_bytes(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass"))


def _text(column: Column, row: int) -> str:
    assert column.dictionary is not None
    if column.valid is not None and not column.valid[row]:
        return ""
    text: str = column.dictionary.strings[column.values[row]]
    return text
