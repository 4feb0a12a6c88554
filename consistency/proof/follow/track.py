"""Checks a channel element by element, by the rules that need no truth.  Pure, of bounded size."""

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
      first_id, id: of its tuples; ``id`` also: the last one that an undo leaves or a boundary covers.
      tuples: number of tuples.
      first_us, last_us: smallest and largest time of its tuples; both are a boundary's own time.
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
        """Returns the first tuple; its values are not known."""
        at_us = self.arrived_us - begun_us
        return Offender(partition=partition, place=self.place, time=moment(self.time_us), tuple={}, at_us=at_us)


class ChannelTrack(BaseModel):
    """State of a channel up to some record.

    Attributes:
      stable, tentative, undone: number of tuples received, and revoked.
      corrections: number of undos of tentative tuples.
      passed_id: the largest stable id; ``passed_us``: the time of the last stable tuple.
      frontier_us: the largest stable boundary.
      live: tentative tuples since the last undo; ``live_id``, ``live_us``, ``live_arrived_us``: of the first of them.
      overtaken: number of live tuples before the last stable tuple.
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

    def hear(self, heard: Heard) -> list[Wrong]:
        """Takes the next record and returns the flaws that it shows (P4, B7)."""
        if heard.kind == STABLE:
            belated = heard.id > self.passed_id and heard.first_us < self.frontier_us
            flaws = (
                [Wrong(Flaw.BELATED, heard.tuples, heard.first_id, heard.first_us, heard.arrived_us)] if belated else []
            )
            self.stable += heard.tuples
            self.passed_id, self.passed_us = max(self.passed_id, heard.id), max(self.passed_us, heard.last_us)
            self.overtaken = self.live
            return flaws
        elif heard.kind == TENTATIVE:
            self.tentative += heard.tuples
            if not self.live:
                self.live_id, self.live_us, self.live_arrived_us = heard.first_id, heard.first_us, heard.arrived_us
            self.live += heard.tuples
        elif heard.kind == STABLE_BOUNDARY:
            self.frontier_us = max(self.frontier_us, heard.last_us)
        elif heard.kind == UNDO:
            return self._undo(heard)
        else:
            assert heard.kind in (REC_DONE, "tentative_boundary"), heard.kind
        return []

    def _undo(self, heard: Heard) -> list[Wrong]:
        flaws = []
        if heard.id < self.passed_id:
            lost = self.passed_id - heard.id
            flaws.append(Wrong(Flaw.UNDONE, lost, heard.id + 1, self.passed_us, heard.arrived_us))
        if self.overtaken:
            flaws.append(Wrong(Flaw.OVERTAKEN, self.overtaken, self.live_id, self.live_us, self.live_arrived_us))
        self.undone += self.live
        self.corrections += self.live > 0
        self.live = self.overtaken = 0
        return flaws

    def ended(self) -> list[Wrong]:
        """Returns the flaws if nothing more comes."""
        if not self.live:
            return []
        return [Wrong(Flaw.UNCORRECTED, self.live, self.live_id, self.live_us, self.live_arrived_us)]
