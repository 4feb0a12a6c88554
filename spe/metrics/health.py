"""Is a process ready: does it do what others rely on it for?"""

from __future__ import annotations

from collections.abc import Iterator

from spe.status import ClientStatus, NodeStatus, ProcessStatus, SourceStatus
from spe.stream.names import NodeState


def not_ready(status: ProcessStatus) -> list[str]:
    """Why a process is not ready; empty when it is.

    A node is ready when all of its replicas are STABLE, so that a partner may be stopped; a source when it takes in and
    serves what comes; a client when it reads every channel that has not ended.
    """
    return [
        *_reasons(status),
        *(f"{what}: the disk is full: {why}" for what, why in status.disk_full.items()),
        *(f"{what}: its server does not answer: {why}" for what, why in status.waits_for.items()),
    ]


def _reasons(status: ProcessStatus) -> Iterator[str]:
    match status:
        case NodeStatus():
            for one in status.replicas:
                if one.error is not None:
                    yield f"{one.unit}/{one.partition} has stopped: {one.error}"
                elif one.state is not NodeState.STABLE:
                    yield f"{one.unit}/{one.partition} is {one.state.name}"
        case SourceStatus(log=None):
            yield "the log is not open yet"
        case SourceStatus(log=log):
            if log is not None and log.fault is not None:
                yield log.fault
        case ClientStatus():
            for channel in status.channels:
                if channel.producer is None and not channel.ended:
                    yield f"{channel.channel} is read from nobody"
