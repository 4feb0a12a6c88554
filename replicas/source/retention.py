"""Deletes the oldest part of a source's log when no consumer needs it (rules E1 to E4)."""

from __future__ import annotations

from collections.abc import Iterable, Set
from pathlib import PurePosixPath
from typing import Final, NamedTuple

from replicas.retention.archiving import ArchiveCopies, OpenArchive
from replicas.retention.holders import SHARE, ClosedSegment, Holders, due, needed_from
from replicas.retention.trouble import HeldLog, NotReleased, look_again_and_again, tell_if_long
from replicas.source.history import SourceHistory
from spe.log import SegmentedLog
from spe.log.log_start import KeptLog
from spe.log.proof_progress import proved_of_source
from spe.plan.directory import Directory
from spe.plan.plan import Plan, Source
from spe.plan.retention import memory_only
from spe.runtime.env import Env
from spe.status import HolderStatus
from spe.stream.history import LogAcknowledged, LogReleased, host_of
from spe.stream.ids import Channel
from spe.stream.times import END_OF_TIME


class Retained(NamedTuple):
    """The retention part of a status.

    Attributes:
      trouble: why nothing can be copied or deleted; "" while it can.
    """

    holders: tuple[HolderStatus, ...] = ()
    trouble: str = ""


NOTHING_HELD: Final = Retained()


class SourceRetention:
    """Deletes old segments of one source's log.

    Args:
      identity: identity of the log.
      consumers: names of all configured consumers.
    """

    def __init__(
        self,
        env: Env,
        source: Source,
        log: SegmentedLog,
        history: SourceHistory,
        identity: str,
        open_archive: OpenArchive,
        consumers: Iterable[str],
    ) -> None:
        assert source.retain is not None
        self._env = env
        self._retain = source.retain
        self._stream = source.stream
        self._log = log
        self._history = history
        self._identity = identity
        self._copies = ArchiveCopies(source.retain.archive, open_archive, env.compute)
        self._holders = Holders(consumers)
        self._needs_all: tuple[str, ...] = ()
        #: Sinks of the source itself.
        self._own = [own_sink_name(what) for what in ("late", "rejected") if getattr(source, what) is not None]
        self._held: tuple[HolderStatus, ...] = ()
        who = f"source {source.stream}"
        self._over = HeldLog(env, who)
        self._refused = NotReleased(env, who)

    def follow(self, plan: Plan, directory: Directory) -> None:
        """Adopts another directory."""
        self._holders.set_consumers([*directory.consumers_of(plan, Channel(self._stream, 0)), *self._own])
        self._needs_all = tuple(
            f"{id}, whose state is in memory only" for id in memory_only(plan, directory, self._stream)
        )

    def acknowledged(self, consumer: str, incarnation: int, id: int) -> None:
        """Notes that a consumer needs nothing up to ``id`` any more, even after a restart."""
        if self._holders.acknowledged(consumer, incarnation, id) and self._env.history is not None:
            now = self._env.clock.monotonic_us()
            self._env.history(LogAcknowledged(now, Channel(self._stream, 0), consumer, incarnation, id))

    def status(self) -> Retained:
        """Returns the holders of segments that are due, and the trouble."""
        return Retained(self._held, self._refused.why)

    def too_much(self, dead: Set[str]) -> str:
        """Reports as ``SourceProcess.too_much``."""
        if self._refused.why:
            return self._refused.why
        if living := [h.holder for h in self._held if host_of(h.holder) not in dead]:
            return f"keeps for {living[0]} what is due"
        closed = self._closed()
        count = due(closed, self._log.nbytes, self._newest_us(), self._retain)
        return f"keeps {count} segments that nobody needs" if count and not self._held else ""

    async def run(self) -> None:
        """Looks for due segments periodically, until cancelled."""
        await look_again_and_again(self._env, self.look, self._refused)

    async def look(self) -> None:
        """Releases segments that are due and free.

        Raises:
          OSError, SpeError: the archive or the disk refused; only released segments are lost.
        """
        self._log.remove_released()
        self._leave_old(self._newest_us())
        free = self._free()
        if free and self._retain.archive:
            await self._copy(free)
            # Copying takes time: consumers that restarted or joined since then hold the segments that they need.
            free = self._free()[: len(free)]
        if free:
            await self._release(free)

    def _free(self) -> list[ClosedSegment]:
        """Returns the oldest segments that are due and that no consumer holds."""
        retain = self._retain
        closed = self._closed()
        due_segments = closed[: due(closed, self._log.nbytes, self._newest_us(), retain)]
        known = proved_of_source(self._env.storage, self._stream, self._identity) if due_segments else None
        proved = needed_from(retain, known)
        now = self._env.clock.wall_us()
        free, held = self._holders.free(due_segments, now, needs_all=self._needs_all, proved=proved)
        self._held = tuple(held)
        tell_if_long(self._over, held, now)
        return due_segments[:free]

    async def _release(self, segments: list[ClosedSegment]) -> None:
        log, last = self._log, segments[-1]
        assert last.last < log.synced_sequence, "E1: the segment with the last record stays"
        beginning = KeptLog(
            last.last + 1,
            last.last_id,
            last.until_us,
            log.kept.segments + len(segments),
            log.kept.bytes + sum(segment.nbytes for segment in segments),
            self._retain.archive,
        )
        if self._env.history is not None:
            now = self._env.clock.monotonic_us()
            self._env.history(LogReleased(now, Channel(self._stream, 0), beginning.last_id))
        try:
            await log.release(beginning)
        finally:
            # Even if a file could not be removed, but not if the record could not be written.
            if log.kept is beginning:
                self._released(beginning, len(segments))

    def _released(self, beginning: KeptLog, segments: int) -> None:
        self._history.begins_behind(beginning)
        self._env.trace.event(
            "log_released", stream=self._stream, last_id=beginning.last_id, segments=segments, bytes=self._log.nbytes
        )

    async def _copy(self, segments: list[ClosedSegment]) -> None:
        place = archived(self._stream, self._identity)
        for closed in segments:
            data = await self._env.compute.run(lambda closed=closed: self._log.contents(closed.segment))  # type: ignore[misc]
            await self._copies.keep(place / closed.segment.name, data)

    def _newest_us(self) -> int:
        history = self._history
        return history.frontier_us if history.frontier_us < END_OF_TIME else history.reached_us

    def _leave_old(self, newest_us: int) -> None:
        """Begins a new segment for a source with few rows, which would otherwise write one segment for ever."""
        begun_us, for_us = self._history.segment_begun_us, self._retain.for_us
        if for_us is not None and begun_us is not None and newest_us - begun_us > for_us // SHARE:
            self._log.leave()

    def _closed(self) -> list[ClosedSegment]:
        """Returns the segments of the log, except the one with its last record."""
        log, ends = self._log, self._history.ends()
        closed = log.closed()
        # The end of the last closed segment: the beginning of the open one, if there is one.
        behind = log.last_sequence + 1 if log.open_first is None else log.open_first
        begins = [*(segment.first for segment, _ in closed), behind][1:]
        segments = [
            ClosedSegment(segment, size, next_ - 1, *ends[segment.first])
            for (segment, size), next_ in zip(closed, begins, strict=True)
            if segment.first in ends  # otherwise it is being released
        ]
        return [segment for segment in segments if segment.last < log.synced_sequence]


def own_sink_name(what: str) -> str:
    """Returns the consumer name of a sink of late or rejected rows."""
    return f"the sink of {what} rows"


def archived(stream: str, identity: str) -> PurePosixPath:
    """Returns the folder for copies of a source's log in an archive."""
    return PurePosixPath("sources", stream, identity)
