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
    """What the manager asks of the output buffers."""

    def full(self) -> bool:
        """Is a buffer at its cap?  Then nothing stable is released until consumers acknowledge."""
        ...


class InputsView(Protocol):
    """What the manager asks of the producers."""

    def fresh(self, now: int) -> Sequence[bool]:
        """Per input: is something still to be expected of it soon? (T2)"""
        ...

    def arriving(self, now: int) -> bool:
        """Has every input a feed on which something came lately? (R1)"""
        ...

    def caught_up(self) -> bool:
        """Does every connected input hold what its producer had when we connected?"""
        ...

    def started(self, now: int) -> bool:
        """Has every input had its first boundary, or X passed since the start? (A4)"""
        ...

    def upstream_full(self) -> bool:
        """Does a producer report a full output buffer? (R2)"""
        ...


# --- events ---


@dataclass(frozen=True, slots=True)
class Advance:
    """Time has passed, or elements have come.  Until an answer has no :class:`Proceed`, it follows again soon."""


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
    """Another X, α or policy counts from now on (X2, X3)."""

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
      below: footprints from before this time are written anew, and ``most`` of those from then.
      after: the slice ends behind this: here ends the newest one in the log.
      again: or right there, as that one has another state or was refused.
    """

    below: int
    most: int
    after: int
    again: bool = False

    def takes(self, end: int) -> bool:
        """Does a slice that ends there answer the request?"""
        return end > self.after or (end == self.after and self.again)

    def rewrites(self, end: int) -> tuple[int, int]:
        """Footprints to write anew, as in FragmentLog; where nothing follows, nothing need be kept upstream either."""
        return (self.below, self.most) if end < END_OF_TIME else (END_OF_TIME, 0)


@dataclass(frozen=True, slots=True)
class LogLost:
    """The log lacks some of what it was given: the next slice gives it the complete state."""


Event = Advance | PartnerAsks | PartnerGrants | Configure | InstallSnapshot | InstallLog | LogRequest | LogLost


# --- actions ---


@dataclass(frozen=True, slots=True)
class Proceed:
    """More is waiting: let others work, then send :class:`Advance`."""


class Emit(NamedTuple):  # each step makes some: a dataclass that is frozen takes five times as long
    """Elements leave by an output: for its stable log, or its tentative suffix."""

    kind: Kind
    output: int
    elements: Sequence[Element]


@dataclass(frozen=True, slots=True)
class Reject:
    """Operators rejected these rows for good; after a redo some come again (U15)."""

    rejections: Sequence[Rejection]


@dataclass(frozen=True, slots=True)
class ClearSuffix:
    """The correction is complete: the tentative suffix of each output goes (R7)."""


@dataclass(frozen=True, slots=True)
class Announce:
    """State of every output from here on; ``fresh``: live results go on while reconciling."""

    state: NodeState
    fresh: bool


@dataclass(frozen=True, slots=True)
class Grant:
    """The partner that asks may reconcile: this replica serves its consumers meanwhile (K2)."""


@dataclass(frozen=True, slots=True)
class SliceToLog:
    """State at the end of a stable slice, which the checkpoint log asked for (G1).

    Attributes:
      end: of the slice.
      made: what the operators add.
      live: all footprints that count, where ``made.whole``.
      positions: of each input, the last id that is in it.
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
    """The state of the checkpoint log is complete again; ``live``: its footprints that count (G4)."""

    live: Sequence[LiveFootprints]


@dataclass(frozen=True, slots=True)
class Interrupt:
    """The step ended early; what it did before this counts.

    Attributes:
      error: OperatorFailed: an operator raised, this replica cannot go on.  SpillNotLoaded: load that piece of the
        inputs, and send Advance.  SpillDamaged: such a piece is lost.  LogCorrupt: a replay made another state.
    """

    error: Exception


Action = Proceed | Emit | Reject | ClearSuffix | Announce | Ask | Grant | SliceToLog | Remade | Interrupt
