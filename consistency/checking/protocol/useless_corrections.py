"""No useless corrections: a redo has something to redo (R1), and forced rec_dones come at least X apart (R2).

A rec_done is *forced* if the failure goes on: STABILIZATION is followed by UP_FAILURE, and all consumers get an undo,
corrections, and tentative tuples again.  Twice within X that is flapping.  Nothing is claimed if no replica has fresh
results at that time, for then ending the redo is the way to give them: live results were stopped for lack of room, or
the policy is to suspend them.  With periodic checkpoints, or a log, a redo of nothing new may make room upstream, once
for each checkpoint, so nothing is claimed of that.  Nor of a replica whose inputs are not in the history (real
processes).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from consistency.checking.checked_run import CheckedRun
from consistency.checking.counters import Counters
from consistency.checking.finding import Finding
from spe.plan.nodes import Policy
from spe.stream.batch import Boundary
from spe.stream.history import Opened, Received, StateChanged
from spe.stream.ids import Channel
from spe.stream.names import Kind, NodeState
from spe.stream.times import BEFORE_TIME, END_OF_TIME, floor_to

_PROPERTY = "steady"


def check_steady(run: CheckedRun) -> Iterator[Finding]:
    """Yields findings of R1 and R2."""
    history, _, plan, directory, in_force, bounds, counters = run
    replicas = {
        f"{partition}@{node}": _Replica(
            f"{partition}@{node}",
            plan.bucket_us,
            in_force.shortest_x_us(partition.unit, node),
            directory.nodes[node].during_stabilization is Policy.SUSPEND,
            directory.nodes[node].checkpoints.memory_us is not None or partition in directory.logs,
            {channel: None for channel in plan.unit[partition.unit].channels_in(partition.partition)},
        )
        for partition in directory.placement
        for node in directory.hosts(partition)
    }
    for event in history:
        match event:
            case Received(_, consumer, channel, _, _, mode, Boundary(kind=Kind.STABLE, time=time)):
                if mode and consumer in replicas:
                    replicas[consumer].promised(channel, time)
            case Opened(_, consumer, channel, _, _, _, _, frontier):
                if consumer in replicas:
                    replicas[consumer].promised(channel, frontier)
            case StateChanged(at_us, name, state, fresh) if name in replicas:
                yield from replicas[name].moved(at_us, state, fresh, bounds.processing_us, counters)


@dataclass(slots=True)
class _Replica:
    """Promises to a replica, and its states.

    Attributes:
      frontiers: stable frontier of each input; None: it was never opened, so it is unknown.
      failed_end: end of the last stable bucket as UP_FAILURE began, tuple time; None: not known.
      forced_at: when its last forced rec_done was.
      stood_back: live results went on in this STABILIZATION, and stopped.
    """

    name: str
    bucket_us: int
    x_us: int
    suspends: bool
    periodic: bool
    frontiers: dict[Channel, int | None]
    state: NodeState = NodeState.RECOVERING
    fresh: bool = False
    failed_end: int | None = None
    forced_at: int | None = None
    stood_back: bool = False

    def promised(self, channel: Channel, frontier: int) -> None:
        known = self.frontiers.get(channel)
        self.frontiers[channel] = frontier if known is None else max(known, frontier)

    def _stable_end(self) -> int | None:
        known = [f for f in self.frontiers.values() if f is not None]
        if len(known) < len(self.frontiers):
            return None
        low = min(known)
        return low if low in (BEFORE_TIME, END_OF_TIME) else floor_to(low, self.bucket_us)

    def moved(self, at_us: int, state: NodeState, fresh: bool, slack_us: int, counters: Counters) -> Iterator[Finding]:
        before, was_fresh, self.state, self.fresh = self.state, self.fresh, state, fresh
        if state is NodeState.RECOVERING:  # after a restart it holds nothing
            self.frontiers = dict.fromkeys(self.frontiers)
            self.failed_end = self.forced_at = None
        elif state is NodeState.UP_FAILURE and before is not state:
            if before is NodeState.STABILIZATION:
                yield from self._forced(at_us, slack_us, was_fresh, counters)
            self.failed_end = self._stable_end()
        elif state is NodeState.STABILIZATION:
            self.stood_back = before is state and (self.stood_back or was_fresh) and not fresh
            if before is NodeState.UP_FAILURE:
                yield from self._redo(at_us, counters)

    def _forced(self, at_us: int, slack_us: int, was_fresh: bool, counters: Counters) -> Iterator[Finding]:
        last, self.forced_at = self.forced_at, at_us
        if last is None or self._stable_end() is None or self.stood_back or (self.suspends and not was_fresh):
            return
        counters.add("forced rec_dones compared")
        if at_us - last < self.x_us - slack_us:
            what = f"a forced rec_done {(at_us - last) / 1e6:.3f} s after the last one; X is {self.x_us / 1e6:.3f} s"
            yield Finding(_PROPERTY, "forced rec_dones come X apart", at_us, self.name, what)

    def _redo(self, at_us: int, counters: Counters) -> Iterator[Finding]:
        end = self._stable_end()
        if end is None or self.failed_end is None or self.periodic:
            return
        counters.add("redos checked")
        if end <= self.failed_end:
            what = f"it corrects, though nothing became stable: the last stable bucket still ends at {end}"
            yield Finding(_PROPERTY, "a redo has something to redo", at_us, self.name, what)
