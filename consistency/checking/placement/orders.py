"""H1-H8: orders to standbys cost work, never a result.

H5: a served partition is not given up for another.  H7: the standbys chosen to run are replaced, never removed.
H8: no replica restarts without state while a state is left and reachable.  H6: a node follows the latest coordinator.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from consistency.checking.bounds import Bounds, has_room
from consistency.checking.checked_run import CheckedRun
from consistency.checking.finding import Finding
from consistency.checking.schedule import FaultInterval, World
from consistency.faults.kind import DiskHarm
from consistency.faults.kinds import kind_of
from spe.plan.directory import COORDINATOR, Directory
from spe.plan.plan import Plan
from spe.stream.batch import Boundary
from spe.stream.history import FaultBegan, Note, Opened, ProcessDown, ProcessUp, Received
from spe.stream.ids import Channel, PartitionId
from spe.stream.names import Kind

#: Number of damaged files after which the remains of a partition's state may not suffice: each standby has two.
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


def check_orders(run: CheckedRun) -> Iterator[Finding]:
    """Yields findings of H1 to H8."""
    history, static, plan, directory, _, bounds, counters = run
    if not directory.coordinated:
        return
    checker = _Checker(static, plan, directory, bounds)
    for event in history:
        match event:
            case Note(name="order") if (order := _obeyed(event)) is not None:
                counters.add(f"orders to {order.verb}")
                yield from checker.follows(order)
            case Received(at_us, consumer, channel, _, _, mode, Boundary(kind=Kind.STABLE, upto_id=upto)) if mode:
                checker.progress.setdefault((consumer, channel), []).append((at_us, upto))
            case Opened(at_us, consumer, channel, _, _, _, position):
                checker.progress.setdefault((consumer, channel), []).append((at_us, position))
            case Note(name="move"):
                checker.moves(event)
            case Note(name="actives_chosen"):
                checker.chosen.append(event.text)
            case Note(at_us, host, "coordinator_began", text):
                yield from checker.begins(at_us, host, int(text.removeprefix("epoch=")))
            case Note(name="evicted"):
                checker.forgotten = True
            case FaultBegan():
                harm = kind_of(event.kind).harm
                checker.flips += harm is DiskHarm.DAMAGES
                checker.forgotten |= harm is DiskHarm.FORGETS
                checker.calm = False
            case ProcessDown():
                checker.calm = False
            case ProcessUp(_, host):
                checker.epochs.pop(host, None)  # it stores its epoch on a disk, which may be full


def _obeyed(note: Note) -> _Obeyed | None:
    """Parses the order in a note; None if it was refused."""
    fields = _fields(note)
    if fields["refused"]:
        return None
    return _Obeyed(note.at_us, note.host, fields["verb"], fields["replica"], int(fields["epoch"]))


def _fields(note: Note) -> dict[str, str]:
    return dict(word.partition("=")[::2] for word in note.text.split(" "))


class _Checker:
    """Follows the orders of a run.

    Attributes:
      epochs: the latest that each node has followed since it began.
      chosen: the standbys chosen to run, in words, oldest first.
      flips: number of damaged bits so far.
      forgotten: a place in a log was given up, or a disk may have lost everything.
      calm: nothing has failed yet.
      begun: when each standby was first ordered to run.
      targets: standbys to which a partition moves.
      latest: epoch of the coordinator that began last.
      progress: of each consumer and channel, when it had reached which id.
    """

    def __init__(self, static: Sequence[FaultInterval], plan: Plan, directory: Directory, bounds: Bounds) -> None:
        self._static = static
        self._begins = [interval.from_us for interval in static]
        self._directory = directory
        self._settle_us = bounds.settle_us
        self._hosts = {
            str(partition): [f"{partition}@{n}" for n in directory.hosts(partition)] for partition in directory.standbys
        }
        #: Nodes that stand by for a partition: while one is away its state is unknown.
        self._backs = {str(n) for standbys in directory.standbys.values() for n in standbys.nodes}
        self.epochs: dict[str, int] = {}
        self.chosen: list[str] = []
        self.flips = 0
        self.forgotten = not has_room(plan)
        self.calm = True
        self.begun: dict[str, int] = {}
        self.targets: set[str] = set()
        self.latest = 0
        self.progress: dict[tuple[str, Channel], list[tuple[int, int]]] = {}
        timing = plan.timing
        #: Time after which an absent process is no longer waited for.
        self._patience_us = 4 * max(timing.request_us, timing.connect_us)

    def moves(self, note: Note) -> None:
        move = _fields(note)
        if move["phase"] in ("done", "dropped"):
            self.targets.discard(move["target"])
            self.begun.pop(move["target"], None)  # a target that is given up gets no order to stand by again
        else:
            self.targets.add(move["target"])

    def begins(self, at_us: int, host: str, epoch: int) -> Iterator[Finding]:
        before, self.latest = self.latest, epoch
        if epoch <= before:
            what = f"it begins epoch {epoch}, after {before}"
            yield Finding("H6", "each coordinator begins a later epoch", at_us, host, what)

    def follows(self, order: _Obeyed) -> Iterator[Finding]:
        latest = self.epochs.get(order.host, order.epoch)
        self.epochs[order.host] = max(latest, order.epoch)
        if order.epoch < latest:
            what = f"{order.verb} {order.replica} of epoch {order.epoch}, after one of {latest}"
            yield Finding("H6", "a node follows the latest coordinator", order.at_us, order.host, what)
        away = any(self._away_us(host, order.at_us) >= self._patience_us for host in self._backs)
        if order.verb == "replay" and not self.forgotten and self.flips <= _FLIPS and not away:
            what = f"{order.replica} begins anew, though {self.flips} files were damaged and nobody was given up"
            yield Finding("H8", "replay is the last resort", order.at_us, order.replica, what)
        if order.verb == "retire":
            yield from self._retires(order)
            self.begun.pop(order.replica, None)
        elif order.verb in ("install", "restore"):
            yield from self._installs(order)
            self.begun.setdefault(order.replica, order.at_us)

    def _installs(self, order: _Obeyed) -> Iterator[Finding]:
        """Checks an install: a standby may do it at once where no node serves the partition (H5)."""
        world = self._before(order.at_us)[-1].world
        if not any(_serves(world, r) for r in self._hosts[order.partition] if r != order.replica):
            return
        recovering = world.recovering
        for other, at_us in self.begun.items():
            begins = other in recovering and order.at_us - at_us < self._patience_us
            if self.calm and other != order.replica and begins and not {other, order.replica} & self.targets:
                what = f"it begins, though {other} was told to at {at_us / 1e6:.3f} s and does not serve yet"
                yield Finding("H7", "one active begins at a time", order.at_us, order.replica, what)

    def _retires(self, order: _Obeyed) -> Iterator[Finding]:
        before = self._before(order.at_us)
        others = [r for r in self._hosts[order.partition] if r != order.replica]
        now = self._before(order.at_us + 1)  # a node may have come back at this moment
        if not any(_held_up(interval, order.host) for interval in before) and not any(
            _serves(interval.world, r) for interval in now for r in others
        ):
            what = f"it stands by again, and nobody else has served it for {self._settle_us / 1e6:.3f} s"
            yield Finding("H5", "a served partition is not given up", order.at_us, order.replica, what)
        elif not any(self._as_far(r, order) for r in others):
            what = f"it stands by again, and nobody else is as far as it was {self._settle_us / 1e6:.3f} s before"
            yield Finding("H5", "a helper leaves when others are as far", order.at_us, order.replica, what)
        if self.calm and any(f"'{order.partition}'" in text for text in self.chosen[:-1]):
            left = sum(_serves(before[-1].world, f"{partition}@{n}") for partition, n in self._standbys()) - 1
            wanted = min(self._directory.coordinator.budget, self.chosen[-1].count("'") // 2)
            if left == wanted - 1:
                what = f"{left} standbys are left that run, of the {wanted} that were chosen"
                yield Finding("H7", "first a new one runs", order.at_us, order.replica, what)

    def _away_us(self, host: str, at_us: int) -> int:
        """Returns the total time for which a process may have been taken for dead lately."""
        recent = at_us - 4 * self._patience_us
        lasted = [
            (max(interval.from_us, recent), min(interval.to_us, at_us), interval.world) for interval in self._static
        ]
        return sum(end - begin for begin, end, world in lasted if begin < end and host in _unheard(world))

    def _as_far(self, replica: str, order: _Obeyed) -> bool:
        """Has a replica come as far in every input as the retiring one had a while ago?"""
        pairs = [(channel, marks) for (consumer, channel), marks in self.progress.items() if consumer == order.replica]
        return all(
            _at(self.progress.get((replica, channel), []), order.at_us) >= _at(marks, order.at_us - self._settle_us)
            for channel, marks in pairs
        )

    def _before(self, at_us: int) -> Sequence[FaultInterval]:
        """Returns the intervals whose news may still be under way; the order itself is not in them."""
        last = bisect_right(self._begins, at_us - 1)
        first = bisect_right(self._begins, at_us - self._settle_us)
        return self._static[max(first - 1, 0) : last]

    def _standbys(self) -> Iterator[tuple[PartitionId, str]]:
        for partition, standbys in self._directory.standbys.items():
            yield from ((partition, str(n)) for n in standbys.nodes)


def _at(marks: Sequence[tuple[int, int]], at_us: int) -> int:
    """Returns the id that had been reached by then."""
    return max((id for when, id in marks if when <= at_us), default=0)


def _serves(world: World, replica: str) -> bool:
    return replica.partition("@")[2] not in world.down and replica not in world.recovering


def _held_up(interval: FaultInterval, host: str) -> bool:
    """May an order to this node have taken long to arrive?"""
    return bool({COORDINATOR, host} & (_unheard(interval.world) | interval.shaken))


def _unheard(world: World) -> set[str]:
    """Processes that another process may take for dead."""
    return {*world.disturbed, *world.down, *(end for link in world.cut for end in link)}
