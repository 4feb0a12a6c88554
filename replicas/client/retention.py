"""Deletes the oldest part of a client's recording when the proof no longer needs it (rules E1 to E3)."""

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

#: Holder of results that may have to be withdrawn after a restart.
TENTATIVE: Final = "tentative results that are not corrected"


class _Due(NamedTuple):
    """A segment of a folder; ``nbytes`` and ``until_us`` are those of ``closed``."""

    folder: PurePosixPath
    closed: ClosedSegment
    nbytes: int
    until_us: int


class RecordingRetention:
    """Deletes old segments of one client's recording.

    Args:
      client: its name.
      schemas: schemas of the channels.
      writing: held while the recording is written or synced.
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
        """Returns the sizes, and the holders of segments that are due."""
        writers = self._recorder.writers().values()
        return RecordingStatus(
            bytes=sum(writer.nbytes for writer in writers),
            deleted_bytes=sum(writer.kept.bytes for writer in writers),
            held=self._held,
            archive=self._refused.why,
        )

    async def run(self) -> None:
        """Looks for due segments periodically, until cancelled."""
        await look_again_and_again(self._env, self.look, self._refused)

    async def look(self) -> None:
        """Releases segments that are due and not needed.

        Raises:
          OSError, SpeError: the archive or the disk refused; only released segments are lost.
        """
        now, writers, channels = self._env.clock.wall_us(), self._recorder.writers(), self._recorder.folders()
        async with self._writing:
            if self._retain.for_us is not None:
                for writer in writers.values():
                    writer.leave_older(now - self._retain.for_us // SHARE)
        candidates = [
            _Due(folder, c, c.nbytes, c.until_us) for folder, writer in writers.items() for c in writer.closed(now)
        ]
        candidates.sort(key=attrgetter("until_us"))  # within a folder the times grow
        count = due(candidates, sum(writer.nbytes for writer in writers.values()), now, self._retain)
        held: list[HolderStatus] = []
        for folder, writer in writers.items():
            segments = [candidate.closed for candidate in candidates[:count] if candidate.folder == folder]
            proved = self._needed(channels[folder]) if segments else None
            free, needed = self._holders[folder].free(segments, now, proved=proved)
            held += needed
            left = await self._release(folder, writer, segments[:free]) if free else []
            if left:
                held.append(HolderStatus(holder=TENTATIVE, since_us=now, bytes=sum(segment.nbytes for segment in left)))
        self._held = _together(held)
        tell_if_long(self._over, self._held, now)

    def _needed(self, channel: Channel | None) -> int | None:
        """Returns the first record that the proof needs.  The proof has no position in announcements: all are needed
        until the results are proved.
        """
        if channel is not None:
            return needed_from(self._retain, self._proved(channel))
        results = [c for c in self._recorder.folders().values() if c is not None]
        return needed_from(self._retain, None) if any(self._proved(c) is None for c in results) else None

    def _proved(self, channel: Channel) -> int | None:
        return proved_of_recording(self._env.storage, self._client, str(channel))

    async def _release(
        self, folder: PurePosixPath, writer: SegmentWriter, segments: list[ClosedSegment]
    ) -> list[ClosedSegment]:
        """Releases segments; returns those that were kept, as a restart may have to withdraw tentative results at their
        end.
        """
        compute, schema, before = self._env.compute, self._schemas.get(folder), writer.kept
        reached, free, beginning = Reached(before.last_id, before.until_us), 0, before
        for count, segment in enumerate(segments, 1):
            data = await compute.run(lambda segment=segment: writer.contents(segment.segment))  # type: ignore[misc]
            if schema is not None:
                reached = reached.behind(data, segment.segment, schema, folder)
            await self._copies.keep(folder / segment.segment.name, data)
            if not reached.held:
                free = count
                beginning = KeptLog(
                    segment.last + 1,
                    reached.last_id,
                    reached.until_us,
                    before.segments + count,
                    before.bytes + sum(s.nbytes for s in segments[:count]),
                    self._retain.archive,
                )
        if free:
            await writer.release(beginning)
            self._env.trace.event("recording_released", client=self._client, folder=folder.name, segments=free)
        return segments[free:]


def _together(held: list[HolderStatus]) -> tuple[HolderStatus, ...]:
    """Adds up the entries of each holder."""
    merged: dict[str, HolderStatus] = {}
    for holding in held:
        known = merged.get(holding.holder, holding)
        size = holding.bytes + (known.bytes if known is not holding else 0)
        merged[holding.holder] = HolderStatus(
            holder=holding.holder, since_us=min(holding.since_us, known.since_us), bytes=size
        )
    return tuple(merged.values())
