"""Input of a Spark task from an output: excerpts, which it fetches itself, and changes, which the driver has."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from consistency.proof.recorded.records import CHANGES, change_batches, stable_batches
from replicas.client.background import items_of
from replicas.client.buffer import Numbered
from replicas.client.excerpt import Excerpt, excerpt
from replicas.spark.live import LiveOutput
from spe.plan.directory import Directory
from spe.stream.batch import Batch, Element, Undo
from spe.stream.strings import StringPool
from spe.wire.codec import decode_standalone, encode_standalone

#: Sequence numbers between two changes: a change may become as many elements when it is read again.
APART: Final = 1 << 20


@dataclass(frozen=True)
class Carried:
    """An element that travels with the task.

    Attributes:
      data: as in a log.
    """

    sequence: int
    arrived_us: int
    data: bytes


@dataclass(frozen=True)
class Fetched:
    """An excerpt in mode ``changes``, behind an undo: the changes of an earlier session are no longer known."""

    sequence: int
    arrived_us: int
    what: Excerpt


class Piece(InputPartition):
    """One partition of a micro-batch: an excerpt, or elements and excerpts in order.

    Attributes:
      directory: has the nodes that serve excerpts; None: there are no excerpts.
    """

    def __init__(
        self, partition: int, parts: tuple[Excerpt | Carried | Fetched, ...], directory: Directory | None = None
    ) -> None:
        super().__init__((partition, parts))
        self.partition = partition
        self.parts = parts
        self.directory = directory


def piece_of(output: LiveOutput, partition: int, changes: list[Numbered]) -> Piece:
    """Returns the changes of a partition that the driver has."""
    schema = output.table.schema
    parts = tuple(
        Carried(n * APART, change.arrived_us, encode_standalone(change.element, schema)) for n, change in changes
    )
    return Piece(partition, parts)


def read_piece(output: LiveOutput, piece: Piece) -> Iterator[pa.RecordBatch]:
    """Reads a piece on an executor.  Raises SpeError."""
    if piece.directory is not None:
        output = output.by(piece.directory)
    if output.what.mode == CHANGES:
        return change_batches(output.table, piece.partition, _elements(output, piece))
    return stable_batches(output.table, piece.partition, _fetched(output, piece))


def _fetched(output: LiveOutput, piece: Piece) -> Iterator[Batch]:
    for part in piece.parts:
        assert isinstance(part, Excerpt)
        yield from _batches(output, part)


def _elements(output: LiveOutput, piece: Piece) -> Iterator[tuple[int, int, Element]]:
    pool = StringPool()
    for part in piece.parts:
        if isinstance(part, Carried):
            yield part.sequence, part.arrived_us, decode_standalone(part.data, output.table.schema, pool)
        elif isinstance(part, Fetched):
            yield part.sequence, part.arrived_us, Undo(part.what.from_id)
            for after, batch in enumerate(_batches(output, part.what), part.sequence + 1):
                yield after, part.arrived_us, batch


def _batches(output: LiveOutput, what: Excerpt) -> Iterator[Batch]:
    if what.from_id >= what.upto_id:
        return iter(())
    env, token, patience = output.env(), output.token(), output.what.patience
    return items_of(
        lambda: excerpt(env, output.plan, output.directory, output.what.client, what, patience_s=patience, token=token)
    )
