"""Restores the deleted part of a log from the archive (``spe restore``)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import NamedTuple

from replicas.retention.archiving import Archive, OpenArchive
from replicas.source.retention import archived
from spe.errors import LogCorrupt, SpeError
from spe.log.format import HEADER_BYTES, Position, RecordScan, Segment, check_version, header_fault
from spe.log.log_start import NAMES, KeptLog, read_kept
from spe.log.origin import read_identity
from spe.log.recovery import live_segments
from spe.runtime.env import Storage


class Restored(NamedTuple):
    """A restored log."""

    folder: PurePosixPath
    segments: int
    bytes: int


async def restore_all(storage: Storage, open_archive: OpenArchive) -> list[Restored]:
    """Restores every log and recording below a storage root whose beginning was deleted.

    Raises:
      SpeError: a process writes one of them, it has no archive, or that lacks a segment; earlier logs are restored.
      OSError: an error of the disk or the archive.
    """
    restored = []
    for folder, place in _logs(storage):
        remaining = read_kept(storage, folder)
        if remaining.first > 1:
            if not remaining.archive:
                raise SpeError(f"{remaining.text(folder)}, and no archive has a copy")
            restored.append(await _restore(storage, folder, remaining, open_archive(remaining.archive), place))
    return restored


def _logs(storage: Storage) -> Iterator[tuple[PurePosixPath, PurePosixPath]]:
    """Yields (folder, place in an archive) of each log and recording."""
    for name in storage.list(PurePosixPath("sources")):
        folder = PurePosixPath("sources", name)
        yield folder, archived(name, read_identity(storage, folder))
    for name in storage.list(PurePosixPath("clients")):
        for channel in storage.list(PurePosixPath("clients", name)):
            folder = PurePosixPath("clients", name, channel)
            if any(storage.exists(folder / file) for file in NAMES):
                yield folder, folder


async def _restore(
    storage: Storage, folder: PurePosixPath, remaining: KeptLog, archive: Archive, place: PurePosixPath
) -> Restored:
    storage.lock(folder / "lock")
    segments = [s for s in live_segments(archive.list(place)) if s.first < remaining.first]
    nbytes, expected = 0, 1
    for at, segment in enumerate(segments):
        if segment.first != expected:
            raise LogCorrupt(
                f"{remaining.archive}/{place}: {segment.name} follows record {expected - 1}: one is missing"
            )
        expected = segments[at + 1].first if at + 1 < len(segments) else remaining.first
        data = archive.read(place / segment.name)
        check_version(data, f"{remaining.archive}/{place / segment.name}")
        if fault := _fault(data, segment, expected):
            raise LogCorrupt(f"{remaining.archive}/{place / segment.name}: {fault}; {expected} begins the next segment")
        await storage.write_atomic(folder / segment.name, data)
        nbytes += len(data)
    if expected != remaining.first:
        raise LogCorrupt(
            f"{remaining.archive}/{place}: there is no segment, but records up to {remaining.first - 1} were copied"
        )
    for name in reversed(NAMES):  # only now the log begins with record 1 again
        if storage.exists(folder / name):
            storage.remove(folder / name)
    return Restored(folder, len(segments), nbytes)


def _fault(data: bytes, segment: Segment, behind: int) -> str:
    """Returns why a segment does not hold all records before another one; "" if it does."""
    scan = RecordScan(memoryview(data)[HEADER_BYTES:], Position(segment.first, segment.first, HEADER_BYTES))
    if not (fault := header_fault(data, segment)):
        for _ in scan:
            pass
        fault = scan.fault or "it ends"
    return fault if scan.next.sequence < behind else ""
