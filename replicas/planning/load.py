"""What each partition needs: a sample of its load every 10 s, of the last 15 minutes (rule L1).

A partition that is silent gives no sample: nothing is known of that time, and it does not count as a load of 0.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

import numpy as np

from replicas.planning.topology import Floats
from spe.status import LoadStatus
from spe.stream.ids import PartitionId
from spe.stream.times import SECOND

#: Microseconds that one sample is about, and how long it is kept.
SAMPLE_US: Final = 10 * SECOND
KEPT_US: Final = 15 * 60 * SECOND
_SLOTS: Final = KEPT_US // SAMPLE_US
#: Samples that two series must have in common; any two points lie on a line.
_LEAST: Final = 3
#: What a series differs from its mean by, against its largest value, where it only differs by rounding.
_ROUNDING: Final = 1e-9


class LoadSample(NamedTuple):
    """What one replica of a partition needed over a sample's time, or its mean over several.

    Attributes:
      cpu: how much of one core was busy.
      memory: bytes.
      network: bytes per second, in and out.
      rows: per second that came in.
      state: bytes of a snapshot.
    """

    cpu: float
    memory: float = 0.0
    network: float = 0.0
    rows: float = 0.0
    state: float = 0.0

    def status(self) -> LoadStatus:
        """What ``spe status`` shows of it."""
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
        """Takes what a replica has measured until now.

        Of several replicas in one sample's time the largest counts: a move must fit wherever it leads.  What a replica
        needs while it recovers or corrects is not what it needs in the long run, and is not given here.
        """
        slot = self._until(now)
        kept = self._of.setdefault(partition, np.full((_SLOTS, len(load)), np.nan))
        kept[slot % _SLOTS] = np.fmax(kept[slot % _SLOTS], load)

    def forget(self, partition: PartitionId) -> None:
        """The partition is no more."""
        self._of.pop(partition, None)

    def mean(self, partition: PartitionId, now: int, span_us: int = KEPT_US) -> LoadSample | None:
        """Over the samples of the last ``span_us``; None: there is none."""
        found = self._last(partition, now, span_us)
        found = found[~np.isnan(found[:, 0])]
        return LoadSample(*found.mean(axis=0).tolist()) if len(found) else None

    def series(self, partition: PartitionId, now: int) -> Floats:
        """Busy CPU share, [samples], the oldest first; NaN where there is no sample."""
        return self._last(partition, now, KEPT_US)[:, 0]

    def together(self, partitions: Iterable[PartitionId], now: int) -> Floats:
        """Busy CPU share of several partitions together, as :meth:`series`.

        One that is silent while others are not counts with its mean: 0 would look like less load.
        """
        each = [own for p in partitions if not np.isnan(own := self.series(p, now)).all()]
        if not each:
            return np.zeros(_SLOTS)  # an idle node's load is known, and does not vary
        known = np.array(each)
        silent = np.isnan(known)
        total = np.where(silent, np.nanmean(known, axis=1, keepdims=True), known).sum(axis=0)
        return np.where(silent.all(axis=0), np.nan, total)

    def _last(self, partition: PartitionId, now: int, span_us: int) -> Floats:
        """[samples, measures] of the last ``span_us``, the oldest first."""
        slot = self._until(now)
        if (kept := self._of.get(partition)) is None:
            return np.full((_SLOTS, len(LoadSample._fields)), np.nan)
        many = min(_SLOTS, -(-span_us // SAMPLE_US))
        return kept[np.arange(slot - many + 1, slot + 1) % _SLOTS]

    def _until(self, now: int) -> int:
        """Forgets what is too old; returns the slot of now."""
        slot = now // SAMPLE_US
        if self._newest is None:
            self._newest = slot
        assert slot >= self._newest, "L1: time does not go back"
        passed = np.arange(max(self._newest + 1, slot - _SLOTS + 1), slot + 1) % _SLOTS
        if len(passed):
            for kept in self._of.values():
                kept[passed] = np.nan
        self._newest = slot
        return slot


def correlations(left: Floats, right: Floats) -> Floats:
    """Of each series of ``left`` [L, samples] with each of ``right`` [R, samples], [L, R], from -1 to 1.

    Where one of two does not vary, or too few samples are in both, it is 0: nothing is known of how they go together.
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
    found = np.where(varies, (a @ b.T - sum_a * sum_b / many) / spread, 0.0)
    return np.asarray(np.clip(np.round(found, 9), -1.0, 1.0))


def _centred(series: Floats) -> Floats:
    """Less the mean of each, 0 where there is no sample: sums of small numbers lose no digits."""
    known = ~np.isnan(series)
    many = np.maximum(known.sum(axis=1, keepdims=True), 1)
    mean = np.where(known, series, 0.0).sum(axis=1, keepdims=True) / many
    return np.where(known, series - mean, 0.0)


def _largest(series: Floats) -> Floats:
    return np.asarray(np.abs(np.nan_to_num(series)).max(axis=1, initial=0.0))
