"""Load of each partition: a sample every 10 s, of the last 15 minutes (rule L1).

A silent partition has no sample: its load at that time is unknown, not 0.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

import numpy as np

from replicas.planning.topology import Floats
from spe.status import LoadStatus
from spe.stream.ids import PartitionId
from spe.stream.times import SECOND

#: Microseconds covered by one sample, and its lifetime.
SAMPLE_US: Final = 10 * SECOND
KEPT_US: Final = 15 * 60 * SECOND
_SLOTS: Final = KEPT_US // SAMPLE_US
#: Minimum number of samples that two series must share; any two points lie on a line.
_LEAST: Final = 3
#: Deviation from a series' mean, relative to its largest value, that may be rounding.
_ROUNDING: Final = 1e-9


class LoadSample(NamedTuple):
    """Load of one replica of a partition over a sample's time, or its mean over several samples.

    Attributes:
      cpu: busy share of one core.
      memory: bytes.
      network: bytes per second, in and out.
      rows: input rows per second.
      state: bytes of a snapshot.
    """

    cpu: float
    memory: float = 0.0
    network: float = 0.0
    rows: float = 0.0
    state: float = 0.0

    def status(self) -> LoadStatus:
        """Returns the figures of ``spe status``."""
        return LoadStatus(
            cpu=self.cpu,
            memory_bytes=round(self.memory),
            network_bytes=round(self.network),
            rows=self.rows,
            state_bytes=round(self.state),
        )


class LoadHistory:
    """The samples of all partitions, in one grid of time.  Times are monotonic microseconds."""

    def __init__(self) -> None:
        #: [samples, measures], a ring; NaN where there is no sample.
        self._of: dict[PartitionId, Floats] = {}
        self._newest: int | None = None

    def sample(self, partition: PartitionId, load: LoadSample, now: int) -> None:
        """Takes a measurement of a replica until now.

        The largest of several replicas in one sample's time counts: a move must fit wherever it leads.  Measurements
        during a recovery or correction are not passed here, for they differ from the load in the long run.
        """
        slot = self._until(now)
        ring = self._of.setdefault(partition, np.full((_SLOTS, len(load)), np.nan))
        ring[slot % _SLOTS] = np.fmax(ring[slot % _SLOTS], load)

    def forget(self, partition: PartitionId) -> None:
        """Removes a partition that no longer exists."""
        self._of.pop(partition, None)

    def mean(self, partition: PartitionId, now: int, span_us: int = KEPT_US) -> LoadSample | None:
        """Returns the mean over the samples of the last ``span_us``; None: there is none."""
        samples = self._last(partition, now, span_us)
        samples = samples[~np.isnan(samples[:, 0])]
        return LoadSample(*samples.mean(axis=0).tolist()) if len(samples) else None

    def series(self, partition: PartitionId, now: int) -> Floats:
        """Returns busy CPU share, [samples], the oldest first; NaN where there is no sample."""
        return self._last(partition, now, KEPT_US)[:, 0]

    def together(self, partitions: Iterable[PartitionId], now: int) -> Floats:
        """Returns busy CPU share of several partitions together, as :meth:`series`.

        A partition that is silent while others are not counts with its mean: 0 would look like less load.
        """
        each = [own for p in partitions if not np.isnan(own := self.series(p, now)).all()]
        if not each:
            return np.zeros(_SLOTS)  # an idle node's load is known, and does not vary
        known = np.array(each)
        silent = np.isnan(known)
        total = np.where(silent, np.nanmean(known, axis=1, keepdims=True), known).sum(axis=0)
        return np.where(silent.all(axis=0), np.nan, total)

    def _last(self, partition: PartitionId, now: int, span_us: int) -> Floats:
        """Returns [samples, measures] of the last ``span_us``, the oldest first."""
        slot = self._until(now)
        if (ring := self._of.get(partition)) is None:
            return np.full((_SLOTS, len(LoadSample._fields)), np.nan)
        many = min(_SLOTS, -(-span_us // SAMPLE_US))
        return ring[np.arange(slot - many + 1, slot + 1) % _SLOTS]

    def _until(self, now: int) -> int:
        """Removes old samples; returns the slot of now."""
        slot = now // SAMPLE_US
        if self._newest is None:
            self._newest = slot
        assert slot >= self._newest, "L1: time does not go back"
        passed = np.arange(max(self._newest + 1, slot - _SLOTS + 1), slot + 1) % _SLOTS
        if len(passed):
            for ring in self._of.values():
                ring[passed] = np.nan
        self._newest = slot
        return slot


def correlations(left: Floats, right: Floats) -> Floats:
    """Correlates each series of ``left`` [L, samples] with each of ``right`` [R, samples]: [L, R], from -1 to 1.

    If either does not vary, or they share too few samples, it is 0: unknown.
    """
    a, b = _centred(left), _centred(right)
    in_a, in_b = (~np.isnan(left)).astype(float), (~np.isnan(right)).astype(float)
    many = np.maximum(in_a @ in_b.T, 1)
    sum_a, sum_b = a @ in_b.T, in_a @ b.T
    variance_a = (a * a) @ in_b.T - sum_a * sum_a / many
    variance_b = in_a @ (b * b).T - sum_b * sum_b / many
    little_a = many * (_ROUNDING * _largest(left))[:, None] ** 2
    little_b = many * (_ROUNDING * _largest(right))[None, :] ** 2
    varies = (variance_a > little_a) & (variance_b > little_b) & (many >= _LEAST)
    spread = np.sqrt(np.where(varies, variance_a * variance_b, 1.0))
    correlation = np.where(varies, (a @ b.T - sum_a * sum_b / many) / spread, 0.0)
    return np.asarray(np.clip(np.round(correlation, 9), -1.0, 1.0))


def _centred(series: Floats) -> Floats:
    """Subtracts the mean of each, 0 where there is no sample: sums of small numbers lose no digits."""
    known = ~np.isnan(series)
    many = np.maximum(known.sum(axis=1, keepdims=True), 1)
    mean = np.where(known, series, 0.0).sum(axis=1, keepdims=True) / many
    return np.where(known, series - mean, 0.0)


def _largest(series: Floats) -> Floats:
    return np.asarray(np.abs(np.nan_to_num(series)).max(axis=1, initial=0.0))
