"""The checkpoint log of a partition on a node's disk: which files it has, and what becomes of one that is damaged.

Its folder is ``nodes/NODE/UNIT-PARTITION/log/PLAN/NUMBER``, for another plan has other ids (U11).  A log that cannot be
read is refused: a file says why, and the next number begins, so that nothing is lost that people may still save.  The
files of what was refused go when both copies of its successor hold a state.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from pathlib import PurePosixPath
from typing import Final

import trio

from replicas.checkpoint.log import COPIES, CheckpointLog, LogReader
from replicas.checkpoint.log_transfer import SentSlice
from replicas.checkpoint.state_log import LoggedState, LogHead, StateLog, read_head, read_state
from spe.errors import LogCorrupt, LogError, RemoteProtocolError
from spe.plan.plan import Plan
from spe.runtime.env import Env
from spe.runtime.log_line import Level, say
from spe.stream.ids import ReplicaId

#: Why a log was refused; it is there if it was.
_REFUSED: Final = "refused"
#: Written where a log has come to count, so that its folder, which has lost the file above, is synced.
_COUNTS: Final = "counts"


class ReplicaLog:
    """Of one partition on one node; it outlives replicas, which may be made anew in the same process.

    Attributes:
      writing: held by the one task that writes and syncs.  One that was cancelled still waits for its thread, while the
        next one has begun.
      state: what writes it; None: it could not be opened to be written.
      trouble: why not, or why a copy is not written; "" where both are.
    """

    def __init__(self, env: Env, plan: Plan, id: ReplicaId) -> None:
        self._env = env
        self._id = id
        self._folder = PurePosixPath("nodes", id.node, f"{id.unit}-{id.partition}", "log", plan.fingerprint)
        self._number = 0
        #: The last number that was begun in place of the one that counts; 0: none.
        self._tried = 0
        #: The files of those below have gone.
        self._forgotten = 0
        self._reader: LogReader | None = None
        self._log: CheckpointLog | None = None
        self.state: StateLog | None = None
        self.writing = trio.Lock()
        self._opening = trio.Lock()
        self._cannot = ""
        self._told = ""
        #: The number that was refused last, and why: it is not opened again, though the disk could not take that down.
        self._refusing = (-1, "")

    @property
    def folder(self) -> PurePosixPath:
        return self._folder / str(self._number)

    @property
    def log(self) -> CheckpointLog | None:
        """The files, where they can be written."""
        return self._log

    @property
    def is_safe(self) -> bool:
        """Is the newest commit synced in both copies (G5)?"""
        log = self._log
        return log is not None and not log.faults and bool(log.commits) and log.held_by_both == log.commits[-1]

    @property
    def trouble(self) -> str:
        if self._log is None:
            return self._cannot
        return "; ".join(f"{folder}: {why}" for folder, why in self._log.faults.items()) or self._log.full

    async def open(self) -> None:
        """Opens what is there, to be written if that can be; it may be called again where it could not."""
        async with self._opening:
            while self._log is None:
                try:
                    self._find()
                    if self._refusing[0] == self._number:
                        raise LogCorrupt(self._refusing[1])
                    self._log = self._reader = await CheckpointLog.open(
                        self._env.storage, self.folder, self._env.compute
                    )
                    self.state = StateLog(self._log, self._env.compute, self._env.clock.step_ns)
                except LogCorrupt as error:
                    if not await self._refuse(str(error)):
                        return
                except (LogError, OSError) as error:
                    self._cannot = str(error)
                    await self._open_to_read()
                    return

    async def _open_to_read(self) -> None:
        try:
            self._reader = await LogReader.open_to_read(self._env.storage, self.folder, self._env.compute)
        except (LogError, OSError) as error:
            self._reader, self._cannot = None, str(error)

    def _find(self) -> None:
        storage = self._env.storage
        while storage.exists(self.folder / _REFUSED):
            self._number += 1

    def is_there(self) -> bool:
        """May there be a state in it?  Nothing is opened."""
        if self._log is not None or self._reader is not None:
            return True
        try:
            self._find()
            return any(self._env.storage.list(self.folder / copy) for copy in COPIES)
        except OSError:
            return True  # whoever opens it says why not

    async def head(self) -> LogHead | None:
        """What there is to go on from; None: nothing.  What is damaged is refused, by name."""
        await self.open()
        if self._reader is None:
            return None
        try:
            return await read_head(self._reader, self._env.compute)
        except (LogError, RemoteProtocolError, KeyError, TypeError) as error:
            await self.refuse(str(error))
            return None

    async def make_safe(self) -> bool:
        """Syncs what a replica wrote here before; is the newest commit in both copies now?"""
        if self._log is not None and self._log.commits and not self.is_safe:
            try:
                await self._log.sync()
            except (LogError, OSError) as error:
                self._env.trace.event("log_not_synced", replica=str(self._id), why=str(error))
        return self.is_safe

    async def read(self) -> LoggedState | None:
        """All of it; None: it is damaged, and refused."""
        if self._reader is None:
            return None
        try:
            return await read_state(self._reader, self._env.compute)
        except (LogError, RemoteProtocolError, KeyError, TypeError) as error:
            await self.refuse(str(error))
            return None

    async def refuse(self, why: str) -> None:
        """It cannot be used: another one is begun."""
        async with self._opening:
            if self._log is not None:
                self._log.close()
            await self._refuse(why)
        await self.open()

    async def _refuse(self, why: str) -> bool:
        """False: the disk cannot even take that down; it is tried again when the log is opened."""
        self._log = self._reader = self.state = None
        if self._refusing != (self._number, why):
            self._refusing = (self._number, why)
            self._env.trace.event("log_refused", replica=str(self._id), folder=str(self.folder), why=why)
            say(
                f"{self._id}: its checkpoint log cannot be used and is begun anew: {why}",
                Level.ERROR,
                event="log_refused",
                replica=str(self._id),
            )
        try:
            await self._env.storage.write_atomic(self.folder / _REFUSED, why.encode())
        except OSError as error:
            self._cannot = f"{why}; {error}"
            return False
        return True

    # --- what others wrote (G9) ---

    @property
    def identity(self) -> str:
        """Records with this follow each other: of this node, these files, and since they were opened."""
        assert self._log is not None, "G9: it is open"
        return f"{self._id.node}/{self._number}/{self._log.epoch}"

    async def follow(self, slices: Iterable[SentSlice]) -> None:
        """Writes what follows what was taken from the same maker, syncs it, and cuts what nobody needs.

        Raises:
          LogError, OSError: not all of it could be written; what was can be gone on from.
        """
        log = self._log
        if log is None:
            raise LogError(f"{self._id}: its log cannot be written: {self._cannot}")
        if log.faults:
            await log.restore()
        await self._env.compute.run(partial(self._append, log, slices))
        await log.sync()
        await log.cut()

    def _append(self, log: CheckpointLog, slices: Iterable[SentSlice]) -> None:
        for one in slices:
            needs = log.last_sequence + 1 + min(0, one.needs - one.first)
            log.write(one.time, one.records, one.commit, max(needs, 1))

    async def replace(self, slices: Iterable[SentSlice]) -> None:
        """Begins another log with the slices of a maker; the one before is used until both copies hold it.

        Raises:
          LogError, OSError: it could not be written; the one before counts on.
        """
        async with self._opening:
            number = await self._begin_another()
            folder = self._folder / str(number)
            log = await CheckpointLog.open(self._env.storage, folder, self._env.compute)
            try:
                await self._env.compute.run(partial(self._append, log, slices))
                held = await log.sync()
                if held is None or held != log.commits[-1]:
                    raise LogError(f"{folder}: not in both copies: {log.faults or log.full}")
                self._env.storage.remove(folder / _REFUSED)  # of several that count the first one does
                await self._env.storage.write_atomic(folder / _COUNTS, b"")  # syncs the folder
                # Ours last, and before it any that came to count as the disk refused this step of an earlier try.
                for old in reversed(range(self._number, number)):
                    path = self._folder / str(old) / _REFUSED
                    if not self._env.storage.exists(path):
                        await self._env.storage.write_atomic(path, f"{folder} follows".encode())
            except BaseException:  # also where the task is cancelled: it may count, and is opened again then
                log.close()
                self._env.storage.unlock(folder / "lock")
                raise
            if self._log is not None:
                self._log.close()
            self._number, self._log, self._reader = number, log, log
            self.state, self._cannot = StateLog(log, self._env.compute, self._env.clock.step_ns), ""
        await self.forget_refused()

    async def forget(self) -> None:
        """Nobody needs it any more; where one is written again, it is the next number.

        Raises:
          OSError: the disk refuses to take that down; it is there still.
        """
        async with self._opening:
            await self._env.storage.write_atomic(self.folder / _REFUSED, b"checkpoints follow")
            if self._log is not None:
                self._log.close()
            self._log = self._reader = self.state = None
            self._find()
        await self.forget_refused()

    async def _begin_another(self) -> int:
        """Makes room for a log under a number that this process has not locked yet; it does not count yet."""
        self._tried = max(self._number, self._tried) + 1
        folder = self._folder / str(self._tried)
        await self._env.storage.write_atomic(folder / _REFUSED, b"unfinished")
        await self._env.compute.run(partial(self._clear, folder))
        return self._tried

    async def forget_refused(self) -> None:
        """This log holds a state: the files of those before it can go.  What the disk refuses goes next time."""
        try:
            while (number := self._forgotten) < self._number:
                await self._env.compute.run(partial(self._clear, self._folder / str(number)))
                self._forgotten = max(self._forgotten, number + 1)
        except OSError as error:
            self._env.trace.event("not_forgotten", replica=str(self._id), why=str(error))

    def _clear(self, folder: PurePosixPath) -> None:
        storage = self._env.storage
        for copy in COPIES:
            for name in storage.list(folder / copy):
                storage.remove(folder / copy / name)

    def tell(self) -> None:
        """Reports a trouble when it changes: upstream keeps more meanwhile."""
        if (why := self.trouble) != self._told:
            self._told = why
            self._env.trace.event("log_trouble" if why else "log_works", replica=str(self._id), why=why)
            if why:
                say(
                    f"{self._id}: its checkpoint log is not written in both copies: {why}; upstream keeps more",
                    Level.WARNING,
                    event="log_trouble",
                    replica=str(self._id),
                )
