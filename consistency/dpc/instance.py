"""A running copy of a unit's operators, which rolls back tentative state by checkpoint/redo.

A replica has up to two instances (rule R5): *live*, and *redo*, which starts at a mark.  Here the mark is a snapshot by
reference; consistency.dpc.undo has the other way.
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

#: Result of a portion of a slice: (output, elements), rejected rows, or nothing.
Released = tuple[int, list[Element]] | list[Rejection] | None


class StateMark(Protocol):
    """A point that an instance can be rolled back to."""

    @property
    def restart(self) -> int:
        """Tuple time, microseconds: all below is processed, and the state has no tentative data."""
        ...

    @property
    def replay(self) -> LogReplay | None:
        """The rest of a replay of the checkpoint log; while there is one, the state is not complete."""
        ...


@dataclass(frozen=True, slots=True)
class LogReplay:
    """A replay after a restart from a checkpoint log (G4), of the slices from ``begin`` to ``end``.

    Attributes:
      commit: commit of the operators, and ``outputs`` the counters of the outputs, at ``end``.
      positions: position of each input at ``begin``.
      rows: rows of all stable slices up to ``end``.
    """

    begin: int
    end: int
    commit: Mapping[str, Any]
    outputs: Sequence[Mapping[str, Any]]
    positions: Sequence[int]
    rows: int


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """State of a replica at ``restart``; a mark, and without a replay the state that a restarting replica installs.

    With a replay the outputs are at its end.
    """

    restart: int
    fragment: Mapping[str, Any]
    outputs: Sequence[Mapping[str, Any]]
    replay: LogReplay | None = None


class Instance:
    """Operators and the counters of their outputs.

    Args:
      partition: partition of the unit.
      logs: its state goes to a checkpoint log.

    Attributes:
      log: tracks which part of the state is in the log.
      rows: of stable slices that the log was not begun before.
      replay: it was made from the log, and its slices are replayed; None: the replay is complete, or was given up to
        take in tentative data.
    """

    def __init__(self, unit: Unit, *, partition: int = 0, logs: bool = False) -> None:
        self._unit, self._partition = unit, partition
        self.fragment = Fragment(unit, partition)
        self.log = FragmentLog(unit, self.fragment) if logs else None
        self.rows = 0
        self.replay: LogReplay | None = None
        self.outputs = [SOutput(stream) for stream in unit.outputs]
        #: Number of rows that operators were given again to rebuild their state.
        self.rebuilt = 0
        self._unfinished = False

    def stable(self, piece: Slice) -> Iterator[Released]:
        """Processes a stable slice in portions: yields (output, elements), rejections, and None between two portions.

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
        """Processes a tentative slice in the same way.  Rejections are not reported: the redo decides them.

        During a replay nothing is released; a slice ends with the replay at the latest, and may complete it.
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
        """Begins a replay, after the fragment has got the footprints of the log (G4)."""
        self.replay = replay
        for output, state in zip(self.outputs, replay.outputs, strict=True):
            output.restore(state)

    def again(self, piece: Slice) -> Iterator[Released]:
        """Processes a replayed stable slice: releases and reports nothing (G4)."""
        yield from self.fragment.work(piece)
        self.fragment.take_rejections()

    def end_replay(self) -> None:
        """Ends a replay of stable slices.  Raises LogCorrupt where they differ from the original ones."""
        replay, self.replay = self.replay, None
        assert self.log is not None, "G4: it is made again from a log"
        assert replay is not None, "G4: a replay ends"
        self.log.replayed(replay.commit, replay.end)
        self.rows = replay.rows

    def validate(self, *, tainted: bool) -> None:
        """Asserts invariants between two slices; ``tainted``: it may have taken in tentative data."""
        gave_tentative = True in [o.tainted for o in self.outputs]
        assert tainted or not gave_tentative, "U8: nothing tentative leaves who is untainted"
        assert self.replay is None or not gave_tentative, "G4: a replay releases nothing"

    def validate_rows(self) -> None:
        """Asserts invariants of all rows that are held."""

    def checkpoint(self, restart: int) -> Checkpoint:
        """Returns the state by reference; not while :attr:`rebuilding`, for then it is incomplete."""
        assert not self.rebuilding, "C1: a checkpoint is of a complete state"
        return Checkpoint(restart, self.fragment.snapshot(), [o.snapshot() for o in self.outputs], self.replay)

    def checkpoint_at(self, mark: Any) -> Steps[Checkpoint]:
        """Makes the state at one of our marks, in portions, as a copy that is rolled back to it would have it."""
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
        """Copies the state of another instance's operators; outputs stay.  :meth:`rebuild` completes it."""
        self.fragment.restore(other.fragment.snapshot())
        self._unfinished = self.fragment.load()
        self._replays_on(other.replay)

    def _replays_on(self, replay: LogReplay | None) -> None:
        """Continues the replay of another instance, if any, after the fragment has got its state."""
        self.replay = replay
        if replay is not None:
            assert self.log is not None, "G4: it is made again from a log"
            self.log.replays_on()
        else:
            self.fragment.end_replay()

    def mark(self, restart: int) -> StateMark:
        """Returns a mark of the present state, at ``restart``."""
        return self.checkpoint(restart)

    def back(self, mark: Any) -> Instance:
        """Returns a second instance at one of our marks; :meth:`rebuild` completes it."""
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
        """Is :meth:`rebuild` not complete?"""
        return self._unfinished

    def rebuild(self, max_rows: int) -> bool:
        """Rebuilds a portion of the state of a rolled-back instance; True: there is more (R6)."""
        self._unfinished = self._unfinished and self.fragment.load()
        return self._unfinished

    def _put_back_outputs(self, redo: Instance, states: Sequence[Mapping[str, Any]]) -> None:
        """Lets the copy recognise and drop output that was released since the mark (R8)."""
        for ours, theirs, state in zip(self.outputs, redo.outputs, states, strict=True):
            theirs.restore(state, ours.released())

    def _watch_stable(self) -> Watch | None:
        return None

    def _watch_tentative(self) -> Watch | None:
        return None
