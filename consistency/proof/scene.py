"""Facts that the outputs of a run have in common, and the tables of one of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame, Row

from consistency.proof.recorded.received_output import ReceivedStream
from consistency.proof.report.model import FaultSpan
from consistency.proof.storage.files import TruthFiles
from spe.log.announced_settings import RecordedAnnouncement
from spe.plan.directory import Directory
from spe.plan.plan import Plan
from spe.stream.names import StreamId
from spe.stream.schema import Schema


@dataclass(frozen=True)
class Scene:
    """Facts that the outputs of a run have in common.

    Attributes:
      begun_us: wall time at which the sources began.
      duration_us: from then to the end.
      known_us: by output: tuple time up to which the logs of its sources tell the truth.
      data_until_us: by output: the largest tuple time of its sources, now and later; END_OF_TIME if it may grow.
      keys_from_logs: outputs in which each tentative key must be a true one (``measures.keys_from_logs``).
      announced: by client: its records of X and waits.
      failed, cause: as in ``decision.Circumstances``.
    """

    plan: Plan
    directory: Directory
    begun_us: int
    duration_us: int
    faults: Sequence[FaultSpan]
    known_us: Mapping[StreamId, int]
    data_until_us: Mapping[StreamId, int]
    announced: Mapping[str, Sequence[RecordedAnnouncement]]
    failed: bool
    cause: str
    keys_from_logs: frozenset[StreamId] = frozenset()


@dataclass(frozen=True)
class ReceivedTables:
    """Tables of one output at one client that need no truth.

    Attributes:
      parts, stretches: results of ``elements`` and ``episodes``.
      sums: a row of figures for each partition with any element.
      corrections: one row of figures over all stretches.
    """

    parts: DataFrame
    stretches: DataFrame
    sums: Sequence[Row]
    corrections: Row


@dataclass(frozen=True)
class Tables(ReceivedTables):
    """Tables of one output at one client.

    Attributes:
      true_count, true_last_us: tuples of the truth, and their largest time.
      files: of the truth, if its tuples were not reshaped and tasks can read them.
      truth, received: TRUTH (consistency.proof.recorded.elements) and the received tuples, of one shape.
      schema: of those tuples.
      mistyped: a sentence for each attribute that was received in another type than the truth has.
    """

    truth: DataFrame
    files: TruthFiles | None
    true_count: int
    true_last_us: int
    received: ReceivedStream
    schema: Schema
    mistyped: Sequence[str]

    @property
    def first_arrival_us(self) -> int:
        """Wall time of the first arrival; 0 where nothing arrived."""
        return min((s["first_arrival_us"] for s in self.sums), default=0)
