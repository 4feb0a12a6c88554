"""Writes the checkpoints of a replica to disk (docs/internals/rules.md A8)."""

from __future__ import annotations

from replicas.node.hosting import Hosting
from replicas.node.snapshots import Snapshots
from spe.errors import LocalProtocolError
from spe.runtime.log_line import Level, say
from spe.stream.ids import PartitionId, ReplicaId


class CheckpointTask:
    """Writes one checkpoint per interval, and early when a full producer or a leaving replica waits for it (M3)."""

    def __init__(self, hosting: Hosting, snapshots: Snapshots) -> None:
        self._hosting = hosting
        self._snapshots = snapshots

    async def run(self, partition: PartitionId, every_us: int) -> None:
        """Runs while the partition has a replica."""
        hosting, id = self._hosting, ReplicaId(*partition, self._hosting.node)
        store, trace = hosting.store(id), hosting.env.trace
        last, trouble = hosting.now(), ""
        while True:
            await hosting.env.clock.sleep(min(every_us, hosting.plan.timing.heartbeat_us) / 1e6)
            if (host := hosting.running.get(partition)) is None:
                return
            replica = host.replica
            recovery, reading = replica.recovery, replica.reading
            waited_for = reading.installed and (reading.upstream_full() or (recovery.backs and not recovery.safe))
            due = waited_for or hosting.now() - last >= every_us
            if host.error is not None or not due or not recovery.worth_storing():
                continue
            snapshot = await self._snapshots.of(host)
            if snapshot is None or not replica.recovery.advances(snapshot["positions"]):
                continue  # a failure may have begun since: then it is the last checkpoint in memory
            last = hosting.now()
            try:
                size = await store.write(await self._snapshots.encoded(host, snapshot))
            except (OSError, LocalProtocolError) as error:
                trace.event("checkpoint_failed", replica=host.name, why=str(error))
                if str(error) != trouble:
                    trouble = str(error)
                    say(
                        f"{host.name}: no checkpoint: {error}; going on without, upstream keeps more",
                        Level.WARNING,
                        event="checkpoint_failed",
                        replica=host.name,
                    )
                continue
            trouble = ""
            replica.recovery.written(snapshot)
            trace.event("checkpoint_written", replica=host.name, restart=snapshot["restart"], bytes=size)
