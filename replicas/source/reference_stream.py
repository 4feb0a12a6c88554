"""The stream of a replayed source as a reference run reads it: without log, network or clock."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from replicas.connectors import Replay, RowChunk, open_reader
from replicas.source.admission import malformed_error
from replicas.source.stamping import Stamper, admitted
from spe.errors import SpeError
from spe.plan.plan import Source
from spe.stream.batch import Boundary, Element
from spe.stream.names import Kind
from spe.stream.strings import StringPool
from spe.stream.times import BEFORE_TIME, END_OF_TIME

#: Where a generator without a `start` begins in a reference: 2024-01-01, so that two references are equal.
REFERENCE_START_US: Final = 1_704_067_200_000_000


@dataclass
class Intake:
    """Counts of the rows of an input.

    Attributes:
      rows: rows read, including malformed and refused ones.
      first_malformed: ``line N: reason``; "" if there is none.
      late_by_us: as in :class:`Stamper`.
    """

    rows: int = 0
    malformed: int = 0
    first_malformed: str = ""
    refused: int = 0
    late: int = 0
    late_by_us: int = 0

    @property
    def lost(self) -> bool:
        """Whether there were rows, and none of them was taken."""
        return 0 < self.rows == self.malformed + self.refused

    def took(self, chunk: RowChunk, refused: int, stamper: Stamper) -> None:
        """Counts a chunk as it came from the reader."""
        self.rows += len(chunk) + len(chunk.malformed)
        self.malformed += len(chunk.malformed)
        if chunk.malformed and not self.first_malformed:
            self.first_malformed = f"line {chunk.malformed[0].line}: {chunk.malformed[0].reason}"
        self.refused += refused
        self.late, self.late_by_us = stamper.late_count, stamper.late_by_us


def reference_elements(source: Source, intake: Intake | None = None) -> Iterator[Element]:
    """Yields the stream of a replayed source at full speed, without log, network or clock, stamped as in a live run.

    A generator without a `start` begins at REFERENCE_START_US; in a run it begins when it is started.

    Args:
      intake: takes the counts.

    Raises:
      SpeError: the source is live, or its stamps depend on the clock: its stream is in its log only (read_source_log).
        Or a row is malformed and the configuration says ``on_malformed: stop``; the rows before it have been yielded.
    """
    reader = open_reader(source, REFERENCE_START_US)
    if not isinstance(reader, Replay):
        raise SpeError(f"source {source.stream} is live: its stream is in its log only")
    stamper = Stamper(disorder_us=source.disorder_us, boundary_us=source.boundary_us)
    pool = StringPool()
    bound = BEFORE_TIME
    for chunk in reader.chunks(0):
        stops = bool(chunk.malformed) and source.on_malformed == "stop"
        if stops:
            chunk = chunk.before_malformed()
        if chunk.events is None:
            raise SpeError(f"source {source.stream} is stamped by arrival: its stream is in its log only")
        mask = admitted(chunk.events, 0, None)
        taken = (chunk if mask is None else chunk.select(mask)).in_dictionary(pool.current())
        if len(taken) and taken.events is not None:
            yield stamper.stamp(taken.events, taken.columns)
            if stamper.bound_us > bound:
                bound = stamper.bound_us
                yield Boundary(Kind.STABLE, bound, stamper.last_id)
        if intake is not None:
            intake.took(chunk, len(chunk) - len(taken), stamper)
        if stops:
            raise malformed_error(source, chunk.malformed[0])
    yield Boundary(Kind.STABLE, END_OF_TIME, stamper.last_id)
