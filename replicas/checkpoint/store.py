"""Encodes a replica's snapshot, and stores its checkpoints on disk (rule A8).

One format serves the answer to a partner, the file on disk and the answer to a standby.  It has a checksum
(spe.wire.state) and the fingerprint of the plan, because another plan has other ids (U11).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import PurePosixPath
from typing import Any, Final

from spe.errors import RemoteProtocolError
from spe.plan.plan import Plan
from spe.runtime.env import Env
from spe.stream.ids import PartitionId, ReplicaId
from spe.wire.state import decode_state, encode_large_state

#: Checkpoints kept per replica: the second newest is used if the newest is damaged.
KEPT: Final = 2
#: Key that marks a checkpoint of a standby.
HELD: Final = "held"
_SUFFIX: Final = ".checkpoint"

#: An encoded snapshot: made here, received, or read from disk.
Encoded = bytes | bytearray | memoryview


def encode_snapshot(plan: Plan, partition: PartitionId, snapshot: Mapping[str, Any]) -> memoryview:
    """Encodes the result of :meth:`Replica.snapshot`."""
    return encode_large_state({"plan": plan.fingerprint, "of": str(partition), **snapshot})


def encode_held(plan: Plan, partition: PartitionId, stored: Mapping[str, Any]) -> memoryview:
    """Encodes a checkpoint of a standby, which may be older than the state of a running replica."""
    return encode_snapshot(plan, partition, {**stored, HELD: True})


def is_held(snapshot: Mapping[str, Any]) -> bool:
    """Returns whether a snapshot comes from a standby."""
    return HELD in snapshot


def decode_snapshot(plan: Plan, partition: PartitionId, data: Encoded) -> dict[str, Any]:
    """Decodes a snapshot for :meth:`Replica.install`.

    Raises:
      RemoteProtocolError: the bytes are damaged, of another plan, or of another partition.
    """
    snapshot = decode_state(data)
    if not isinstance(snapshot, dict) or "plan" not in snapshot:
        raise RemoteProtocolError("no snapshot of a replica")
    if snapshot["plan"] != plan.fingerprint:
        raise RemoteProtocolError(f"a snapshot of plan {snapshot['plan']}; this is plan {plan.fingerprint}")
    if snapshot.get("of") != str(partition):
        raise RemoteProtocolError(f"a snapshot of {snapshot.get('of')}; expected one of {partition}")
    return snapshot


def origins_of(snapshot: Mapping[str, Any]) -> list[str]:
    """Returns the origins of the inputs of a snapshot (S6); "" where unknown, or where nothing was read."""
    return [str(o) for o in snapshot.get("origins", [""] * len(snapshot["positions"]))]


class CheckpointStore:
    """The newest checkpoints of one replica, as files ``nodes/NODE/UNIT-PARTITION/NUMBER.checkpoint``.

    Args:
      env: storage, threads, and the trace for unreadable files.
      plan: plan of the checkpoints.
      replica: replica of the checkpoints.
    """

    def __init__(self, env: Env, plan: Plan, replica: ReplicaId) -> None:
        self._env = env
        self._plan = plan
        self._replica = replica
        self.folder = PurePosixPath("nodes", replica.node, f"{replica.unit}-{replica.partition}")
        #: Names of unusable files, which do not count among those that are kept.
        self._refused: set[str] = set()

    async def newest(self) -> dict[str, Any] | None:
        """Returns the newest whole checkpoint of the plan; damaged ones and those of another plan are reported, by
        name.
        """
        try:
            names = self._names()
        except OSError as error:
            self._tell_refused(self.folder, error)
            return None
        for name in reversed(names):
            if name in self._refused:
                continue  # already reported in the trace
            path = self.folder / name
            try:
                return await self._env.compute.run(partial(self._read, path))
            except OSError as error:  # it may be readable next time
                self._tell_refused(path, error)
            except RemoteProtocolError as error:
                self._refused.add(name)
                self._tell_refused(path, error)
        return None

    def _read(self, path: PurePosixPath) -> dict[str, Any]:
        return decode_snapshot(self._plan, self._replica.of, self._env.storage.read(path))

    def _tell_refused(self, path: PurePosixPath, error: Exception) -> None:
        self._env.trace.event("checkpoint_refused", replica=str(self._replica), file=str(path), why=str(error))

    async def write(self, data: Encoded) -> int:
        """Stores the bytes of :func:`encode_snapshot`, and deletes all but the newest checkpoints; returns the size.

        Raises:
          OSError: it could not be written; the earlier ones still exist.
        """
        storage = self._env.storage
        names = self._names()
        number = int(names[-1].removesuffix(_SUFFIX)) + 1 if names else 1
        name = f"{number:012d}{_SUFFIX}"
        await storage.write_atomic(self.folder / name, data)
        assert name not in names, "A8: a checkpoint never replaces another"
        newest = [file for file in [*names, name] if file not in self._refused][-KEPT:]
        await self._env.compute.run(partial(self._remove, [old for old in names if old not in newest]))
        return len(data)

    async def forget(self) -> None:
        """Deletes all checkpoints, because none is needed any more."""
        if names := self._names():
            await self._env.compute.run(partial(self._remove, names))

    def _remove(self, names: Sequence[str]) -> None:
        """Removes files in a thread, because a disk may take a while to free the space of a large file."""
        for name in names:
            self._env.storage.remove(self.folder / name)
            self._refused.discard(name)  # where all are gone, names begin anew

    def _names(self) -> list[str]:
        """Returns the names of the files, oldest first."""
        return [n for n in self._env.storage.list(self.folder) if n.removesuffix(_SUFFIX).isdecimal()]
