"""Puts a simulated cluster into a situation, has the run judged, and tells whether the situation was met."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass

import trio

from consistency.checking.verdict import judge
from consistency.faults.kind import LinkFaults
from replicas.simulation.simulate import is_quiet
from replicas.simulation.world.clock import JumpClock
from replicas.simulation.world.host import seeded_scheduling
from replicas.simulation.world.link import GOOD
from spe.plan.directory import Directory
from spe.plan.plan import Plan
from spe.stream.batch import Batch, Boundary, Element
from spe.stream.history import Delivered, FeedMode, History, Opened, Promoted, Received, StateChanged
from spe.stream.names import Kind, NodeState
from spe.stream.times import END_OF_TIME
from tests.support.faulty_cluster import FaultyCluster

#: Time between two checks of a condition.
_LOOK_S = 0.005
#: Real seconds that a run may take.
_WALL_S = 120.0

#: (from, to), microseconds since the run began.
Span = tuple[int, int]


def apart(one: Span, other: Span) -> bool:
    return one[1] <= other[0] or other[1] <= one[0]


def inside(span: Span, at_us: int) -> bool:
    return span[0] <= at_us < span[1]


async def until(holds: Callable[[], object], *, within_s: float = 15.0, look_s: float = _LOOK_S) -> None:
    """Waits for a condition.  Raises AssertionError: it never came."""
    deadline = trio.current_time() + within_s
    while not holds():
        assert trio.current_time() < deadline, "the situation never came"
        await trio.sleep(look_s)


def play(
    plan: Plan,
    directory: Directory,
    script: Callable[[FaultyCluster], Awaitable[None]],
    *,
    turn_us: int = 0,
    link: LinkFaults = GOOD,
    seed: int = 0,
    grace_s: float = 30.0,
) -> Met:
    """Runs a cluster through a script and until all is quiet, and asserts that every checker is content.

    Args:
      script: disturbs the cluster, and has healed everything and restarted everybody when it ends.
      turn_us: virtual time that each slice of a replica's work takes.
      link: what every link is like.
    """

    async def main() -> Met:
        cluster = FaultyCluster(plan, directory, seed=seed, link=link, turn_us=turn_us)
        async with cluster:
            with cluster.explain():
                await cluster.start()
                await script(cluster)
                await until(lambda: is_quiet(cluster), within_s=grace_s)
                cluster.observe()
                reference = cluster.reference()
        with cluster.explain():
            verdict = judge(
                cluster.history,
                plan,
                cluster.over_time,
                reference,
                recompute=cluster.reference,
                in_force=cluster.in_force(),
            )
            assert verdict.holds, "\n".join(map(str, verdict.findings))
        return Met(cluster.history, cluster.log)

    with seeded_scheduling(seed):
        return trio.run(main, clock=JumpClock(_WALL_S))


@dataclass(frozen=True)
class Met:
    """What a run was like."""

    history: History
    log: list[str]

    def spans(self, replica: str, state: NodeState, *, fresh: bool | None = None) -> list[Span]:
        """When a replica was in a state (``fresh``: with or without live results); the run ends the last one."""
        found: list[Span] = []
        since: int | None = None
        for event in self.history:
            if isinstance(event, StateChanged) and event.replica == replica:
                now = event.state is state and fresh in (None, event.fresh)
                if since is None and now:
                    since = event.at_us
                elif since is not None and not now:
                    found.append((since, event.at_us))
                    since = None
        return found if since is None else [*found, (since, self.history.end_us)]

    def corrected(self, replica: str) -> Span:
        """The one time in which a replica was in STABILIZATION."""
        (span,) = self.spans(replica, NodeState.STABILIZATION)
        return span

    def received(self, consumer: str, mode: FeedMode, span: Span) -> Iterator[tuple[str, Element]]:
        """(producer, element) of what reached a consumer in a time."""
        for event in self.history:
            if not isinstance(event, Received) or not inside(span, event.at_us):
                continue
            if event.consumer == consumer and event.mode == mode:
                yield event.producer, event.element

    def side_by_side(self, consumer: str) -> list[Span]:
        """When a consumer had a fresh and a correcting feed, from the first element of the latter to its end."""
        found: list[Span] = []
        first: int | None = None
        for event in self.history:
            match event:
                case Received(at_us, name, _, _, _, "corrections") if name == consumer and first is None:
                    first = at_us
                case Promoted(at_us, name) if name == consumer and first is not None:
                    found.append((first, at_us))
                    first = None
        return found

    def opened(self, consumer: str, mode: FeedMode) -> list[Opened]:
        return [e for e in self.history if isinstance(e, Opened) and e.consumer == consumer and e.mode == mode]

    def rows(self, consumer: str, mode: FeedMode, kind: Kind, span: Span) -> int:
        """Tuples of a kind that reached a consumer in a time."""
        found = (e for _, e in self.received(consumer, mode, span))
        return sum(len(e) for e in found if isinstance(e, Batch) and e.kind is kind)

    def longest_gap_us(self, client: str, span: Span) -> int:
        """The longest time within a span in which a client learned nothing new."""
        high, last, longest = 0, span[0], 0
        for event in self.history:
            if not isinstance(event, Delivered) or event.consumer != f"client:{client}":
                continue
            reach = _reach(event.element)
            if reach <= high:
                continue
            high = reach
            if inside(span, event.at_us):
                longest, last = max(longest, event.at_us - last), event.at_us
        return max(longest, span[1] - last)

    def deliveries(self, client: str) -> list[Delivered]:
        return [e for e in self.history if isinstance(e, Delivered) and e.consumer == f"client:{client}"]


def _reach(element: Element) -> int:
    if isinstance(element, Batch):
        return int(element.rows.time[-1]) if len(element) else 0
    return element.time if isinstance(element, Boundary) and element.time < END_OF_TIME else 0
