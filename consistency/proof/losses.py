"""Finds times at which no node ran a partition, and the output fidelity expected then (PPA, section IV).  Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import pairwise
from typing import Final

from consistency.proof.report.model import Accuracy, Loss, OutputReport, Track
from spe.plan.directory import Directory
from spe.stream.ids import PartitionId
from spe.stream.names import NodeState

#: Returns the output fidelity while no node runs some partitions, from tuples per second of sources and partitions.
Fidelity = Callable[[Mapping[str, Sequence[float]], Collection[PartitionId]], float]

#: States in which a replica serves its readers.
SERVES: Final = frozenset(state.name for state in NodeState if state is not NodeState.RECOVERING)
#: Maximum number in a report; losses without duration are left out.
_MOST: Final = 50
_SHORT_US: Final = 100_000


def losses(
    directory: Directory,
    tracks: Sequence[Track],
    outputs: Sequence[OutputReport],
    fidelity: Callable[[Collection[PartitionId]], float],
) -> list[Loss]:
    """Returns stretches of time in which the same partitions were lost, in order.  Only served ones can be lost."""
    served: dict[PartitionId, list[tuple[int, int | None]]] = {partition: [] for partition in directory.placement}
    moments = sorted({at for t in tracks for s in t.spans for at in (s.from_us, s.until_us) if at is not None})
    names = {str(partition): partition for partition in directory.placement}
    for track in tracks:
        partition = names[track.name.rpartition("@")[0]]
        served[partition] += [(s.from_us, s.until_us) for s in track.spans if s.name in SERVES]
    stretches: list[tuple[int, int, frozenset[PartitionId]]] = []
    for begin, end in pairwise(moments):
        lost = frozenset(partition for partition, spans in served.items() if _lost(spans, begin))
        if stretches and stretches[-1][2] == lost:
            stretches[-1] = (stretches[-1][0], end, lost)
        else:
            stretches.append((begin, end, lost))
    return [
        Loss(
            from_us=begin,
            until_us=end,
            partitions=sorted(map(str, lost)),
            fidelity=fidelity(lost),
            measured={o.title: _measured(o, begin, end) for o in outputs if o.accuracy is not None},
        )
        for begin, end, lost in stretches
        if lost and end - begin >= _SHORT_US
    ][:_MOST]


def measure_of(accuracy: Accuracy) -> str:
    """Returns the measure that output fidelity stands for: the share of the truth received, if it is measured."""
    return next((m for m in ("recall", "topk") if m in accuracy.measures), accuracy.measures[0])


def _lost(spans: Sequence[tuple[int, int | None]], at: int) -> bool:
    before = any(begin <= at for begin, _ in spans)
    return before and not any(begin <= at and (end is None or at < end) for begin, end in spans)


def _measured(output: OutputReport, begin: int, end: int) -> float | None:
    """Returns a measure of the output received in a time, windows weighted by true results; None if none was."""
    accuracy = output.accuracy
    assert accuracy is not None
    name = measure_of(accuracy)
    values = [
        (w.measures[name], w.truth)
        for w in accuracy.windows
        if w.at_us is not None and begin <= w.at_us < end and w.truth and w.measures.get(name) is not None
    ]
    total = sum(truth for _, truth in values)
    return sum((value or 0.0) * truth for value, truth in values) / total if total else None
