"""P3: when all has healed, every client holds the result of a run without failures, and nothing else.

P2 compares the stable tuples with the reference; here, all of them must have come.
"""

from __future__ import annotations

from collections.abc import Iterator, Set
from dataclasses import dataclass, field

from consistency.checking.counters import Counters
from consistency.checking.finding import Finding, show_row
from consistency.checking.rows import Reference
from spe.plan.directory import Directory
from spe.plan.plan import Plan
from spe.stream.batch import Batch, Boundary, Undo
from spe.stream.history import Delivered, Event, History, Opened, ProcessUp, Sent, StateChanged, host_of
from spe.stream.ids import Channel
from spe.stream.names import Kind, NodeState
from spe.stream.times import BEFORE_TIME, END_OF_TIME

_Place = tuple[str, Channel]


def check_completeness(
    history: History,
    plan: Plan,
    directory: Directory,
    reference: Reference,
    counters: Counters,
    dead: Set[str] = frozenset(),
) -> Iterator[Finding]:
    """Yields findings of P3; call it where P3's premise holds, for clients that are not dead."""
    end = _End()
    for event in history:
        end.take(event)
    at_us = history.end_us
    for (client, channel), event in end.live.items():
        if client in dead:
            continue
        assert isinstance(event.element, Batch)
        what = f"{channel}: {show_row(event.element.rows, 0)} is still tentative, since {event.at_us / 1e6:.3f} s"
        yield Finding("P3", "nothing tentative is left", at_us, client, what)
    for name, client_plan in directory.clients.items():
        if f"client:{name}" in dead:
            continue
        for channel in (Channel(s, p) for s in client_plan.reads for p in range(plan.partitions_of(s))):
            counters.add("streams compared to the end")
            counters.add("tuples of the reference", len(reference[channel][0]))
            yield from _stream(end, f"client:{name}", channel, reference, at_us)


@dataclass(slots=True)
class _End:
    """State at the end of a run."""

    position: dict[_Place, int] = field(default_factory=dict)
    frontier: dict[_Place, int] = field(default_factory=dict)
    #: The first tentative tuple that was not revoked.
    live: dict[_Place, Delivered] = field(default_factory=dict)
    sources: dict[Channel, int] = field(default_factory=dict)

    def take(self, event: Event) -> None:
        match event:
            case ProcessUp(_, host):
                for key in [k for k in self.live if k[0] == host]:
                    del self.live[key]
            case Sent():
                self.sources[event.channel] = event.frontier_us
            case Opened(_, consumer, channel):
                self.position.setdefault((consumer, channel), event.position)
            case Delivered():
                self._delivered(event, (event.consumer, event.channel))

    def _delivered(self, event: Delivered, place: _Place) -> None:
        element = event.element
        if isinstance(element, Undo):
            self.live.pop(place, None)
        elif isinstance(element, Boundary) and element.kind is Kind.STABLE:
            self.frontier[place] = element.time
        elif isinstance(element, Batch) and len(element):
            if element.kind is Kind.TENTATIVE:
                self.live.setdefault(place, event)
            else:
                self.position[place] = max(self.position.get(place, 0), int(element.row_ids()[-1]))
                self.live.pop(place, None)

    @property
    def all_ended(self) -> bool:
        """Did every source that the history names end?  False if it names none."""
        return bool(self.sources) and all(end >= END_OF_TIME for end in self.sources.values())


def _stream(end: _End, client: str, channel: Channel, reference: Reference, at_us: int) -> Iterator[Finding]:
    ids, rows = reference[channel]
    last = end.position.get((client, channel), 0)
    if len(ids) and last < int(ids[-1]):
        at = int(ids.searchsorted(last + 1))
        what = f"{channel}: {len(ids) - at} of {len(ids)} tuples never came; the first is id {ids[at]}, "
        yield Finding("P3", "all stable tuples arrive", at_us, client, what + show_row(rows, at))
    elif end.all_ended and end.frontier.get((client, channel), BEFORE_TIME) < END_OF_TIME:
        what = f"{channel}: all sources have ended, and the stream has not"
        yield Finding("P3", "a stream ends", at_us, client, what)


def check_states(history: History, directory: Directory, dead: Set[str] = frozenset()) -> Iterator[Finding]:
    """Checks that every replica is STABLE in the end, and no standby is failing or correcting (P3).

    Replicas on nodes that are dead for good are skipped.
    """
    states = {e.replica: e for e in history if isinstance(e, StateChanged) and host_of(e.replica) not in dead}
    for partition, standbys in directory.standbys.items():
        for last in (states.get(f"{partition}@{n}") for n in standbys.nodes):
            if last is not None and last.state in (NodeState.UP_FAILURE, NodeState.STABILIZATION):
                now = f"{last.state.name} since {last.at_us / 1e6:.3f} s"
                yield Finding("P3", "all replicas are STABLE", history.end_us, last.replica, now)
    for partition, nodes in directory.placement.items():
        for replica in (f"{partition}@{n}" for n in nodes if n not in dead):
            last = states.get(replica)
            if last is None or last.state is not NodeState.STABLE:
                now = "was never heard of" if last is None else f"{last.state.name} since {last.at_us / 1e6:.3f} s"
                yield Finding("P3", "all replicas are STABLE", history.end_us, replica, now)
