"""M1, M6: each order to move ends, done or dropped with a reason, soon after the cluster has healed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from typing import Final

from consistency.checking.checked_run import CheckedRun
from consistency.checking.finding import Finding
from consistency.checking.schedule import FaultInterval, World
from spe.plan.directory import Directory
from spe.plan.plan import Plan
from spe.stream.history import History, Note
from spe.stream.times import SECOND

#: Time until all replicas that can be STABLE are.
_STEADY_US: Final = 20 * SECOND
#: Number of checkpoints that a standby must hold before another one leaves (H2), and one under way at the beginning.
_CHECKPOINTS: Final = 3
_OVER: Final = ("done", "dropped")


def allowed_us(plan: Plan, directory: Directory) -> int:
    """Returns how long the oldest order may take without failures: all are STABLE, and the target holds enough."""
    timing = plan.timing
    silent_us = 20 * max(timing.request_us, timing.connect_us, timing.heartbeat_us)
    each_us = max((standbys.every_us for standbys in directory.standbys.values()), default=0)
    return _STEADY_US + silent_us + _CHECKPOINTS * each_us


def check_moves(run: CheckedRun, dead: Set[str]) -> Iterator[Finding]:
    """Judges times in which nothing is wrong, except that some nodes do not come back.

    Args:
      dead: processes that were killed for good.
    """
    history, static, plan, directory, _, _, counters = run
    bound_us = allowed_us(plan, directory)
    calm = _calm(static, dead)
    for order, from_us, to_us in _oldest(history):
        waited_us = max((min(to_us, end) - max(from_us, begin) for begin, end in calm), default=0)
        counters.add("moves judged")
        if waited_us > bound_us:
            what = f"move {order} is the oldest for {waited_us / 1e6:.1f} s in which nothing failed, and has not ended"
            yield Finding("moves", "each order ends", to_us, "coordinator", what)


def _oldest(history: History) -> Iterator[tuple[int, int, int]]:
    """Yields each order, with the time in which it was the oldest that had not ended."""
    waiting: dict[int, int] = {}
    since = 0
    for event in history:
        if not isinstance(event, Note) or event.name not in ("move", "move_ordered"):
            continue
        fields = dict(word.partition("=")[::2] for word in event.text.split(" "))
        number = int(fields["number"])
        if fields.get("phase") not in _OVER:
            waiting.setdefault(number, event.at_us)
        elif number in waiting:
            if number == min(waiting):
                yield number, max(since, waiting[number]), event.at_us
                since = event.at_us
            del waiting[number]
    if waiting:
        yield (number := min(waiting)), max(since, waiting[number]), history.end_us


def _calm(static: Sequence[FaultInterval], dead: Set[str]) -> list[tuple[int, int]]:
    """Returns the times in which nothing was wrong except permanently."""
    spans: list[tuple[int, int]] = []
    for interval in static:
        if not _works(interval.world, dead):
            continue
        if spans and spans[-1][1] == interval.from_us and not interval.shaken:
            spans[-1] = spans[-1][0], interval.to_us
        else:
            spans.append((interval.from_us, interval.to_us))
    return spans


def _works(world: World, dead: Set[str]) -> bool:
    return not world.cut and not world.disturbed and world.down <= dead
