"""Tracks the faults that hold now, and returns the actions when one begins or ends.  Pure.

Faults may overlap: a link is cut while any cut of it lasts.  The *conditions* of each process are complete, so that
they can be sent again after a restart.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

from replicas.faults.model import ALL, Fault, FaultKind, others


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


class Action(NamedTuple):
    """An action on a process."""

    do: Do
    process: str


class _Item(NamedTuple):
    """The smallest part of a fault that can heal: a process, or a link in one direction (``first`` to ``second``)."""

    kind: FaultKind
    first: str
    second: str = ""
    by_us: int = 0
    jitter_us: int = 0
    amount: float = 0.0
    change: str = ""


@dataclass(frozen=True, slots=True)
class LinkFaults:
    """Faults of one direction of a link; of several faults the worst.

    Attributes:
      cut: bytes are held.
      delay_us, jitter_us: bytes are late by the delay and up to the jitter.
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

    def with_(self, item: _Item) -> LinkFaults:
        """Adds a fault."""
        match item.kind:
            case FaultKind.CUT:
                return replace(self, cut=True)
            case FaultKind.DELAY:
                return replace(
                    self, delay_us=max(self.delay_us, item.by_us), jitter_us=max(self.jitter_us, item.jitter_us)
                )
            case FaultKind.SLOW:
                return replace(self, bytes_per_s=min(item.amount, self.bytes_per_s or item.amount))
            case FaultKind.LOSS:
                return replace(self, loss=max(self.loss, item.amount))
            case FaultKind.REFUSE:
                return replace(self, refused=True)
        return self


_LASTING_ON_LINKS: Final = (FaultKind.CUT, FaultKind.DELAY, FaultKind.SLOW, FaultKind.LOSS, FaultKind.REFUSE)
#: Faults without duration: the state does not store them.
ONCE: Final = (FaultKind.RESET, FaultKind.HALF_OPEN, FaultKind.FLIP)
#: Faults that end a process, which may be started again after it.
DOWN: Final = (FaultKind.KILL, FaultKind.POWER, FaultKind.WIPE)
_ENDS: Final = {FaultKind.KILL: Do.KILL, FaultKind.POWER: Do.POWER, FaultKind.WIPE: Do.WIPE}


@dataclass(frozen=True, slots=True)
class Conditions:
    """Faults that a process causes itself.

    Attributes:
      cuts: (peer, "in" or "out") pairs whose bytes are held.
      delays: microseconds by which bytes to a peer leave later.
      stalled: its disk hangs.
    """

    cuts: tuple[tuple[str, str], ...] = ()
    delays: tuple[tuple[str, int], ...] = ()
    stalled: bool = False

    def to_data(self) -> dict[str, Any]:
        """Plain data for an Inject message or a file."""
        return {
            "kind": "conditions",
            "cuts": [list(c) for c in self.cuts],
            "delays": [list(d) for d in self.delays],
            "stalled": self.stalled,
        }

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> Conditions:
        """Parses plain data.  Raises ValueError for anything else."""
        try:
            cuts = tuple((str(peer), str(way)) for peer, way in data["cuts"])
            delays = tuple((str(peer), int(us)) for peer, us in data["delays"])
            stalled = bool(data["stalled"])
        except (KeyError, TypeError) as error:
            raise ValueError(f"no conditions: {error!r}") from None
        if data.get("kind") != "conditions" or any(way not in ("in", "out") for _, way in cuts):
            raise ValueError(f"no conditions: {dict(data)!r:.200}")
        return cls(cuts, delays, stalled)


class FaultState:
    """The faults that hold.

    Args:
      processes: all names; ``all`` in a fault means these.
    """

    def __init__(self, processes: Sequence[str]) -> None:
        self._processes = list(processes)
        #: Remaining parts of each fault that has begun and not ended, by its number.
        self._active: dict[int, set[_Item]] = {}
        self._next = 1

    def begin(self, fault: Fault) -> tuple[int, list[Action]]:
        """Returns the number of the fault, for :meth:`end`, and the actions to perform now."""
        number, self._next = self._next, self._next + 1
        if fault.kind is FaultKind.HEAL:
            return number, self._heal(fault)
        if fault.kind is FaultKind.RESTART:
            return number, [Action(Do.RESTART, p) for p in fault.first]
        if fault.kind in ONCE:
            return number, []
        items = self._items(fault)
        self._active[number] = items
        if fault.kind in DOWN:
            return number, [Action(_ENDS[fault.kind], p) for p in fault.first]
        if fault.kind is FaultKind.FREEZE:
            return number, [Action(Do.FREEZE, p) for p in fault.first]
        if fault.kind is FaultKind.REPLAN:
            return number, [Action(Do.REPLAN, p) for p in fault.first]
        return number, self._tell(items)

    def end(self, number: int) -> list[Action]:
        """Returns the actions at the end of a fault; none if it was healed before."""
        items = self._active.pop(number, set())
        killed = [Action(Do.START, i.first) for i in self._sorted(items) if i.kind in DOWN]
        return killed + self._undone(items)

    def is_active(self, number: int) -> bool:
        return bool(self._active.get(number))

    @property
    def holds(self) -> bool:
        """Does any fault hold that a heal would end?"""
        return any(i.kind not in DOWN for i in self._all())

    def frozen(self) -> set[str]:
        return {i.first for i in self._all() if i.kind is FaultKind.FREEZE}

    def started(self, process: str) -> None:
        """Notes that the process runs (again): a new one is not frozen."""
        for items in self._active.values():
            items.discard(_Item(FaultKind.FREEZE, process))

    def conditions(self, process: str) -> Conditions:
        cuts: set[tuple[str, str]] = set()
        delays: dict[str, int] = {}
        stalled = False
        for item in self._all():
            if item.kind is FaultKind.CUT and item.first == process:
                cuts.add((item.second, "out"))
            elif item.kind is FaultKind.CUT and item.second == process:
                cuts.add((item.first, "in"))
            elif item.kind is FaultKind.DELAY and item.first == process:
                delays[item.second] = max(item.by_us, delays.get(item.second, 0))
            elif item.kind is FaultKind.STALL and item.first == process:
                stalled = True
        return Conditions(tuple(sorted(cuts)), tuple(sorted(delays.items())), stalled)

    def links(self) -> dict[tuple[str, str], LinkFaults]:
        """Returns faults of links, by (sender, receiver); refusals by (dialler, listener)."""
        faults: dict[tuple[str, str], LinkFaults] = {}
        for item in self._all():
            if item.kind in _LASTING_ON_LINKS:
                pair = (item.first, item.second)
                faults[pair] = faults.get(pair, LinkFaults()).with_(item)
        return faults

    def suffering(self, kind: FaultKind) -> dict[str, _Item]:
        """Returns processes that a kind of fault affects now; of several faults the worst."""
        worst_of: dict[str, _Item] = {}
        for item in self._sorted(i for i in self._all() if i.kind is kind):
            worst = worst_of.get(item.first)
            if worst is None or (item.by_us, item.amount) > (worst.by_us, worst.amount):
                worst_of[item.first] = item
        return worst_of

    def pairs(self, fault: Fault) -> list[tuple[str, str]]:
        """Returns the directed links of a link fault."""
        return sorted({(i.first, i.second) for i in self._items(fault)})

    def _items(self, fault: Fault) -> set[_Item]:
        if fault.kind not in (*_LASTING_ON_LINKS, FaultKind.RESET, FaultKind.HALF_OPEN):
            return {_Item(fault.kind, p, "", fault.by_us, 0, fault.amount, fault.change) for p in fault.first}
        items = set()
        for a in others(fault.first, "", self._processes):
            for b in others(fault.second, a, self._processes):
                items.add(_Item(fault.kind, a, b, fault.by_us, fault.jitter_us, fault.amount))
                if not fault.one_way:
                    items.add(_Item(fault.kind, b, a, fault.by_us, fault.jitter_us, fault.amount))
        return items

    def _heal(self, fault: Fault) -> list[Action]:
        healed: set[_Item] = set()
        for number, items in list(self._active.items()):
            ends = {i for i in items if i.kind not in DOWN and _concerns(fault, i)}
            healed |= ends
            items -= ends
            if not items:
                del self._active[number]
        return self._undone(healed)

    def _undone(self, items: Iterable[_Item]) -> list[Action]:
        """Returns the actions for ended items, unless another fault still causes the same."""
        gone = set(items) - self._all()
        frozen = self.frozen()
        resumed = [i.first for i in self._sorted(gone) if i.kind is FaultKind.FREEZE and i.first not in frozen]
        replanned = [Action(Do.REPLAN, i.first) for i in self._sorted(gone) if i.kind is FaultKind.REPLAN]
        return [Action(Do.RESUME, p) for p in resumed] + replanned + self._tell(gone)

    def _tell(self, items: Iterable[_Item]) -> list[Action]:
        links = [i for i in items if i.kind not in (*DOWN, FaultKind.FREEZE, FaultKind.REPLAN)]
        concerned = {i.first for i in links} | {i.second for i in links if i.kind is FaultKind.CUT}
        return [Action(Do.TELL, p) for p in self._processes if p in concerned]

    def _all(self) -> set[_Item]:
        return {i for items in self._active.values() for i in items}

    def _sorted(self, items: Iterable[_Item]) -> list[_Item]:
        return sorted(items, key=lambda i: (self._processes.index(i.first), i.second))


def _concerns(heal: Fault, item: _Item) -> bool:
    ends = {item.first, item.second}
    if not heal.first:
        return True
    if not heal.second:
        return ALL in heal.first or bool(ends & set(heal.first))
    forth = _named(item.first, heal.first) and _named(item.second, heal.second)
    back = _named(item.second, heal.first) and _named(item.first, heal.second)
    return bool(item.second) and (forth or back)


def _named(process: str, names: Sequence[str]) -> bool:
    return process in names or ALL in names
