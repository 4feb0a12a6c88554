"""Decides when a run is over, and waits until then."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

import trio

from consistency.faults.kinds import HEAL
from replicas.cli.run.narrator import Narrator
from replicas.cli.view.formats import seconds
from replicas.faults.model import Fault
from replicas.faults.runner import FaultRunner
from replicas.faults.state import FaultState
from replicas.local.cluster import READY_S, Cluster
from replicas.local.job import Job
from replicas.local.polling import Poller
from replicas.local.process import Phase
from replicas.local.progress import ProgressWatch, UnreadWatch
from spe.plan.directory import Directory

#: Sources of replayed input that show no progress for this long are stuck.
QUIET_US: Final = 3_000_000
#: The run is stuck when nothing moves for this long, besides twice the sum of X over the nodes.
STUCK_US: Final = 8_000_000
#: After a failure that ends the run, wait so long for data that is under way.
GRACE_US: Final = 1_500_000
#: When the clients are complete, wait so long for replicas that recover.
RETURN_US: Final = 15_000_000
#: When the clients are complete, external clients may pause so long between reads.
UNREAD_US: Final = 60_000_000
_LOOK_S: Final = 0.1
_AGAIN_S: Final = 0.5


class RunEnd:
    """Waits for the end of a run.

    Attributes:
      requested: set to end the run early.
      as_asked: the run was stopped after the requested duration.
      never_returned: replicas that still recovered at the end.
    """

    def __init__(self, job: Job, narrator: Narrator, faults: FaultState, poller: Poller) -> None:
        self._job = job
        self._narrator = narrator
        self._state = faults
        self._poller = poller
        self.requested = trio.Event()
        self.as_asked = False
        self.never_returned: list[str] = []

    async def wait(self, cluster: Cluster, faults: FaultRunner, begun_us: int) -> str:
        """Returns why the run was broken off; "" if it is complete."""
        watch = ProgressWatch(self._job.plan, self._job.directory)
        healed = False
        while True:
            with trio.move_on_after(_LOOK_S):
                await self.requested.wait()
            now = self._now()
            if (why := self._stopped(now - begun_us)) is not None:
                return why
            self._look(watch, cluster, now)
            if watch.complete:
                await self._until_returned(watch, cluster, faults)
                await self._until_read()
                # Heartbeats carry digests of outputs, which partners compare (invariant 4).
                await trio.sleep(2 * self._job.plan.timing.heartbeat_us / 1e6)
                return ""
            died = self._narrator.died
            if lost := without_whom(self._job.directory, [n for n in died if not cluster.processes[n].alive]):
                return f"{lost} died: {died[lost]}"
            if not faults.pending and (why := watch.hopeless(now, GRACE_US, _gone(cluster))):
                return why
            if faults.pending or not watch.sources_quiet(now, QUIET_US):
                continue
            if not healed and self._state.holds:
                healed = True
                await faults.inject(Fault(HEAL))
                watch.restart(now)
            elif watch.stuck(now, STUCK_US):
                return f"nothing moves any more: {watch.what_is_open(now)}"

    def _now(self) -> int:
        return self._narrator.env.clock.wall_us()

    def _stopped(self, since_us: int) -> str | None:
        """Returns why the user ends the run now; None: the user does not."""
        if self.requested.is_set():
            return f"interrupted after {seconds(since_us)} s"
        if self._job.duration_us is not None and since_us >= self._job.duration_us:
            self.as_asked = True
            return f"stopped after {seconds(since_us)} s, as asked"
        return None

    def _look(self, watch: ProgressWatch, cluster: Cluster, now: int) -> None:
        watch.look(self._narrator.history.latest(), now)
        starting = [n for n, p in cluster.processes.items() if p.phase is Phase.STARTING]
        watch.starting(starting, now, round(READY_S * 1e6))
        for what in watch.newly_stranded(now):
            self._narrator.say(f"{what}; it waits for a partner or a disk that has it")

    async def _until_returned(self, watch: ProgressWatch, cluster: Cluster, faults: FaultRunner) -> None:
        """Waits for replicas that still recover after the clients are complete, while no lasting fault is on."""
        until_us = self._now() + RETURN_US
        while True:
            watch.look(self._narrator.history.latest(), now := self._now())
            self.never_returned = watch.recovering(_gone(cluster))
            if not self.never_returned or now >= until_us:
                return
            if self._state.holds:
                await faults.inject(Fault(HEAL))
            with trio.move_on_after(_LOOK_S):
                await self.requested.wait()
                return

    async def _until_read(self) -> None:
        """Waits for external clients to read the remaining results, which end with the nodes."""
        external, announced = self._job.external, False
        names, say = " and ".join(external), self._narrator.say
        watch = UnreadWatch(self._job.plan, external, UNREAD_US)
        while watch.left and not self.requested.is_set():
            if watch.over(await self._poller.nodes(), self._now()):
                break
            if not announced:
                announced = True
                wait = f"until nothing is read for {seconds(UNREAD_US)} s"
                say(f"all is stable; waits for {names} to read the rest, {wait}")
            with trio.move_on_after(_AGAIN_S):
                await self.requested.wait()
        if watch.left:
            say(f"{names} may not have read all of it; it is in the recordings of the other clients")


def _gone(cluster: Cluster) -> list[str]:
    return [n for n, p in cluster.processes.items() if not p.alive]


def without_whom(directory: Directory, died: Collection[str]) -> str:
    """Returns a process that died by itself and without which the run cannot go on; "" if it can.

    That is a source, a client, or the last node of a partition.
    """
    for name in died:
        if name.startswith(("source:", "client:")):
            return name
    hosts = [directory.hosts(id) for id in directory.placement]
    return next((str(nodes[-1]) for nodes in hosts if all(n in died for n in nodes)), "")
