"""Restores the state of a replica: from a partner, from disk, or from nothing if upstream has everything (A3)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from replicas.checkpoint.log_transfer import slices_of
from replicas.checkpoint.store import decode_snapshot, is_held
from replicas.node.hosting import Hosting
from replicas.node.recovery import Own
from replicas.node.replica import Replica
from replicas.node.replica_host import ReplicaHost
from replicas.node.snapshots import Snapshots, on_disk
from spe.errors import LogCorrupt, LogError, OperatorFailed, RemoteProtocolError
from spe.runtime.log_line import Level, say
from spe.stream.ids import PartitionId
from spe.stream.names import NodeState

#: Marks the end of the portions of work.
_DONE: Final = object()
#: A replica that has its state checks this many times less often whether it needs another.
INSTALLED_PERIODS: Final = 4


class RecoveryTask:
    """Carries out the decisions of :class:`ReplicaRecovery`."""

    def __init__(self, hosting: Hosting, snapshots: Snapshots) -> None:
        self._hosting = hosting
        self._snapshots = snapshots

    async def run(self, partition: PartitionId) -> None:
        """Runs while the partition has a replica."""
        hosting = self._hosting
        period = hosting.plan.timing.heartbeat_us / 2e6
        await self._look_on_disk(partition)
        while (host := hosting.running.get(partition)) is not None:
            replica = host.replica
            try:
                if self._must_begin_again(replica) and host.error is None:
                    hosting.env.trace.event("reinstall", replica=host.name)
                    hosting.host(replica.id)
                    await self._look_on_disk(partition)
                    continue
                if not replica.reading.installed and host.error is None:
                    await self._install(host)
                    self._tell_if_stranded(host)
                if host.error is None:
                    await self._forget_older(host)
            except OperatorFailed as error:
                hosting.fail(host, error)
            await hosting.env.clock.sleep(INSTALLED_PERIODS * period if replica.reading.installed else period)

    def _must_begin_again(self, replica: Replica) -> bool:
        recovery = replica.recovery
        recovers = replica.state is NodeState.RECOVERING
        return recovery.must_reinstall() or (recovers and recovery.replays_in_vain(self._hosting.now()))

    def _tell_if_stranded(self, host: ReplicaHost) -> None:
        """Reports once that no state is left to recover from."""
        hosting, recovery = self._hosting, host.replica.recovery
        if (lacks := recovery.stranded(hosting.now())) and host.say_once("stranded"):
            hosting.env.trace.event("stranded", replica=host.name, lacks="; ".join(lacks))
            say(f"{host.name} cannot recover: no partner and no disk has its state, and of {'; '.join(lacks)}")

    async def _look_on_disk(self, partition: PartitionId) -> None:
        host = self._hosting.running.get(partition)
        if host is None or host.replica.recovery.replays:
            return
        recovery, id = host.replica.recovery, host.replica.id
        recovery.finds(*await on_disk(self._hosting, id))

    async def _forget_older(self, host: ReplicaHost) -> None:
        """Deletes the log or the checkpoints that are no longer written, once they are useless (A8)."""
        hosting, recovery, id = self._hosting, host.replica.recovery, host.replica.id
        if not recovery.other_is_older():
            return
        try:
            await (hosting.store(id).forget() if recovery.logs else hosting.log(id).forget())
        except (OSError, LogError) as error:
            hosting.env.trace.event("not_forgotten", replica=host.name, why=str(error))
            return
        recovery.other = None
        hosting.env.trace.event("forgotten", replica=host.name, what="checkpoints" if recovery.logs else "log")

    async def _install(self, host: ReplicaHost) -> None:
        """Installs a state, if there is one.  Raises OperatorFailed where an operator refuses it."""
        replica, hosting = host.replica, self._hosting
        stored = replica.recovery.stored
        origin = "nothing" if stored is None else "log" if stored.snapshot is None else "disk"
        step = replica.recover(hosting.now())
        if isinstance(step, str):
            if not await self._install_from(host, step):
                origin = step
            if not replica.reading.installed:
                replica.recovery.no_snapshot_from(step, hosting.now())
        elif step is Own.STORED:
            await self._install_stored(host)
        if replica.reading.installed:
            hosting.env.trace.event("installed", replica=host.name, origin=origin)
            hosting.upstream.choose()

    async def _install_from(self, host: ReplicaHost, partner: str) -> bool:
        """Installs the snapshot of ``partner``, if it sends one; True: our own checkpoint was further on."""
        id, hosting = host.replica.id, self._hosting
        data = await self._snapshots.fetch(id, partner)
        if isinstance(data, str):
            return False
        try:
            state = await hosting.env.compute.run(lambda: decode_snapshot(hosting.plan, id.of, data))
        except RemoteProtocolError as error:
            hosting.env.trace.event("no_snapshot", replica=host.name, partner=partner, why=str(error))
            return False
        replica = host.replica
        if is_held(state) and not replica.partners.stands_by(partner):  # it has just become a standby
            return False
        if hosting.running.get(id.of) is not host or replica.reading.installed:
            return False
        if "log" in state:
            await self._take_log(host, partner, state)
            return False
        if own := replica.recovery.is_further(state):
            await self._install_stored(host)
        else:
            replica.install(state, hosting.now())
        return own

    async def _take_log(self, host: ReplicaHost, partner: str, sent: Mapping[str, Any]) -> None:
        """Starts from the log of a standby, which becomes ours."""
        hosting, recovery, id = self._hosting, host.replica.recovery, host.replica.id
        try:
            await hosting.log(id).replace(list(slices_of(sent)))
        except (LogError, OSError, RemoteProtocolError) as error:
            hosting.env.trace.event("no_snapshot", replica=host.name, partner=partner, why=str(error))
            return
        await self._look_on_disk(id.of)
        if hosting.running.get(id.of) is host and not host.replica.reading.installed and recovery.stored is not None:
            await self._install_stored(host)

    async def _install_stored(self, host: ReplicaHost) -> None:
        """Starts from our own disk.  Raises OperatorFailed where an operator refuses its state."""
        stored = host.replica.recovery.stored
        assert stored is not None, "A3: there is something"
        if stored.snapshot is not None:
            host.replica.install_stored(stored.snapshot, self._hosting.now())
        else:
            await self._install_logged(host)

    async def _install_logged(self, host: ReplicaHost) -> None:
        """Loads the log's footprints; later slices are read from upstream and replayed (G4)."""
        hosting, replica = self._hosting, host.replica
        log, clock = hosting.log(replica.id), hosting.env.clock
        begun = clock.step_ns()
        logged = await log.read()
        if logged is None:
            await self._look_on_disk(replica.id.of)  # there may be a checkpoint
            return
        instance = replica.core.empty_instance()
        assert instance.log is not None, "G4: it is made for that"
        again = instance.log.reconstruct(logged.commit, logged.start, logged.begin, logged.slices)
        try:
            while await hosting.env.compute.run(lambda: next(again, _DONE)) is not _DONE:
                pass  # in a thread: the instance is not shared yet
        except (LogCorrupt, RemoteProtocolError) as error:
            await log.refuse(str(error))
            await self._look_on_disk(replica.id.of)
            return
        if hosting.running.get(replica.id.of) is host and not replica.reading.installed:
            if replica.logging is not None:  # input may be missing for long: loaded slices are not held twice
                host.remaking = logged._replace(slices=[], released=[])
            host.load_ns = clock.step_ns() - begun
            host.log_meter.learn([float(us) for us in logged.speeds])
            replica.install_logged(instance, logged, hosting.now(), safe=log.is_safe)

    async def refuse_log(self, host: ReplicaHost, why: str) -> None:
        """Begins again without the log, because the replay differed from the original run."""
        await self._hosting.log(host.replica.id).refuse(why)
        if self._hosting.running.get(host.replica.id.of) is host:
            try:
                host = self._hosting.host(host.replica.id)
                await self._look_on_disk(host.replica.id.of)
            except OperatorFailed as error:
                self._hosting.fail(host, error)
            self._hosting.upstream.choose()

    async def read_again(self, host: ReplicaHost, why: str) -> None:
        """Replaces damaged redo data.  Upstream has them, for they are not acknowledged: the replica starts from a
        snapshot of its own, as after a restart (A3), and reads them again.
        """
        hosting, id = self._hosting, host.replica.id
        hosting.env.trace.event("spill_damaged", replica=host.name, why=why)
        say(
            f"{host.name}: {why}; it is read from upstream again",
            Level.WARNING,
            event="spill_damaged",
            replica=host.name,
        )
        state = await self._snapshots.of(host)
        if hosting.running.get(id.of) is not host or host.error is not None:
            return
        try:
            host = hosting.host(id)
            if state is not None:
                host.replica.install(state, hosting.now())
            else:  # its state was not complete yet, and is still on disk
                await self._look_on_disk(id.of)
        except OperatorFailed as error:
            hosting.fail(host, error)
        hosting.upstream.choose()
