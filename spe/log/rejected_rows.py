"""Rows that a source could not take, as its log and the sink of ``rejected`` have them (rule E8)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from spe.stream.batch import Batch, Column, Rows
from spe.stream.names import Kind
from spe.stream.schema import Schema
from spe.stream.strings import StringDictionary

#: What a sink gets of each, besides its number (``_id``) and the time at which it was read (``_time``).
REJECTED: Final = Schema.of(position="string!", reason="string!", text="string!")

#: Characters that are kept of a text; of all texts of one record, as it must fit into the log; and of the other parts.
TEXT_MAX: Final = 8_000
_TEXTS_MAX: Final = 2 << 20
_PART_MAX: Final = 500


class RejectedInput(NamedTuple):
    """One row.

    Attributes:
      row: its number among all rows of the reader, from 0.
      read_us: wall time at which it was read.
      position: where it is, as far as the reader knows: file and line, topic, partition and offset.
      reason: what was wrong, and what was expected.
      text: the row as it came.
    """

    row: int
    read_us: int
    position: str
    reason: str
    text: str


def rejected_batch(rows: Sequence[RejectedInput], after: int) -> Batch:
    """Rows, one at least, with the numbers that follow ``after``; texts are cut."""
    most = min(TEXT_MAX, _TEXTS_MAX // len(rows))
    texts = (
        [row.position[-_PART_MAX:] for row in rows],  # the end of a path says more than its beginning
        [row.reason[:_PART_MAX] for row in rows],
        [row.text[:most] for row in rows],
    )
    strings = StringDictionary()
    columns = tuple([Column(strings.encode([_unicode(t) for t in some]), None, strings) for some in texts])
    time = np.array([row.read_us for row in rows], np.int64)
    return Batch(Kind.STABLE, after, after + len(rows), None, Rows(time, time, columns))


def _unicode(text: str) -> str:
    """Half a surrogate pair, which stands for a byte that is no UTF-8, becomes an escape that can be written."""
    return text.encode("utf-8", "backslashreplace").decode()
