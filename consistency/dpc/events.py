"""Events that the consistency manager handles, and actions that it has the shell perform."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from consistency.dpc.instance import Checkpoint, Instance, LogReplay
from consistency.dpc.partners import Ask
from operators.footprints import LiveFootprints
from operators.fragment_log import SliceLog
from operators.rejections import Rejection
from spe.plan.nodes import Node
from spe.stream.batch import Element
from spe.stream.names import Kind, NodeState
from spe.stream.times import END_OF_TIME


class OutputsView(Protocol):
    """Questions of the manager to the output buffers."""

    def full(self) -> bool:
        """Is a buffer at its cap?  Then nothing stable is released until consumers acknowledge."""
        ...


class InputsView(Protocol):
    """Questions of the manager to the inputs and their producers."""

    def fresh(self, now: int) -> Sequence[bool]:
        """Per input: are data to be expected of it soon (T2)?"""
        ...

    def arriving(self, now: int) -> bool:
        """Has every input a feed on which data came lately (R1)?"""
        ...

    def caught_up(self) -> bool:
        """Does every connected input hold what its producer had when we connected?"""
        ...

    def started(self, now: int) -> bool:
        """Has every input had its first boundary, or X passed since the start? (A3)"""
        ...

    def upstream_full(self) -> bool:
        """Does a producer report a full output buffer? (R2)"""
        ...


# --- events ---


@dataclass(frozen=True, slots=True)
class Advance:
    """Time has passed, or elements have come.  Sent again soon while the answer has :class:`Proceed`."""


@dataclass(frozen=True, slots=True)
class PartnerAsks:
    """A partner asks for leave to reconcile."""

    asker: str


@dataclass(frozen=True, slots=True)
class PartnerGrants:
    """A partner grants the request ``number``."""

    number: int


@dataclass(frozen=True, slots=True)
class Configure:
    """X, α or a policy changes (X1, X3)."""

    node: Node


@dataclass(frozen=True, slots=True)
class InstallSnapshot:
    """The unit continues from a snapshot of a partner, or its own (A3)."""

    checkpoint: Checkpoint
    positions: Sequence[int]


@dataclass(frozen=True, slots=True)
class InstallLog:
    """The unit continues from a checkpoint log (G4): ``instance`` has its footprints."""

    instance: Instance
    replay: LogReplay


@dataclass(frozen=True, slots=True)
class LogRequest:
    """The checkpoint log asks for the state at the end of the next stable slice (G6).

    Attributes:
      below: footprints from before this time are rewritten, and ``most`` of those at this time.
      after: end of the newest slice in the log; the requested one ends later.
      again: or at the same time, if that slice has another state or was refused.
    """

    below: int
    most: int
    after: int
    again: bool = False

    def takes(self, end: int) -> bool:
        """Does a slice that ends there answer the request?"""
        return end > self.after or (end == self.after and self.again)

    def rewrites(self, end: int) -> tuple[int, int]:
        """Returns the footprints to rewrite, as in FragmentLog: all of them at the end of input."""
        return (self.below, self.most) if end < END_OF_TIME else (END_OF_TIME, 0)


@dataclass(frozen=True, slots=True)
class LogLost:
    """The log lacks a slice: the next one must have the complete state."""


Event = Advance | PartnerAsks | PartnerGrants | Configure | InstallSnapshot | InstallLog | LogRequest | LogLost


# --- actions ---


@dataclass(frozen=True, slots=True)
class Proceed:
    """More is waiting: let others work, then send :class:`Advance`."""


class Emit(NamedTuple):  # made at each step: a frozen dataclass takes five times as long
    """Appends elements to an output: to its stable log or its tentative suffix."""

    kind: Kind
    output: int
    elements: Sequence[Element]


@dataclass(frozen=True, slots=True)
class Reject:
    """Reports rows that operators rejected for good; after a redo some are repeated (U15)."""

    rejections: Sequence[Rejection]


@dataclass(frozen=True, slots=True)
class ClearSuffix:
    """Drops the tentative suffix of each output: the correction is complete (R7)."""


@dataclass(frozen=True, slots=True)
class Announce:
    """Sets the state of every output; ``fresh``: live results continue while reconciling."""

    state: NodeState
    fresh: bool


@dataclass(frozen=True, slots=True)
class Grant:
    """Grants the asking partner leave to reconcile, while this replica serves its consumers (K2)."""


@dataclass(frozen=True, slots=True)
class SliceToLog:
    """Gives the checkpoint log the requested state at the end of a stable slice (G1).

    Attributes:
      end: end of the slice.
      made: additions of the operators.
      live: all valid footprints, where ``made.whole``.
      positions: last id of each input in the state.
      rows: input rows up to its end; only differences are meaningful.
      outputs: counters of the outputs at its end.
    """

    end: int
    made: SliceLog
    live: Sequence[LiveFootprints] | None
    positions: Sequence[int]
    rows: int
    outputs: Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Remade:
    """The state of the checkpoint log is complete again; ``live``: its valid footprints (G4)."""

    live: Sequence[LiveFootprints]


@dataclass(frozen=True, slots=True)
class Interrupt:
    """The step ended early; its actions before this are valid.

    Attributes:
      error: OperatorFailed: an operator raised, this replica cannot go on.  SpillNotLoaded: load that piece of the
        inputs, and send Advance.  SpillDamaged: such a piece is lost.  LogCorrupt: a replay made another state.
    """

    error: Exception


Action = Proceed | Emit | Reject | ClearSuffix | Announce | Ask | Grant | SliceToLog | Remade | Interrupt
