"""Deletes the oldest part of a client's recording, once the proof needs it no more (rules E1, E3, E6)."""

from __future__ import annotations

from collections.abc import Mapping
from operator import attrgetter
from pathlib import PurePosixPath
from typing import Final, NamedTuple

import trio

from replicas.client.recorder import Reached, Recorder, SegmentWriter
from replicas.retention.archiving import ArchiveCopies, OpenArchive
from replicas.retention.holders import SHARE, ClosedSegment, Holders, due, needed_from
from replicas.retention.trouble import HeldLog, NotReleased, look_again_and_again, tell_if_long
from spe.log.log_start import KeptLog
from spe.log.proof_progress import proved_of_recording
from spe.plan.plan import Retain
from spe.runtime.env import Env
from spe.status import HolderStatus, RecordingStatus
from spe.stream.ids import Channel
from spe.stream.schema import Schema

#: The holder of results that may have to be withdrawn after a restart.
TENTATIVE: Final = "tentative results that are not corrected"


class _Due(NamedTuple):
    """A segment of one of the folders; ``nbytes`` and ``until_us`` are those of ``closed``."""

    folder: PurePosixPath
    closed: ClosedSegment
    nbytes: int
    until_us: int


class RecordingRetention:
    """Of one client.

    Args:
      client: its name.
      schemas: of the channels.
      writing: held while something is written or synced.
    """

    def __init__(
        self,
        env: Env,
        client: str,
        retain: Retain,
        recorder: Recorder,
        schemas: Mapping[Channel, Schema],
        writing: trio.Lock,
        open_archive: OpenArchive,
    ) -> None:
        self._env = env
        self._client = client
        self._retain = retain
        self._writing = writing
        self._copies = ArchiveCopies(retain.archive, open_archive, env.compute)
        self._recorder = recorder
        self._schemas = {folder: schemas[c] for folder, c in recorder.folders().items() if c is not None}
        self._holders = {folder: Holders() for folder in recorder.folders()}
        self._held: tuple[HolderStatus, ...] = ()
        self._over = HeldLog(env, f"client {client}: recording")
        self._refused = NotReleased(env, f"client {client}: recording")

    def status(self) -> RecordingStatus:
        """What is kept, and who holds what is due."""
        writers = self._recorder.writers().values()
        return RecordingStatus(
            bytes=sum(one.nbytes for one in writers),
            deleted_bytes=sum(one.kept.bytes for one in writers),
            held=self._held,
            archive=self._refused.why,
        )

    async def run(self) -> None:
        """Looks again and again, until cancelled."""
        await look_again_and_again(self._env, self.look, self._refused)

    async def look(self) -> None:
        """Releases what is due and free.

        Raises:
          OSError, SpeError: the archive or the disk refused; nothing that was not released is lost.
        """
        now, writers, channels = self._env.clock.wall_us(), self._recorder.writers(), self._recorder.folders()
        async with self._writing:
            if self._retain.for_us is not None:
                for writer in writers.values():
                    writer.leave_older(now - self._retain.for_us // SHARE)
        found = [
            _Due(folder, c, c.nbytes, c.until_us) for folder, writer in writers.items() for c in writer.closed(now)
        ]
        found.sort(key=attrgetter("until_us"))  # within a folder it grows
        count = due(found, sum(one.nbytes for one in writers.values()), now, self._retain)
        held: list[HolderStatus] = []
        for folder, writer in writers.items():
            segments = [one.closed for one in found[:count] if one.folder == folder]
            proved = self._needed(channels[folder]) if segments else None
            free, needed = self._holders[folder].free(segments, now, proved=proved)
            held += needed
            left = await self._release(folder, writer, segments[:free]) if free else []
            if left:
                held.append(HolderStatus(holder=TENTATIVE, since_us=now, bytes=sum(one.nbytes for one in left)))
        self._held = _together(held)
        tell_if_long(self._over, self._held, now)

    def _needed(self, channel: Channel | None) -> int | None:
        """The first record that the proof needs.  What nodes announced has no place in a proof: all is needed while
        nobody proves the results."""
        if channel is not None:
            return needed_from(self._retain, self._proved(channel))
        results = [c for c in self._recorder.folders().values() if c is not None]
        return needed_from(self._retain, None) if any(self._proved(c) is None for c in results) else None

    def _proved(self, channel: Channel) -> int | None:
        return proved_of_recording(self._env.storage, self._client, str(channel))

    async def _release(
        self, folder: PurePosixPath, writer: SegmentWriter, segments: list[ClosedSegment]
    ) -> list[ClosedSegment]:
        """Gives those that were not, for a restart may have to withdraw the tentative results at their end."""
        compute, schema, before = self._env.compute, self._schemas.get(folder), writer.kept
        reached, free, kept = Reached(before.last_id, before.until_us), 0, before
        for count, one in enumerate(segments, 1):
            data = await compute.run(lambda one=one: writer.contents(one.segment))  # type: ignore[misc]
            if schema is not None:
                reached = reached.behind(data, one.segment, schema, folder)
            await self._copies.keep(folder / one.segment.name, data)
            if not reached.held:
                free = count
                kept = KeptLog(
                    one.last + 1,
                    reached.last_id,
                    reached.until_us,
                    before.segments + count,
                    before.bytes + sum(s.nbytes for s in segments[:count]),
                    self._retain.archive,
                )
        if free:
            await writer.release(kept)
            self._env.trace.event("recording_released", client=self._client, folder=folder.name, segments=free)
        return segments[free:]


def _together(held: list[HolderStatus]) -> tuple[HolderStatus, ...]:
    """One entry for each holder."""
    found: dict[str, HolderStatus] = {}
    for one in held:
        known = found.get(one.holder, one)
        size = one.bytes + (known.bytes if known is not one else 0)
        found[one.holder] = HolderStatus(holder=one.holder, since_us=min(one.since_us, known.since_us), bytes=size)
    return tuple(found.values())
