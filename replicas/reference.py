"""The results of a run without failures, computed in one process: no network, no clock, nothing tentative.

The same plan runs, with the same partitions and the same hash, because ids count per channel and ties in time between
upstream partitions are ordered by input index (rule U11).  Every client must hold these results in the end, bit for
bit.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from consistency.comparison import ChannelRows, Difference, compare
from operators.fragment import Fragment
from operators.rejections import Rejection
from operators.soutput import SOutput
from operators.sunion.sunion import SUnion
from spe.errors import LocalProtocolError, RemoteProtocolError
from spe.plan.plan import InputStream, Plan, Unit
from spe.stream.batch import Batch, Boundary, Element, Rows, concat_rows
from spe.stream.hashing import partition_of
from spe.stream.ids import Channel, PartitionId
from spe.stream.names import Kind, StreamId
from spe.stream.times import BEFORE_TIME

__all__ = [
    "ChannelRows",
    "Difference",
    "ReferenceRun",
    "collect_rows",
    "compare",
    "reference_rows",
    "run_reference",
    "some_of",
]

#: Rows taken from the sources between two passes over the units.  Bounds memory; the answer does not depend on it (U3).
STEP_ROWS: Final = 50_000
#: Takes the rows that the operators of a partition have rejected.
Rejected = Callable[[PartitionId, Sequence[Rejection]], None]


class _Partition:
    """One partition of a unit: a replica without failures."""

    def __init__(self, plan: Plan, unit: Unit, index: int) -> None:
        self.unit = unit
        self.index = index
        self.of = PartitionId(unit.id, index)
        stream_index = {i.stream: at for at, i in enumerate(unit.inputs)}
        channels = unit.channels_in(index)
        self.ports = {channel: at for at, channel in enumerate(channels)}
        self.sunion = SUnion(
            inputs=[(stream_index[c.stream], c.stream not in plan.sources) for c in channels],
            streams=len(unit.inputs),
            bucket_us=plan.bucket_us,
        )
        self.fragment = Fragment(unit, index)
        self.outputs = [SOutput(stream) for stream in unit.outputs]

    def take(self, channel: Channel, element: Element) -> None:
        port = self.sunion.inputs[self.ports[channel]]
        if isinstance(element, Batch):
            port.add_stable(element, 0)
        elif isinstance(element, Boundary):
            port.add_boundary(element, 0)

    def run(self, max_rows: int, rejected: Rejected | None = None) -> Iterator[tuple[Channel, Element]]:
        """Runs everything that is stable by now."""
        while (piece := self.sunion.release_stable(max_rows)) is not None:
            results = self.fragment.step(piece)
            rejections = self.fragment.take_rejections()
            if rejected is not None and rejections:
                rejected(self.of, rejections)
            for stream, output, rows in zip(self.unit.outputs, self.outputs, results, strict=True):
                channel = Channel(stream, self.index)
                for element in output.stable(rows, piece.end):
                    yield channel, element


class ReferenceRun:
    """All units of a plan, driven by the caller.

    Args:
      step_rows: rows per input in one slice.
      lost: partitions whose tuples are dropped, as if they had failed and all others went on without them.
      rejected: called with the rows that operators reject.
    """

    def __init__(
        self,
        plan: Plan,
        step_rows: int = STEP_ROWS,
        lost: Collection[PartitionId] = (),
        rejected: Rejected | None = None,
    ) -> None:
        self._step_rows = step_rows
        self._rejected = rejected
        self._lost = {
            Channel(s, partition_id.partition) for partition_id in lost for s in plan.unit[partition_id.unit].outputs
        }
        self._outputs = frozenset(plan.query.outputs)
        self._partitions = [[_Partition(plan, u, p) for p in range(u.partitions)] for u in plan.units]
        self._readers: dict[StreamId, list[tuple[InputStream, list[_Partition]]]] = {}
        for partitions in self._partitions:
            for input in partitions[0].unit.inputs:
                self._readers.setdefault(input.stream, []).append((input, partitions))

    def feed(self, channel: Channel, element: Element) -> Iterator[tuple[Channel, Element]]:
        """Gives an element of a channel to all its readers; yields it if it is an output of the query."""
        if channel in self._lost and isinstance(element, Batch):
            return
        for stream, partitions in self._readers.get(channel.stream, ()):
            parts = _substreams(stream, element, len(partitions))
            for partition, part in zip(partitions, parts, strict=True):
                if channel in partition.ports:
                    partition.take(channel, part)
                elif isinstance(part, Batch) and len(part):
                    raise LocalProtocolError(f"{channel} has rows of {partition.of}, which does not read it")
        if channel.stream in self._outputs:
            yield channel, element

    def run(self) -> Iterator[tuple[Channel, Element]]:
        """Runs all units, in topological order, as far as their inputs are stable; yields the query's outputs."""
        for partitions in self._partitions:
            for partition in partitions:
                for channel, element in partition.run(self._step_rows, self._rejected):
                    yield from self.feed(channel, element)


def _substreams(stream: InputStream, element: Element, count: int) -> Sequence[Element]:
    """Returns the element for each of ``count`` partitions: the rows of its hash; boundaries go to all."""
    if count == 1 or stream.key is None or not isinstance(element, Batch):
        return [element] * count
    columns = [element.rows.columns[stream.schema.index(name)] for name in stream.key]
    target = partition_of(columns, count)
    return [element.select(target == p) for p in range(count)]


class _Feed:
    """A source's elements, and its current frontier."""

    def __init__(self, stream: StreamId, elements: Iterable[Element]) -> None:
        self.channel = Channel(stream, 0)
        self.frontier = BEFORE_TIME
        self._elements = iter(elements)

    def next(self) -> Element | None:
        element = next(self._elements, None)
        if isinstance(element, Batch | Boundary):
            if element.kind is not Kind.STABLE:
                raise RemoteProtocolError(f"{self.channel}: a source sends nothing tentative (S3), got {element}")
            if isinstance(element, Boundary):
                self.frontier = max(self.frontier, element.time)
        elif element is not None:
            raise RemoteProtocolError(f"{self.channel}: a source sends batches and boundaries only, got {element}")
        return element


def run_reference(
    plan: Plan,
    inputs: Mapping[StreamId, Iterable[Element]],
    *,
    step_rows: int = STEP_ROWS,
    lost: Collection[PartitionId] = (),
    rejected: Rejected | None = None,
) -> Iterator[tuple[Channel, Element]]:
    """Yields the stable elements of every output channel, as they become known.

    The source that is furthest behind in tuple time is read next, so the buffered rows are about one boundary interval
    per source and one step, however long the inputs are.  A source that ends without END_OF_TIME leaves dependent
    results open, as in a run that was broken off.

    Args:
      inputs: the stable stream of each source of the plan, e.g. of ``read_source_log``.
      step_rows: rows taken in between two passes over the units.
      lost: partitions whose tuples are dropped, for experiments.
      rejected: called with the rows that operators reject.

    Raises:
      KeyError: a source of the plan has no input.
      RemoteProtocolError: an input holds something that a source does not send.
      OperatorFailed: an operator raised.
    """
    run = ReferenceRun(plan, step_rows, lost, rejected)
    feeds = [_Feed(stream, inputs[stream]) for stream in plan.sources]
    waiting = 0
    while feeds:
        behind = min(feeds, key=lambda f: f.frontier)
        element = behind.next()
        if element is None:
            feeds.remove(behind)
            continue
        yield from run.feed(behind.channel, element)
        if isinstance(element, Batch):
            waiting += len(element)
        elif waiting >= step_rows:
            yield from run.run()
            waiting = 0
    yield from run.run()


def some_of(
    inputs: Mapping[StreamId, Iterable[Element]], masks: Mapping[StreamId, npt.NDArray[np.bool_]]
) -> dict[StreamId, Iterator[Element]]:
    """Returns inputs with only some of their rows: ``masks`` select them by id − 1; later rows are left out."""

    def part(elements: Iterable[Element], wanted: npt.NDArray[np.bool_]) -> Iterator[Element]:
        for element in elements:
            if isinstance(element, Batch):
                places = element.row_ids() - 1
                chosen = places < len(wanted)
                chosen[chosen] = wanted[places[chosen]]
                yield element.select(chosen)
            else:
                yield element

    return {stream: part(elements, masks[stream]) for stream, elements in inputs.items()}


def collect_rows(plan: Plan, elements: Iterable[tuple[Channel, Element]]) -> dict[Channel, ChannelRows]:
    """Joins the stable batches of each output channel; channels without rows are included."""
    parts: dict[Channel, list[Batch]] = {
        Channel(stream, p): [] for stream in plan.query.outputs for p in range(plan.partitions_of(stream))
    }
    for channel, element in elements:
        if isinstance(element, Batch) and element.kind is Kind.STABLE and len(element):
            parts[channel].append(element)
    return {
        channel: (
            np.concatenate([b.row_ids() for b in batches]) if batches else np.empty(0, np.int64),
            concat_rows([b.rows for b in batches]) if batches else Rows.empty(plan.query.schema_of(channel.stream)),
        )
        for channel, batches in parts.items()
    }


def reference_rows(
    plan: Plan,
    inputs: Mapping[StreamId, Iterable[Element]],
    *,
    step_rows: int = STEP_ROWS,
    rejected: Rejected | None = None,
) -> dict[Channel, ChannelRows]:
    """Ids and rows of every output channel of a run without failures.  Raises as :func:`run_reference`."""
    return collect_rows(plan, run_reference(plan, inputs, step_rows=step_rows, rejected=rejected))
