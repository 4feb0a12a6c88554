"""One running copy of a unit's operators, and how it gets back behind tentative data: checkpoint/redo.

A replica has up to two instances (rule R5): *live*, and *redo*, which a mark brings back.  Here the mark is
a snapshot by reference; consistency.dpc.undo has the other way.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self

from operators.fragment import Fragment, Watch
from operators.fragment_log import FragmentLog
from operators.rejections import Rejection
from operators.soutput import SOutput
from operators.steps import Steps
from operators.sunion.slice import Slice
from spe.plan.plan import Unit
from spe.stream.batch import Element

#: What came out of a portion of a slice: (output, elements), or what operators went on without, or nothing.
Released = tuple[int, list[Element]] | list[Rejection] | None


class StateMark(Protocol):
    """A place that an instance can be brought back to."""

    @property
    def restart(self) -> int:
        """Tuple time, microseconds: everything below is processed, nothing tentative is in it."""
        ...

    @property
    def replay(self) -> LogReplay | None:
        """What of the checkpoint log was not replayed yet: until it is, there is no whole state."""
        ...


@dataclass(frozen=True, slots=True)
class LogReplay:
    """What is to be replayed after a restart from a checkpoint log (G4): slices from ``begin`` to ``end`` come again.

    Attributes:
      commit: of the operators, and ``outputs`` their counters, at ``end``.
      positions: of each input, at ``begin``.
      rows: of all stable slices up to ``end``.
    """

    begin: int
    end: int
    commit: Mapping[str, Any]
    outputs: Sequence[Mapping[str, Any]]
    positions: Sequence[int]
    rows: int


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """State of a replica at ``restart``; a Mark, and without a replay what a restarting replica installs.

    With a replay the outputs are at its end.
    """

    restart: int
    fragment: Mapping[str, Any]
    outputs: Sequence[Mapping[str, Any]]
    replay: LogReplay | None = None


class Instance:
    """Operators and the counters of their outputs.

    Args:
      partition: of the unit.
      logs: its state goes to a checkpoint log.

    Attributes:
      log: what of the state is in it.
      rows: of stable slices that the log was not begun before.
      replay: it was made from the log, and slices come again; None: they have come, or it does not wait for the rest,
        as it takes in tentative data.
    """

    def __init__(self, unit: Unit, *, partition: int = 0, logs: bool = False) -> None:
        self._unit, self._partition = unit, partition
        self.fragment = Fragment(unit, partition)
        self.log = FragmentLog(unit, self.fragment) if logs else None
        self.rows = 0
        self.replay: LogReplay | None = None
        self.outputs = [SOutput(stream) for stream in unit.outputs]
        #: How many rows operators were given again to rebuild their state.
        self.rebuilt = 0
        self._unfinished = False

    def stable(self, piece: Slice) -> Iterator[Released]:
        """A stable slice, in portions: yields (output, elements), rejections, and None between two portions.

        Raises OperatorFailed.
        """
        results = yield from self.fragment.work(piece, self._watch_stable())
        self.rows += len(piece)
        if rejections := self.fragment.take_rejections():
            yield rejections
        for at, (output, pieces) in enumerate(zip(self.outputs, results, strict=True)):
            for number, rows in enumerate(pieces or [None], 1):
                more = number < len(pieces)
                yield at, output.stable(rows, piece.end, more=more)
                if more:
                    yield None

    def tentative(self, piece: Slice) -> Iterator[Released]:
        """The same for a tentative slice.  Rejections are not reported: the redo decides them.

        In a replay nothing is released for it, and none is longer than the replay, which it may end.
        """
        if (replay := self.replay) is not None:
            assert self.log is not None, "G4: it is made again from a log"
            yield from self.fragment.work(piece)
            self.fragment.take_rejections()
            if piece.end == replay.end:
                self.log.gave_up(replay.commit)
                self.replay = None
            return
        results = yield from self.fragment.work(piece, self._watch_tentative())
        self.fragment.take_rejections()
        for at, (output, pieces) in enumerate(zip(self.outputs, results, strict=True)):
            for number, rows in enumerate(pieces or [None], 1):
                more = number < len(pieces)
                yield at, output.tentative(rows, piece.end, more=more)
                if more:
                    yield None

    def begin_replay(self, replay: LogReplay) -> None:
        """The fragment has the footprints of the log (G4)."""
        self.replay = replay
        for output, state in zip(self.outputs, replay.outputs, strict=True):
            output.restore(state)

    def again(self, piece: Slice) -> Iterator[Released]:
        """The same for a stable slice that comes again: nothing is released for it, or reported (G4)."""
        yield from self.fragment.work(piece)
        self.fragment.take_rejections()

    def end_replay(self) -> None:
        """All slices have come again, stable ones.  Raises LogCorrupt where they are not what had come."""
        replay, self.replay = self.replay, None
        assert self.log is not None, "G4: it is made again from a log"
        assert replay is not None, "G4: a replay ends"
        self.log.replayed(replay.commit, replay.end)
        self.rows = replay.rows

    def validate(self, *, tainted: bool) -> None:
        """Asserts what holds between two slices; ``tainted``: it may have taken in tentative data."""
        gave_tentative = True in [o.tainted for o in self.outputs]
        assert tainted or not gave_tentative, "U8: nothing tentative leaves who is untainted"
        assert self.replay is None or not gave_tentative, "G4: a replay releases nothing"

    def validate_rows(self) -> None:
        """The same for all rows that are held."""

    def checkpoint(self, restart: int) -> Checkpoint:
        """The state by reference.  Not while we are :attr:`rebuilding`, for then there is none."""
        assert not self.rebuilding, "C1: a checkpoint is of a complete state"
        return Checkpoint(restart, self.fragment.snapshot(), [o.snapshot() for o in self.outputs], self.replay)

    def checkpoint_at(self, mark: Any) -> Steps[Checkpoint]:
        """The state at one of our marks, in portions, as a copy that is brought back to it would have it."""
        assert isinstance(mark, Checkpoint)
        assert mark.replay is None, "C1: a checkpoint is of a complete state"
        redo = self._empty()
        self._put_back_outputs(redo, mark.outputs)
        yield from ()
        return Checkpoint(mark.restart, mark.fragment, [o.snapshot() for o in redo.outputs])

    def _empty(self) -> Self:
        redo = type(self)(self._unit, partition=self._partition, logs=self.log is not None)
        redo.rows = self.rows
        return redo

    def install(self, checkpoint: Checkpoint) -> None:
        self.fragment.restore(checkpoint.fragment)
        self._unfinished = self.fragment.load()
        if self.log is not None:
            self.log.forget()
        for output, state in zip(self.outputs, checkpoint.outputs, strict=True):
            output.restore(state)

    def take_over(self, other: Instance) -> None:
        """Gives the operators the state of another instance; the outputs stay.  :meth:`rebuild` completes it."""
        self.fragment.restore(other.fragment.snapshot())
        self._unfinished = self.fragment.load()
        self._replays_on(other.replay)

    def _replays_on(self, replay: LogReplay | None) -> None:
        """The fragment was given the state of another instance, as it is in the midst of a replay, or without one."""
        self.replay = replay
        if replay is not None:
            assert self.log is not None, "G4: it is made again from a log"
            self.log.replays_on()
        else:
            self.fragment.end_replay()

    def mark(self, restart: int) -> StateMark:
        """Remembers the present state, which is that at ``restart``."""
        return self.checkpoint(restart)

    def back(self, mark: Any) -> Instance:
        """A second instance, at one of our marks; it is complete when :meth:`rebuild` says so."""
        assert isinstance(mark, Checkpoint)
        redo = self._empty()
        redo.fragment.restore(mark.fragment)
        redo._unfinished = redo.fragment.load()
        if self.log is not None and redo.log is not None:
            redo.log.continues(self.log, mark.restart)
        redo._replays_on(mark.replay)
        self._put_back_outputs(redo, mark.outputs)
        return redo

    @property
    def rebuilding(self) -> bool:
        """Is :meth:`rebuild` not done yet?"""
        return self._unfinished

    def rebuild(self, max_rows: int) -> bool:
        """Does a portion of the work on the state of an instance that was brought back; True: there is more (R6)."""
        self._unfinished = self._unfinished and self.fragment.load()
        return self._unfinished

    def _put_back_outputs(self, redo: Instance, states: Sequence[Mapping[str, Any]]) -> None:
        """The copy will recognise and drop what we have released since the mark (R8)."""
        for ours, theirs, state in zip(self.outputs, redo.outputs, states, strict=True):
            theirs.restore(state, ours.released())

    def _watch_stable(self) -> Watch | None:
        return None

    def _watch_tentative(self) -> Watch | None:
        return None
