"""How long a move takes (rule L4): its state comes from where it is there sooner.

Either a running replica sends it, or the target reads a checkpoint of its own and what has come in since.  In both
cases rows come in meanwhile, and only what the target has left over beside them takes them in.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from replicas.planning.load import LoadSample


class StateSource(StrEnum):
    """Where a target takes the state from."""

    PARTNER = "partner"
    CHECKPOINT = "checkpoint"


@dataclass(frozen=True, slots=True)
class Speeds:
    """What a state is moved with, bytes per second: between two nodes, and from a disk into a replica."""

    network: float = 100e6
    disk: float = 200e6


@dataclass(frozen=True, slots=True)
class PredictedMove:
    """A move that can be made.

    Attributes:
      seconds: until the target has caught up.
    """

    seconds: float
    source: StateSource


@dataclass(frozen=True, slots=True)
class RefusedMove:
    """A move that would come to no end, or must not be made, and why."""

    reason: str


def predict(
    load: LoadSample, free: float, speeds: Speeds, checkpoint_age_s: float | None = None
) -> PredictedMove | RefusedMove:
    """The sooner way.

    Args:
      load: of the partition.  It needs ``cpu`` cores for ``rows`` rows per second, so ``free`` cores take in
        μ = rows · free / cpu.
      free: cores that the target has left over.
      checkpoint_age_s: since when rows lack in the checkpoint that the target holds; None: it holds none.
    """
    if load.cpu > 0 and free <= load.cpu:
        # μ <= λ
        return RefusedMove(f"{free:.2f} of a core is free, and {load.cpu:.2f} would never catch up")
    # While a backlog of t seconds of rows is taken in, rows come in as well: t · λ / (μ - λ).
    slower = load.cpu / (free - load.cpu) if load.cpu > 0 else 0.0
    sent_s = load.state / speeds.network
    ways = [PredictedMove(sent_s + sent_s * slower, StateSource.PARTNER)]
    if checkpoint_age_s is not None:
        read_s = load.state / speeds.disk
        ways.append(PredictedMove(read_s + (checkpoint_age_s + read_s) * slower, StateSource.CHECKPOINT))
    return min(ways, key=lambda way: way.seconds)
