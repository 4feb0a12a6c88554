"""Predicts the duration of a move (rule L4); its state comes from the faster source.

Either a running replica sends it, or the target reads its own checkpoint and the rows since then.  In both cases new
rows arrive during the move, and the target processes all of them with its remaining capacity.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from replicas.planning.load import LoadSample


class StateSource(StrEnum):
    """Source of a target's state."""

    PARTNER = "partner"
    CHECKPOINT = "checkpoint"


@dataclass(frozen=True, slots=True)
class Speeds:
    """Speeds of a state transfer, bytes per second: between two nodes, and from a disk into a replica."""

    network: float = 100e6
    disk: float = 200e6


@dataclass(frozen=True, slots=True)
class PredictedMove:
    """A possible move.

    Attributes:
      seconds: until the target has caught up.
    """

    seconds: float
    source: StateSource


@dataclass(frozen=True, slots=True)
class RefusedMove:
    """A move that would never end, or must not be made, and why."""

    reason: str


def predict(
    load: LoadSample, free: float, speeds: Speeds, checkpoint_age_s: float | None = None
) -> PredictedMove | RefusedMove:
    """Predicts the faster way.

    Args:
      load: of the partition.  It needs ``cpu`` cores for ``rows`` rows per second, so ``free`` cores take in
        μ = rows · free / cpu.
      free: cores that the target has left over.
      checkpoint_age_s: age of the target's checkpoint; None: it holds none.
    """
    if load.cpu > 0 and free <= load.cpu:
        # μ <= λ
        return RefusedMove(f"{free:.2f} of a core is free, and {load.cpu:.2f} would never catch up")
    # While a backlog of t seconds of rows is processed, more rows arrive: t · λ / (μ - λ).
    slower = load.cpu / (free - load.cpu) if load.cpu > 0 else 0.0
    sent_s = load.state / speeds.network
    ways = [PredictedMove(sent_s + sent_s * slower, StateSource.PARTNER)]
    if checkpoint_age_s is not None:
        read_s = load.state / speeds.disk
        ways.append(PredictedMove(read_s + (checkpoint_age_s + read_s) * slower, StateSource.CHECKPOINT))
    return min(ways, key=lambda way: way.seconds)
