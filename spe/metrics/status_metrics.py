"""The metrics of each kind of process, made from its status by the figures of spe.figures."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

from spe.figures.coordinator_figures import COORDINATOR, PARTITION
from spe.figures.figure import Figure
from spe.figures.node_figures import INPUT, LOAD, LOG, NODE, REPLICA, SPILL, STANDBY
from spe.figures.process_figures import CERTIFICATE, PROCESS, SERVER, SYSTEM
from spe.figures.stream_figures import CHANNEL, SOURCE
from spe.metrics.exposition import Exposition
from spe.status import ClientStatus, CoordinatorStatus, NodeStatus, ProcessStatus, ReplicaStatus, SourceStatus

#: All metrics of all processes, in the order of the text.
METRICS: Final[tuple[Figure[Any], ...]] = (
    *PROCESS,
    *SERVER,
    *CERTIFICATE,
    *SYSTEM,
    *NODE,
    *SPILL,
    *REPLICA,
    *LOAD,
    *LOG,
    *INPUT,
    *STANDBY,
    *SOURCE,
    *CHANNEL,
    *PARTITION,
    *COORDINATOR,
)
#: A subject with its figures and its labels; no subject, no samples.
_Part = tuple[Iterable[Figure[Any]], object | None, dict[str, str]]


def exposition(status: ProcessStatus, *, version: str = "") -> Exposition:
    """The metrics of a process.  Counters and histograms restart with each incarnation, which is one of their labels.

    Args:
      version: version of the software.
    """
    out = Exposition(METRICS, {"process": status.name}, {"incarnation": str(status.incarnation)})
    out.add("spe_process_info", 1, kind=status.kind, version=version)
    for figures, subject, labels in _parts(status):
        for figure in figures if subject is not None else ():
            out.add_figure(figure, subject, labels)
    return out


def _parts(status: ProcessStatus) -> Iterator[_Part]:
    yield from ((PROCESS, status, {}), (SERVER, status.server, {}), (CERTIFICATE, status.certificate, {}))
    match status:
        case NodeStatus():
            yield NODE, status, {}
            yield SPILL, status.spill, {}
            for replica in status.replicas:
                yield from _replica_parts(replica)
            for standby in status.standbys:
                yield STANDBY, standby, {"unit": standby.unit, "partition": str(standby.partition)}
        case SourceStatus():
            yield SOURCE, status.log, {}
        case ClientStatus():
            yield from ((CHANNEL, channel, {"channel": channel.channel}) for channel in status.channels)
        case CoordinatorStatus():
            yield from ((PARTITION, each, {"partition": each.partition}) for each in status.partitions)
            yield COORDINATOR, status, {}


def _replica_parts(replica: ReplicaStatus) -> Iterator[_Part]:
    labels = {"unit": replica.unit, "partition": str(replica.partition)}
    yield REPLICA, replica, labels
    yield LOAD, replica.load, labels
    yield LOG, replica.log, labels
    for each in replica.inputs:
        yield INPUT, each, {**labels, "input": each.channel}
