"""Targets of a checkpoint log: the time to recover in, and the work it may cost (rule G7)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from spe.stream.times import SECOND

#: Default share of its time that a replica may spend on rewriting.
SHARE: Final = 0.05


@dataclass(frozen=True, slots=True)
class Continuous:
    """Replicas of a partition write their state to a log as it changes, instead of whole checkpoints.

    Attributes:
      recovery_us: time to recover, microseconds; None: ``records`` and ``rows`` are the limits.
      share: of its time that a replica may spend on rewriting, above 0 and at most 1.
      period_us: wall time after which an unused part of the share expires.
      groups: open groups that a partition is expected to have; None: unknown.
      records: for experiments, most records to load (Q).
      rows: for experiments, most rows to replay (U).
    """

    recovery_us: int | None
    share: float = SHARE
    period_us: int = SECOND
    groups: int | None = None
    records: int | None = None
    rows: int | None = None
