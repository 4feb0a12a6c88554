"""Gives the checkpoint log of a unit the stable state, and ends a replay from it (G4, G6)."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from consistency.dpc.events import Action, LogRequest, Remade, SliceToLog
from consistency.dpc.instance import Instance, Released
from consistency.dpc.slice_work import SliceWork
from operators.steps import finished
from operators.sunion.sunion import SUnion


class LogWork:
    """Answers the requests of the checkpoint log, in the background.

    Args:
      do: takes the actions.
      is_written: the unit writes a checkpoint log.

    Attributes:
      request: the open request of the log; None: there is none.
    """

    def __init__(self, sunion: SUnion, work: SliceWork, do: Callable[[Action], None], *, is_written: bool) -> None:
        self._sunion = sunion
        self._work = work
        self._do = do
        self.is_written = is_written
        self.request: LogRequest | None = None

    @property
    def is_busy(self) -> bool:
        """Is a slice for the log not complete yet?"""
        return self._work.is_for_log

    def takes(self, end: int) -> bool:
        """Does the log request the state at ``end``?"""
        return self.request is not None and self.request.takes(end)

    def wants(self, instance: Instance | None) -> bool:
        """Does the log request the state at the end of the last stable slice, and is it available?

        Args:
          instance: the instance with that state; None: all have tentative data.
        """
        if self.request is None or self._work.open is not None or instance is None:
            return False
        return instance.replay is None and not instance.rebuilding and self.takes(self._sunion.cursors.released)

    def begin(self, instance: Instance | None) -> bool:
        """Begins to give the log the state at the end of the last stable slice, if it is requested (G6)."""
        request = self.request
        if instance is None or request is None or not self.wants(instance):
            return False
        self._work.begin_log(self._slice(instance, self._sunion.cursors.released, request))
        return True

    def _slice(self, instance: Instance, end: int, request: LogRequest) -> Iterator[Released]:
        assert instance.log is not None, "G1: the state goes to a log"
        made = yield from instance.log.slice_log(end, *request.rewrites(end))
        live = (yield from instance.log.live()) if made.whole and not made.complete else None
        outputs = [o.snapshot() for o in instance.outputs]
        self.request = None
        self._do(SliceToLog(end, made, live, self._sunion.needed_from(end), instance.rows, outputs))

    def is_replayed(self, instance: Instance | None) -> bool:
        """Are all slices of a replay complete?"""
        replay = None if instance is None else instance.replay
        return replay is not None and self._sunion.cursors.released >= replay.end

    def end_replay(self, instance: Instance) -> None:
        """Ends a replay: the state is that of the log (G4).  Raises LogCorrupt where it differs."""
        instance.end_replay()
        if self.is_written:
            assert instance.log is not None, "G4: the state was made again from a log"
            self._do(Remade(finished(instance.log.live())))
