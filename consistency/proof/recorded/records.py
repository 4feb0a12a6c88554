"""Logs and recordings as tables: their files and columns, and how one stretch of records becomes Arrow batches.

    source log      _id, _time_us, the attributes
    recording       stable: _partition, _id, _time_us, the attributes
                    changes: _partition, _sequence, _row, _arrived_us, _kind, _id, _time_us, the attributes
                    summary: a row per record, and digests of stable tuples (SUMMARY)

``_sequence`` counts the records of a partition and ``_row`` the tuples in one; ``_kind`` is one of KINDS.  ``_id`` is
the tuple's, or the last one that an undo leaves or a stable boundary covers; ``_time_us``
the tuple's or the boundary's.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from consistency.proof.comparing.digests import Digester
from consistency.proof.storage.arrow import ToArrow, arrow_fields
from spe.errors import LogCorrupt, SpeError
from spe.log.format import HEADER_BYTES, Position, Record, RecordScan, Segment, header_fault
from spe.log.recording import decode_recorded
from spe.log.source_log import check_record, decode_source_batch, decode_source_state
from spe.stream.batch import Batch, Boundary, Column, Element, RecDone, Rows, Undo, concat_rows
from spe.stream.names import Kind
from spe.stream.schema import Schema
from spe.stream.strings import StringPool

STABLE: Final = "stable"
CHANGES: Final = "changes"
KINDS: Final = ("stable", "tentative", "stable_boundary", "tentative_boundary", "undo", "rec_done")
#: Rows of one Arrow batch.
BATCH_ROWS: Final = 65_536

_LONG, _INT, _TEXT = pa.int64(), pa.int32(), pa.string()
_SOURCE: Final = [("_id", _LONG), ("_time_us", _LONG)]
_STABLE: Final = [("_partition", _INT), *_SOURCE]
_CHANGES: Final = [
    ("_partition", _INT),
    ("_sequence", _LONG),
    ("_row", _INT),
    ("_arrived_us", _LONG),
    ("_kind", _TEXT),
    *_SOURCE,
]


#: Columns of a recording's tentative tuples; the last one has the attributes.
TENTATIVE_ROWS: Final = ("partition", "time_us", "sequence", "row", "arrived_us", "tuple")


@dataclass(frozen=True)
class Table:
    """A log or recording as a table.

    Attributes:
      folders: one per partition; one for a source.
      mode: STABLE or CHANGES; a source has STABLE only.
    """

    source: bool
    schema: Schema
    folders: tuple[str, ...]
    mode: str = STABLE

    def __post_init__(self) -> None:
        clash = sorted({name for name, _ in self.added} & set(self.schema.names))
        if clash:
            raise SpeError(f"attribute {clash[0]!r} has the name of a column that is added; rename it in the query")

    @property
    def added(self) -> list[tuple[str, pa.DataType]]:
        """The columns before the attributes."""
        if self.source:
            return _SOURCE
        return _CHANGES if self.mode == CHANGES else _STABLE

    @property
    def arrow_schema(self) -> pa.Schema:
        return pa.schema([*[pa.field(n, t) for n, t in self.added], *arrow_fields(self.schema)])


@dataclass(frozen=True)
class Stretch:
    """Consecutive records of one segment.

    Attributes:
      partition: index of the folder.
      offset: position of record ``first`` in the file.
      last: the last record; None: up to the last complete one, as in a recording.
      following: first record of the next segment, which must continue this one; None: there is none.
      upto_id: of a source's log, the id of the last tuple before the next segment; None: not known, or there is none.
    """

    partition: int
    segment: Segment
    first: int
    offset: int
    last: int | None
    following: int | None = None
    upto_id: int | None = None


class TimedStretch(NamedTuple):
    """A stretch of a source's log, with its least and its largest time."""

    stretch: Stretch
    least_us: int
    most_us: int


#: Decides whether an element is read, from its partition, the number of its record and the element.
Wanted = Callable[[int, int, Element], bool]


class WantedRecords:
    """Selects records by their numbers, by partition."""

    def __init__(self, numbers: Mapping[int, frozenset[int]]) -> None:
        self._numbers = numbers
        self._in_order = {partition: sorted(some) for partition, some in numbers.items()}

    def __call__(self, partition: int, sequence: int, _element: Element) -> bool:
        return sequence in self._numbers.get(partition, ())

    def in_stretch(self, stretch: Stretch) -> bool:
        """Does the stretch contain one of the records?"""
        some = self._in_order.get(stretch.partition, [])
        at = bisect_left(some, stretch.first)
        return at < len(some) and (stretch.following is None or some[at] < stretch.following)


def whole(segment: Segment) -> tuple[int, int]:
    """Returns (first record, its offset) of a segment."""
    return segment.first, HEADER_BYTES


def read_stretch(
    table: Table, stretch: Stretch, content: memoryview | None = None, wanted: Wanted | None = None
) -> Iterator[pa.RecordBatch]:
    """Yields Arrow batches of a stretch.

    Args:
      content: bytes of the segment, if it lies on no disk of this machine.
      wanted: selects elements of a recording; None: all.

    Raises:
      LogCorrupt: damage inside it, or a gap in it or behind it; names file and offset, or the record.
    """
    folder = Path(table.folders[stretch.partition])
    pool = StringPool()
    records = scan_stretch(folder, stretch, content)
    if table.source:
        elements = _logged(table, stretch, records, pool)
    else:
        elements = _recorded(table, folder, records, pool)
        if wanted is not None:
            elements = (item for item in elements if wanted(stretch.partition, item[0], item[2]))
    if table.mode == CHANGES:
        yield from change_batches(table, stretch.partition, elements)
    else:
        stable = (e for _, _, e in elements if isinstance(e, Batch) and e.kind is Kind.STABLE)
        yield from stable_batches(table, stretch.partition, stable)


def read_log(table: Table, stretch: Stretch) -> Iterator[Batch]:
    """Yields the batches of a stretch of a source's log.  Raises as :func:`read_stretch`."""
    records = scan_stretch(Path(table.folders[stretch.partition]), stretch)
    for _, _, batch in _logged(table, stretch, records, StringPool()):
        assert isinstance(batch, Batch)
        yield batch


def tentative_batches(
    table: Table, stretch: Stretch, content: memoryview | None, wanted: Wanted
) -> Iterator[pa.RecordBatch]:
    """Yields TENTATIVE_ROWS of the wanted elements of a stretch, all of which have tuples.  Raises as read_stretch."""
    attributes = arrow_fields(table.schema)
    for batch in read_stretch(table, stretch, content, wanted):
        added, values = batch.columns[: len(_CHANGES)], batch.columns[len(_CHANGES) :]
        named = dict(zip((name.removeprefix("_") for name, _ in _CHANGES), added))
        named["tuple"] = pa.StructArray.from_arrays(values, fields=attributes)
        yield pa.RecordBatch.from_arrays([named[name] for name in TENTATIVE_ROWS], names=list(TENTATIVE_ROWS))


def stable_batches(table: Table, partition: int, batches: Iterable[Batch]) -> Iterator[pa.RecordBatch]:
    """Yields the tuples of one partition, in mode STABLE."""
    return _arrow(table, (_stable(table, partition, batch) for batch in batches if len(batch)))


def change_batches(
    table: Table, partition: int, elements: Iterable[tuple[int, int, Element]]
) -> Iterator[pa.RecordBatch]:
    """Yields elements of one partition, each with its sequence number and time of arrival, in mode CHANGES."""
    return _arrow(table, (_change(table, partition, *item) for item in elements))


def _arrow(table: Table, parts: Iterable[tuple[list[pa.Array], Rows]]) -> Iterator[pa.RecordBatch]:
    to_arrow = ToArrow()
    for added, rows in _gathered(parts):
        arrays = [*added, *to_arrow.arrays(rows, table.schema)]
        yield pa.RecordBatch.from_arrays(arrays, schema=table.arrow_schema)


#: Result of :func:`summarize`.  A row per record: ``count`` tuples, ``first_us`` and ``last_us`` of their times (a
#: boundary's own in both), ``first_id`` and ``id``.  And a row, without a ``kind``, for each run of stable tuples of
#: one ``block`` (``consistency.proof.comparing.digests``), with ``count`` and ``digest``.
SUMMARY: Final = pa.schema(
    [
        ("partition", _INT),
        ("sequence", _LONG),
        ("kind", _TEXT),
        ("arrived_us", _LONG),
        ("first_id", _LONG),
        ("id", _LONG),
        ("first_us", _LONG),
        ("last_us", _LONG),
        ("count", _LONG),
        ("block", _LONG),
        ("digest", _LONG),
    ]
)


def summarize(table: Table, stretch: Stretch, content: memoryview | None = None) -> Iterator[pa.RecordBatch]:
    """Yields SUMMARY of a stretch of a recording.  Takes and raises as :func:`read_stretch`."""
    folder = Path(table.folders[stretch.partition])
    elements = _recorded(table, folder, scan_stretch(folder, stretch, content), StringPool())
    return summaries(table.schema, stretch.partition, elements)


def summaries(schema: Schema, partition: int, elements: Iterable[tuple[int, int, Element]]) -> Iterator[pa.RecordBatch]:
    """Yields SUMMARY of elements of one partition, each with its sequence number and time of arrival."""
    digester = Digester(schema)
    records: list[tuple[int | str | None, ...]] = []
    stable: list[Batch] = []
    count = 0
    for sequence, arrived_us, element in elements:
        if isinstance(element, Batch):
            if not len(element):
                continue
            ids, (_, first_us, last_us) = element.row_ids(), element.rows.span()
            place = (int(ids.min()), int(ids.max()), first_us, last_us)
            records.append((sequence, KINDS[element.kind], arrived_us, *place, len(element)))
            if element.kind is Kind.STABLE:
                stable.append(element)
            count += len(element)
        else:
            id_ = element.upto_id if isinstance(element, Boundary | Undo) else None
            time = element.time if isinstance(element, Boundary) else None
            records.append((sequence, _bare(element), arrived_us, id_, id_, time, time, 0))
        if count >= BATCH_ROWS or len(records) >= BATCH_ROWS:
            yield _summary(partition, records, stable, digester)
            records, stable, count = [], [], 0
    if records:
        yield _summary(partition, records, stable, digester)


def _summary(
    partition: int, records: list[tuple[int | str | None, ...]], stable: list[Batch], digester: Digester
) -> pa.RecordBatch:
    columns = [list(column) for column in zip(*records)]
    if stable:
        ids, rows = np.concatenate([b.row_ids() for b in stable]), concat_rows([b.rows for b in stable])
        block, counts, digest = (values.tolist() for values in digester.blocks(ids, rows))
    else:
        block, counts, digest = [], [], []
    nothing = [None] * len(block)
    for column in columns[:-1]:
        column += nothing
    columns[-1] += counts
    columns += [[None] * len(records) + block, [None] * len(records) + digest]
    columns = [[partition] * len(columns[0]), *columns]
    return pa.RecordBatch.from_arrays(
        [pa.array(column, field.type) for column, field in zip(columns, SUMMARY, strict=True)], schema=SUMMARY
    )


def scan_stretch(folder: Path, stretch: Stretch, content: memoryview | None = None) -> Iterator[Record]:
    """Yields the records of a stretch.  Takes and raises as :func:`read_stretch`."""
    file = folder / stretch.segment.name
    if content is None:
        with file.open("rb") as opened:
            head = opened.read(HEADER_BYTES)
            opened.seek(stretch.offset)
            data = memoryview(opened.read())
    else:
        head, data = bytes(content[:HEADER_BYTES]), content[stretch.offset :]
    if header_fault(head, stretch.segment):
        data = memoryview(b"")
    scan = RecordScan(data, Position(stretch.first, stretch.segment.first, stretch.offset))
    for record in scan:
        if stretch.last is not None and record.position.sequence > stretch.last:
            return
        yield record
        if record.position.sequence == stretch.last:
            return
    reason = header_fault(head, stretch.segment) or scan.fault or "the file ends"
    where = f"{file} at offset {scan.next.offset}: {reason}"
    if stretch.last is not None and scan.next.sequence <= stretch.last:
        raise LogCorrupt(f"{where}; records up to {stretch.last} were acknowledged")
    if stretch.following is not None and scan.next.sequence != stretch.following:
        raise LogCorrupt(f"{where}; the next segment begins with record {stretch.following}")


def _recorded(
    table: Table, folder: Path, records: Iterable[Record], pool: StringPool
) -> Iterator[tuple[int, int, Element]]:
    """Yields (record, time of arrival, element) of a recording.  Raises LogCorrupt for a record of another schema."""
    where = PurePosixPath(folder)
    return (decode_recorded(record, table.schema, pool, where) for record in records)


def _logged(
    table: Table, stretch: Stretch, records: Iterable[Record], pool: StringPool
) -> Iterator[tuple[int, int, Element]]:
    """Yields (record, 0, batch) of a source's log.  Raises LogCorrupt where a tuple between two others is missing."""
    where = Path(table.folders[stretch.partition]) / stretch.segment.name
    last_id = 0 if stretch.first == 1 else None
    for record in records:
        state = decode_source_state(record.body)
        batch = decode_source_batch(record.body, table.schema, pool)
        try:
            check_record(last_id, state, batch)
        except LogCorrupt as error:
            raise LogCorrupt(f"{where}: record {record.position.sequence}: {error}") from None
        last_id = state.last_id
        if batch is not None:
            yield record.position.sequence, 0, batch
    if stretch.upto_id is not None and last_id is not None and last_id != stretch.upto_id:
        raise LogCorrupt(f"{where} ends with tuple {last_id}, but the next segment follows tuple {stretch.upto_id}")


def _stable(table: Table, partition: int, batch: Batch) -> tuple[list[pa.Array], Rows]:
    ids = [pa.array(batch.row_ids()), pa.array(batch.rows.time)]
    if table.source:
        return ids, batch.rows
    return [pa.array(np.full(len(batch), partition, np.int32)), *ids], batch.rows


def _change(
    table: Table, partition: int, sequence: int, arrived_us: int, element: Element
) -> tuple[list[pa.Array], Rows]:
    """Returns the rows of one element: one per tuple, or one with nulls where there is none."""
    if isinstance(element, Batch):
        kind, ids, rows = KINDS[element.kind], element.row_ids(), element.rows
    else:
        kind, rows = _bare(element), _nothing(table.schema)
        ids = rows.time
    count = len(rows)
    numbers = [pa.array(ids), pa.array(rows.time)]
    if isinstance(element, Undo):
        numbers = [pa.array([element.upto_id], _LONG), pa.nulls(1, _LONG)]
    elif isinstance(element, Boundary):
        numbers = [pa.array([element.upto_id], _LONG), pa.array([element.time], _LONG)]
    elif isinstance(element, RecDone):
        numbers = [pa.nulls(1, _LONG), pa.nulls(1, _LONG)]
    return [
        pa.array(np.full(count, partition, np.int32)),
        pa.array(np.full(count, sequence, np.int64)),
        pa.array(np.arange(count, dtype=np.int32)),
        pa.array(np.full(count, arrived_us, np.int64)),
        pa.array([kind] * count, _TEXT),
        *numbers,
    ], rows


def _bare(element: Element) -> str:
    if isinstance(element, Boundary):
        return KINDS[2 + element.kind]
    return "undo" if isinstance(element, Undo) else "rec_done"


def _nothing(schema: Schema) -> Rows:
    """Returns one row of nulls."""
    time = np.zeros(1, np.int64)
    return Rows(time, time, tuple(Column.from_list([None], a.type) for a in schema))


def _gathered(parts: Iterable[tuple[list[pa.Array], Rows]]) -> Iterator[tuple[list[pa.Array], Rows]]:
    """Joins small pieces: a record holds the arrivals of some milliseconds."""
    waiting: list[tuple[list[pa.Array], Rows]] = []
    count = 0
    for part in parts:
        waiting.append(part)
        count += len(part[1])
        if count >= BATCH_ROWS:
            yield _joined(waiting)
            waiting, count = [], 0
    if waiting:
        yield _joined(waiting)


def _joined(parts: list[tuple[list[pa.Array], Rows]]) -> tuple[list[pa.Array], Rows]:
    added = [pa.concat_arrays(arrays) for arrays in zip(*[a for a, _ in parts])]
    return added, concat_rows([rows for _, rows in parts])
