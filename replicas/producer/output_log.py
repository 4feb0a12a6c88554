"""The log of an output channel of a replica, and the acknowledgements of its consumers.  Pure.

One *stable log*, append-only, truncated from the front by acknowledgements (rule A2); and one *tentative
suffix*, which is dropped as a whole when the correction is done.  :meth:`OutputLog.subscribe` gives cursors into both.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, Final

from replicas.producer.element_log import ElementLog
from replicas.producer.log_entry import Entry, Substream
from replicas.producer.subscription import OutputSubscription
from spe.errors import LocalProtocolError
from spe.plan.plan import Limits
from spe.runtime.spill import Spill, SpillDamaged, piece_bytes
from spe.stream.batch import Batch, Boundary, Element
from spe.stream.ids import Channel
from spe.stream.names import Kind, NodeState
from spe.stream.schema import Schema
from spe.stream.times import format_timestamp
from spe.wire.fields import Mode, Start

#: An incarnation that no process has: not heard yet.
_NEVER: Final = -1


@dataclass(frozen=True, slots=True)
class LogTruncated:
    """The log begins behind the consumer's position, so it must install a snapshot.  ``first``: smallest id left."""

    first: int


@dataclass(frozen=True, slots=True)
class LogNotReady:
    """The replica is recovering."""


@dataclass(slots=True)
class _Ack:
    """The last acknowledgement of a configured consumer.

    Attributes:
      granted: id from which an evicted standby counts again, though its checkpoints are still older.
    """

    incarnation: int = _NEVER
    id: int = 0
    evicted: bool = False
    granted: int = 0


class OutputLog:
    """One output channel of one replica.

    Args:
      channel: stream and partition.
      schema: schema of its tuples.
      consumers: names of all configured consumers, ``unit/partition@node`` or ``client:name`` (Directory.consumers_of).
      limits: caps on both logs.
      standbys: consumers that hold checkpoints only (H2).
      spill: takes the oldest part of the stable log beyond half its cap; None: it stays in memory.
      tail_bytes: acknowledged entries stay while the stable log has no more than this.
      changes: numbers the changes of state.  All logs that a process makes of one channel share it, so that consumers
        can tell which of two states is the newer one (F4); None: there is only this log.
    """

    def __init__(
        self,
        channel: Channel,
        schema: Schema,
        consumers: Iterable[str],
        limits: Limits,
        spill: Spill | None = None,
        standbys: Collection[str] = (),
        changes: Iterator[int] | None = None,
        tail_bytes: int = 0,
    ) -> None:
        self._tail_bytes = tail_bytes
        self._standbys = frozenset(standbys)
        self.channel = channel
        self.schema = schema
        self._limits = limits
        self._acks = {name: _Ack() for name in consumers}
        self.state = NodeState.RECOVERING
        #: Live results go on while reconciling (R5).
        self.fresh = False
        self._changes = count(1) if changes is None else changes
        #: Number of the last change of ``state`` or ``fresh``.
        self.sequence = next(self._changes)
        self._spill = spill
        self.stable = ElementLog(spill=spill)
        self.suffix = ElementLog()
        #: Number of the tentative run that the suffix belongs to.
        self.run = 0
        #: How often STABILIZATION was entered: a subscription owes a rec_done when it changes.
        self.stabilizations = 0
        #: How often the log was replaced by a snapshot.
        self.installs = 0
        #: Tentative tuples that were dropped because the suffix outgrew its cap (V6).
        self.suffix_dropped = 0
        #: Acknowledgements of consumers that are not configured.
        self.unknown_acks = 0

    # --- output of the unit ---

    def append_stable(self, elements: Sequence[Element]) -> None:
        """Appends the elements of stable slices from SOutput.

        Raises:
          LocalProtocolError: an element does not follow the last one, or it would follow a live tentative one.
        """
        if elements and self.state is NodeState.UP_FAILURE and not self.suffix.untouched:
            raise LocalProtocolError(f"{self.channel}: a stable element while the tentative suffix grows")
        self._append(self.stable, Kind.STABLE, elements)
        self._truncate()
        self.spill_oldest()

    def append_tentative(self, elements: Sequence[Element]) -> None:
        """Appends the elements of tentative slices from SOutput.  Raises LocalProtocolError in a wrong state."""
        if elements and self.state not in (NodeState.UP_FAILURE, NodeState.STABILIZATION):
            raise LocalProtocolError(f"{self.channel}: a tentative element in state {self.state.name}")
        self._append(self.suffix, Kind.TENTATIVE, elements)
        suffix = self.suffix
        while suffix.nbytes > self._limits.suffix_bytes and suffix.end - suffix.start > 1:
            self.suffix_dropped += len(suffix.drop_first())

    def _append(self, log: ElementLog, kind: Kind, elements: Sequence[Element]) -> None:
        for element in elements:
            if not isinstance(element, Batch | Boundary) or element.kind is not kind:
                raise LocalProtocolError(f"{self.channel}: {element!r} in the {kind.name.lower()} log")
            if isinstance(element, Batch):
                follows = log is self.suffix or element.from_id == log.last_id
                if element.ids is not None or element.upto_id != element.from_id + len(element) or not follows:
                    raise LocalProtocolError(f"{self.channel}: {element!r} after id {log.last_id}")
                if log is self.suffix:  # several instances may write to one run: cursors need ids that grow
                    element = Batch(kind, log.last_id, log.last_id + len(element), None, element.rows)
                if len(element):
                    log.append(element)
            else:
                follows = log is self.suffix or element.upto_id == log.last_id
                if element.time < log.frontier or not follows:
                    last = format_timestamp(log.frontier)
                    raise LocalProtocolError(f"{self.channel}: {element!r} after id {log.last_id} and boundary {last}")
                log.advance(element.time)

    def clear_suffix(self) -> None:
        """Drops the tentative suffix: the correction is complete.  The next tentative element begins a new run."""
        self.suffix = ElementLog(self.stable.last_id)
        self.run += 1

    def set_state(self, state: NodeState, fresh: bool = False) -> None:
        """Sets the state of the unit replica.

        Raises:
          LocalProtocolError: STABLE with a tentative suffix (invariant 3).
        """
        if state is NodeState.STABLE and not self.suffix.untouched:
            raise LocalProtocolError(f"{self.channel}: STABLE with a tentative suffix")
        if state is NodeState.STABILIZATION and self.state is not NodeState.STABILIZATION:
            self.stabilizations += 1
        if (state, fresh) != (self.state, self.fresh):
            self.state, self.fresh, self.sequence = state, fresh, next(self._changes)

    # --- content ---

    @property
    def last_id(self) -> int:
        """Last stable id made (q)."""
        return self.stable.last_id

    @property
    def acknowledged(self) -> int:
        """Last stable id that no configured consumer needs any more (A2)."""
        gone = self.first - 1
        return max(gone, min(self.truncation_line, self.last_id)) if self._acks else gone

    @property
    def first(self) -> int:
        """Smallest stable id in the log, or the id of the next tuple."""
        return self.stable.first

    def frontiers(self) -> tuple[int, int]:
        """Returns the largest (stable, tentative) boundaries, microseconds of tuple time; BEFORE_TIME if none."""
        return self.stable.frontier, self.suffix.frontier

    @property
    def fill(self) -> float:
        """Used share of the cap on memory; from 1.0 on the log is full, and all that may be is spilled.

        0 where all is acknowledged: the tail that stays gives way to anything.
        """
        return self.stable.nbytes / self._limits.output_bytes if self.acknowledged < self.last_id else 0.0

    @property
    def full(self) -> bool:
        """Is the cap reached?  Then evict a dead consumer, or make nothing stable until an acknowledgement (A2)."""
        return self.stable.nbytes >= self._limits.output_bytes

    def validate(self) -> None:
        """Asserts what holds between two events."""
        stable, suffix = self.stable, self.suffix
        assert self.state is not NodeState.STABLE or suffix.untouched, "invariant 3: STABLE has no tentative suffix"
        assert not self.fresh or self.state is NodeState.STABILIZATION, "R5: live runs beside a redo"
        assert stable.first <= stable.last_id + 1, "A2: what is to come is not truncated"
        assert suffix.nbytes <= self._limits.suffix_bytes or suffix.end - suffix.start <= 1, "V6: the suffix is capped"

    # --- subscriptions ---

    def close(self) -> None:
        """Ends all subscriptions: another log replaces this one."""
        self.installs += 1

    def subscribe(
        self,
        mode: Mode,
        position: int,
        frontier: int,
        held: bool,
        t_star: int,
        substream: Substream | None = None,
        start: Start = "",
        consumer: str = "",
    ) -> OutputSubscription | LogTruncated | LogNotReady:
        """Returns a cursor for a consumer with this position; see :class:`OutputSubscription`.

        Args:
          start: beginning of a consumer that holds nothing, in place of ``position`` (F8).
        """
        if self.state is NodeState.RECOVERING:
            return LogNotReady()
        if start:
            position = self._begins(start, consumer)
        if position < self.first - 1:
            return LogTruncated(self.first)
        return OutputSubscription(self, mode, position, frontier, held, t_star, substream)

    def _begins(self, start: Start, consumer: str) -> int:
        if start == "now":
            return self.last_id
        ack = self._acks.get(consumer) if start == "left" else None
        if ack is not None and self.stable.damaged:
            return ack.id  # it has not acknowledged all that was truncated
        return max(self.first - 1, 0 if ack is None else ack.id)

    # --- acknowledgements ---

    @property
    def truncation_line(self) -> int:
        """Last stable id that no consumer will need again.  An unheard consumer counts as 0."""
        return min((a.id for a in self._acks.values() if not a.evicted), default=self.last_id)

    def acknowledge(self, consumer: str, incarnation: int, id: int) -> None:
        """Takes an acknowledgement: a consumer has processed all up to ``id`` into its stable state.

        Within an incarnation ids only grow.  A new incarnation may begin lower; until it is heard, the old value
        stands.  An evicted consumer counts again once it has reached the beginning of the log.  A standby never would,
        for it acknowledges checkpoints, which are older: it gets its place back at our beginning, and catches up with
        its next checkpoints (H2).
        """
        assert min(id, incarnation) >= 0, "A1: an acknowledgement names an id, and who gives it"
        ack = self._acks.get(consumer)
        if ack is None:
            self.unknown_acks += 1
            return
        granted = ack.evicted and id < self.first - 1 and consumer in self._standbys
        if granted:
            id = ack.granted = self.first - 1
        if incarnation < ack.incarnation or (ack.evicted and id < self.first - 1):
            return
        ack.id = id if incarnation > ack.incarnation or ack.evicted else max(ack.id, id)
        ack.incarnation, ack.evicted = incarnation, False
        self._truncate()

    def evictable(self, dead: Collection[str]) -> list[str]:
        """Returns consumers that can be evicted: a live replica of the same partition is further on, or a standby,
        which acknowledges what its disk holds.

        A standby, even a live one, can be evicted if the log is kept for it alone: a standby that cannot store
        checkpoints must not block running replicas (H2).

        Args:
          dead: consumers that do not answer.

        Returns:
          The consumers, those that hold most first.
        """
        best: dict[str, int] = {}
        for name, ack in self._acks.items():
            if name not in dead and not ack.evicted and ack.id > ack.granted:
                group = _partition_of(name)
                best[group] = max(best.get(group, 0), ack.id)
        holders = [
            name
            for name, ack in self._acks.items()
            if (name in dead or (name in self._standbys and ack.id == self.truncation_line))
            and not ack.evicted
            and best.get(_partition_of(name), 0) > ack.id
        ]
        return sorted(holders, key=lambda name: (self._acks[name].id, name))

    def evict(self, consumer: str) -> None:
        """Evicts a consumer: it must install a snapshot before it counts again."""
        assert not self._acks[consumer].evicted, "A2: a place is given up once"
        self._acks[consumer].evicted = True
        self._truncate()

    def set_consumers(self, consumers: Iterable[str], standbys: Collection[str] = ()) -> None:
        """Changes the consumers (D3): new ones were never heard, removed ones do not count."""
        self._standbys = frozenset(standbys)
        self._acks = {name: self._acks.get(name) or _Ack() for name in consumers}
        self._truncate()

    def _truncate(self) -> None:
        if self._acks:
            self.stable.drop_through(self.truncation_line, self._tail_bytes)
            return
        # No consumer is configured, so nothing has to be kept; other readers get the newest half.
        while 2 * self.stable.nbytes > self._limits.output_bytes:
            self.stable.drop_first()

    def spill_oldest(self) -> None:
        """Spills entries that are not acknowledged, oldest first, until half of the cap is left in memory."""
        if self._acks:
            cap = self._limits.output_bytes
            self.stable.spill(cap // 2, piece_bytes(cap))

    # --- snapshots (A3) ---

    def spilled_after(self, last_id: int) -> list[Entry]:
        """Returns the next spilled piece beyond an id; nothing where the rest is in memory.

        Raises SpillNotLoaded.
        """
        return self._undamaged(lambda: self.stable.spilled_after(max(last_id, self.first - 1)))

    def export(self, ahead: Sequence[Entry] = ()) -> dict[str, Any]:
        """Returns the stable log as a tree that can be stored and sent.

        Args:
          ahead: its first entries, if they were read before (:meth:`spilled_after`).

        Raises:
          SpillNotLoaded: more was spilled since.
        """
        rest = self.entries_after(ahead[-1].batch.upto_id if ahead else self.acknowledged)
        # Only now: damage that is found while reading moves the beginning.
        entries = [e for e in ahead if e.batch.upto_id >= self.first] + rest
        return {
            "base_id": entries[0].batch.from_id if entries else self.last_id,
            "frontier": self.stable.frontier,
            "batches": [{"upto_id": e.batch.upto_id, "boundary": e.boundary, "rows": e.batch.rows} for e in entries],
        }

    def entries_after(self, last_id: int) -> list[Entry]:
        """Returns the entries beyond an id.  Raises SpillNotLoaded."""
        return self._undamaged(lambda: self.stable.entries_after(max(last_id, self.first - 1)))

    def _undamaged(self, read: Callable[[], list[Entry]]) -> list[Entry]:
        while True:
            try:
                return read()
            except SpillDamaged:
                pass  # already counted; the log begins behind the lost part

    def install(self, state: Mapping[str, Any]) -> None:
        """Installs a partner's stable log, and ends all subscriptions."""
        last_id = int(state["base_id"])
        self.stable.drop_through(self.last_id)
        log = ElementLog(last_id, spill=self._spill)
        for item in state["batches"]:
            upto_id = int(item["upto_id"])
            log.append(Batch(Kind.STABLE, last_id, upto_id, None, item["rows"]))
            log.advance(int(item["boundary"]))
            last_id = upto_id
        log.advance(int(state["frontier"]))
        self.stable = log
        self.installs += 1
        self.clear_suffix()
        self._truncate()
        self.spill_oldest()


def _partition_of(consumer: str) -> str:
    """Returns the partition of a consumer, which replicas share; for a client its own name."""
    return consumer.rsplit("@", 1)[0]
