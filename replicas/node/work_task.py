"""Advances a replica whenever input has come or time has passed."""

from __future__ import annotations

from typing import Final

from consistency.dpc.partners import Ask
from replicas.node.hosting import Hosting
from replicas.node.recovery_task import RecoveryTask
from replicas.node.replica_host import ReplicaHost
from spe.errors import LogCorrupt, OperatorFailed
from spe.runtime.spill import SpillDamaged, SpillNotLoaded
from spe.stream.ids import PartitionId
from spe.wire.messages.replicas import PartnerRequest

#: Loaded pieces that stay in memory while a replica has more to do: other work may come before their use.
LOADED_PIECES: Final = 16


class WorkTask:
    """Lets the replica of a partition advance, and yields between slices."""

    def __init__(self, hosting: Hosting, recovery: RecoveryTask) -> None:
        self._hosting = hosting
        self._recovery = recovery

    async def run(self, partition: PartitionId) -> None:
        """Runs while the partition has a replica."""
        hosting, clock = self._hosting, self._hosting.env.clock
        while (host := hosting.running.get(partition)) is not None:
            token = host.work.token()
            begun = clock.step_ns()
            more, replays = False, host.replica.core.replays
            if host.error is None:
                try:
                    more, ask = host.replica.advance(hosting.now())
                except OperatorFailed as error:
                    hosting.fail(host, error)
                except SpillNotLoaded as piece:  # work that does not need the piece continues
                    host.load(piece, hosting.nursery)
                    host.advanced()
                except SpillDamaged as error:
                    await self._recovery.read_again(host, str(error))
                    continue
                except LogCorrupt as error:
                    await self._recovery.refuse_log(host, str(error))
                    continue
                else:
                    host.release_loaded(LOADED_PIECES if more else 0)
                    host.advanced()
                    hosting.tell_rejections(host)
                    self._tell_of_large_steps(host)
                    if ask is not None:
                        self._ask_partner(host, ask)
                    if hosting.env.validates:
                        host.validation.step()
                host.stepped(clock.step_ns() - begun, replays=replays)
            if more:
                await hosting.env.compute.turn()
            else:
                await host.work.wait(token)

    def _tell_of_large_steps(self, host: ReplicaHost) -> None:
        """Reports a step with too many rows of one time, which delays heartbeats (B8)."""
        if host.replica.step_too_large() and host.say_once("large_step"):
            rows, limit = host.replica.core.largest_slice, self._hosting.plan.limits.slice_rows
            self._hosting.env.trace.event("large_step", replica=host.name, rows=rows, slice_rows=limit)

    def _ask_partner(self, host: ReplicaHost, ask: Ask) -> None:
        unit, partition, node = host.replica.id
        self._hosting.env.trace.event("ask_partner", replica=host.name, partner=ask.partner, number=ask.number)
        self._hosting.upstream.tell(ask.partner, PartnerRequest(unit, partition, node, ask.number))
