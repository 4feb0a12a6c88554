"""A replica's snapshot as bytes, and its checkpoints on disk (rule A8).

One format serves all: what a partner sends, what lies on disk, what a standby fetches.  It is checksummed
(spe.wire.state) and says which plan it is of, for another plan has other ids (U11).
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

#: Checkpoints kept per replica: the one before the newest is used when that one is damaged.
KEPT: Final = 2
#: Marks what a standby gives.
HELD: Final = "held"
_SUFFIX: Final = ".checkpoint"

#: A snapshot as bytes: made here, received, or read from disk.
Encoded = bytes | bytearray | memoryview


def encode_snapshot(plan: Plan, partition: PartitionId, snapshot: Mapping[str, Any]) -> memoryview:
    """The bytes of what :meth:`Replica.snapshot` returns."""
    return encode_large_state({"plan": plan.fingerprint, "of": str(partition), **snapshot})


def encode_held(plan: Plan, partition: PartitionId, stored: Mapping[str, Any]) -> memoryview:
    """The bytes of a checkpoint that a standby holds: it may be older than what somebody runs."""
    return encode_snapshot(plan, partition, {**stored, HELD: True})


def is_held(snapshot: Mapping[str, Any]) -> bool:
    """Does it come from a standby?"""
    return HELD in snapshot


def decode_snapshot(plan: Plan, partition: PartitionId, data: Encoded) -> dict[str, Any]:
    """What :meth:`Replica.install` takes.

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
    """The source logs that each input of a snapshot comes from (S6); "" if not known, or if nothing was read."""
    return [str(o) for o in snapshot.get("origins", [""] * len(snapshot["positions"]))]


class CheckpointStore:
    """The newest checkpoints of one replica, as files ``nodes/NODE/UNIT-PARTITION/NUMBER.checkpoint``.

    Args:
      env: storage, threads, and the trace that is told what could not be read.
      plan: whose checkpoints count.
      replica: whose they are.
    """

    def __init__(self, env: Env, plan: Plan, replica: ReplicaId) -> None:
        self._env = env
        self._plan = plan
        self._replica = replica
        self.folder = PurePosixPath("nodes", replica.node, f"{replica.unit}-{replica.partition}")
        #: Names of files that could not be used: they do not count among those that are kept.
        self._refused: set[str] = set()

    async def newest(self) -> dict[str, Any] | None:
        """The newest whole checkpoint of our plan; what is damaged or of another plan is told, by name."""
        try:
            names = self._names()
        except OSError as error:
            self._tell_refused(self.folder, error)
            return None
        for name in reversed(names):
            if name in self._refused:
                continue  # the trace has it already
            path = self.folder / name
            try:
                return await self._env.compute.run(partial(self._read, path))
            except OSError as error:  # perhaps it can be read next time
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
        """Writes one more, the bytes of :func:`encode_snapshot`, and forgets all but the newest; returns its size.

        Raises:
          OSError: it could not be written; those that were there still are.
        """
        storage = self._env.storage
        names = self._names()
        number = int(names[-1].removesuffix(_SUFFIX)) + 1 if names else 1
        name = f"{number:012d}{_SUFFIX}"
        await storage.write_atomic(self.folder / name, data)
        kept = [one for one in [*names, name] if one not in self._refused][-KEPT:]
        await self._env.compute.run(partial(self._remove, [old for old in names if old not in kept]))
        return len(data)

    async def forget(self) -> None:
        """None is needed any more."""
        if names := self._names():
            await self._env.compute.run(partial(self._remove, names))

    def _remove(self, names: Sequence[str]) -> None:
        """In a thread: to give the space of a large file back may take a disk a while."""
        for name in names:
            self._env.storage.remove(self.folder / name)

    def _names(self) -> list[str]:
        """Oldest first."""
        return [n for n in self._env.storage.list(self.folder) if n.removesuffix(_SUFFIX).isdecimal()]
