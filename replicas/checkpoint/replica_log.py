"""The checkpoint log of a partition on a node's disk: its files, and the handling of damage.

Its folder is ``nodes/NODE/UNIT-PARTITION/log/PLAN/NUMBER``; another plan has other ids (U11).  A log that cannot be
read is refused: a file gives the reason, and the next number begins, so that people can still save the data.  The files
of a refused log are deleted when both copies of its successor hold a state.
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

#: File with the reason why a log was refused; a log with this file is not used.
_REFUSED: Final = "refused"
#: Written when a log becomes valid, to sync its folder after the file above was removed.
_COUNTS: Final = "counts"


class ReplicaLog:
    """The log of one partition on one node; it outlives replicas, which may be made anew in the same process.

    Attributes:
      writing: held by the one task that writes and syncs.  A cancelled task may still wait for its thread when the next
        one has begun.
      state: writes the log; None: it could not be opened for writing.
      trouble: why not, or why a copy is not written; "" if both are.
    """

    def __init__(self, env: Env, plan: Plan, id: ReplicaId) -> None:
        self._env = env
        self._id = id
        self._folder = PurePosixPath("nodes", id.node, f"{id.unit}-{id.partition}", "log", plan.fingerprint)
        self._number = 0
        #: The last number begun as a replacement for the current log; 0: none.
        self._tried = 0
        #: The files of lower numbers have been deleted.
        self._forgotten = 0
        self._reader: LogReader | None = None
        self._log: CheckpointLog | None = None
        self.state: StateLog | None = None
        self.writing = trio.Lock()
        self._opening = trio.Lock()
        self._cannot = ""
        self._told = ""
        #: The last refused number with the reason: it is not opened again, even if the disk could not store that.
        self._refusing = (-1, "")

    @property
    def folder(self) -> PurePosixPath:
        return self._folder / str(self._number)

    @property
    def log(self) -> CheckpointLog | None:
        """The files, if they can be written."""
        return self._log

    @property
    def is_safe(self) -> bool:
        """Whether the newest commit is synced in both copies (G5)."""
        log = self._log
        assert (log is None) == (self.state is None), "G1: who has the files writes the state"
        return log is not None and not log.faults and bool(log.commits) and log.held_by_both == log.commits[-1]

    @property
    def trouble(self) -> str:
        if self._log is None:
            return self._cannot
        return "; ".join(f"{folder}: {why}" for folder, why in self._log.faults.items()) or self._log.full

    async def open(self) -> None:
        """Opens the log, for writing if possible; may be called again if that failed."""
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
        """Returns whether there may be a state in the log, without opening it."""
        if self._log is not None or self._reader is not None:
            return True
        try:
            self._find()
            return any(self._env.storage.list(self.folder / copy) for copy in COPIES)
        except OSError:
            return True  # opening it will report the reason

    async def head(self) -> LogHead | None:
        """Returns the head of the log; None: there is no state.  A damaged log is refused, by name."""
        await self.open()
        if self._reader is None:
            return None
        try:
            return await read_head(self._reader, self._env.compute)
        except (LogError, RemoteProtocolError, KeyError, TypeError) as error:
            await self.refuse(str(error))
            return None

    async def make_safe(self) -> bool:
        """Syncs records of an earlier replica; returns whether the newest commit is in both copies now."""
        if self._log is not None and self._log.commits and not self.is_safe:
            try:
                await self._log.sync()
            except (LogError, OSError) as error:
                self._env.trace.event("log_not_synced", replica=str(self._id), why=str(error))
        return self.is_safe

    async def read(self) -> LoggedState | None:
        """Reads the whole state; None: it is damaged, and was refused."""
        if self._reader is None:
            return None
        try:
            return await read_state(self._reader, self._env.compute)
        except (LogError, RemoteProtocolError, KeyError, TypeError) as error:
            await self.refuse(str(error))
            return None

    async def refuse(self, why: str) -> None:
        """Refuses the log because it cannot be used; begins another one."""
        async with self._opening:
            if self._log is not None:
                self._log.close()
            await self._refuse(why)
        await self.open()

    async def _refuse(self, why: str) -> bool:
        """Marks the log as refused; returns False if the disk refuses even that, which is repeated at the next
        opening.
        """
        assert self._opening.locked(), "G1: one task at a time opens, replaces or refuses the log"
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

    # --- slices of other replicas (G9) ---

    @property
    def identity(self) -> str:
        """Identifies the records that continue each other: of this node, these files, and this opening."""
        assert self._log is not None, "G9: it is open"
        return f"{self._id.node}/{self._number}/{self._log.epoch}"

    async def follow(self, slices: Iterable[SentSlice]) -> None:
        """Writes the next slices of the same maker, syncs them, and cuts off what is no longer needed.

        Raises:
          LogError, OSError: not all of it could be written; the written part can be continued.
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
        for sent in slices:
            needs = log.last_sequence + 1 + min(0, sent.needs - sent.first)
            log.write(sent.time, sent.records, sent.commit, max(needs, 1))

    async def replace(self, slices: Iterable[SentSlice]) -> None:
        """Begins another log with the slices of a maker; the previous one is used until both copies hold it.

        Raises:
          LogError, OSError: it could not be written; the previous one remains valid.
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
                self._env.storage.remove(folder / _REFUSED)  # of several valid logs the first is used
                await self._env.storage.write_atomic(folder / _COUNTS, b"")  # syncs the folder
                # The current log last, and before it any log that became valid when the disk refused this step of an
                # earlier try.
                for old in reversed(range(self._number, number)):
                    path = self._folder / str(old) / _REFUSED
                    if not self._env.storage.exists(path):
                        await self._env.storage.write_atomic(path, f"{folder} follows".encode())
            except BaseException:  # including cancellation: it may be valid, and is opened again then
                log.close()
                self._env.storage.unlock(folder / "lock")
                raise
            assert number > self._number, "G9: of several valid logs the first is used; it ends when the next is whole"
            if self._log is not None:
                self._log.close()
            self._number, self._log, self._reader = number, log, log
            self.state, self._cannot = StateLog(log, self._env.compute, self._env.clock.step_ns), ""
        await self.forget_refused()

    async def forget(self) -> None:
        """Gives the log up; a later log has the next number.

        Raises:
          OSError: the disk refuses to store that; the log is still valid.
        """
        async with self._opening:
            await self._env.storage.write_atomic(self.folder / _REFUSED, b"checkpoints follow")
            if self._log is not None:
                self._log.close()
            self._log = self._reader = self.state = None
            self._find()
        await self.forget_refused()

    async def _begin_another(self) -> int:
        """Makes room for a log under a number that this process has not locked yet; the log is not valid yet."""
        assert self._opening.locked(), "G1: one task at a time opens, replaces or refuses the log"
        self._tried = max(self._number, self._tried) + 1
        folder = self._folder / str(self._tried)
        await self._env.storage.write_atomic(folder / _REFUSED, b"unfinished")
        await self._env.compute.run(partial(self._clear, folder))
        return self._tried

    async def forget_refused(self) -> None:
        """Deletes the files of earlier logs, because this one holds a state.  A later call deletes what the disk
        refuses.
        """
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
        """Reports a trouble when it changes, because upstream keeps more input until it is over."""
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
