"""Orders to standbys cost work, never a result (docs/rules.md H): what may not come of any of them.

A partition that is served is not given up for one that is not (H5), what is chosen to run is replaced and never taken
away (H7), nothing begins anew while a state is left and at hand (H8), and a node goes by the latest coordinator (H6).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from consistency.checking.bounds import Bounds, has_room
from consistency.checking.counters import Counters
from consistency.checking.finding import Finding
from consistency.checking.schedule import LOSING, Interval, World
from spe.plan.plan import COORDINATOR, Plan
from spe.stream.history import FaultBegan, History, Note, ProcessDown, ProcessUp
from spe.stream.ids import PartitionId

#: Files that may be damaged before what is left of a partition's state may be too little: each standby has two.
_FLIPS: Final = 1


@dataclass(frozen=True, slots=True)
class _Obeyed:
    """An order that a node followed."""

    at_us: int
    host: str
    verb: str
    replica: str
    epoch: int

    @property
    def partition(self) -> str:
        return self.replica.partition("@")[0]


def check_orders(
    history: History, static: Sequence[Interval], plan: Plan, bounds: Bounds, counters: Counters
) -> Iterator[Finding]:
    """See the module; ``static``: the intervals of the history."""
    if not plan.standbys:
        return
    checker = _Checker(static, plan, bounds)
    for event in history:
        match event:
            case Note(name="order") if (order := _obeyed(event)) is not None:
                counters.add(f"orders to {order.verb}")
                yield from checker.follows(order)
            case Note(name="actives_chosen"):
                checker.chosen.append(event.text)
            case Note(name="evicted"):
                checker.forgotten = True
            case FaultBegan():
                checker.flips += event.kind == "flip"
                checker.forgotten |= event.kind in LOSING and event.kind != "flip"
                checker.calm = False
            case ProcessDown():
                checker.calm = False
            case ProcessUp(_, host):
                checker.epochs.pop(host, None)  # what it keeps lies on a disk, and that may be full


def _obeyed(note: Note) -> _Obeyed | None:
    """None: it was refused."""
    fields = dict(word.partition("=")[::2] for word in note.text.split(" "))
    if fields["refused"]:
        return None
    return _Obeyed(note.at_us, note.host, fields["verb"], fields["replica"], int(fields["epoch"]))


class _Checker:
    """Attributes:
    epochs: the latest that each node has followed since it began.
    chosen: what was chosen to run, in words, oldest first.
    flips: bits that have turned so far.
    forgotten: somebody's place in a log was given up, or a disk may have lost all that it held.
    calm: nothing has failed yet.
    """

    def __init__(self, static: Sequence[Interval], plan: Plan, bounds: Bounds) -> None:
        self._static = static
        self._begins = [one.from_us for one in static]
        self._plan = plan
        self._settle_us = bounds.settle_us
        self._hosts = {str(of): [f"{of}@{n}" for n in plan.hosts(of)] for of in plan.standbys}
        #: Nodes that stand by for something: while one is away nobody knows what it holds.
        self._backs = {str(n) for standbys in plan.standbys.values() for n in standbys.nodes}
        self.epochs: dict[str, int] = {}
        self.chosen: list[str] = []
        self.flips = 0
        self.forgotten = not has_room(plan)
        self.calm = True

    def follows(self, order: _Obeyed) -> Iterator[Finding]:
        latest = self.epochs.get(order.host, order.epoch)
        self.epochs[order.host] = max(latest, order.epoch)
        if order.epoch < latest:
            what = f"{order.verb} {order.replica} of epoch {order.epoch}, after one of {latest}"
            yield Finding("H6", "a node follows the latest coordinator", order.at_us, order.host, what)
        away = any(_unheard(one.world) & self._backs for one in self._before(order.at_us))
        if order.verb == "replay" and not self.forgotten and self.flips <= _FLIPS and not away:
            what = f"{order.replica} begins anew, though {self.flips} files were damaged and nobody was given up"
            yield Finding("H8", "replay is the last resort", order.at_us, order.replica, what)
        if order.verb == "retire":
            yield from self._retires(order)

    def _retires(self, order: _Obeyed) -> Iterator[Finding]:
        before = self._before(order.at_us)
        others = [r for r in self._hosts[order.partition] if r != order.replica]
        now = self._before(order.at_us + 1)  # with what has come back in this very moment
        if not any(_held_up(one, order.host) for one in before) and not any(
            _serves(one.world, r) for one in now for r in others
        ):
            what = f"it stands by again, and nobody else has served it for {self._settle_us / 1e6:.3f} s"
            yield Finding("H5", "a served partition is not given up", order.at_us, order.replica, what)
        if self.calm and any(f"'{order.partition}'" in text for text in self.chosen[:-1]):
            left = sum(_serves(before[-1].world, f"{of}@{n}") for of, n in self._standbys()) - 1
            wanted = min(self._plan.coordinator.budget, self.chosen[-1].count("'") // 2)
            if left == wanted - 1:
                what = f"{left} standbys are left that run, of the {wanted} that were chosen"
                yield Finding("H7", "first a new one runs", order.at_us, order.replica, what)

    def _before(self, at_us: int) -> Sequence[Interval]:
        """Of the time in which what somebody knew may still be under way; the order itself is not in it."""
        last = bisect_right(self._begins, at_us - 1)
        first = bisect_right(self._begins, at_us - self._settle_us)
        return self._static[max(first - 1, 0) : last]

    def _standbys(self) -> Iterator[tuple[PartitionId, str]]:
        for of, standbys in self._plan.standbys.items():
            yield from ((of, str(n)) for n in standbys.nodes)


def _serves(world: World, replica: str) -> bool:
    return replica.partition("@")[2] not in world.down and replica not in world.recovering


def _held_up(one: Interval, host: str) -> bool:
    """May an order to this node have been on its way for long?"""
    return bool({COORDINATOR, host} & (_unheard(one.world) | one.shaken))


def _unheard(world: World) -> set[str]:
    """Processes that somebody may take for dead."""
    return {*world.disturbed, *world.down, *(end for link in world.cut for end in link)}
