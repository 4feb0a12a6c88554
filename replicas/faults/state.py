"""Tracks the faults that hold now, and returns the actions when one begins or ends.  Pure.

Faults may overlap: a link is cut while any cut of it lasts.  The *conditions* of each process are complete, so that
they can be sent again after a restart.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from consistency.faults.kind import Do, FaultPart, HostFaults, LinkFaults
from consistency.faults.kinds import HEAL, KINDS
from replicas.faults.model import ALL, Fault, others


class Action(NamedTuple):
    """An action on a process."""

    do: Do
    process: str


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
        self._active: dict[int, set[FaultPart]] = {}
        self._next = 1

    def begin(self, fault: Fault) -> tuple[int, list[Action]]:
        """Returns the number of the fault, for :meth:`end`, and the actions to perform now."""
        number, self._next = self._next, self._next + 1
        kind = KINDS[fault.kind]
        if fault.kind == HEAL:
            return number, self._heal(fault)
        if kind.once is not None:
            return number, []
        if kind.begins is Do.RESTART:
            return number, [Action(Do.RESTART, p) for p in fault.first]
        items = self._items(fault)
        self._active[number] = items
        if kind.begins is Do.TELL:
            return number, self._tell(items)
        return number, [Action(kind.begins, p) for p in fault.first]

    def end(self, number: int) -> list[Action]:
        """Returns the actions at the end of a fault; none if it was healed before."""
        items = self._active.pop(number, set())
        killed = [Action(Do.START, i.first) for i in self._sorted(items) if KINDS[i.kind].kills]
        return killed + self._undone(items)

    def is_active(self, number: int) -> bool:
        return bool(self._active.get(number))

    @property
    def holds(self) -> bool:
        """Does any fault hold that a heal would end?"""
        return any(not KINDS[i.kind].kills for i in self._all())

    def frozen(self) -> set[str]:
        return {i.first for i in self._all() if KINDS[i.kind].begins is Do.FREEZE}

    def started(self, process: str) -> None:
        """Notes that the process runs (again): a new one is not frozen."""
        for items in self._active.values():
            items -= {i for i in items if KINDS[i.kind].begins is Do.FREEZE and i.first == process}

    def conditions(self, process: str) -> Conditions:
        cuts: set[tuple[str, str]] = set()
        delays: dict[str, int] = {}
        for (sender, receiver), link in self.links().items():
            if link.cut and sender == process:
                cuts.add((receiver, "out"))
            elif link.cut and receiver == process:
                cuts.add((sender, "in"))
            if link.delay_us and sender == process:
                delays[receiver] = link.delay_us
        stalled = process in (hosts := self.hosts()) and hosts[process].stalled
        return Conditions(tuple(sorted(cuts)), tuple(sorted(delays.items())), stalled)

    def links(self) -> dict[tuple[str, str], LinkFaults]:
        """Returns faults of links, by (sender, receiver); refusals by (dialler, listener); of several the worst."""
        faults: dict[tuple[str, str], LinkFaults] = {}
        for part in self._all():
            if (effect := KINDS[part.kind].link) is not None:
                pair = (part.first, part.second)
                faults[pair] = faults.get(pair, LinkFaults()) | effect(part)
        return faults

    def hosts(self) -> dict[str, HostFaults]:
        """Returns faults of processes; of several the worst."""
        faults: dict[str, HostFaults] = {}
        for part in self._all():
            if (effect := KINDS[part.kind].host) is not None:
                faults[part.first] = faults.get(part.first, HostFaults()) | effect(part)
        return faults

    def pairs(self, fault: Fault) -> list[tuple[str, str]]:
        """Returns the directed links of a link fault."""
        return sorted({(i.first, i.second) for i in self._items(fault)})

    def _items(self, fault: Fault) -> set[FaultPart]:
        if not KINDS[fault.kind].of_links:
            return {FaultPart(fault.kind, p, "", fault.by_us, 0, fault.amount, fault.change) for p in fault.first}
        items = set()
        for a in others(fault.first, "", self._processes):
            for b in others(fault.second, a, self._processes):
                items.add(FaultPart(fault.kind, a, b, fault.by_us, fault.jitter_us, fault.amount))
                if not fault.one_way:
                    items.add(FaultPart(fault.kind, b, a, fault.by_us, fault.jitter_us, fault.amount))
        return items

    def _heal(self, fault: Fault) -> list[Action]:
        healed: set[FaultPart] = set()
        for number, items in list(self._active.items()):
            ends = {i for i in items if not KINDS[i.kind].kills and _concerns(fault, i)}
            healed |= ends
            items -= ends
            if not items:
                del self._active[number]
        return self._undone(healed)

    def _undone(self, items: Iterable[FaultPart]) -> list[Action]:
        """Returns the actions for ended items, unless another fault still causes the same."""
        gone = set(items) - self._all()
        frozen = self.frozen()
        ends = [(KINDS[part.kind].ends, part.first) for part in self._sorted(gone)]
        resumed = [Action(do, p) for do, p in ends if do is Do.RESUME and p not in frozen]
        return resumed + [Action(do, p) for do, p in ends if do is Do.REPLAN] + self._tell(gone)

    def _tell(self, items: Iterable[FaultPart]) -> list[Action]:
        conditions = [(part, KINDS[part.kind]) for part in items if KINDS[part.kind].begins is Do.TELL]
        cuts = (part for part, kind in conditions if kind.link is not None and kind.link(part).cut)
        concerned = {part.first for part, _ in conditions} | {part.second for part in cuts}
        return [Action(Do.TELL, p) for p in self._processes if p in concerned]

    def _all(self) -> set[FaultPart]:
        return {i for items in self._active.values() for i in items}

    def _sorted(self, items: Iterable[FaultPart]) -> list[FaultPart]:
        return sorted(items, key=lambda i: (self._processes.index(i.first), i.second))


def _concerns(heal: Fault, item: FaultPart) -> bool:
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
