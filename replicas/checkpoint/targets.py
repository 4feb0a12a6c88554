"""What a time to recover asks for: most records to load (Q), most rows to replay (U), and the least that can be reached
(rule G7).  Pure.

A replica that begins again loads the newest record of each live piece of state, and replays input from the oldest of
these on.  So all depends on their greatest age.  Where it is c seconds,

    records   q(c) = what began in c seconds, and what was rewritten in them
    rows      u(c) = what came in c seconds, or what joins and top-k keep, if that is more
    recovery  a·q(c) + b·u(c)
    share     w · (what was rewritten) / c

Both of the first two grow with c and the last one falls, so a time to recover asks for some c, and a share allows some
other.  Upstream keeps the rows: of the time to recover, those beyond what operators keep get a small part, as far as
the share allows.  What closes by itself within c need not be rewritten: where windows have a length, records are out of
use after it; where nobody can say, as with count windows, they are taken to close at random.  The start of the process,
and rows that come while it recovers, are not in it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final, NamedTuple

import numpy as np

from replicas.checkpoint.extent import Choices, threshold
from spe.plan.log_targets import Continuous

#: Longer than anything lasts, seconds; what is never too old has this age.
_NEVER_S: Final = 1e9
_STEPS: Final = 100
#: Of more slices some are rewritten whatever the time to recover is: they take memory, and work with each slice.
SLICES_MOST: Final = 10_000


class LogSpeeds(NamedTuple):
    """Microseconds of a machine.

    Attributes:
      load_us: per record that is read and given to an operator (a).
      replay_us: per row that is replayed (b).
      write_us: per record that is rewritten (w).
    """

    load_us: float
    replay_us: float
    write_us: float


#: Part of a time to recover in which rows are replayed, beside those that operators keep.
REPLAY_PART: Final = 0.1
#: Where nothing has been measured.
ASSUMED: Final = LogSpeeds(5.0, 1.0, 5.0)


class Workload(NamedTuple):
    """State and input of a partition; rates per second of wall time.

    Attributes:
      cells: live pieces of state, with a record each.
      begun_per_s: records of pieces that begin.
      rows_per_s: input.
      held_rows: rows that operators keep as they are; they are replayed, whatever is written.
      lifetime_s: time after which each piece is out of use by itself; ∞: nobody can say.
    """

    cells: float = 0.0
    begun_per_s: float = 0.0
    rows_per_s: float = 0.0
    held_rows: float = 0.0
    lifetime_s: float = math.inf


class Targets(NamedTuple):
    """What keeps a recovery within its time.

    Attributes:
      records: Q, most records to load.
      rows: U, most rows to replay.
      share: of the time that rewriting takes; above 1 it cannot be done.
    """

    records: float
    rows: float
    share: float


class Least(NamedTuple):
    """The shortest time to recover, seconds, by what it consists of.

    Attributes:
      load_s: to load records.
      replay_s: to replay rows.
    """

    load_s: float
    replay_s: float

    @property
    def seconds(self) -> float:
        return self.load_s + self.replay_s


def least(speeds: LogSpeeds, workload: Workload, share: float) -> Least:
    """What can be reached if rewriting takes at most ``share`` of the time."""
    age_s = _first(lambda c: _share(speeds, workload, c) <= share, _longest(workload))
    return Least(
        1e-6 * speeds.load_us * _records(workload, age_s),
        1e-6 * speeds.replay_us * _rows(workload, age_s),
    )


def targets(recovery_s: float, speeds: LogSpeeds, workload: Workload, share: float = 0.0) -> Targets | None:
    """What a time to recover asks for; None: it is too short for loading and the rows that are kept alone.

    Args:
      share: of the time that may go into rewriting so that upstream keeps less.
    """
    longest_s = _longest(workload)
    if _seconds(speeds, workload, 0.0) > recovery_s:
        return None
    age_s = _first(lambda c: _seconds(speeds, workload, c) > recovery_s, longest_s)
    few = workload.held_rows + 1e6 * REPLAY_PART * recovery_s / speeds.replay_us
    short_s = _first(lambda c: _rows(workload, c) > few, longest_s)
    age_s = min(age_s, max(short_s, _first(lambda c: _share(speeds, workload, c) <= share, longest_s)))
    return Targets(_records(workload, age_s), _rows(workload, age_s), _share(speeds, workload, age_s))


def to_rewrite(choices: Choices, log: Continuous, speeds: LogSpeeds) -> int:
    """Which of the choices keeps to what the log is told, and costs least; where none does, the best of them.

    Where a time is told, few rows are kept upstream, too, if that can be without missing the time.
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
    """Pieces that are older than ``age_s`` if nothing is rewritten."""
    if math.isfinite(workload.lifetime_s):
        return workload.cells * max(0.0, 1 - age_s / workload.lifetime_s)
    return workload.cells * math.exp(-age_s * workload.begun_per_s / workload.cells) if workload.cells else 0.0


def _records(workload: Workload, age_s: float) -> float:
    begun_per_s = max(workload.begun_per_s, workload.cells / workload.lifetime_s)  # else they would not be so many
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
    """The least age at which something begins to hold that holds from then on; ``longest`` where it does not."""
    if holds(0.0):
        return 0.0
    low, high = 0.0, longest
    for _ in range(_STEPS):
        middle = (low + high) / 2
        if holds(middle):
            high = middle
        else:
            low = middle
    return high
