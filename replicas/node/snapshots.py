"""Gives snapshots of replicas to partners, and fetches theirs (docs/internals/rules.md A3)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import trio

from replicas.checkpoint.log_transfer import slices_as_tree
from replicas.checkpoint.store import HELD, encode_held, encode_snapshot
from replicas.consumer.heartbeats import GONE
from replicas.link.connection import Identity, dial
from replicas.node.hosting import Hosting
from replicas.node.recovery import Stored, further
from replicas.node.replica_host import ReplicaHost
from replicas.producer.log_entry import Entry
from replicas.producer.output_log import OutputLog
from replicas.producer.server import fetch_snapshot
from spe.errors import LocalProtocolError, LogError, OperatorFailed, RemoteProtocolError
from spe.runtime.log_line import Level, say
from spe.runtime.spill import SpillNotLoaded
from spe.stream.ids import PartitionId, ReplicaId
from spe.stream.names import NodeId, UnitId
from spe.wire.messages.replicas import SnapshotRefused, SnapshotRequest


class Snapshots:
    """Gives and fetches snapshots for one node.

    Args:
      hosting: the replicas of the node.
      me: our identity in requests.
    """

    def __init__(self, hosting: Hosting, me: Identity) -> None:
        self._hosting = hosting
        self._me = me

    async def of(self, host: ReplicaHost) -> dict[str, Any] | None:
        """Returns a snapshot of a replica; None: there is none.

        Spilled output is read before, piece by piece, and a state that must be remade is
        made in portions, so that other tasks get their turn.
        """
        replica, hosting = host.replica, self._hosting
        ahead: list[list[Entry]] = [[] for _ in replica.logs]
        loaded: list[SpillNotLoaded] = []
        try:
            while hosting.running.get(replica.id.of) is host and host.error is None:  # else the replica was ended
                try:
                    more = [_read_ahead(log, read) for log, read in zip(replica.logs, ahead, strict=True)]
                    if not any(more) and not replica.core.prepare_snapshot():
                        return replica.snapshot(ahead)
                except SpillNotLoaded as piece:
                    await piece.load()
                    loaded.append(piece)
                    continue
                except OperatorFailed as error:  # with undo/redo it may have to make its state again
                    hosting.fail(host, error)
                while loaded:
                    loaded.pop().release()
                await hosting.env.compute.turn()
        finally:
            for loaded_piece in loaded:
                loaded_piece.release()
        return None

    async def give(self, message: SnapshotRequest) -> memoryview | SnapshotRefused:
        """Returns a snapshot for a partner, as bytes; a standby gives its checkpoint or log."""
        hosting = self._hosting
        partition = PartitionId(UnitId(message.unit), message.partition)
        if partition in hosting.standbys:
            return await self._held(ReplicaId(*partition, hosting.node))
        host = hosting.running.get(partition)
        if host is None or host.error is not None:
            return SnapshotRefused(f"{hosting.node} does not run {message.unit}/{message.partition}")
        if message.log:
            if not host.replica.recovery.logs:  # an older log does not grow any more
                return SnapshotRefused(f"{host.name} writes no checkpoint log")
            return await self._logged(host.replica.id, message.log, message.since)
        state = await self.of(host)
        if state is None:
            return SnapshotRefused(f"{host.name} is recovering itself")
        try:
            return await self.encoded(host, state)
        except LocalProtocolError as error:  # a user's operator raised: there is no snapshot
            if host.say_once("snapshot_failed"):  # we run on, but no partner can restart
                hosting.env.trace.event("snapshot_failed", replica=host.name, why=str(error))
                say(
                    f"{host.name}: no partner can be given its state: {error}",
                    Level.ERROR,
                    event="snapshot_failed",
                    replica=host.name,
                )
            return SnapshotRefused(f"{host.name} cannot be stored: {error}")

    async def _held(self, id: ReplicaId) -> memoryview | SnapshotRefused:
        """Returns the newest checkpoint of a partition that we stand by for."""
        hosting = self._hosting
        newest = further(*await on_disk(hosting, id))
        if newest is None:
            why = hosting.log(id).trouble if id.of in hosting.directory.logs else ""
            return SnapshotRefused(f"{hosting.node} holds no checkpoint of {id.of}" + (f": {why}" if why else ""))
        if (stored := newest.snapshot) is None:
            return await self._logged(id, held=True)
        return await hosting.env.compute.run(lambda: encode_held(hosting.plan, id.of, stored))

    async def _logged(
        self, id: ReplicaId, follows: str = "", since: int = 0, *, held: bool = False
    ) -> memoryview | SnapshotRefused:
        """Returns our log up to its newest commit, or only what follows a record of it (G9).

        Args:
          held: we stand by, and the log is another node's.
        """
        hosting = self._hosting
        stored = hosting.log(id)
        await stored.open()
        if (log := stored.log) is None or not log.commits:
            return SnapshotRefused(f"{id}: no state is in its checkpoint log: {stored.trouble or 'it has just begun'}")
        newest = log.commits[-1]
        first = newest.needs
        if follows == stored.identity and log.first_sequence <= since + 1 <= newest.last + 1:
            first = since + 1
        assert log.first_sequence <= first <= newest.last + 1, "G9: a standby gets all that its newest commit needs"

        def encode() -> memoryview:
            records = [] if first > newest.last else [r for portion in portions for r in portion]
            slices = [] if first > newest.last else slices_as_tree(records, newest)
            tree = {"log": stored.identity, "first": first, "last": newest.last, "slices": slices}
            return encode_snapshot(hosting.plan, id.of, tree | ({HELD: True} if held else {}))

        try:
            with log.reading(min(first, newest.last)) as portions:
                return await hosting.env.compute.run(encode)
        except (LogError, RemoteProtocolError) as error:
            return SnapshotRefused(f"{id}: its checkpoint log: {error}")

    async def encoded(self, host: ReplicaHost, snapshot: Mapping[str, Any]) -> memoryview:
        """Encodes a snapshot in a thread.  Raises LocalProtocolError where an operator's state cannot be stored."""
        env, plan, partition = self._hosting.env, self._hosting.plan, host.replica.id.of

        def encode() -> tuple[memoryview, int]:
            begun = env.clock.step_ns()
            data = encode_snapshot(plan, partition, snapshot)
            return data, env.clock.step_ns() - begun

        data, step_ns = await env.compute.run(encode)
        host.meter.worked(step_ns)
        return data

    async def fetch(self, id: ReplicaId, partner: str, log: str = "", since: int = 0) -> bytearray | str:
        """Returns the encoded snapshot of a partition that ``partner`` sends, or why there is none.

        Args:
          log, since: as in :class:`SnapshotRequest`.
        """
        env, plan = self._hosting.env, self._hosting.plan
        node = self._hosting.directory.nodes.get(NodeId(partner))
        try:
            if node is None:  # it has left since
                raise RemoteProtocolError(f"{partner} has left")
            connection, _ = await dial(env, plan, self._me, partner, node.address)
            try:
                asked = SnapshotRequest(id.unit, id.partition, plan.timing.heartbeat_us, log, since)
                data = await fetch_snapshot(connection, asked, plan.timing.gone_us() / 1e6)
            finally:
                with trio.CancelScope(shield=True):
                    await connection.aclose()
        except (*GONE, RemoteProtocolError) as error:
            data = str(error)
        if isinstance(data, str):
            env.trace.event("no_snapshot", replica=str(id), partner=partner, why=data)
        return data


async def on_disk(hosting: Hosting, id: ReplicaId) -> tuple[Stored | None, Stored | None]:
    """Returns the log and the newest checkpoint of a partition on this disk, whichever is written now."""
    stored = hosting.log(id)
    head = await stored.head() if id.of in hosting.directory.logs or stored.is_there() else None
    snapshot = await hosting.store(id).newest()
    return (
        None if head is None else Stored.logged(head),
        None if snapshot is None else Stored.checkpoint(snapshot),
    )


def _read_ahead(log: OutputLog, read: list[Entry]) -> bool:
    """Appends the next spilled piece to ``read``; False: there is none."""
    piece = log.spilled_after(read[-1].batch.upto_id if read else 0)
    read += piece
    return bool(piece)
