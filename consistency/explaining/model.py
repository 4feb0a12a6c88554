"""Input and output of the explanations."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from spe.figures.sight import Statuses
from spe.status import ProcessStatus, UnreachedStatus


@dataclass(frozen=True)
class Look(Statuses):
    """Statuses of all processes at about the same time.

    Attributes:
      at_us: wall time.
      statuses: of the processes that answer, by name.
      errors: reasons why the others do not.
      took_us: time that each took to answer, microseconds.
    """

    at_us: int
    statuses: Mapping[str, ProcessStatus]
    errors: Mapping[str, UnreachedStatus] = field(default_factory=dict)
    took_us: Mapping[str, int] = field(default_factory=dict)


class Condition(enum.StrEnum):
    """Condition of an output at a client."""

    FINE = "fine"  # stable results arrive
    TENTATIVE = "tentative"  # the client holds results that will be undone
    LATE = "late"  # elements arrive, but nothing stable, or later than X allows
    SILENT = "silent"  # nothing arrives
    ENDED = "ended"
    UNKNOWN = "unknown"  # the client does not answer


class CauseKind(enum.StrEnum):
    """Kind of the cause at the end of a chain."""

    DOWN = "down"  # a process does not answer any other
    REFUSED = "refused"  # a process answers, and refuses
    LINK = "link"  # two processes do not reach each other, or slowly
    QUIET = "quiet"  # a source answers, and brings nothing new
    FAILED = "failed"  # a source or a replica has stopped for an error
    DISK = "disk"  # a disk is full
    AWAY = "away"  # a server outside of the cluster does not answer
    SLOW = "slow"  # a process does not keep up
    X = "x"  # an input comes later than X allows to wait for
    OTHER_LOG = "other log"  # a producer lacks the log that was read before
    FULL = "full"  # an output buffer is full
    RECOVERING = "recovering"  # a replica takes its state
    CORRECTING = "correcting"  # a replica corrects, or is about to


@dataclass(frozen=True, slots=True)
class Cause:
    """The end of a chain.

    Attributes:
      processes: the processes concerned; both ends of a link, the producer first.
    """

    kind: CauseKind
    processes: tuple[str, ...]
    why: str


@dataclass(frozen=True, slots=True)
class Step:
    """A link of a chain.

    Attributes:
      depth: distance from the client; the following steps that are deeper by one explain it.
      who: client, replica, input or source.
    """

    depth: int
    who: str
    what: str


@dataclass(frozen=True, slots=True)
class Explanation:
    """Explanation of one output at one client.

    Attributes:
      client: its name; "" where the run has none.
      channel: stream and partition.
      steps: from the client to the causes, each before its own explanation.
      causes: without repetition; empty where all is well.
      next: future events.
      elsewhere: causes of trouble that do not affect this output now.
      moves: moves under way of partitions on the path to this output.
    """

    client: str
    channel: str
    condition: Condition
    steps: tuple[Step, ...]
    causes: tuple[Cause, ...]
    next: tuple[str, ...]
    elsewhere: tuple[Cause, ...] = ()
    moves: tuple[str, ...] = ()

    def lines(self) -> list[str]:
        """Returns the explanation as text."""
        at = f" at client {self.client}" if self.client else ""
        texts = [f"{self.channel}{at} is {self.condition}"]
        texts += [f"{'  ' * (step.depth + 1)}{step.who}: {step.what}" for step in self.steps]
        texts += [f"cause ({cause.kind}): {cause.why}" for cause in self.causes]
        texts += [f"next: {text}" for text in self.next]
        texts += [f"under way: {move}" for move in self.moves]
        texts += [f"elsewhere ({cause.kind}): {cause.why}" for cause in self.elsewhere]
        return texts


def short(us: int) -> str:
    """Formats a duration."""
    return f"{us / 1000:.0f} ms" if us < 1_000_000 else f"{us / 1e6:.1f} s"
