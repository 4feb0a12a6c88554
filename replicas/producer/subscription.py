"""Selects the elements to send to one consumer of an output: rules V1, V3 and V4 of docs/internals/rules.md.  Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

from replicas.producer.element_log import Cursor, ElementLog
from replicas.producer.log_entry import Entry, Substream
from spe.errors import LinkClosed
from spe.runtime.spill import SpillNotLoaded
from spe.stream.batch import Batch, BoolArray, Boundary, Element, RecDone, Undo
from spe.stream.names import Kind, NodeState
from spe.stream.times import BEFORE_TIME, END_OF_TIME, saturating_add
from spe.wire.fields import Mode
from spe.wire.messages.feeds import StateChange

#: Bytes that an element without rows counts as.
MARK_BYTES: Final = 32


class Overtaken(LinkClosed):
    """The log was truncated or replaced beyond the subscription's position: the consumer must subscribe again."""


class Subscription(Protocol):
    """A cursor for one consumer over a replica's output or a source's durable log."""

    def pull(self, max_bytes: int) -> Sequence[Element | StateChange]:
        """Returns about ``max_bytes`` of elements to send now; empty when there are none.

        Raises:
          Overtaken: the next element was truncated.
          SpillNotLoaded: the next element is on disk; load it and call again.
        """
        ...

    def set_mode(self, mode: Mode) -> None:
        """Sets the mode that the consumer gave this feed: main or corrections (F5)."""
        ...

    def close(self) -> None:
        """Ends the subscription: nothing is pulled any more."""
        ...


class OutputPort(Protocol):
    """The part of an output that a subscription reads (see replicas.producer.output_log)."""

    state: NodeState
    fresh: bool
    sequence: int
    stable: ElementLog
    suffix: ElementLog
    run: int
    stabilizations: int
    installs: int


class OutputSubscription:
    """A subscription to a replica's output: cursors into the stable log and the tentative suffix, no queue of its own.

    Undo and rec_done are not stored: they are made here, from the position of the consumer.

    Args:
      output: the output that is read.
      mode: "main" gets the newest elements, "corrections" only stable ones.
      position: last stable id that the consumer has (p).
      frontier: largest stable boundary that it has (sb).
      held: the consumer has tentative tuples after ``position``.
      t_star: the consumer needs nothing tentative up to this time.
      substream: share of the rows; None: all.
    """

    def __init__(
        self,
        output: OutputPort,
        mode: Mode,
        position: int,
        frontier: int,
        held: bool,
        t_star: int,
        substream: Substream | None,
    ) -> None:
        assert position >= output.stable.first - 1, "V1: what comes next is still here"
        self._output = output
        self._substream = substream
        self._installs = output.installs
        self.mode = mode
        #: Last stable id sent or covered: the target of every undo (V1).
        self.position = position
        self._frontier = frontier
        self._stable = Cursor(output.stable.number_after(position), position)
        #: The consumer holds tentative tuples that only an undo removes.  After the end of the stream nothing stable
        #: follows that would need an undo, and a rec_done does not wait for one.
        self._tentative = held and frontier < END_OF_TIME
        #: The consumer has all tentative tuples up to here.  BEFORE_TIME after an undo, until stable elements follow.
        self._t_max = t_star
        #: A rec_done is due once the stable log is exhausted (V1).
        self._owes = False
        #: Corrections were sent since the last rec_done, so nothing tentative may follow without one.
        self._correcting = False
        self._seen = output.stabilizations - (output.state is NodeState.STABILIZATION)
        #: Number of the last change of state that was sent.
        self._told = output.sequence
        #: Position in the suffix; None: to be entered again, after the elements that were sent.
        self._suffix: Cursor | None = None
        self._run = -1
        #: Of the suffix only tuples with a larger t_max are new to the consumer; fixed when the suffix is entered,
        #: because within a run every tuple is new, also one with the t_max of its predecessor.
        self._floor = BEFORE_TIME
        self._tentative_frontier = BEFORE_TIME

    def set_mode(self, mode: Mode) -> None:
        self.mode = mode

    def close(self) -> None:
        self._suffix = None

    def pull(self, max_bytes: int) -> list[Element | StateChange]:
        """See :class:`Subscription`."""
        assert max_bytes > 0, "V1: a pull brings something"
        output = self._output
        if self._installs != output.installs:
            raise Overtaken("the output was replaced by a snapshot")
        if self._seen != output.stabilizations:
            self._seen = output.stabilizations
            self._owes = True
        out: list[Element | StateChange] = []
        self._tell_state(out)
        main = self.mode == "main"
        if main and output.state is NodeState.STABILIZATION and output.fresh:
            # Corrections are held back until caught up (V4).  They may be truncated once the consumer has acknowledged
            # those of its correcting feed: fresh results must not end for that.
            self._pull_tentative(out, max_bytes)
            return out
        if output.stable.first > self._stable.done + 1:
            raise Overtaken(f"ids up to {output.stable.first - 1} are gone, {self._stable.done + 1} comes next")
        try:
            budget = self._pull_stable(out, max_bytes)
        except SpillNotLoaded:
            if out:
                return out  # the rest comes with the next pull
            raise
        if budget > 0:
            self._rec_done(out)
            if main and output.state is NodeState.UP_FAILURE:
                self._pull_tentative(out, budget)
        return out

    def _tell_state(self, out: list[Element | StateChange]) -> None:
        output = self._output
        if self._told != output.sequence:
            self._told = output.sequence
            out.append(StateChange(output.state, output.fresh, output.sequence))

    # --- V1: the stable log ---

    def _pull_stable(self, out: list[Element | StateChange], budget: int) -> int:
        """Appends stable elements beyond (position, frontier); returns the bytes left, 0 if there is more to send."""
        log, cursor = self._output.stable, self._stable
        least = budget // 2  # cutting an entry to fill a pull costs one more frame
        cursor.number = max(cursor.number, log.start)  # tuples that the consumer has may be truncated when made
        while cursor.number < log.end or (log.frontier > self._frontier and log.last_id >= cursor.done):
            if budget <= least:
                return 0
            batch, boundary = cursor.take(log, budget, self._share)
            if batch is not None:
                self._begin_correction(out)
                # From our own position: a range without rows of this substream is sent with the next rows.
                out.append(Batch(Kind.STABLE, self.position, cursor.done, batch.ids, batch.rows))
                self.position = cursor.done
                self._t_max = max(self._t_max, _newest(batch))
                budget -= cursor.taken_bytes
            if boundary > self._frontier:
                self._begin_correction(out)
                out.append(Boundary(Kind.STABLE, boundary, cursor.done))
                self.position = cursor.done
                self._frontier = boundary
                self._t_max = max(self._t_max, saturating_add(boundary, -1))
                budget -= MARK_BYTES
        return max(budget, 1)

    def _share(self, entry: Entry) -> BoolArray | None:
        return None if self._substream is None else entry.share(self._substream)

    def _begin_correction(self, out: list[Element | StateChange]) -> None:
        """Appends the undo that must precede a stable element if the consumer holds tentative tuples."""
        self._suffix = None
        if self._tentative:
            out.append(Undo(self.position))
            self._tentative = False
            self._owes = self._correcting = True
            self._t_max = BEFORE_TIME
        elif self._output.state is NodeState.STABILIZATION:
            self._correcting = True

    # --- V2: rec_done ---

    def _rec_done(self, out: list[Element | StateChange]) -> None:
        state = self._output.state
        if self._owes and not self._tentative and state in (NodeState.STABLE, NodeState.UP_FAILURE):
            self._send_rec_done(out, state)

    def _send_rec_done(self, out: list[Element | StateChange], state: NodeState) -> None:
        out.append(RecDone(state))
        self._owes = self._correcting = False

    # --- V3: the tentative suffix ---

    def _pull_tentative(self, out: list[Element | StateChange], budget: int) -> None:
        output = self._output
        cursor, log = self._enter_suffix(), output.suffix
        least = budget // 2
        while budget > least and (cursor.number < log.end or log.frontier > self._tentative_frontier):
            batch, boundary = cursor.take(log, budget, self._news)
            advances = boundary > self._tentative_frontier
            if (batch is not None or advances) and self._correcting:
                self._send_rec_done(out, NodeState.UP_FAILURE)  # live results continue during corrections (R5)
            if batch is not None:
                out.append(batch)
                self._tentative = True
                self._t_max = max(self._t_max, _newest(batch))
                budget -= cursor.taken_bytes
            if advances:
                out.append(Boundary(Kind.TENTATIVE, boundary, cursor.done))
                self._tentative = True
                self._tentative_frontier = boundary
                self._t_max = max(self._t_max, saturating_add(boundary, -1))
                budget -= MARK_BYTES

    def _enter_suffix(self) -> Cursor:
        output = self._output
        cursor = self._suffix
        if cursor is None or self._run != output.run:
            cursor = self._suffix = Cursor(output.suffix.start, output.suffix.first - 1)
            self._run = output.run
            self._floor = self._t_max
            self._tentative_frontier = saturating_add(self._t_max, 1)
        cursor.number = max(cursor.number, output.suffix.start)  # the oldest part may have been dropped (V6)
        return cursor

    def _news(self, entry: Entry) -> BoolArray | None:
        t_max = entry.batch.rows.t_max
        share = self._share(entry)
        if int(t_max.min()) > self._floor:
            return share
        fresh: BoolArray = t_max > self._floor
        return fresh if share is None else fresh & share


def _newest(batch: Batch) -> int:
    rows = batch.rows
    return int(rows.time[-1]) if rows.t_max is rows.time else int(rows.t_max.max())
