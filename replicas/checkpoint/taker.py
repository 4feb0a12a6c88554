"""Fetches checkpoints from running replicas, and stores them on a standby's disk (H1, H2)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from operator import ge

from replicas.checkpoint.replica_log import ReplicaLog
from replicas.checkpoint.store import CheckpointStore, decode_snapshot, is_held
from replicas.placement.standby import Standby
from spe.errors import OtherOrigin, RemoteProtocolError
from spe.plan.plan import Plan
from spe.runtime.env import Env
from spe.runtime.log_line import Level, say
from spe.stream.ids import ReplicaId


class CheckpointTaker:
    """Fetches and stores the checkpoints of one standby.

    Args:
      env: decodes, and traces.
      plan: plan of the cluster.
      standby: decides when to ask, and acknowledges what is safe.
      store: storage for checkpoints.
      replica_log: a log of an earlier configuration, if any; deleted when the checkpoints are newer.
      fetch: (replica, maker) -> the encoded answer of the maker, or the reason for a failure.
    """

    def __init__(
        self,
        env: Env,
        plan: Plan,
        standby: Standby,
        store: CheckpointStore,
        replica_log: ReplicaLog,
        fetch: Callable[[ReplicaId, str], Awaitable[bytearray | str]],
    ) -> None:
        self._env = env
        self._plan = plan
        self._standby = standby
        self._store = store
        self._kept = replica_log
        #: Input positions of that log; None: there is none.
        self._logged: Sequence[int] | None = None
        self._fetch = fetch

    async def look_on_disk(self) -> None:
        """Reads the checkpoints of an earlier process, which count as taken."""
        head = await self._kept.head() if self._kept.is_there() else None
        if head is not None:
            self._logged = head.positions
            if await self._kept.make_safe():
                self._standby.follows(head.positions, head.origins, head.made)
        self._standby.holds_if_newer(await self._store.newest())

    async def take_if_due(self) -> None:
        """Asks for a checkpoint when the standby wishes, and stores it."""
        maker = self._standby.wish(self._env.clock.monotonic_us())
        if maker is not None:
            await self._take(maker)

    async def _take(self, maker: str) -> None:
        standby = self._standby
        data = await self._fetch(standby.id, maker)
        if isinstance(data, str):
            # A single failure may be chance: the asked replica may just have died, or become a standby.
            if standby.failed(maker, self._env.clock.monotonic_us()) > 1:
                self._tell_of_trouble(f"{maker}: {data}")
            return
        standby.came(maker)
        try:
            snapshot = await self._env.compute.run(lambda: decode_snapshot(self._plan, standby.id.of, data))
            if is_held(snapshot):  # it has just become a standby: another replica runs
                standby.failed(maker, self._env.clock.monotonic_us())
                return
            if standby.useful(snapshot):
                size = await self._store.write(data)
                standby.holds(snapshot)
                self._env.trace.event("checkpoint_taken", replica=standby.name, maker=maker, bytes=size)
                await self._forget_log()
            self._tell_of_trouble("")
        except (OSError, RemoteProtocolError, OtherOrigin) as error:
            self._env.trace.event("checkpoint_failed", replica=standby.name, why=str(error))
            self._tell_of_trouble(str(error))

    async def _forget_log(self) -> None:
        """Deletes the log when the checkpoints are newer, because upstream may have forgotten its input."""
        acks = [upto for _, upto in self._standby.acks()]
        if self._logged is not None and acks != list(self._logged) and all(map(ge, acks, self._logged)):
            await self._kept.forget()
            self._logged = None

    def _tell_of_trouble(self, why: str) -> None:
        """Reports a trouble when it changes: operators of the cluster rely on this standby."""
        if why and why != self._standby.trouble:
            say(
                f"{self._standby.name} takes no checkpoint: {why}; what it holds grows old",
                Level.WARNING,
                replica=self._standby.name,
            )
        self._standby.trouble = why
