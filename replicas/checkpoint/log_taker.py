"""Copies the checkpoint log of a running replica to a standby (rules G9, H1 and H2)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from replicas.checkpoint.log_transfer import slices_of
from replicas.checkpoint.replica_log import ReplicaLog
from replicas.checkpoint.state_log import head_of
from replicas.checkpoint.store import CheckpointStore, decode_snapshot, is_held
from replicas.placement.standby import Standby
from spe.errors import LogError, OtherOrigin, RemoteProtocolError
from spe.plan.plan import Plan
from spe.runtime.env import Env
from spe.runtime.log_line import Level, say
from spe.stream.ids import ReplicaId

#: Value for a standby that follows no log yet.
ANY: Final = "any"


class LogTaker:
    """Copies the log for one standby.

    Args:
      env: decodes, and traces.
      plan: plan of the cluster.
      standby: decides when to ask, and acknowledges what is safe.
      replica_log: the log that is written.
      store: storage for whole snapshots while no log is available.
      fetch: (replica, maker, followed log, last record held) -> the encoded answer of the maker, or the reason for a
        failure.  Without a followed log, the maker sends a whole snapshot.
    """

    def __init__(
        self,
        env: Env,
        plan: Plan,
        standby: Standby,
        replica_log: ReplicaLog,
        store: CheckpointStore,
        fetch: Callable[[ReplicaId, str, str, int], Awaitable[bytearray | str]],
    ) -> None:
        self._env = env
        self._plan = plan
        self._standby = standby
        self._kept = replica_log
        self._store = store
        self._fetch = fetch
        self._log, self._since = ANY, 0

    async def look_on_disk(self) -> None:
        """Reads the log and the checkpoints of an earlier process or replica on this node, which count as taken."""
        head = await self._kept.head()
        if head is not None and await self._kept.make_safe():
            self._standby.follows(head.positions, head.origins, head.made)
        self._standby.holds_if_newer(await self._store.newest())

    async def take_if_due(self) -> None:
        """Asks for new slices when the standby wishes, and writes them."""
        maker = self._standby.wish(self._env.clock.monotonic_us())
        if maker is not None:
            await self._take(maker)

    async def _take(self, maker: str) -> None:
        standby = self._standby
        data = await self._fetch(standby.id, maker, self._log, self._since)
        if isinstance(data, str):
            # A single failure may be chance: the asked replica may just have died, or become a standby.
            if standby.failed(maker, self._env.clock.monotonic_us()) > 1:
                await self._take_whole(maker, data)
            return
        standby.came(maker)
        try:
            sent = await self._env.compute.run(lambda: decode_snapshot(self._plan, standby.id.of, data))
            if is_held(sent) or "log" not in sent:  # it has just become a standby: another replica runs
                standby.failed(maker, self._env.clock.monotonic_us())
                return
            if await self._write(maker, sent, len(data)):
                self._tell_of_trouble("")
        except (OSError, LogError, RemoteProtocolError, OtherOrigin) as error:
            self._env.trace.event("checkpoint_failed", replica=standby.name, why=str(error))
            self._tell_of_trouble(str(error))

    async def _take_whole(self, maker: str, why: str) -> None:
        """Takes a whole snapshot instead of the log, which is asked for again at its time."""
        standby = self._standby
        data = await self._fetch(standby.id, maker, "", 0)
        if isinstance(data, str):
            self._tell_of_trouble(f"{maker}: {why}; {data}")
            return
        try:
            snapshot = await self._env.compute.run(lambda: decode_snapshot(self._plan, standby.id.of, data))
            if is_held(snapshot) or not standby.useful(snapshot):
                return
            size = await self._store.write(data)
        except (OSError, RemoteProtocolError, OtherOrigin) as error:
            self._env.trace.event("checkpoint_failed", replica=standby.name, why=str(error))
            self._tell_of_trouble(f"{maker}: {why}; {error}")
            return
        standby.came(maker)
        standby.holds(snapshot)
        self._log = ANY
        self._env.trace.event("checkpoint_taken", replica=standby.name, maker=maker, bytes=size, whole=True)
        self._tell_of_trouble(f"{maker}: {why}", "follows no log, and takes whole snapshots")

    async def _write(self, maker: str, sent: dict[str, object], size: int) -> bool:
        """Writes slices of a maker; returns False if they cannot be used, which was reported."""
        log, standby = self._kept, self._standby
        identity, first, last = str(sent["log"]), int(str(sent["first"])), int(str(sent["last"]))
        slices = list(slices_of(sent))
        if identity == self._log and first == self._since + 1:
            self._log = ANY  # until it is written: a part of it may be there afterwards
            await log.follow(slices)
        else:
            new = await self._env.compute.run(lambda: head_of(slices))
            if not standby.continues(new.positions, new.origins):
                await self._is_behind(maker)
                return False
            self._log = ANY
            await log.replace(slices)
        self._log, self._since = identity, last
        if (head := await log.head()) is None or not log.is_safe:  # a damaged log is replaced by a new one
            self._tell_of_trouble(f"its log is not in both copies: {log.trouble or 'it is begun anew'}")
            return False
        standby.follows(head.positions, head.origins, head.made, maker)
        self._env.trace.event("checkpoint_taken", replica=standby.name, maker=maker, bytes=size)
        await self._store.forget()
        return True

    async def _is_behind(self, maker: str) -> None:
        """Handles a log that is replayed from before the positions held, where upstream may have forgotten its input.

        It is asked for at each interval, after those of other replicas; if a producer fills up first, a whole snapshot
        is taken.
        """
        standby, why = self._standby, "its log is replayed from before what is held here"
        standby.is_behind(maker, self._env.clock.monotonic_us())
        if standby.crowded:
            await self._take_whole(maker, why)
        else:
            self._tell_of_trouble(f"{maker}: {why}", "waits for the log of another replica")

    def _tell_of_trouble(self, why: str, does: str = "takes no checkpoint, and what it holds grows old") -> None:
        """Reports a trouble when it changes: operators of the cluster rely on this standby."""
        if why and why != self._standby.trouble:
            say(
                f"{self._standby.name} {does}: {why}",
                Level.WARNING,
                replica=self._standby.name,
            )
        self._standby.trouble = why
