"""The state that all modes of a replica share: inputs, live operators, clocks, and actions so far."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from consistency.dpc.events import Action, ClearSuffix, InputsView, OutputsView
from consistency.dpc.instance import Instance, LogReplay, StateMark
from consistency.dpc.log_work import LogWork
from consistency.dpc.partners import Partners
from consistency.dpc.slice_work import SliceWork
from consistency.dpc.states import Transition
from consistency.dpc.waits import WaitMeter
from operators.sunion.sunion import SUnion
from spe.plan.nodes import Node, Policy
from spe.stream.names import Kind


class Become(Protocol):
    """Changes the mode of the replica, by the table of states."""

    def __call__(self, transition: Transition, *begin: object) -> None: ...


@dataclass(slots=True)
class Counts:
    """Counters for people and benchmarks.

    Attributes:
      redone_rows: rows of stable slices that redo took in.
      rebuilt_rows: rows that operators were given once more before that (undo).
    """

    reconciliations: int = 0
    redone_rows: int = 0
    rebuilt_rows: int = 0


class UnitRun:
    """One replica of a partition of a unit, in any mode.

    Args:
      make: makes an instance of the unit's operators.
      become, serves: change and query the present mode.
      logs: the unit writes a checkpoint log.
      the rest: as :class:`consistency.dpc.manager.DpcManager` has them.

    Attributes:
      live: the live instance; with tentative data its state differs between replicas.
      actions: actions for the shell, in order.
      mark: last periodic checkpoint; None: there is none, or tentative data came since.
      marked_at: time of the last periodic checkpoint.
      forced_at: time of the last end of a redo during a failure (R2).
    """

    def __init__(
        self,
        make: Callable[..., Instance],
        sunion: SUnion,
        node: Node,
        *,
        outputs: OutputsView,
        inputs: InputsView,
        partners: Partners,
        redo_bytes: int,
        slice_rows: int,
        logs: bool,
        become: Become,
        serves: Callable[[], bool],
    ) -> None:
        self.make = make
        self.sunion = sunion
        self.node = node
        self.inputs = inputs
        self.partners = partners
        self.slice_rows = slice_rows
        self.become = become
        self._outputs = outputs
        self._redo_bytes = redo_bytes
        self.live = make(logs=logs)
        self.actions: list[Action] = []
        self.work = SliceWork(self.do)
        self.log = LogWork(sunion, self.work, self.do, is_written=logs)
        self.waits = WaitMeter(sunion, node.x_us, serves)
        self.counts = Counts()
        self.mark: StateMark | None = None
        self.marked_at = 0
        self.forced_at: int | None = None

    def do(self, action: Action) -> None:
        self.actions.append(action)

    # --- questions ---

    @property
    def suspends(self) -> bool:
        return self.node.during_failure is Policy.SUSPEND

    @property
    def has_stable(self) -> bool:
        """Is a stable bucket not released yet?"""
        return self.sunion.stable_end > self.sunion.next

    @property
    def is_crowded(self) -> bool:
        """R2: do tuples kept for a redo take half the cap, or is upstream full?"""
        return self.sunion.stable_bytes * 2 >= self._redo_bytes or self.inputs.upstream_full()

    def is_held(self) -> bool:
        """Does a full output hold back stable slices (A2)?  Not within a bucket, which is acknowledged as a whole."""
        return self._outputs.full() and not self.sunion.within_bucket

    def is_late(self, now: int) -> bool:
        """Is the replica still processing input that came while suspended?  Consumers would wait longer than X."""
        return self.has_stable and self.sunion.clocks.waited(now) >= self.node.alpha_x_us

    def must_go_on(self, now: int) -> bool:
        """T3: has the next bucket waited as long as it may?"""
        return self.due(now, self.node.alpha_x_us) is not None

    def due(self, now: int, wait_us: int) -> int | None:
        """Returns the end of the last bucket that may not wait any longer; see SUnion.due."""
        if not self.sunion.waits.may_be_due(now, wait_us):
            return None
        return self.sunion.due(now, wait_us=wait_us, hard_us=self.node.hard_us, fresh=self.inputs.fresh(now))

    # --- the stable path ---

    def release_stable(self, now: int) -> bool:
        """Releases the next stable slice to live, unless an output is full; False: there was none."""
        if self.is_held():
            return False
        piece = self.waits.measured(lambda: self.sunion.release_stable(self.slice_rows), now)
        if piece is None:
            return False
        self.waits.end_hold(now)
        self.work.begin(piece, self.live.stable(piece), Kind.STABLE)
        return True

    def replay_slice(self, replay: LogReplay) -> bool:
        """Replays a slice between the two commits of the log in live (G4); False: there is none yet."""
        piece = self.sunion.release_stable(self.slice_rows, replay.end)
        if piece is None:
            return False
        self.work.begin_again(self.live.again(piece))
        return True

    def finish_redo(self, redo: Instance) -> None:
        """Makes redo live (R7): the correction is complete."""
        self.sunion.finish_redo()
        self.counts.rebuilt_rows += redo.rebuilt
        self.counts.reconciliations += 1
        self.live = redo
        self.do(ClearSuffix())

    # --- periodic checkpoints (R8) ---

    def checkpoint_due(self, now: int) -> bool:
        """Is a periodic checkpoint due?  Without an interval never: the mark is set on entering UP_FAILURE (C1).

        It is due early if tuples kept for a redo take half the cap, or upstream is full.
        """
        every_us = self.node.checkpoints.memory_us
        if every_us is None or self.sunion.tainted:
            return False
        if self.mark is None:
            return True
        return self.mark.restart < self.sunion.next and (self.is_crowded or now - self.marked_at >= every_us)

    def checkpoint_if_due(self, now: int) -> None:
        if self.checkpoint_due(now):
            self.sunion.keep_from(self.sunion.next)
            self.mark = self.live.mark(self.sunion.next)
            self.marked_at = now
