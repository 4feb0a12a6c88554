"""Measures the buffers of a replica, for the checkers of a run (consistency.checking)."""

from __future__ import annotations

from replicas.node.replica import Replica
from spe.stream.history import Buffers


def buffers(replica: Replica, at_us: int) -> Buffers:
    """Returns memory and digests of a replica; no digests while it recovers, or within a slice."""
    taken = replica.core.snapshot() if replica.core.between_slices else None
    states = taken[0].outputs if taken is not None else []
    return Buffers(
        at_us,
        str(replica.id),
        held_bytes=replica.sunion.stable_bytes,
        tentative=any(i.tentative for i in replica.sunion.inputs) or any(not o.suffix.untouched for o in replica.logs),
        log_entries=max(log.stable.end - log.stable.number_after(log.acknowledged) for log in replica.logs),
        digests=tuple(
            (log.channel, int(state["last_id"]), int(state["digest"]))
            for log, state in zip(replica.logs, states, strict=bool(states))
        ),
    )
