"""Follows the checkpoint log of a replica that runs a partition, for a standby (rules G9, H1 and H2)."""

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

#: Nobody's log is followed yet.
ANY: Final = "any"


class LogTaker:
    """Of one standby.

    Args:
      env: what decodes, and traces.
      plan: the cluster.
      standby: asks, and acknowledges what is safe.
      kept: the log that is written.
      store: where whole snapshots go while no log is to be had.
      fetch: (replica, maker, whose log is followed, up to which record) -> what the maker sends, as it was encoded, or
        why nothing came.  Where no log is named, it sends a whole snapshot.
    """

    def __init__(
        self,
        env: Env,
        plan: Plan,
        standby: Standby,
        kept: ReplicaLog,
        store: CheckpointStore,
        fetch: Callable[[ReplicaId, str, str, int], Awaitable[bytearray | str]],
    ) -> None:
        self._env = env
        self._plan = plan
        self._standby = standby
        self._kept = kept
        self._store = store
        self._fetch = fetch
        self._log, self._since = ANY, 0

    async def look_on_disk(self) -> None:
        """Finds what was there before a restart, or was written by a replica here: it counts."""
        head = await self._kept.head()
        if head is not None and await self._kept.make_safe():
            self._standby.follows(head.positions, head.origins, head.made)
        self._standby.holds_if_newer(await self._store.newest())

    async def take_if_due(self) -> None:
        """Asks for what follows when the standby wishes, and writes what comes."""
        maker = self._standby.wish(self._env.clock.monotonic_us())
        if maker is not None:
            await self._take(maker)

    async def _take(self, maker: str) -> None:
        standby = self._standby
        data = await self._fetch(standby.id, maker, self._log, self._since)
        if isinstance(data, str):
            # One failure may be chance: the replica that we asked may just have died, or become a standby.
            if standby.failed(maker, self._env.clock.monotonic_us()) > 1:
                await self._take_whole(maker, data)
            return
        standby.came(maker)
        try:
            sent = await self._env.compute.run(lambda: decode_snapshot(self._plan, standby.id.of, data))
            if is_held(sent) or "log" not in sent:  # it has just become a standby: another one runs
                standby.failed(maker, self._env.clock.monotonic_us())
                return
            if await self._write(maker, sent, len(data)):
                self._tell_of_trouble("")
        except (OSError, LogError, RemoteProtocolError, OtherOrigin) as error:
            self._env.trace.event("checkpoint_failed", replica=standby.name, why=str(error))
            self._tell_of_trouble(str(error))

    async def _take_whole(self, maker: str, why: str) -> None:
        """Takes a whole snapshot in place of the log, which is asked for again at its time."""
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
        """False: it cannot be used, and was told."""
        kept, standby = self._kept, self._standby
        identity, first, last = str(sent["log"]), int(str(sent["first"])), int(str(sent["last"]))
        slices = list(slices_of(sent))
        if identity == self._log and first == self._since + 1:
            self._log = ANY  # until it is written: a part of it may be there afterwards
            await kept.follow(slices)
        else:
            new = await self._env.compute.run(lambda: head_of(slices))
            if not standby.continues(new.positions, new.origins):
                await self._is_behind(maker)
                return False
            self._log = ANY
            await kept.replace(slices)
        self._log, self._since = identity, last
        if (head := await kept.head()) is None or not kept.is_safe:  # of what is damaged another one is begun
            self._tell_of_trouble(f"its log is not in both copies: {kept.trouble or 'it is begun anew'}")
            return False
        standby.follows(head.positions, head.origins, head.made, maker)
        self._env.trace.event("checkpoint_taken", replica=standby.name, maker=maker, bytes=size)
        await self._store.forget()
        return True

    async def _is_behind(self, maker: str) -> None:
        """Upstream may have forgotten what a log needs that is replayed from before what we hold.

        It is asked for at each interval, after those of others; where a producer fills up meanwhile, a whole snapshot
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
