"""Rejected rows of a source, as its log and the sink of ``rejected`` store them (rule E8)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from spe.stream.batch import Batch, Column, Rows
from spe.stream.names import Kind
from spe.stream.schema import Schema
from spe.stream.strings import StringDictionary

#: Columns of a rejected row in a sink, besides its number (``_id``) and the time at which it was read (``_time``).
REJECTED: Final = Schema.of(position="string!", reason="string!", text="string!")

#: Limits in characters: one text, all texts of a record (it must fit into the log), and each other column.
TEXT_MAX: Final = 8_000
_TEXTS_MAX: Final = 2 << 20
_PART_MAX: Final = 500


class RejectedInput(NamedTuple):
    """A rejected row.

    Attributes:
      row: its number among all rows of the reader, from 0.
      read_us: wall time at which it was read.
      position: its place as known to the reader: file and line, or topic, partition and offset.
      reason: the mistake, and the expected form.
      text: the row as received.
    """

    row: int
    read_us: int
    position: str
    reason: str
    text: str


def rejected_batch(rows: Sequence[RejectedInput], after: int) -> Batch:
    """Makes a batch of one or more rows, with the numbers that follow ``after``; long texts are cut."""
    most = min(TEXT_MAX, _TEXTS_MAX // len(rows))
    texts = (
        [row.position[-_PART_MAX:] for row in rows],  # the end of a path is more useful than its beginning
        [row.reason[:_PART_MAX] for row in rows],
        [row.text[:most] for row in rows],
    )
    strings = StringDictionary()
    columns = tuple([Column(strings.encode([_unicode(t) for t in some]), None, strings) for some in texts])
    time = np.array([row.read_us for row in rows], np.int64)
    return Batch(Kind.STABLE, after, after + len(rows), None, Rows(time, time, columns))


def _unicode(text: str) -> str:
    """Escapes lone surrogates, which stand for bytes that are no UTF-8, so that the text can be encoded."""
    return text.encode("utf-8", "backslashreplace").decode()
