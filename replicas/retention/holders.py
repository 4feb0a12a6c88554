"""Finds the oldest segments of a log that are due for deletion, and their holders (rules E1 to E3).  Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple, Protocol

from spe.log.format import Segment
from spe.plan.plan import Retain
from spe.status import HolderStatus

#: Holder of the part that `spe report --follow` has not proved.
PROOF: Final = "spe report --follow"
#: Divisor of a log's limit that gives the size of its segments.
SHARE: Final = 8
#: Segments are no smaller than this.
_SEGMENT_MIN: Final = 2 << 10


class ClosedSegment(NamedTuple):
    """A completed segment.

    Attributes:
      last: number of its last record.
      last_id: of the last tuple in it or before it.
      until_us: largest time in it or before it, by the clock that ``Retain.for_us`` is measured on.
    """

    segment: Segment
    nbytes: int
    last: int
    last_id: int
    until_us: int


def segment_bytes(retain: Retain | None, default: int, logs: int = 1) -> int:
    """Returns the size at which a segment is completed.

    Args:
      logs: number of logs that share the size.
    """
    if retain is None or retain.size_bytes is None:
        return default
    return max(_SEGMENT_MIN, min(default, retain.size_bytes // SHARE // max(1, logs)))


class _Sized(Protocol):
    @property
    def nbytes(self) -> int: ...

    @property
    def until_us(self) -> int: ...


def due(closed: Sequence[_Sized], nbytes: int, newest_us: int, retain: Retain) -> int:
    """Returns how many of the oldest segments are due (E1).

    Args:
      closed: in order.
      nbytes: of the whole log.
      newest_us: time that the log has reached, by the same clock.
    """
    for count, segment in enumerate(closed):
        old = retain.for_us is not None and newest_us - segment.until_us > retain.for_us
        large = retain.size_bytes is not None and nbytes > retain.size_bytes
        if not old and not large:
            return count
        nbytes -= segment.nbytes
    return len(closed)


def needed_from(retain: Retain, proved: int | None) -> int | None:
    """Returns the first record that a proof may still need (E2); None: no proof has to be waited for.

    Args:
      proved: the first record that a proof needs; None: no proof runs.
    """
    if retain.unproved or (proved is None and retain.archive):
        return None
    return 1 if proved is None else proved


class _Ack(NamedTuple):
    incarnation: int = -1
    id: int = 0


class Holders:
    """Needs of a source's log by its consumers (E2), and the time since when each holds due segments.

    Args:
      consumers: names of all configured ones.
    """

    def __init__(self, consumers: Iterable[str] = ()) -> None:
        self._acks = {name: _Ack() for name in consumers}
        self._since: dict[str, int] = {}

    def set_consumers(self, consumers: Iterable[str]) -> None:
        """Sets the consumers: new ones have acknowledged nothing, former ones no longer count (D3)."""
        self._acks = {name: self._acks.get(name, _Ack()) for name in consumers}

    def acknowledged(self, consumer: str, incarnation: int, id: int) -> bool:
        """Takes an acknowledgement; returns True if it changed.

        A2: within an incarnation it grows, and a new incarnation counts from its first one on.
        """
        before = self._acks.get(consumer)
        if before is None or incarnation < before.incarnation:
            return False
        ack = _Ack(incarnation, id if incarnation > before.incarnation else max(id, before.id))
        self._acks[consumer] = ack
        return ack != before

    def acks(self) -> Mapping[str, int]:
        """Returns the id that each consumer has acknowledged."""
        return {name: ack.id for name, ack in self._acks.items()}

    def free(
        self,
        segments: Sequence[ClosedSegment],
        now_us: int,
        *,
        needs_all: Iterable[str] = (),
        proved: int | None = None,
    ) -> tuple[int, list[HolderStatus]]:
        """Returns how many of these due segments are not needed; and the holders of the others.

        Args:
          now_us: wall clock.
          needs_all: partitions that would begin from the first tuple again.
          proved: the proof needs no record before this one; None: no proof has to be waited for.
        """
        needs = {name: ack.id for name, ack in self._acks.items()} | dict.fromkeys(needs_all, 0)
        held = {name: [s for s in segments if s.last_id > upto] for name, upto in needs.items()}
        if proved is not None:
            held[PROOF] = [s for s in segments if s.last >= proved]
        held = {name: some for name, some in held.items() if some}
        self._since = {name: self._since.get(name, now_us) for name in held}
        free = len(segments) - max(map(len, held.values()), default=0)
        by_most = sorted(held, key=lambda name: (-len(held[name]), name))
        return free, [
            HolderStatus(holder=n, since_us=self._since[n], bytes=sum(s.nbytes for s in held[n])) for n in by_most
        ]
