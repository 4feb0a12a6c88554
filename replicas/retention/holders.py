"""Which of the oldest segments of a log are due to be deleted, and who holds them (rules E1 to E3).  Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple, Protocol

from spe.log.format import Segment
from spe.plan.plan import Retain
from spe.status import HolderStatus

#: The holder of what `spe report --follow` has not proved.
PROOF: Final = "spe report --follow"
#: A segment of a log with a limit has this share of it.
SHARE: Final = 8
#: Segments are no smaller than this.
_SEGMENT_MIN: Final = 2 << 10


class ClosedSegment(NamedTuple):
    """A segment that is written no more.

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
    """At this size a segment is left.

    Args:
      logs: how many share the size.
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
    """How many of the oldest segments are due (E1).

    Args:
      closed: in order.
      nbytes: of the whole log.
      newest_us: time that it has reached, by the same clock.
    """
    for count, one in enumerate(closed):
        old = retain.for_us is not None and newest_us - one.until_us > retain.for_us
        large = retain.size_bytes is not None and nbytes > retain.size_bytes
        if not old and not large:
            return count
        nbytes -= one.nbytes
    return len(closed)


def needed_from(retain: Retain, proved: int | None) -> int | None:
    """The first record that may not be deleted for the sake of a proof (E2); None: there is nobody to wait for.

    Args:
      proved: the first record that a proof needs; None: nobody proves the run.
    """
    if retain.unproved or (proved is None and retain.archive):
        return None
    return 1 if proved is None else proved


class _Ack(NamedTuple):
    incarnation: int = -1
    id: int = 0


class Holders:
    """Who needs what of a source's log (E2), and since when somebody holds what is due.

    Args:
      consumers: names of all configured ones.
    """

    def __init__(self, consumers: Iterable[str] = ()) -> None:
        self._acks = {name: _Ack() for name in consumers}
        self._since: dict[str, int] = {}

    def set_consumers(self, consumers: Iterable[str]) -> None:
        """Another directory counts: who is new was never heard, who has left does not count (A6)."""
        self._acks = {name: self._acks.get(name, _Ack()) for name in consumers}

    def acknowledged(self, consumer: str, incarnation: int, id: int) -> bool:
        """As A2 has it: within an incarnation it grows, and a new one counts from its first on.  True: it changed."""
        before = self._acks.get(consumer)
        if before is None or incarnation < before.incarnation:
            return False
        found = _Ack(incarnation, id if incarnation > before.incarnation else max(id, before.id))
        self._acks[consumer] = found
        return found != before

    def acks(self) -> Mapping[str, int]:
        """The id that each consumer has acknowledged."""
        return {name: ack.id for name, ack in self._acks.items()}

    def free(
        self, found: Sequence[ClosedSegment], now_us: int, *, needs_all: Iterable[str] = (), proved: int | None = None
    ) -> tuple[int, list[HolderStatus]]:
        """How many of these segments, which are due, nobody needs; and who needs the others.

        Args:
          now_us: wall clock.
          needs_all: partitions that would begin from the first tuple again.
          proved: the proof needs no record before this one; None: there is nobody to wait for.
        """
        needs = {name: ack.id for name, ack in self._acks.items()} | dict.fromkeys(needs_all, 0)
        held = {name: [s for s in found if s.last_id > upto] for name, upto in needs.items()}
        if proved is not None:
            held[PROOF] = [s for s in found if s.last >= proved]
        held = {name: some for name, some in held.items() if some}
        self._since = {name: self._since.get(name, now_us) for name in held}
        free = len(found) - max(map(len, held.values()), default=0)
        by_most = sorted(held, key=lambda name: (-len(held[name]), name))
        return free, [
            HolderStatus(holder=n, since_us=self._since[n], bytes=sum(s.nbytes for s in held[n])) for n in by_most
        ]
