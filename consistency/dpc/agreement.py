"""Compares stable tuples of the replicas of a partition, by digests each 1,000 tuples and at the end.  Pure.

A replica sends the newest place at which it took the digest of an output with each heartbeat; the others compare as
soon as they have reached it (docs/internals/rules.md, invariant 4).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from operators.digest import MARK_EVERY, MARKS_KEPT
from spe.plan.plan import Unit
from spe.query.query import streams_before
from spe.stream.names import StreamId


class Divergence(NamedTuple):
    """A difference: up to stable id ``id`` of an output ``partner`` made other tuples than we."""

    output: int
    partner: str
    id: int


class Agreement:
    """Holds digests of partners until they can be compared."""

    def __init__(self) -> None:
        self._told: dict[tuple[int, str], dict[int, int]] = {}
        #: First difference per output and partner; all later digests differ too.
        self.differences: list[Divergence] = []
        #: Places compared.
        self.compared = 0

    def heard(self, output: int, partner: str, id: int, digest: int) -> None:
        """Takes a partner's newest place; id 0: it has none.  Of a partner far ahead the oldest places are dropped."""
        if id == 0 or any((d.output, d.partner) == (output, partner) for d in self.differences):
            return
        places = self._told.setdefault((output, partner), {})
        places[id] = digest
        if len(places) > MARKS_KEPT:
            del places[min(places)]

    def compare(
        self, output: int, last_id: int, marks: Callable[[], Mapping[int, int]], *, ended: bool = False
    ) -> list[Divergence]:
        """Returns new differences.

        Args:
          last_id: id of our last stable tuple of the output.
          marks: returns our own places and digests; called only where there is something to compare.
          ended: no stable tuple follows.  Only then the end of a partner's output, which is no multiple of 1,000, is
            compared.
        """
        differences: list[Divergence] = []
        for (compared_output, partner), places in self._told.items():
            due = sorted(i for i in places if ended or (i <= last_id and i % MARK_EVERY == 0))
            if compared_output != output or not due:
                continue
            ours = marks()
            for id in due:
                digest = places.pop(id)
                if id not in ours and id <= last_id and id % MARK_EVERY == 0:
                    continue  # we have no digest there: it was before our last restore, or long ago
                self.compared += 1
                if ours.get(id) != digest:
                    differences.append(Divergence(output, partner, id))
                    places.clear()
                    break
        self.differences += differences
        return differences


def suspects(unit: Unit, output: StreamId) -> str:
    """Names the operators of user code before an output, whose results may depend on more than the input."""
    before = streams_before(unit.operators, output)
    own = [repr(str(o.name)) for o in unit.operators if o.name in before and o.spec.own_code]
    if not own:
        return f"operator {output!r}, or one before it, is not deterministic"
    return f"operator {' and '.join(own)} is code of your own and must be deterministic"
