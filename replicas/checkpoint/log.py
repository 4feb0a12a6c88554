"""The checkpoint log on disk: slices of records, each ended by a commit, in two copies (rules G1 and G5).

Records after the last whole commit are void.  A record that is damaged in one copy is read from the other.
"""

from __future__ import annotations

from bisect import bisect_right
from pathlib import PurePosixPath
from threading import Lock
from typing import Final

from replicas.checkpoint.log_reader import COPIES, LogReader
from replicas.checkpoint.log_records import Commit, LogKind, LogRecord, Records, encode_slice
from spe.errors import LogCorrupt, LogError, LogFull
from spe.log.format import HEADER_BYTES, Segment, begin_segment, write_whole
from spe.log.marks import Mark, Marks
from spe.runtime.env import AppendFile, Compute, Storage

__all__ = ["COPIES", "CheckpointLog", "Commit", "LogKind", "LogReader", "LogRecord"]

#: A new segment begins after the first commit beyond this size; only whole segments are cut off.
SEGMENT_BYTES: Final = 8 << 20


class _Copy:
    """One of the two copies: its marks, and the file of the current segment.

    Attributes:
      synced: number of the last record that is synced in this copy.
    """

    def __init__(self, folder: PurePosixPath, synced: int) -> None:
        self.folder = folder
        self.marks: Marks | None = None
        self.file: AppendFile | None = None
        self.fault: OSError | LogError | None = None
        self.synced = synced

    def fails(self, error: OSError | LogError) -> None:
        """Stops writing until the copy is restored: a refused sync is never repeated."""
        self.fault = error
        self.leave()

    def leave(self) -> None:
        """Closes the file of the current segment."""
        if self.file is not None:
            self.file.close()
        self.file = None

    def append(self, storage: Storage, segment: Segment, data: bytes) -> None:
        """Appends all or nothing; if a partial write cannot be undone, the copy fails.  Raises OSError."""
        file = self.file
        if file is None:
            file = self.file = begin_segment(storage, self.folder, segment)
        size = file.size()
        try:
            write_whole(file, data)
        except OSError as error:
            if file.size() != size:
                self.fails(error)
            raise


class CheckpointLog(LogReader):
    """The only writer of a checkpoint log.  Made by :meth:`open`.

    Attributes:
      faults: reasons why copies are no longer written, by folder.
      full: why the disk refused the last slice, or a later mark; empty if it did not.
      written_bytes: bytes of slices written since opening, in one copy.
    """

    def __init__(
        self, storage: Storage, folder: PurePosixPath, compute: Compute | None, segment_bytes: int = SEGMENT_BYTES
    ) -> None:
        super().__init__(storage, folder, compute)
        self._segment_bytes = segment_bytes
        self._epoch = 0
        self._written: list[_Copy] = []
        self._begins = True
        self._busy = False
        self._restoring = False
        self._closed = False
        #: Held while a slice is written.
        self._writing = Lock()
        #: Segments that are no longer part of the log, but whose files may still exist.
        self._cut_off: list[Segment] = []
        self.full = ""
        self.written_bytes = 0

    @classmethod
    async def open(
        cls,
        storage: Storage,
        folder: PurePosixPath,
        compute: Compute | None = None,
        *,
        segment_bytes: int = SEGMENT_BYTES,
    ) -> CheckpointLog:
        """Takes the lock, reads every record, drops records after the last commit and makes both copies whole.

        If copies cannot be written, the log can still be read; :meth:`restore` tries again.

        Args:
          compute: runs reading and comparing, a segment at a time; None: in this task.

        Raises:
          LogError: another process writes this log, or the lock cannot be made; :meth:`open_to_read` needs none.
          LogCorrupt: a record is damaged or missing in both copies.
        """
        try:
            storage.lock(folder / "lock")
        except OSError as error:
            raise LogError(f"checkpoint log {folder}: cannot be locked: {error}") from error
        log = cls(storage, folder, compute, segment_bytes)
        try:
            await log._scan()
            await log._take_over()
        except BaseException:  # including cancellation: otherwise the lock would stay
            log.close()
            storage.unlock(folder / "lock")
            raise
        return log

    async def _take_over(self) -> None:
        self._epoch = max((m.epoch for m in self._marks if m is not None), default=0) + 1
        for index, (mark, damaged) in enumerate(zip(self._marks, self._damaged)):
            synced = 0 if mark is None or damaged else min(mark.sequence, self.last_sequence)
            self._written.append(_Copy(self._copy_folder(index), synced))
        for index, copy in enumerate(self._written):
            await self._make_whole(index, copy, self._damaged[index])

    async def _make_whole(self, index: int, copy: _Copy, damaged: set[Segment] | None) -> None:
        """Completes a copy up to the last commit, and syncs all its records, including those of a failed sync.

        Args:
          damaged: damaged segments; None: not yet known.
        """
        try:
            if copy.marks is None:
                copy.marks = Marks(self._storage, copy.folder)
            elif copy.fault is not None:
                copy.marks.reopen()
            for at, segment in enumerate(self._segments):
                unsynced = self._last_of(at) > copy.marks.last.sequence
                if damaged is not None and segment not in damaged and not unsynced:
                    continue
                data = await self._mended(at, index, sure=unsynced)
                if data is not None:
                    await self._storage.write_atomic(copy.folder / segment.name, data)
            await copy.marks.write(Mark(self._epoch, self.last_sequence))
            for name in self._storage.list(copy.folder):
                parsed = Segment.parse(name)
                if parsed is not None and parsed not in self._segments:
                    self._storage.remove(copy.folder / name)
        except LogCorrupt:
            raise
        except (OSError, LogError) as error:
            copy.fails(error)
        else:
            copy.fault, copy.synced = None, self.last_sequence

    @property
    def epoch(self) -> int:
        """How often the log was opened for writing."""
        return self._epoch

    @property
    def first_sequence(self) -> int:
        """Number of the oldest record in the log."""
        return self._segments[0].first if self._segments else self.last_sequence + 1

    @property
    def faults(self) -> dict[str, str]:
        return {str(c.folder): str(c.fault) for c in self._written if c.fault is not None}

    @property
    def held_by_both(self) -> Commit | None:
        """The newest commit that is synced in both copies; later ones do not count for acknowledgements."""
        synced = min(c.synced for c in self._written)
        index = bisect_right(self.commits, synced, key=lambda c: c.last)
        return self.commits[index - 1] if index else None

    def write(self, time: int, records: Records, commit: bytes, needs: int | None = None) -> Commit:
        """Writes a slice: its records, and last the commit.  It counts only after a later :meth:`sync`.

        Args:
          time: its end, not before that of the slice before; if equal, it extends that slice.
          needs: first record that a reader of this commit needs; None: the first of this slice.

        Raises:
          LogFull: no copy has room; the slice is not in the log, and the next one may be written.
          LogError: no copy can be written until they are restored; or the log is closed.
        """
        try:
            with self._writing:
                return self._write(time, records, commit, needs)
        finally:
            self._close_unless_writing()

    def _write(self, time: int, records: Records, commit: bytes, needs: int | None) -> Commit:
        if self._closed:
            raise LogError(f"checkpoint log {self._folder}: is not used any more")
        if self._restoring:  # the copies would differ afterwards
            raise RuntimeError("written while a copy is restored")
        if self.commits and time < self.commits[-1].time:
            raise LogError(f"checkpoint log {self._folder}: slice {time} after slice {self.commits[-1].time}")
        self._check_one_left()
        first = self.last_sequence + 1
        needs = first if needs is None else needs
        assert 1 <= needs <= first, "G5: a commit needs its own slice, and perhaps earlier ones"
        data, last = encode_slice(first, time, records, commit, needs)
        segment = Segment(first, self._epoch) if self._begins else self._segments[-1]
        refused: dict[_Copy, OSError] = {}
        live = [c for c in self._written if c.fault is None]
        for copy in live:
            try:
                copy.append(self._storage, segment, data)
            except OSError as error:
                refused[copy] = error
        self.full = str(next(iter(refused.values()))) if refused else ""
        if len(refused) == len(live):  # the copies are still equal
            raise LogFull(f"checkpoint log {self._folder}: the disk refused slice {time}: {self.full}")
        for copy, reason in refused.items():
            copy.fails(reason)
        if self._begins:
            self._segments.append(segment)
            self._bytes[segment] = HEADER_BYTES
            self._begins = False
        self._bytes[segment] += len(data)
        self.written_bytes += len(data)
        self.last_sequence = last  # before the commit is visible: a reader in another thread reads up to here
        self.commits.append(Commit(time, first, last, needs))
        return self.commits[-1]

    async def sync(self) -> Commit | None:
        """Syncs all that was written before the call; returns the newest commit that both copies hold.

        Without room for a mark, written slices do not count yet: a later sync tries again.

        Raises:
          LogError: no copy is left.
        """
        self._enter()
        try:
            await self._sync_copies()
            files = [c.file for c in self._written if c.file is not None]
            if self.is_synced and any(f.size() >= self._segment_bytes for f in files):
                self._leave_segment()
        finally:
            self._busy = False
        return self.held_by_both

    async def _sync_copies(self) -> None:
        target, marked = self.last_sequence, False
        for copy in self._written:
            if copy.fault is None and copy.file is not None and copy.marks is not None and copy.synced < target:
                try:
                    await copy.file.sync()
                    await copy.marks.write(Mark(self._epoch, target))
                    copy.synced = target
                    marked = True
                except LogFull as refused:
                    self.full = str(refused)
                except (OSError, LogError) as error:
                    copy.fails(error)
        self._check_one_left()
        if marked and self.is_synced and not self.faults:
            self.full = ""

    @property
    def is_synced(self) -> bool:
        """Whether every copy that is written is synced."""
        return all(c.synced >= self.last_sequence for c in self._written if c.fault is None)

    async def restore(self) -> None:
        """Makes failed copies whole again, from the other copy or their own files; nothing is written during the call.

        Raises:
          LogFull: the other copy has no room for its mark; nothing has changed.
          LogError: no copy can be written.
          LogCorrupt: a record is damaged in both copies.
        """
        self._enter()
        self._restoring = True
        try:
            if any(copy.fault is None for copy in self._written):
                await self._sync_copies()
                if not self.is_synced:
                    raise LogFull(f"checkpoint log {self._folder}: cannot be restored: {self.full}")
            self._leave_segment()
            for index, copy in enumerate(self._written):
                if copy.fault is not None:
                    await self._make_whole(index, copy, None)
            self._check_one_left()
            if not self.faults:
                self.full = ""
        finally:
            self._busy = self._restoring = False

    async def cut(self) -> None:
        """Deletes whole segments that are needed neither by the commit that both copies hold nor by a reader.  Raises
        OSError; a later call deletes the rest.

        The segments are chosen at once, and later readers begin after them; a thread removes the files.
        """
        held = self.held_by_both
        if held is not None:
            needed = min(held.needs, *self._readings) if self._readings else held.needs
            while len(self._segments) > 1 and self._segments[1].first <= needed:
                segment = self._segments.pop(0)
                del self._bytes[segment]
                self._cut_off.append(segment)
            assert self._segments[0].first <= held.needs, "G5: what the newest common commit needs is not cut off"
            start = self._segments[0].first if self._segments else 1
            self.commits = self.commits[bisect_right(self.commits, start - 1, key=lambda c: c.last) :]
        if self._cut_off:
            await self._run(self._remove_cut_off)

    def _remove_cut_off(self) -> None:
        """Removes files in a thread, oldest first, so that the rest of a log has no gap."""
        while self._cut_off:
            for copy in self._written:
                if self._storage.exists(copy.folder / self._cut_off[0].name):
                    self._storage.remove(copy.folder / self._cut_off[0].name)
            self._cut_off.pop(0)

    def close(self) -> None:
        """Closes the files.  Unsynced records are left to the operating system.

        If a thread is writing a slice, it finishes the slice and then closes the files: otherwise its bytes could go to
        another file with the same descriptor.
        """
        self._closed = True
        self._close_unless_writing()

    def _close_unless_writing(self) -> None:
        if self._closed and self._writing.acquire(blocking=False):
            for copy in self._written:
                copy.leave()
                if copy.marks is not None:
                    copy.marks.close()
            self._writing.release()

    def _leave_segment(self) -> None:
        self._begins = True
        for copy in self._written:
            copy.leave()

    def _enter(self) -> None:
        if self._busy:
            raise RuntimeError("one sync at a time")
        self._busy = True

    def _check_one_left(self) -> None:
        if all(copy.fault is not None for copy in self._written):
            raise LogError(f"checkpoint log {self._folder}: no copy can be written: {self.faults}")
