"""The checkpoint log of a fragment: what each slice adds to it, and the fragment as it was at a commit (G1 to G4).

Operators on one path of a unit have state once at most (G8), so each is made again by itself.  Three ways:

* by cells: footprints are loaded, and rows count where a footprint lacks them;
* by rows: those that it keeps are input, and it is given all of it again from the oldest of them on.  Where these are
  older than the log, its snapshot is in the log until they are not needed any more;
* as a whole: its snapshot is the footprint of one cell, and it is given the slices after it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from operators.footprints import (
    UNWRITTEN,
    CellRecord,
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

_GIVEN: Final = "the state that it was given"


class SliceLog(NamedTuple):
    """What a slice adds to the log of a fragment.

    Attributes:
      closings, footprints: trees by operator; empty where there are none.  Footprints may be :attr:`later`.
      commit: what the state has besides.
      written: how many footprints; ``not_final``: how many of them are not final; ``rewritten``: how many of them only
        because older ones were from too long ago.
      replaced: older ones that count no more, in parts.
      oldest_row: least time of a row that somebody still keeps; None: nobody keeps one.
      whole: of some operator nothing that was written before counts: the log's live footprints are to be counted anew.
      complete: of no operator does anything count that was written before.
      later: by operator, footprints that are so many that the stream does not wait until they are made.
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
        """Also those that are still to be made; may be called in a thread, once."""
        return self.footprints | {name: later.records() for name, later in self.later.items()}


class LoggedSlice(NamedTuple):
    """A slice as it was read from the log; attributes as in :class:`SliceLog`, ``end`` is of the slice."""

    end: int
    closings: Mapping[str, Sequence[Tree]]
    footprints: Mapping[str, Sequence[Tree]]


class FragmentLog:
    """Of one fragment.

    Args:
      unit: whose operators they are.
      fragment: as it was made; nothing has come yet.
    """

    def __init__(self, unit: Unit, fragment: Fragment) -> None:
        self._fragment = fragment
        self._cells: dict[StreamId, KeepsCells] = {}
        #: Operators that are one record, or keep rows from before the log, and the time of their newest record.
        self._whole: dict[StreamId, int] = {}
        self._keeps_rows: list[StreamId] = []
        for declared in unit.operators:
            kind, operator = declared.spec.logged, _inner(fragment.operators[declared.name])
            if kind is Logged.CELLS:
                assert isinstance(operator, KeepsCells), "declared so"
                operator.begin_log()
                self._cells[declared.name] = operator
            elif kind is not Logged.NOTHING:
                self._whole[declared.name] = UNWRITTEN
                if kind is Logged.ROWS:
                    self._keeps_rows.append(declared.name)
        #: End of the slice from which on the records of an operator count.
        self._from: dict[str, int] = {}
        #: End of the newest slice that was written.
        self._end = UNWRITTEN
        self._is_complete = True
        self._forgets = False
        #: It is not known which footprints count no more since the newest slice.
        self._recounts = False

    def slice_log(self, end: int, below: int = UNWRITTEN, most: int = 0) -> Steps[SliceLog]:
        """What the slice that has just ended adds, in portions; nothing may come meanwhile.  Raises OperatorFailed.

        What is returned is in the log at once, or is forgotten.

        Args:
          below: footprints from before this time are written anew, and ``most`` of those from then.
        """
        if self._forgets:
            yield from self._forget()
        again = Rewriting(below, most)
        later: dict[StreamId, Later] = {}
        closings: dict[str, list[Tree]] = {}
        footprints: dict[str, list[Tree]] = {}
        replaced: list[LiveFootprints] = []
        count = not_final = rewritten = 0
        is_whole, self._recounts = self._recounts, False
        for name, operator in self._cells.items():
            with blaming(name, "being asked for its state"):
                found = yield from operator.footprints(end, again)
            is_whole |= found.whole
            if found.whole:
                self._from[name] = end
            if found.closings:
                closings[name] = found.closings
            if found.records:
                footprints[name] = found.records
            if found.later is not None:
                later[name] = Later(_inner(self._fragment.another(name)), *found.later)
            replaced += found.replaced
            count += found.count
            not_final += found.not_final
            rewritten += found.rewritten
        for name, written in list(self._whole.items()):
            is_old = len((yield from again.chosen(np.array([written])))) > 0
            if written != UNWRITTEN and not self._is_in_reach(name, written) and not is_old:
                continue
            if written == UNWRITTEN:
                is_whole, self._from[name] = True, end
            else:
                replaced.append(LiveFootprints(np.array([written]), np.array([True])))
            if self._is_in_reach(name, end if written == UNWRITTEN else written):
                del self._whole[name]
                continue
            with blaming(name, "being asked for its state"):
                footprints[name] = [{"state": self._fragment.operators[name].snapshot()}]
            self._whole[name] = end
            count += 1
            rewritten += written != UNWRITTEN
            not_final += 1
        commit = self._commit()
        self._end = end
        is_complete, self._is_complete = self._is_complete, False
        return SliceLog(
            closings,
            footprints,
            commit,
            count,
            not_final,
            rewritten,
            replaced,
            self.oldest_row(),
            is_whole,
            is_complete,
            later,
        )

    def _is_in_reach(self, name: StreamId, begin: int) -> bool:
        """Are all rows that it keeps from ``begin`` or later?"""
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
        """Least time of a row that an operator still keeps."""
        operators = self._fragment.operators
        oldest = [operators[name].oldest_needed() for name in self._keeps_rows if name not in self._whole]
        return min((time for time in oldest if time is not None), default=None)

    def live(self) -> Steps[list[LiveFootprints]]:
        """Footprints that count, in parts."""
        whole = [time for time in self._whole.values() if time != UNWRITTEN]
        live = [LiveFootprints(np.array(whole, np.int64), np.ones(len(whole), np.bool_))]
        for operator in self._cells.values():
            live += yield from operator.live_footprints()
        return live

    def forget(self) -> None:
        """The next slice writes everything: the log may lack some of what was written, or it is another's log."""
        self._forgets = True

    def continues(self, other: FragmentLog, begin: int) -> None:
        """The fragment was given the state that ``other`` had at ``begin``: what is written of it counts on.

        Where more was written since, the log has pieces of which this state does not know, and all is written anew.
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
        """Makes the state at a commit, as far as the log has it, in portions.

        Then the fragment is given the input between the two commits again, cut anywhere but ended there; what it
        releases is dropped; at last :meth:`replayed` is called.

        Args:
          commit: as :class:`SliceLog` has it.
          start: the same of the commit that input is replayed from.
          begin: end of that one's slice.
          slices: all that the log has up to the commit, oldest first.

        Raises:
          LogCorrupt: a footprint is missing.
          OperatorFailed: of a user's.
        """
        states, takes_from = commit["operators"], {}
        self._is_complete = self._forgets = False
        for name, operator in self._fragment.operators.items():
            known = states[name].get("from", UNWRITTEN)
            with blaming(name, _GIVEN):
                _check_way(name in self._cells, states[name])
            if name in self._cells:
                logged = list(_logged(name, known, slices))
                self._from[name] = known
                state, begun = states[name]["state"], start["operators"][name]["state"]
                try:
                    yield from self._cells[name].reconstruct(state, begun, logged)
                except SpeError:
                    raise
                except Exception as error:  # a user's code
                    raise OperatorFailed(name, _GIVEN, error) from error
            elif "whole" in states[name]:
                written = states[name]["whole"]
                found = [s.footprints[name] for s in slices if s.end == written and name in s.footprints]
                if not found:
                    raise LogCorrupt(f"the checkpoint log has no state of {name!r} from {written}")
                with blaming(name, _GIVEN):
                    operator.restore(found[0][0]["state"])
                self._whole[name] = takes_from[name] = written
                self._from[name] = known
            else:
                self._whole.pop(name, None)
                with blaming(name, "being cleared"):
                    operator.clear(begin)
        self._fragment.begin_replay(takes_from)

    def replayed(self, commit: Tree, end: int) -> None:
        """Input was given again up to the commit, which is of the slice to ``end``.

        Raises:
          LogCorrupt: it is not what had been given.
        """
        self._fragment.end_replay()
        self._end = end
        for name, operator in self._fragment.operators.items():
            if name in self._cells:
                self._cells[name].replayed(commit["operators"][name]["state"])
            operator.recount(commit["operators"][name]["counters"])

    def replays_on(self) -> None:
        """The fragment was given the state of one whose log this :meth:`continues`, in the midst of a replay."""
        self._fragment.begin_replay(dict(self._whole))
        for operator in self._cells.values():
            operator.replays_on()

    def gave_up(self, commit: Tree) -> None:
        """Not all input was given again up to the commit, or what is tentative: the state is no longer the log's."""
        self._fragment.end_replay()
        for name, operator in self._fragment.operators.items():
            if name in self._cells:
                self._cells[name].gave_up(commit["operators"][name]["state"])
            operator.recount(commit["operators"][name]["counters"])


def _check_way(by_cells: bool, state: Tree) -> None:
    """Raises ValueError where a user's class kept its state in another way when the log was written."""
    if by_cells != ("state" in state):
        before, now = ("as a whole", "by key") if by_cells else ("by key", "as a whole")
        raise ValueError(f"the checkpoint log has its state {before}, and its class keeps it {now}")


def _inner(operator: Operator) -> Operator:
    inner = operator.operator if isinstance(operator, Skipping) else operator
    return inner.host if isinstance(inner, Trials) else inner


def _logged(name: StreamId, begin: int, slices: Sequence[LoggedSlice]) -> list[CellRecord]:
    found = []
    for one in slices:
        if one.end >= begin:
            found += [CellRecord(one.end, tree, closes=True) for tree in one.closings.get(name, ())]
            found += [CellRecord(one.end, tree) for tree in one.footprints.get(name, ())]
    return found
