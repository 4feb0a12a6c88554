"""What every reader produces: rows in columns, in order of arrival."""

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

#: Rows that a reader takes at a time where each is an object of Python's, or waits for others.
CHUNK_ROWS: Final = 8192
#: The same where they are columns from the beginning: what a chunk costs besides its rows is paid less often.
COLUMN_ROWS: Final = 1 << 16
#: Bytes that a chunk with a cursor should have at most, as they come: it becomes one record of the log.
CHUNK_BYTES: Final = 8 << 20


class Malformed(NamedTuple):
    """An input row that is not taken: it could not be understood, or its event time may not be taken.

    Attributes:
      line: where it is, from 1; for Parquet the row number.
      reason: what was wrong and what was expected.
      text: the beginning of the row as it came.
      place: where it is, in words, if a number does not say it.
      refused: for its event time.
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
        """For JSON; without ``place`` where there is none."""
        found = self._asdict()
        del found["refused"]
        if not self.place:
            del found["place"]
        return found


class FilePart(NamedTuple):
    """A part of an input: bytes of a text, or row groups of Parquet, from ``first`` until ``until`` (None: its end)."""

    first: int
    until: int | None


class RowChunk:
    """Rows as they came.

    Attributes:
      first: number of the first input row of this chunk, from 0.
      taken: input rows that this chunk covers, malformed ones included.
      places: shape (n,), the place within the chunk of each good row; None when all are good.
      events: shape (n,), raw event times; None: the time of arrival.
      columns: one per attribute, of length n; strings in dictionaries that nobody adds to any more, because a chunk
        is made in another thread than the one that uses it.
      malformed: the rows that are missing.
      cursor: of a :class:`Resumable` reader, what it needs to go on behind this chunk; never empty.
      where: of a place within the chunk, where its row is, in words; None: its number says it.
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
        """Input rows of the whole reader that are done with once the first ``count`` good ones are."""
        if count == len(self):
            return self.first + self.taken
        return self.first + (count if self.places is None else int(self.places[count]))

    def select(self, mask: BoolArray) -> RowChunk:
        """Only the rows of ``mask``."""
        places = np.flatnonzero(mask) if self.places is None else self.places[mask]
        events = None if self.events is None else self.events[mask]
        columns = tuple([c.select(mask) for c in self.columns])
        return RowChunk(self.first, self.taken, events, columns, self.malformed, places, self.cursor, self.where)

    def missing(self) -> Int64Array:
        """Places of malformed rows; a line that was too long may have none."""
        rows = np.arange(self.taken)
        return rows[:0] if self.places is None else np.setdiff1d(rows, self.places)

    def refuse(self, mask: BoolArray, rows: list[Malformed]) -> RowChunk:
        """Without the rows of ``mask``, which join the malformed ones, in their order.

        Args:
          rows: they, as they are reported.
        """
        places = np.arange(self.taken) if self.places is None else self.places
        malformed = [*zip(self.missing().tolist(), self.malformed), *zip(places[mask].tolist(), rows)]
        without = [row for _, row in sorted(malformed, key=itemgetter(0))]
        chunk = self.select(~mask)
        chunk.malformed = without + self.malformed[len(without) - len(rows) :]
        return chunk

    def before_malformed(self) -> RowChunk:
        """What comes before the first malformed row, which stays on its list; the rest was not taken.

        Nothing of a chunk with a cursor, which stands behind all of its rows: they will come again.
        """
        if self.cursor:
            events = None if self.events is None else self.events[:0]
            bad = [row for row in self.malformed if not row.refused][:1]
            return RowChunk(self.first, 0, events, self.slice(0, 0), bad)
        if self.places is None:  # its place is behind all rows: a line that was too long
            return RowChunk(self.first, self.taken, self.events, self.columns, self.malformed[:1])
        gaps = np.flatnonzero(self.places != np.arange(len(self.places)))
        n = int(gaps[0]) if len(gaps) else len(self.places)
        events = None if self.events is None else self.events[:n]
        return RowChunk(self.first, n, events, self.slice(0, n), self.malformed[:1])

    def in_rows(self) -> RowChunk:
        """The same; malformed rows are said to be in rows, for their file has no lines."""
        self.malformed = [row._replace(place=f"row {row.line}") for row in self.malformed]
        return self

    def in_dictionary(self, target: StringDictionary) -> RowChunk:
        """The same rows with all strings in ``target``."""
        columns = tuple([c.in_dictionary(target) for c in self.columns])
        malformed, places = self.malformed, self.places
        return RowChunk(self.first, self.taken, self.events, columns, malformed, places, self.cursor, self.where)

    def stop_within(self, start: int, stop: int, most_bytes: int) -> int:
        """Where rows from ``start`` on are to end, at ``stop`` at the latest, to be no more bytes; one row at least."""
        if stop - start <= 1:
            return stop
        each = row_bytes(self.slice(start, stop))
        count = most_bytes // each if isinstance(each, int) else int(each.cumsum().searchsorted(most_bytes, "right"))
        return min(stop, start + max(1, count))

    def slice(self, start: int, stop: int) -> tuple[Column, ...]:
        """The columns of the good rows start … stop − 1."""
        return tuple([c.slice(start, stop) for c in self.columns])


class Replay(ABC):
    """A reader that can be read again from any row: a file or a generator."""

    #: Event time that the replay begins at, where that is known before the first row.
    origin_us: int | None = None

    @abstractmethod
    def chunks(self, skip: int) -> Iterator[RowChunk]:
        """The input from row ``skip`` on.  Blocks on disk; run off the loop.

        Raises:
          SpeError: the input is missing, or is not what the configuration says; names it.
        """

    def parts(self, size: int) -> list[FilePart]:
        """What can be read alone, in order; together it is the whole input.  Blocks, and raises as :meth:`chunks`.

        Args:
          size: bytes that each should have, about.
        """
        return [FilePart(0, None)]

    def part(self, one: FilePart) -> Iterator[RowChunk]:
        """One of the parts that :meth:`parts` gave; rows and lines are counted from its beginning."""
        return self.chunks(0)


class Live(ABC):
    """A reader of something that happens once.

    Attributes:
      continues: it counts its rows over restarts, and goes on behind those that the source's log has.
      away: why nothing can be read now, such as a server that does not answer; "" while all is well.  Meanwhile no
        silence counts (S7), and whoever waits for results is told.
      first_reading: rows that were there before the source are being read; no silence counts either.
    """

    continues: ClassVar[bool] = False
    away: str = ""
    first_reading: bool = False

    @abstractmethod
    async def read(self, env: Env, accept: Callable[[RowChunk], Awaitable[None]]) -> None:
        """Hands over rows as they come; returns when there will be no more.  ``accept`` waits when we are too fast."""


class Resumable(Live):
    """A live reader of a server that can be asked for what follows a position (rule S9).

    Each chunk has a cursor, any bytes that say where it ends.  It is written with its rows, as one record: so after
    each restart the reader goes on exactly behind what the log has.  Keep a chunk below CHUNK_ROWS and CHUNK_BYTES.

    Attributes:
      cursor: of the last chunk in the source's log, set before ``read``; "": it has none, so begin where the options
        say.
      folder: of the source on the disk of its process (``env.storage``).  What a reader must keep besides cursors goes
        into a folder of its own below it.
      ahead_us: the source refuses rows whose event time is further ahead of its clock; None: it takes them.
      now_us: the source's clock.
      admit: the chunk without the rows that the source refuses at a time of its clock, which are among its malformed
        ones then.  A reader that answers a sender asks before it does; for the others the source does when it takes a
        chunk.
    """

    cursor: bytes = b""
    now_us: Callable[[], int] = staticmethod(lambda: 0)
    admit: Callable[[RowChunk, int], RowChunk] = staticmethod(lambda chunk, now_us: chunk)
    ahead_us: int | None = None
    folder: PurePosixPath = PurePosixPath("sources")

    def durable(self, cursor: bytes) -> None:
        """All chunks up to the one with this cursor are on the source's disk, whatever happens.

        Only now may the server be told that they are not needed any more.  Called on the event loop after a sync, not
        for every chunk; must not block: remember the cursor, and acknowledge from a task of ``read``.  After a restart
        called with ``self.cursor`` as well, before ``read``.
        """
