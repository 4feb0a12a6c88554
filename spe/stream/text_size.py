"""How much text a row has, and may have."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from spe.errors import SpeError
from spe.stream.batch import Column, Int64Array, Rows

#: Text that one row may have, in UTF-8, where a text that stands in several columns counts once: what the string table
#: of a connection holds at a time.  Part of the protocol, and so the same in every process, as a setting could not be.
ROW_TEXT_BYTES: Final = 32 << 20

#: Most bytes of a character in UTF-8.
_WIDEST: Final = 4


class RowTooLarge(SpeError):
    """A row has more text than may be sent."""


def too_large(columns: Sequence[Column]) -> dict[int, int]:
    """Rows with more text than they may have: their number, and how much."""
    texts = [c for c in columns if c.dictionary is not None]
    if _WIDEST * _longest(texts) <= ROW_TEXT_BYTES:
        return {}
    found: dict[int, int] = {}
    for row in np.flatnonzero(sum(map(_text_bytes, texts)) > ROW_TEXT_BYTES).tolist():
        size = sum(map(_utf8_bytes, {_text(c, row) for c in texts}))
        if size > ROW_TEXT_BYTES:
            found[row] = size
    return found


def row_bytes(columns: Sequence[Column]) -> int | Int64Array:
    """Bytes of each row in a log at most, each text counted wherever it stands; a number: no row has more."""
    fixed = 2 * 8 + 9 * len(columns)  # two times; 8 bytes and a bit of a mask for each attribute
    texts = [c for c in columns if c.dictionary is not None]
    longest = _WIDEST * _longest(texts)
    return fixed + longest if longest <= _SHORT else fixed + sum(map(_text_bytes, texts))


def rows_within(rows: Rows, max_bytes: int) -> int:
    """How many rows from the first on have at most ``max_bytes`` as :attr:`Rows.nbytes` counts; at least one.

    Where the first alone has more, those behind it may have as many bytes again.
    """
    count, texts = len(rows), [c for c in rows.columns if c.text_bytes]
    if not texts:
        return max(1, count * max_bytes // rows.nbytes)
    fixed = (1 + (rows.t_max is not rows.time)) * rows.time.itemsize
    fixed += sum(c.values.itemsize + (c.valid is not None) for c in rows.columns)
    stop = max(1, max_bytes // (fixed + max(c.dictionary.longest for c in texts if c.dictionary is not None)))
    while True:  # more of them: what lies far behind the end is not looked at
        stop = min(count, 2 * stop)
        sizes = np.full(stop, fixed)
        for column in texts:
            _add_first(sizes, column.slice(0, stop))
        # Rows that share a text larger than all of it go together: one by one they would take it along each.
        found = int(sizes.cumsum().searchsorted(max_bytes + (sizes[0] if sizes[0] > max_bytes else 0), "right"))
        if found < stop or stop == count:
            return max(1, found)


def _add_first(sizes: Int64Array, column: Column) -> None:
    """Adds the bytes of each text where it first stands."""
    assert column.dictionary is not None
    codes, places = column.values, None
    if column.valid is not None:
        places = np.flatnonzero(column.valid)
        codes = codes[places]
    used, first = np.unique(codes, return_index=True)
    sizes[first if places is None else places[first]] += column.dictionary.sizes_of(used)


#: Rows with less text are not looked at one by one.
_SHORT: Final = 1 << 10


def refusal(size: int) -> str:
    """Why such a row is not taken."""
    return f"{size} bytes of text in one row; at most {ROW_TEXT_BYTES} can be sent"


def check_text(columns: Sequence[Column]) -> None:
    """Raises RowTooLarge."""
    for size in too_large(columns).values():
        raise RowTooLarge(refusal(size))


def _longest(texts: Sequence[Column]) -> int:
    """Characters that no row has more of."""
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
