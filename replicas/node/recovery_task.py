"""Gets a replica its state: from a partner, from disk, or from nothing while upstream has everything (A3)."""

from __future__ import annotations

from typing import Final

from replicas.checkpoint.store import decode_snapshot, is_held
from replicas.node.hosting import Hosting
from replicas.node.replica_host import ReplicaHost
from replicas.node.snapshots import Snapshots
from spe.errors import OperatorFailed, RemoteProtocolError
from spe.runtime.log_line import Level, say
from spe.stream.ids import PartitionId

#: A replica that has its state checks this many times less often whether it needs another one.
INSTALLED_PERIODS: Final = 4


class RecoveryTask:
    """Does what :class:`ReplicaRecovery` decides."""

    def __init__(self, hosting: Hosting, snapshots: Snapshots) -> None:
        self._hosting = hosting
        self._snapshots = snapshots

    async def run(self, partition: PartitionId) -> None:
        """Until there is no replica any more."""
        hosting = self._hosting
        period = hosting.plan.timing.heartbeat_us / 2e6
        await self._look_on_disk(partition)
        while (host := hosting.running.get(partition)) is not None:
            replica = host.replica
            try:
                if replica.recovery.must_reinstall() and host.error is None:
                    hosting.env.trace.event("reinstall", replica=host.name)
                    hosting.host(replica.id)
                    await self._look_on_disk(partition)
                    continue
                if not replica.reading.installed and host.error is None:
                    await self._install(host)
                    self._tell_if_stranded(host)
            except OperatorFailed as error:
                hosting.fail(host, error)
            await hosting.env.clock.sleep(INSTALLED_PERIODS * period if replica.reading.installed else period)

    def _tell_if_stranded(self, host: ReplicaHost) -> None:
        """Once, where it can go on from nothing that is left."""
        hosting, recovery = self._hosting, host.replica.recovery
        if (lacks := recovery.stranded(hosting.now())) and host.say_once("stranded"):
            hosting.env.trace.event("stranded", replica=host.name, lacks="; ".join(lacks))
            say(f"{host.name} cannot recover: no partner and no disk has its state, and of {'; '.join(lacks)}")

    async def _look_on_disk(self, partition: PartitionId) -> None:
        host = self._hosting.running.get(partition)
        if host is None or host.replica.recovery.replays:
            return
        if host.replica.recovery.stores_every_us is not None:
            host.replica.recovery.stored = await self._hosting.store(host.replica.id).newest()

    async def _install(self, host: ReplicaHost) -> None:
        """Installs what there is, if anything.  Raises OperatorFailed where an operator does not take its state."""
        replica, hosting = host.replica, self._hosting
        origin = "nothing" if replica.recovery.stored is None else "disk"
        partner = replica.recover(hosting.now())
        if partner is not None:
            if not await self._install_from(host, partner):
                origin = partner
            if not replica.reading.installed:
                replica.recovery.no_snapshot_from(partner, hosting.now())
        if replica.reading.installed:
            hosting.env.trace.event("installed", replica=host.name, origin=origin)
            hosting.upstream.choose()

    async def _install_from(self, host: ReplicaHost, partner: str) -> bool:
        """Installs what ``partner`` sends, if it does; True: our own checkpoint from disk was further on."""
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
        if hosting.running.get(id.of) is host and not replica.reading.installed:
            return replica.install_newest(state, hosting.now())
        return False

    async def read_again(self, host: ReplicaHost, why: str) -> None:
        """Spilled redo data are damaged.  Upstream has them still, for they are not acknowledged: the replica starts
        from a snapshot of its own, as another would after a restart (A3), and reads them once more."""
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
        except OperatorFailed as error:
            hosting.fail(host, error)
        hosting.upstream.choose()
