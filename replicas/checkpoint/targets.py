"""Computes from a recovery time the most records to load (Q), the most rows to replay (U), and the least possible time
(rule G7).  Pure.

A recovering replica loads the newest record of each live piece of state, and replays input from the oldest of these on.
So all depends on their greatest age.  If that is c seconds,

    records   q(c) = what began in c seconds, and what was rewritten in them
    rows      u(c) = what came in c seconds, or what joins and top-k keep, if that is more
    recovery  a·q(c) + b·u(c)
    share     w · (what was rewritten) / c

Records and rows grow with c and the share falls, so a recovery time determines one c, and a share another.  Upstream
keeps the rows to replay: those beyond the rows that operators keep get a small part of the recovery time, as far as the
share allows.  A piece that closes by itself within c need not be rewritten: where windows have a length, records are
out of use after it; otherwise, as with count windows, they are assumed to close at random.  The start of the process,
and rows that come during recovery, are not included.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final, NamedTuple

import numpy as np

from replicas.checkpoint.extent import Choices, threshold
from spe.plan.log_targets import Continuous

#: Longer than any lifetime, seconds; the age of records that are never too old.
_NEVER_S: Final = 1e9
_STEPS: Final = 100
#: With more slices, some are rewritten whatever the recovery time: they take memory, and work with each slice.
SLICES_MOST: Final = 10_000


class LogSpeeds(NamedTuple):
    """Speeds of a machine, in microseconds.

    Attributes:
      load_us: per record that is read and loaded into an operator (a).
      replay_us: per row that is replayed (b).
      write_us: per record that is rewritten (w).
    """

    load_us: float
    replay_us: float
    write_us: float


#: Part of a recovery time for replaying rows that operators do not keep.
REPLAY_PART: Final = 0.1
#: Speeds before anything has been measured.
ASSUMED: Final = LogSpeeds(5.0, 1.0, 5.0)


class Workload(NamedTuple):
    """State and input of a partition; rates per second of wall time.

    Attributes:
      cells: live pieces of state, with a record each.
      begun_per_s: records of pieces that begin.
      rows_per_s: input rows.
      held_rows: rows that operators keep unchanged, which are replayed in any case.
      lifetime_s: time after which each piece is out of use by itself; ∞: unknown.
    """

    cells: float = 0.0
    begun_per_s: float = 0.0
    rows_per_s: float = 0.0
    held_rows: float = 0.0
    lifetime_s: float = math.inf


class Targets(NamedTuple):
    """Limits that keep a recovery within its time.

    Attributes:
      records: Q, most records to load.
      rows: U, most rows to replay.
      share: share of the time for rewriting; above 1 it is impossible.
    """

    records: float
    rows: float
    share: float


class Least(NamedTuple):
    """The shortest time to recover, seconds, in two parts.

    Attributes:
      load_s: time to load records.
      replay_s: time to replay rows.
    """

    load_s: float
    replay_s: float

    @property
    def seconds(self) -> float:
        return self.load_s + self.replay_s


def least(speeds: LogSpeeds, workload: Workload, share: float) -> Least:
    """Returns the shortest recovery if rewriting takes at most ``share`` of the time."""
    age_s = _first(lambda c: _share(speeds, workload, c) <= share, _longest(workload))
    return Least(
        1e-6 * speeds.load_us * _records(workload, age_s),
        1e-6 * speeds.replay_us * _rows(workload, age_s),
    )


def targets(recovery_s: float, speeds: LogSpeeds, workload: Workload, share: float = 0.0) -> Targets | None:
    """Returns the limits for a recovery time; None: it is too short for loading and the kept rows alone.

    Args:
      share: share of the time that may be spent on rewriting so that upstream keeps less.
    """
    longest_s = _longest(workload)
    if _seconds(speeds, workload, 0.0) > recovery_s:
        return None
    age_s = _first(lambda c: _seconds(speeds, workload, c) > recovery_s, longest_s)
    few = workload.held_rows + 1e6 * REPLAY_PART * recovery_s / speeds.replay_us
    short_s = _first(lambda c: _rows(workload, c) > few, longest_s)
    assert short_s <= longest_s >= age_s, "G7: no footprint is older than the longest lifetime"
    age_s = min(age_s, max(short_s, _first(lambda c: _share(speeds, workload, c) <= share, longest_s)))
    return Targets(_records(workload, age_s), _rows(workload, age_s), _share(speeds, workload, age_s))


def to_rewrite(choices: Choices, log: Continuous, speeds: LogSpeeds) -> int:
    """Returns the cheapest choice that keeps to the log's limits; if none does, the best one.

    With a recovery time, few rows are kept upstream, too, if that is possible within the time.
    """
    short = choices.slices <= max(SLICES_MOST, int(choices.slices.min()))
    if log.recovery_us is not None:
        seconds = choices.seconds(1e-6 * speeds.load_us, 1e-6 * speeds.replay_us)
        fits = (seconds <= log.recovery_us * 1e-6) & short
        few = fits & (choices.rows - choices.rows[-1] <= REPLAY_PART * log.recovery_us / speeds.replay_us)
        return threshold(few if few.any() else fits, seconds)
    over = np.zeros(len(choices.records))
    for counts, limit in ((choices.records, log.records), (choices.rows, log.rows)):
        if limit is not None:
            over = np.maximum(over, counts / limit)
    return threshold((over <= 1) & short, over)


def _longest(workload: Workload) -> float:
    return min(workload.lifetime_s, _NEVER_S)


def _rewritten(workload: Workload, age_s: float) -> float:
    """Returns the number of pieces older than ``age_s`` if nothing is rewritten."""
    if math.isfinite(workload.lifetime_s):
        return workload.cells * max(0.0, 1 - age_s / workload.lifetime_s)
    return workload.cells * math.exp(-age_s * workload.begun_per_s / workload.cells) if workload.cells else 0.0


def _records(workload: Workload, age_s: float) -> float:
    begun_per_s = max(
        workload.begun_per_s, workload.cells / workload.lifetime_s
    )  # otherwise there would be fewer pieces
    return begun_per_s * age_s + _rewritten(workload, age_s)


def _rows(workload: Workload, age_s: float) -> float:
    return max(workload.rows_per_s * age_s, workload.held_rows)


def _seconds(speeds: LogSpeeds, workload: Workload, age_s: float) -> float:
    return 1e-6 * (speeds.load_us * _records(workload, age_s) + speeds.replay_us * _rows(workload, age_s))


def _share(speeds: LogSpeeds, workload: Workload, age_s: float) -> float:
    rewritten = _rewritten(workload, age_s)
    if not rewritten:
        return 0.0
    return 1e-6 * speeds.write_us * rewritten / age_s if age_s else math.inf


def _first(holds: Callable[[float], bool], longest: float) -> float:
    """Returns the least age from which on a condition holds; ``longest`` if it never does."""
    if holds(0.0):
        return 0.0
    assert longest > 0, "G7: pieces of state live for a while"
    low, high = 0.0, longest
    for _ in range(_STEPS):
        middle = (low + high) / 2
        if holds(middle):
            high = middle
        else:
            low = middle
    return high
