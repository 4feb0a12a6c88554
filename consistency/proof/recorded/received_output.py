"""The recorded output of one client, read on demand.

A right stream is judged by what NumPy makes of its recording (``records.summaries``): Spark reads only tentative
tuples, and tuples whose digests differ from the truth.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from threading import Lock
from typing import TYPE_CHECKING, Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from consistency.proof.comparing.digests import BLOCK, block_digests, summed
from consistency.proof.recorded.elements import STABLE, TENTATIVE
from consistency.proof.recorded.records import TENTATIVE_ROWS, Wanted, WantedRecords
from consistency.proof.storage.arrow import spark_schema
from consistency.proof.storage.tables import Keep, OfBatches, on_disk
from spe.stream.batch import Batch, Element
from spe.stream.names import Kind
from spe.stream.schema import Schema

if TYPE_CHECKING:
    import pyarrow as pa

#: Maximum number of records and blocks that are selected by number; beyond it everything is read.
_SOME: Final = 10_000


class ReceivedStream:
    """The output as frames.

    Attributes:
      records: a row per record; see ``elements``.
    """

    def __init__(self, records: DataFrame, rows: DataFrame) -> None:
        self.records = records
        self._rows = rows

    @property
    def rows(self) -> DataFrame:
        """RECEIVED (consistency.proof.recorded.elements)."""
        return self._rows

    def tentative(self, each: OfBatches, made: pa.Schema) -> DataFrame:
        """Applies ``each`` to batches of TENTATIVE_ROWS within tasks.

        Args:
          made: the schema of the result.
        """
        return _through(self.rows.where(F.col("kind") == TENTATIVE), each, made)

    def of_records(self, which: DataFrame) -> DataFrame:
        """Returns the rows of some records; ``which`` has ``partition, sequence``."""
        return self.rows.join(which, ["partition", "sequence"], how="left_semi")

    def of_blocks(self, which: DataFrame) -> DataFrame:
        """Returns the rows of stable tuples in some blocks of places; ``which`` has ``partition, block``."""
        block = F.floor(F.col("id") / BLOCK)
        stable = self.rows.where(F.col("kind") == STABLE).withColumn("block", block)
        return stable.join(which, ["partition", "block"], how="left_semi").drop("block")

    def digests(self, schema: Schema) -> DataFrame:
        """Returns ``partition, block, our_count, our_digest`` of the stable tuples."""
        stable = self.rows.where(F.col("kind") == STABLE).withColumn("place", F.col("id"))
        return block_digests(stable, "tuple", "time_us", schema, "our")

    def reshaped(self, shape: Callable[[DataFrame], DataFrame]) -> ReceivedStream:
        """Returns the output with tuples of another shape."""
        return ReceivedStream(self.records, shape(self.rows))


class ReceivedRecording(ReceivedStream):
    """Reads the recording on demand, and no more of it than needed."""

    def __init__(
        self,
        summary: DataFrame,
        read: Callable[[Wanted | None], DataFrame],
        through: Callable[[Wanted, OfBatches, pa.Schema], DataFrame],
        keep: Keep,
        *,
        at_once: bool = False,
    ) -> None:
        """
        Args:
          summary: SUMMARY (consistency.proof.recorded.records).
          read: returns RECEIVED, or the wanted part of it.
          through: applies a function to TENTATIVE_ROWS of the wanted part, within tasks.
          keep: stores all rows, where they are needed.
          at_once: store them now, since more will arrive later.
        """
        summary = on_disk(summary)
        summary.count()  # now: source logs that are read later contain the cause of all of it
        self.records = records_of(summary)
        self._blocks = summary.where(F.col("kind").isNull()).select("partition", "block", "count", "digest")
        self._read = read
        self._through = through
        self._keep = keep
        self._all: DataFrame | None = None
        self._lock = Lock()  # several threads may ask, and the table has one name
        if at_once:
            self._all = keep("received", read(None))

    @property
    def rows(self) -> DataFrame:
        with self._lock:
            if self._all is None:
                self._all = self._keep("received", self._read(None))
            return self._all

    def tentative(self, each: OfBatches, made: pa.Schema) -> DataFrame:
        if self._all is not None:
            return super().tentative(each, made)
        some = _numbers(self.records.where(F.col("kind") == TENTATIVE), "sequence")
        wanted = _is_tentative if some is None else WantedRecords(some)
        return self._through(wanted, each, made)

    def of_records(self, which: DataFrame) -> DataFrame:
        some = None if self._all is not None else _numbers(which, "sequence")
        return super().of_records(which) if some is None else self._read(WantedRecords(some))

    def of_blocks(self, which: DataFrame) -> DataFrame:
        some = None if self._all is not None else _numbers(which, "block")
        if some is None:
            return super().of_blocks(which)
        return ReceivedStream(self.records, self._read(_Blocks(some))).of_blocks(which)

    def digests(self, schema: Schema) -> DataFrame:
        return summed(self._blocks, "our")


def records_of(summary: DataFrame) -> DataFrame:
    """Selects the rows of SUMMARY (consistency.proof.recorded.records) that describe records."""
    return summary.where(F.col("kind").isNotNull()).drop("block", "digest")


def _numbers(which: DataFrame, name: str) -> Mapping[int, frozenset[int]] | None:
    """Returns the numbers in a column, by partition; None: too many."""
    rows = which.select("partition", name).limit(_SOME + 1).collect()
    if len(rows) > _SOME:
        return None
    by_partition: dict[int, set[int]] = {}
    for row in rows:
        by_partition.setdefault(row["partition"], set()).add(row[name])
    return {partition: frozenset(numbers) for partition, numbers in by_partition.items()}


def _through(rows: DataFrame, each: OfBatches, made: pa.Schema) -> DataFrame:
    return rows.select(*TENTATIVE_ROWS).mapInArrow(each, spark_schema(made))


def _is_tentative(_partition: int, _sequence: int, element: Element) -> bool:
    return isinstance(element, Batch) and element.kind is Kind.TENTATIVE


class _Blocks:
    """Selects elements that have a stable tuple in one of these blocks, by partition."""

    def __init__(self, numbers: Mapping[int, frozenset[int]]) -> None:
        self._numbers = numbers

    def __call__(self, partition: int, _sequence: int, element: Element) -> bool:
        if not isinstance(element, Batch) or element.kind is not Kind.STABLE or not len(element):
            return False
        ids = element.row_ids()
        known = self._numbers.get(partition, frozenset())
        first, last = int(ids.min()) // BLOCK, int(ids.max()) // BLOCK
        return any(block in known for block in range(first, last + 1))
