"""The checkpoint log of a fragment: the additions of each slice, and the reconstruction at a commit (G1 to G4).

G8: on each path of a unit at most one operator has state, so each is reconstructed separately.  Three ways:

* by cells: footprints are loaded, and rows count if they are not in a footprint;
* by rows: its state consists of input rows, and all input from the oldest of them on is replayed.  If these are older
  than the log, its snapshot is in the log until they are not needed any more;
* as a whole: its snapshot is the footprint of one cell, and the slices after it are replayed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from operators.footprints import (
    UNWRITTEN,
    CellRecord,
    Footprints,
    KeepsCells,
    Later,
    LiveFootprints,
    Rewriting,
    Tree,
)
from operators.fragment import Fragment
from operators.operator import Operator
from operators.skipping import Skipping
from operators.steps import Steps
from operators.trials import Trials
from spe.errors import LogCorrupt, OperatorFailed, SpeError, blaming
from spe.plan.plan import Unit
from spe.query.declaration import Logged
from spe.stream.names import StreamId

_RESTORED: Final = "the state that it was given"


class SliceLog(NamedTuple):
    """Additions of a slice to the log of a fragment.

    Attributes:
      closings, footprints: trees by operator; empty if there are none.  Further footprints may be in :attr:`later`.
      commit: the rest of the state.
      written: number of footprints; ``not_final``: number of those that are not final; ``rewritten``: number of those
        that replace unchanged, old ones.
      replaced: older footprints that are not valid any more, in parts.
      oldest_row: least time of a row in the state of an operator; None: there are no such rows.
      whole: for some operator no earlier record is valid: the log's live footprints must be counted again.
      complete: no earlier record of any operator is valid.
      later: by operator, footprints that are made while the stream goes on, since there are many.
    """

    closings: dict[str, list[Tree]]
    footprints: dict[str, list[Tree]]
    commit: Tree
    written: int
    not_final: int
    rewritten: int
    replaced: Sequence[LiveFootprints]
    oldest_row: int | None
    whole: bool
    complete: bool
    later: Mapping[StreamId, Later]

    def all_footprints(self) -> dict[str, list[Tree]]:
        """Returns all footprints, also those in ``later``; may be called in a thread, once."""
        return self.footprints | {name: later.records() for name, later in self.later.items()}


class LoggedSlice(NamedTuple):
    """A slice read from the log; attributes as in :class:`SliceLog`, and the ``end`` of the slice."""

    end: int
    closings: Mapping[str, Sequence[Tree]]
    footprints: Mapping[str, Sequence[Tree]]


class FragmentLog:
    """Tracks the records of a fragment in its checkpoint log.

    Args:
      unit: the unit with the operators.
      fragment: the fragment in its initial state.
    """

    def __init__(self, unit: Unit, fragment: Fragment) -> None:
        self._fragment = fragment
        self._cells: dict[StreamId, KeepsCells] = {}
        #: Operators that are one record, or have rows from before the log, and the time of their newest record.
        self._whole: dict[StreamId, int] = {}
        self._keeps_rows: list[StreamId] = []
        for declared in unit.operators:
            kind, operator = declared.spec.logged, _inner(fragment.operators[declared.name])
            if kind is Logged.CELLS:
                assert isinstance(operator, KeepsCells), "it is declared to have cells"
                operator.begin_log()
                self._cells[declared.name] = operator
            elif kind is not Logged.NOTHING:
                self._whole[declared.name] = UNWRITTEN
                if kind is Logged.ROWS:
                    self._keeps_rows.append(declared.name)
        #: End of the slice from which on the records of an operator are valid.
        self._from: dict[str, int] = {}
        #: End of the newest written slice.
        self._end = UNWRITTEN
        self._is_complete = True
        self._forgets = False
        #: Are the footprints that were replaced since the newest slice unknown?
        self._recounts = False

    def slice_log(self, end: int, below: int = UNWRITTEN, most: int = 0) -> Steps[SliceLog]:
        """Returns the additions of the slice that has just ended, in portions; no rows may come before the end.

        The caller writes them to the log, or calls :meth:`forget`, at once.  Raises OperatorFailed.

        Args:
          below: rewrite footprints from before this time, and ``most`` of those at this time.
        """
        assert self._forgets or end >= self._end, "G1: slices of the log follow each other"
        if self._forgets:
            yield from self._forget()
        again = Rewriting(below, most)
        added: dict[StreamId, Footprints] = {}
        is_whole, self._recounts = self._recounts, False
        for name, operator in self._cells.items():
            with blaming(name, "being asked for its state"):
                added[name] = yield from operator.footprints(end, again)
        for name, written in list(self._whole.items()):
            added[name] = yield from self._whole_state(name, written, end, again)
        complete = [name for name, new in added.items() if new.whole]
        self._from |= dict.fromkeys(complete, end)
        self._end = end
        is_complete, self._is_complete = self._is_complete, False
        return SliceLog(
            closings={name: new.closings for name, new in added.items() if new.closings},
            footprints={name: new.records for name, new in added.items() if new.records},
            commit=self._commit(),
            written=sum(new.count for new in added.values()),
            not_final=sum(new.not_final for new in added.values()),
            rewritten=sum(new.rewritten for new in added.values()),
            replaced=[part for new in added.values() for part in new.replaced],
            oldest_row=self.oldest_row(),
            whole=is_whole or bool(complete),
            complete=is_complete,
            later={
                name: Later(_inner(self._fragment.another(name)), *new.later)
                for name, new in added.items()
                if new.later is not None
            },
        )

    def _whole_state(self, name: StreamId, written: int, end: int, again: Rewriting) -> Steps[Footprints]:
        """Returns the additions of an operator whose newest record, from ``written``, is its whole state.

        Once it has only rows from within the log it needs no record.
        """
        is_old = len((yield from again.chosen(np.array([written])))) > 0
        if written != UNWRITTEN and not self._is_in_reach(name, written) and not is_old:
            return Footprints()
        new = Footprints(whole=written == UNWRITTEN)
        if not new.whole:
            new.replaced = [LiveFootprints(np.array([written]), np.array([True]))]
        if self._is_in_reach(name, end if new.whole else written):
            del self._whole[name]
            return new
        with blaming(name, "being asked for its state"):
            new.records = [{"state": self._fragment.operators[name].snapshot()}]
        self._whole[name] = end
        new.count = new.not_final = 1
        new.rewritten = int(not new.whole)
        return new

    def _is_in_reach(self, name: StreamId, begin: int) -> bool:
        """Are all rows in its state from ``begin`` or later?"""
        if name not in self._keeps_rows:
            return False
        with blaming(name, "being asked how far back its state reaches"):
            oldest = self._fragment.operators[name].oldest_needed()
        return oldest is None or oldest >= begin

    def _commit(self) -> Tree:
        states: dict[str, Any] = {}
        for name, operator in self._fragment.operators.items():
            with blaming(name, "being asked for its state"):
                states[name] = {"counters": dict(operator.counters())}
            if name in self._cells:
                states[name]["state"] = self._cells[name].log_state()
            if name in self._from:
                states[name]["from"] = self._from[name]
            if name in self._whole:
                states[name]["whole"] = self._whole[name]
        return {"operators": states}

    def oldest_row(self) -> int | None:
        """Returns the least time of a row in the state of an operator."""
        operators = self._fragment.operators
        oldest = [operators[name].oldest_needed() for name in self._keeps_rows if name not in self._whole]
        return min((time for time in oldest if time is not None), default=None)

    def live(self) -> Steps[list[LiveFootprints]]:
        """Returns valid footprints, in parts."""
        whole = [time for time in self._whole.values() if time != UNWRITTEN]
        live = [LiveFootprints(np.array(whole, np.int64), np.ones(len(whole), np.bool_))]
        for operator in self._cells.values():
            live += yield from operator.live_footprints()
        return live

    def forget(self) -> None:
        """Makes the next slice write everything: the log may lack records, or is another log."""
        self._forgets = True

    def continues(self, other: FragmentLog, begin: int) -> None:
        """Takes over the records of ``other``, whose state at ``begin`` was restored here.

        If ``other`` has written more since then, the log has unknown records, and everything is rewritten.
        """
        self._forgets = other._forgets or other._is_complete or begin < other._end
        self._whole, self._from, self._end = dict(other._whole), dict(other._from), other._end
        self._is_complete, self._recounts = False, True

    def _forget(self) -> Steps[None]:
        self._forgets, self._is_complete = False, True
        for operator in self._cells.values():
            yield from operator.forget_footprints()
        self._whole = dict.fromkeys([*self._whole, *self._keeps_rows], UNWRITTEN)

    # --- after a crash ---

    def reconstruct(self, commit: Tree, start: Tree, begin: int, slices: Sequence[LoggedSlice]) -> Steps[None]:
        """Reconstructs the state at a commit, as far as the log has it, in portions.

        Then the input between the two commits is replayed, cut anywhere but ended there; results are dropped; finally
        :meth:`replayed` is called.

        Args:
          commit: :attr:`SliceLog.commit`.
          start: the commit from which input is replayed.
          begin: end of the slice of ``start``.
          slices: all slices in the log up to the commit, oldest first.

        Raises:
          LogCorrupt: a footprint is missing.
          OperatorFailed: a user-defined operator raised.
        """
        states, takes_from = commit["operators"], {}
        self._is_complete = self._forgets = False
        for name, operator in self._fragment.operators.items():
            known = states[name].get("from", UNWRITTEN)
            with blaming(name, _RESTORED):
                _check_way(name in self._cells, states[name])
            if name in self._cells:
                logged = list(_logged(name, known, slices))
                self._from[name] = known
                state, begun = states[name]["state"], start["operators"][name]["state"]
                try:
                    yield from self._cells[name].reconstruct(state, begun, logged)
                except SpeError:
                    raise
                except Exception as error:  # user code
                    raise OperatorFailed(name, _RESTORED, error) from error
            elif "whole" in states[name]:
                written = states[name]["whole"]
                snapshot = _snapshot_of(name, written, slices)
                with blaming(name, _RESTORED):
                    operator.restore(snapshot)
                self._whole[name] = takes_from[name] = written
                self._from[name] = known
            else:
                self._whole.pop(name, None)
                with blaming(name, "being cleared"):
                    operator.clear(begin)
        self._fragment.begin_replay(takes_from)

    def replayed(self, commit: Tree, end: int) -> None:
        """Ends a replay up to the commit of the slice to ``end``.

        Raises:
          LogCorrupt: the replayed input differs from the original one.
        """
        self._fragment.end_replay()
        self._end = end
        for name, operator in self._fragment.operators.items():
            if name in self._cells:
                self._cells[name].replayed(commit["operators"][name]["state"])
            operator.recount(commit["operators"][name]["counters"])

    def replays_on(self) -> None:
        """Continues the replay of the fragment whose records were taken over by :meth:`continues`."""
        self._fragment.begin_replay(dict(self._whole))
        for operator in self._cells.values():
            operator.replays_on()

    def gave_up(self, commit: Tree) -> None:
        """Ends a replay without success, or with tentative input: the state is not that of the log any more."""
        self._fragment.end_replay()
        for name, operator in self._fragment.operators.items():
            if name in self._cells:
                self._cells[name].gave_up(commit["operators"][name]["state"])
            operator.recount(commit["operators"][name]["counters"])


def _snapshot_of(name: StreamId, end: int, slices: Sequence[LoggedSlice]) -> Tree:
    """Returns the state of an operator that the slice to ``end`` has as a whole.  Raises LogCorrupt."""
    for piece in slices:
        if piece.end == end and name in piece.footprints:
            state: Tree = piece.footprints[name][0]["state"]
            return state
    raise LogCorrupt(f"the checkpoint log has no state of {name!r} from {end}")


def _check_way(by_cells: bool, state: Tree) -> None:
    """Raises ValueError if a user's class stored its state in another way when the log was written."""
    if by_cells != ("state" in state):
        before, now = ("as a whole", "by key") if by_cells else ("by key", "as a whole")
        raise ValueError(f"the checkpoint log has its state {before}, and its class keeps it {now}")


def _inner(operator: Operator) -> Operator:
    inner = operator.operator if isinstance(operator, Skipping) else operator
    return inner.host if isinstance(inner, Trials) else inner


def _logged(name: StreamId, begin: int, slices: Sequence[LoggedSlice]) -> list[CellRecord]:
    records = []
    for piece in slices:
        if piece.end >= begin:
            records += [CellRecord(piece.end, tree, closes=True) for tree in piece.closings.get(name, ())]
            records += [CellRecord(piece.end, tree) for tree in piece.footprints.get(name, ())]
    return records
