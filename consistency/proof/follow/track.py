"""What a client received of one channel, element by element: the rules that need no truth.  Pure, of bounded size."""

from __future__ import annotations

from typing import NamedTuple

from pydantic import BaseModel, ConfigDict

from consistency.proof.recorded.elements import REC_DONE, STABLE, STABLE_BOUNDARY, TENTATIVE, UNDO
from consistency.proof.report.model import Flaw, Offender
from consistency.proof.report.words import moment
from spe.stream.times import BEFORE_TIME


class Heard(NamedTuple):
    """One record of a recording.

    Attributes:
      kind: as in ``consistency.proof.recorded.elements``.
      first_id, id: of its tuples; the last one that an undo leaves or a boundary covers.
      tuples: how many.
      first_us, last_us: smallest and largest time of its tuples; a boundary's own in both.
    """

    arrived_us: int
    kind: str
    first_id: int = 0
    id: int = 0
    tuples: int = 0
    first_us: int = BEFORE_TIME
    last_us: int = BEFORE_TIME


class Wrong(NamedTuple):
    """Tuples with one flaw, and the first of them."""

    flaw: Flaw
    tuples: int
    place: int
    time_us: int
    arrived_us: int

    def offender(self, partition: int, begun_us: int) -> Offender:
        """The first tuple; its values are not known."""
        at_us = self.arrived_us - begun_us
        return Offender(partition=partition, place=self.place, time=moment(self.time_us), tuple={}, at_us=at_us)


class ChannelTrack(BaseModel):
    """A channel up to some record.

    Attributes:
      stable, tentative, undone: tuples received, and taken back.
      corrections: how often.
      passed_id: the largest stable id; ``passed_us``: the time of the last stable tuple.
      frontier_us: the largest stable boundary.
      live: tentative tuples since the last undo; ``live_id``, ``live_us``, ``live_arrived_us``: of the first of them.
      overtaken: of these, those before the last stable tuple.
    """

    model_config = ConfigDict(extra="forbid")
    stable: int = 0
    tentative: int = 0
    undone: int = 0
    corrections: int = 0
    passed_id: int = 0
    passed_us: int = BEFORE_TIME
    frontier_us: int = BEFORE_TIME
    live: int = 0
    live_id: int = 0
    live_us: int = 0
    live_arrived_us: int = 0
    overtaken: int = 0

    def hear(self, one: Heard) -> list[Wrong]:
        """Takes the next record; gives what it shows to be wrong (P4, B7)."""
        if one.kind == STABLE:
            belated = one.id > self.passed_id and one.first_us < self.frontier_us
            found = [Wrong(Flaw.BELATED, one.tuples, one.first_id, one.first_us, one.arrived_us)] if belated else []
            self.stable += one.tuples
            self.passed_id, self.passed_us = max(self.passed_id, one.id), max(self.passed_us, one.last_us)
            self.overtaken = self.live
            return found
        elif one.kind == TENTATIVE:
            self.tentative += one.tuples
            if not self.live:
                self.live_id, self.live_us, self.live_arrived_us = one.first_id, one.first_us, one.arrived_us
            self.live += one.tuples
        elif one.kind == STABLE_BOUNDARY:
            self.frontier_us = max(self.frontier_us, one.last_us)
        elif one.kind == UNDO:
            return self._undo(one)
        else:
            assert one.kind in (REC_DONE, "tentative_boundary"), one.kind
        return []

    def _undo(self, one: Heard) -> list[Wrong]:
        found = []
        if one.id < self.passed_id:
            lost = self.passed_id - one.id
            found.append(Wrong(Flaw.UNDONE, lost, one.id + 1, self.passed_us, one.arrived_us))
        if self.overtaken:
            found.append(Wrong(Flaw.OVERTAKEN, self.overtaken, self.live_id, self.live_us, self.live_arrived_us))
        self.undone += self.live
        self.corrections += self.live > 0
        self.live = self.overtaken = 0
        return found

    def ended(self) -> list[Wrong]:
        """What is wrong if nothing more comes."""
        if not self.live:
            return []
        return [Wrong(Flaw.UNCORRECTED, self.live, self.live_id, self.live_us, self.live_arrived_us)]
