"""Interfaces of readers, and the chunks that they produce: rows in columns, in order of arrival."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterator
from operator import itemgetter
from pathlib import PurePosixPath
from typing import Any, ClassVar, Final, NamedTuple

import numpy as np

from spe.runtime.env import Env
from spe.stream.batch import BoolArray, Column, Int64Array
from spe.stream.strings import StringDictionary
from spe.stream.text_size import row_bytes

#: Rows per chunk if each is a Python object, or waits for others.
CHUNK_ROWS: Final = 8192
#: Rows per chunk if they are columns from the beginning: the fixed cost of a chunk is paid less often.
COLUMN_ROWS: Final = 1 << 16
#: Bytes that a chunk with a cursor should have at most, as received: it becomes one record of the log.
CHUNK_BYTES: Final = 8 << 20


class Malformed(NamedTuple):
    """An input row that is not taken: it could not be parsed, or its event time is refused.

    Attributes:
      line: its line, from 1; for Parquet the row number.
      reason: what was wrong and what was expected.
      text: the beginning of the row as received.
      place: its place in words, if a number does not identify it.
      refused: its event time is refused.
    """

    line: int
    reason: str
    text: str
    place: str = ""
    refused: bool = False

    @property
    def where(self) -> str:
        return self.place or f"line {self.line}"

    def to_dict(self) -> dict[str, Any]:
        """Returns the fields for JSON; without ``place`` if it is empty."""
        fields = self._asdict()
        del fields["refused"]
        if not self.place:
            del fields["place"]
        return fields


class FilePart(NamedTuple):
    """A part of an input: bytes of a text, or row groups of Parquet, from ``first`` until ``until`` (None: its end)."""

    first: int
    until: int | None


class RowChunk:
    """Rows as received.

    Attributes:
      first: number of the first input row of this chunk, from 0.
      taken: input rows that this chunk covers, malformed ones included.
      places: shape (n,), the place within the chunk of each good row; None when all are good.
      events: shape (n,), raw event times; None: the time of arrival.
      columns: one per attribute, of length n; strings in dictionaries that no longer grow, because a chunk is made in
        another thread than the one that uses it.
      malformed: the rows that are missing.
      cursor: cursor of a :class:`Resumable` reader, to continue after this chunk; never empty.
      where: returns the place of a row in words, by its place within the chunk; None: the number identifies it.
    """

    __slots__ = ("columns", "cursor", "events", "first", "malformed", "places", "taken", "where")

    def __init__(
        self,
        first: int,
        taken: int,
        events: Int64Array | None,
        columns: tuple[Column, ...],
        malformed: list[Malformed],
        places: Int64Array | None = None,
        cursor: bytes = b"",
        where: Callable[[int], str] | None = None,
    ) -> None:
        self.first = first
        self.taken = taken
        self.events = events
        self.columns = columns
        self.malformed = malformed
        self.places = places
        self.cursor = cursor
        self.where = where

    def __len__(self) -> int:
        return self.taken if self.places is None else len(self.places)

    def consumed(self, count: int) -> int:
        """Returns the number of the reader's input rows that are accounted for with the first ``count`` good ones."""
        if count == len(self):
            return self.first + self.taken
        return self.first + (count if self.places is None else int(self.places[count]))

    def select(self, mask: BoolArray) -> RowChunk:
        """Returns only the rows of ``mask``."""
        places = np.flatnonzero(mask) if self.places is None else self.places[mask]
        events = None if self.events is None else self.events[mask]
        columns = tuple([c.select(mask) for c in self.columns])
        return RowChunk(self.first, self.taken, events, columns, self.malformed, places, self.cursor, self.where)

    def missing(self) -> Int64Array:
        """Returns the places of malformed rows; a line that was too long may have none."""
        rows = np.arange(self.taken)
        return rows[:0] if self.places is None else np.setdiff1d(rows, self.places)

    def refuse(self, mask: BoolArray, rows: list[Malformed]) -> RowChunk:
        """Moves the rows of ``mask`` to the malformed ones, in their order.

        Args:
          rows: reports of these rows.
        """
        places = np.arange(self.taken) if self.places is None else self.places
        malformed = [*zip(self.missing().tolist(), self.malformed), *zip(places[mask].tolist(), rows)]
        without = [row for _, row in sorted(malformed, key=itemgetter(0))]
        chunk = self.select(~mask)
        chunk.malformed = without + self.malformed[len(without) - len(rows) :]
        return chunk

    def before_malformed(self) -> RowChunk:
        """Returns the rows before the first malformed one, which stays on its list; the others are not taken.

        Returns no rows of a chunk with a cursor, which is valid only after all of its rows: they will be read again.
        """
        if self.cursor:
            events = None if self.events is None else self.events[:0]
            bad = [row for row in self.malformed if not row.refused][:1]
            return RowChunk(self.first, 0, events, self.slice(0, 0), bad)
        if self.places is None:  # its place is after all rows: a line that was too long
            return RowChunk(self.first, self.taken, self.events, self.columns, self.malformed[:1])
        gaps = np.flatnonzero(self.places != np.arange(len(self.places)))
        n = int(gaps[0]) if len(gaps) else len(self.places)
        events = None if self.events is None else self.events[:n]
        return RowChunk(self.first, n, events, self.slice(0, n), self.malformed[:1])

    def in_rows(self) -> RowChunk:
        """Returns the chunk with places of malformed rows in rows, because their file has no lines."""
        self.malformed = [row._replace(place=f"row {row.line}") for row in self.malformed]
        return self

    def in_dictionary(self, target: StringDictionary) -> RowChunk:
        """Returns the same rows with all strings in ``target``."""
        columns = tuple([c.in_dictionary(target) for c in self.columns])
        malformed, places = self.malformed, self.places
        return RowChunk(self.first, self.taken, self.events, columns, malformed, places, self.cursor, self.where)

    def stop_within(self, start: int, stop: int, most_bytes: int) -> int:
        """Returns the end of rows from ``start`` on, at most ``stop``, within a number of bytes; one row at least."""
        if stop - start <= 1:
            return stop
        each = row_bytes(self.slice(start, stop))
        count = most_bytes // each if isinstance(each, int) else int(each.cumsum().searchsorted(most_bytes, "right"))
        return min(stop, start + max(1, count))

    def slice(self, start: int, stop: int) -> tuple[Column, ...]:
        """Returns the columns of the good rows start … stop − 1."""
        return tuple([c.slice(start, stop) for c in self.columns])


class Replay(ABC):
    """A reader that can be read again from any row: a file or a generator."""

    #: Event time at which the replay begins, if known before the first row.
    origin_us: int | None = None

    def begin(self, start_us: int | None) -> None:
        """Takes the event time of the first row, if the reader makes up its rows and no start is configured."""
        return

    @abstractmethod
    def chunks(self, skip: int) -> Iterator[RowChunk]:
        """Yields the input from row ``skip`` on.  Blocks on disk; run off the loop.

        Raises:
          SpeError: the input is missing, or does not fit the configuration; names it.
        """

    def parts(self, size: int) -> list[FilePart]:
        """Returns parts that can be read independently, in order; together they are the whole input.  Blocks, and
        raises as :meth:`chunks`.

        Args:
          size: approximate bytes of each part.
        """
        return [FilePart(0, None)]

    def part(self, file_part: FilePart) -> Iterator[RowChunk]:
        """Yields a part that :meth:`parts` returned; rows and lines are counted from its beginning."""
        return self.chunks(0)


#: Takes a chunk; waits when its reader is too fast.
Accept = Callable[[RowChunk], Awaitable[None]]


class Live(ABC):
    """A reader of an input that exists only once.

    Attributes:
      continues: it counts its rows over restarts, and continues after the rows in the source's log.
      away: why nothing can be read now, such as a server that does not answer; "" otherwise.  While it is set, no
        silence counts (S7), and users who wait for results are told.
      first_reading: rows that existed before the source are being read; no silence counts either.
    """

    continues: ClassVar[bool] = False
    away: str = ""
    first_reading: bool = False

    @abstractmethod
    async def read(self, env: Env, accept: Accept) -> None:
        """Passes on rows as they come; returns at their end.  ``accept`` waits when the reader is too fast."""


class Resumable(Live):
    """A live reader of a server that can continue after a position (rule S9).

    Each chunk has a cursor: bytes that identify its end.  It is written with its rows, as one record: so after each
    restart the reader continues exactly after the rows in the log.  Keep a chunk below CHUNK_ROWS and CHUNK_BYTES.

    Attributes:
      cursor: cursor of the last chunk in the source's log, set before ``read``; b"": none, so begin as the options say.
      folder: folder of the source on the disk of its process (``env.storage``).  A reader that must store more than
        cursors uses its own folder below it.
      ahead_us: the source refuses rows whose event time is further ahead of its clock; None: it takes them.
      now_us: the source's clock.
      admit: returns a chunk without the rows that the source refuses at a time of its clock, which are then among its
        malformed ones.  A reader that answers a sender calls it before; for other readers the source does when it takes
        a chunk.
    """

    cursor: bytes = b""
    now_us: Callable[[], int] = staticmethod(lambda: 0)
    admit: Callable[[RowChunk, int], RowChunk] = staticmethod(lambda chunk, now_us: chunk)
    ahead_us: int | None = None
    folder: PurePosixPath = PurePosixPath("sources")

    def durable(self, cursor: bytes) -> None:
        """Notes that all chunks up to the one with this cursor are on the source's disk, whatever happens.

        Only now may the server be told that they are not needed any more.  Called on the event loop after a sync, not
        for every chunk; must not block: remember the cursor, and acknowledge from a task of ``read``.  After a restart
        called with ``self.cursor`` as well, before ``read``.
        """
