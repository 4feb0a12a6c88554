"""Readiness of a process for its users."""

from __future__ import annotations

from collections.abc import Iterator

from spe.status import ClientStatus, NodeStatus, ProcessStatus, SourceStatus
from spe.stream.names import NodeState


def not_ready(status: ProcessStatus) -> list[str]:
    """Lists the reasons why a process is not ready; empty if it is.

    A node is ready if all of its replicas are STABLE, so that a partner may be stopped; a source if it takes rows and
    serves them; a client if it reads every channel that has not ended.
    """
    return [
        *_reasons(status),
        *(f"{what}: the disk is full: {why}" for what, why in status.disk_full.items()),
        *(f"{what}: its server does not answer: {why}" for what, why in status.waits_for.items()),
    ]


def _reasons(status: ProcessStatus) -> Iterator[str]:
    match status:
        case NodeStatus():
            for replica in status.replicas:
                if replica.error is not None:
                    yield f"{replica.unit}/{replica.partition} has stopped: {replica.error}"
                elif replica.state is not NodeState.STABLE:
                    yield f"{replica.unit}/{replica.partition} is {replica.state.name}"
        case SourceStatus(log=None):
            yield "the log is not open yet"
        case SourceStatus(log=log):
            if log is not None and log.fault is not None:
                yield log.fault
        case ClientStatus():
            for channel in status.channels:
                if channel.producer is None and not channel.ended:
                    yield f"{channel.channel} is read from nobody"
