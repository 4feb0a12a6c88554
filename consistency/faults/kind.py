"""A kind of fault as one record: its fields, what it does to processes and links, and what it excuses."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple


class Do(enum.StrEnum):
    """Actions of the supervisor on a process."""

    KILL = "kill"
    POWER = "power"
    WIPE = "wipe"  # kill it, and empty its disk
    REPLAN = "replan"  # start it again with its current plan
    START = "start"
    RESTART = "restart"  # kill it first if it runs
    FREEZE = "freeze"
    RESUME = "resume"
    TELL = "tell"  # its conditions have changed


class Once(enum.Enum):
    """Actions without duration."""

    RESET = "break all connections over links"
    HALF_OPEN = "forget one connection of each link"
    FLIP = "turn a bit of a file"


class Maker(enum.Enum):
    """The least that can cause a fault: the processes, proxies between them, or only the simulation."""

    PROCESSES = "inside"
    PROXY = "proxy"
    SIMULATION = "simulation"


class Effect(enum.Enum):
    """The effect of a fault on processes and links, as far as paths go."""

    NONE = "other events tell, or nothing"
    DOWN = "its processes do nothing, or make nothing new"
    CUT = "its links carry nothing, or cannot be relied on to: a connection that breaks is not opened again"
    LATE = "what passes comes later by a known time"
    BUSY = "its processes are slower by a known factor"
    DISTURBED = "nobody can say how late what passes will be"


class DiskHarm(enum.Enum):
    """Harm to a disk, by which a checkpoint may be lost."""

    DAMAGES = "parts of it are damaged, which is noticed"
    FORGETS = "it forgets what was synced"


class Runs(enum.Enum):
    """Random runs that draw a fault or a pattern of faults."""

    ALL = "all"
    DISKS = "with unreliable disks"
    LOGS = "with checkpoint logs"
    RETENTION = "with sources that delete the oldest part of their logs"
    CLIENTS = "with clients that record and have sinks"
    STANDBYS = "with standbys"


class FaultPart(NamedTuple):
    """The smallest part of a fault that can heal: a process, or a link in one direction (``first`` to ``second``)."""

    kind: str
    first: str
    second: str = ""
    by_us: int = 0
    jitter_us: int = 0
    amount: float = 0.0
    change: str = ""


def _largest(a: Iterable[Any], b: Iterable[Any]) -> Iterable[Any]:
    return map(max, a, b)


class LinkFaults(NamedTuple):
    """Faults of one direction of a link.

    Attributes:
      cut: bytes are held, in order.
      delay_us, jitter_us: bytes are late by the delay and up to the jitter, never out of order.
      bytes_per_s: bandwidth; None: unlimited.
      loss: share of sends that have to be repeated.
      refused: connections that the sender opens are refused.
    """

    cut: bool = False
    delay_us: int = 0
    jitter_us: int = 0
    bytes_per_s: float | None = None
    loss: float = 0.0
    refused: bool = False

    def __or__(self, other: LinkFaults) -> LinkFaults:
        """Returns the worst of both."""
        bandwidth = min((b for b in (self.bytes_per_s, other.bytes_per_s) if b is not None), default=None)
        a, b = self._replace(bytes_per_s=0), other._replace(bytes_per_s=0)
        return LinkFaults(*_largest(a, b))._replace(bytes_per_s=bandwidth)


class HostFaults(NamedTuple):
    """Faults of a process that runs, and of its disk and clock.

    Attributes:
      stalled: its disk hangs.
      full: its disk is full.
      lies: its syncs make nothing durable.
      sync_us: duration of each sync.
      times: how many times slower it runs.
      skew_us: its wall clock is off by this.
      lag_us: its application takes this long over each change.
      change: the changed part of its plan; "": none.
    """

    stalled: bool = False
    full: bool = False
    lies: bool = False
    sync_us: int = 0
    times: float = 1.0
    skew_us: int = 0
    lag_us: int = 0
    change: str = ""

    def __or__(self, other: HostFaults) -> HostFaults:
        """Returns the worst of both."""
        return HostFaults(*_largest(self, other))


class FaultDraw(NamedTuple):
    """A random fault of a kind.

    Attributes:
      among: groups of processes, one of which is the target; see ``replicas.simulation.scenarios.drawing.Drawing``;
        ``links``: some links.
      options: sets of further fields, one of which is chosen; it may replace ``among``.
    """

    name: str
    among: tuple[str, ...]
    options: tuple[Mapping[str, Any], ...] = ()
    runs: Runs = Runs.ALL


@dataclass(frozen=True, slots=True)
class FaultKind:
    """A kind of fault.

    Attributes:
      about: explanation, for the documentation.
      fields: fields in a fault script, besides ``at`` and ``kind``; with ``from`` it is a fault of links.
      needs: required ones of these fields.
      targets: roles of processes that it may affect; others get the text ``refusal`` with their name.
      maker: the least that can cause it.
      begins: action on its processes.
      once: action without duration.
      link, host: what it does to a link, or to a process.
      effect: its effect on paths; without knowledge no claim is made of the processes and links that it touches.
      of_sources: its effect if it affects only sources; None: the same.
      by_change: its effect by the changed part of a plan.
      harm: harm to disks.
      silences: a process that it affects sends nothing until it ends.
      unnoticed: the affected connection may be noticed any time later.
      draws: random faults of this kind in a simulation.
    """

    name: str
    about: str
    fields: tuple[str, ...] = ("target", "for")
    needs: tuple[str, ...] = ()
    targets: tuple[str, ...] = ("node", "source", "client", "coordinator")
    refusal: str = ""
    maker: Maker = Maker.SIMULATION
    begins: Do = Do.TELL
    once: Once | None = None
    link: Callable[[FaultPart], LinkFaults] | None = None
    host: Callable[[FaultPart], HostFaults] | None = None
    effect: Effect = Effect.DISTURBED
    of_sources: Effect | None = None
    by_change: Mapping[str, Effect] = field(default_factory=dict)
    harm: DiskHarm | None = None
    silences: bool = False
    unnoticed: bool = False
    draws: tuple[FaultDraw, ...] = ()

    @property
    def of_links(self) -> bool:
        return "from" in self.fields

    @property
    def ends(self) -> Do:
        """Action on its processes at its end."""
        return _ENDS.get(self.begins, self.begins)

    @property
    def kills(self) -> bool:
        """Does it end a process, which may be started again after it?"""
        return self.ends is Do.START

    @property
    def stops(self) -> bool:
        """Does a process that it affects stand still until it ends?"""
        return self.kills or self.begins is Do.FREEZE

    @property
    def lasts(self) -> bool:
        """Does it hold until it ends or is healed?"""
        return "for" in self.fields and not self.kills

    @property
    def amount(self) -> str | None:
        """The field with its amount."""
        return next((name for name in self.fields if name in _AMOUNTS), None)


_ENDS: Final = {Do.KILL: Do.START, Do.POWER: Do.START, Do.WIPE: Do.START, Do.FREEZE: Do.RESUME}
_AMOUNTS: Final = ("bytes_per_second", "share", "times")
