"""Checks of what replicas write to their checkpoint logs and make again from them, while a cluster is played."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final
from unittest.mock import patch

from consistency.dpc.events import LogRequest
from consistency.dpc.instance import Instance
from consistency.dpc.log_work import LogWork
from operators.footprints import Tree
from operators.fragment_log import FragmentLog
from replicas.checkpoint.extent import SLICE_RECORDS
from replicas.checkpoint.meter import LogMeter
from replicas.checkpoint.state_log import StableSlice, StateLog
from replicas.checkpoint.targets import ASSUMED
from tests.support.logged import digest

#: Slices that are kept only because a client has not yet acknowledged what it read, and the one that is new.
_UNREAD: Final = 8


@dataclass
class Checked:
    """Attributes: ``states``: how many were compared after they were made again; ``slices``: that were bounded."""

    states: int = 0
    slices: int = 0


@contextmanager
def states_checked() -> Iterator[Checked]:
    """What is made again is a state that some replica had at the end of that slice, by digest (G4)."""
    found, states = Checked(), dict[int, list[Any]]()
    log_slice, replayed = LogWork._slice, FragmentLog.replayed

    def remembered(self: LogWork, instance: Instance, end: int, request: LogRequest) -> Any:
        states.setdefault(end, []).append(digest(instance.fragment))
        return (yield from log_slice(self, instance, end, request))

    def compared(self: FragmentLog, commit: Tree, end: int) -> None:
        replayed(self, commit, end)
        assert digest(self._fragment) in states[end], f"the state of {end} is another one"
        found.states += 1

    with patch.object(LogWork, "_slice", remembered), patch.object(FragmentLog, "replayed", compared):
        yield found


@contextmanager
def logs_checked(recovery_us: int) -> Iterator[Checked]:
    """One partition: the same, and the log is bounded (G7).

    Args:
      recovery_us: that its log is told, with time enough for rewriting; at the machine's assumed speeds.
    """
    logged, write = dict[StateLog, dict[int, tuple[int, int, int]]](), StateLog.write

    async def bounded(self: StateLog, one: StableSlice) -> bool:
        before = self.extent.choices() if self.extent else None
        if not await write(self, one):
            return False
        slices = logged.setdefault(self, {})
        if one.made.complete:
            slices.clear()
        previous = max((rows for _, rows, _ in slices.values()), default=one.rows)
        newest = self._log.commits[-1]
        slices[newest.first] = one.made.written, one.rows, one.end
        read = [counts for first, counts in slices.items() if first >= newest.needs]
        begins = [rows for _, rows, end in read if end == self._written[-1][1]]
        if before is not None and min(slices) <= newest.needs and begins:
            took = _us(sum(count for count, _, _ in read) + SLICE_RECORDS * len(read), one.rows - begins[0])
            least = float(before.seconds(ASSUMED.load_us, ASSUMED.replay_us).min())
            new = _us(one.made.written + _UNREAD * SLICE_RECORDS, one.rows - previous)
            assert took <= max(recovery_us, least) + new, f"{took} µs to recover at {one.end}"
            found.slices += 1
        return True

    with (
        states_checked() as found,
        patch.object(StateLog, "write", bounded),
        patch.object(LogMeter, "speeds", ASSUMED),
    ):
        yield found


def _us(records: int, rows: int) -> float:
    return ASSUMED.load_us * records + ASSUMED.replay_us * rows
