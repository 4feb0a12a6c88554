"""The directory of a process, and how the process gets newer ones: docs/internals/directory.md."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import PurePosixPath
from typing import Final

import trio

from replicas.link.connection import Identity
from spe.errors import OtherConfiguration, RemoteProtocolError
from spe.plan.directory import CONFIGURED, Directory, Version
from spe.plan.plan import Plan
from spe.plan.revision import Revision
from spe.runtime.env import Env
from spe.runtime.log_line import Level, say
from spe.stream.history import DirectoryApplied
from spe.wire.messages.connection import DirectoryAnswer, DirectoryRequest

#: Time after which a process that is behind asks again.
ASK_AGAIN_US: Final = 1_000_000


def revision_file(folder: PurePosixPath, plan: Plan) -> PurePosixPath:
    """Returns the file of a process's newest revision: one per plan, for another plan has other partitions."""
    return folder / f"directory.{plan.fingerprint}"


class DirectoryKeeper:
    """The configuration of a process, overlaid by the newest known revision, which is stored on disk.

    Args:
      env: storage, trace, history.
      configuration: version 0.
      me: our identity; hellos name the version.
      path: of the file with the revision; None: it is not stored.

    Attributes:
      current: the directory in force in this process.
      revision: the newest one taken; None: the configuration is in force.
      epoch: the latest known coordinator's; earlier ones are refused, and their revisions (H6).
      nursery: where revisions are written, once the process runs.

    Raises:
      OtherConfiguration: the file holds a revision of another configuration.
    """

    def __init__(self, env: Env, configuration: Directory, me: Identity, path: PurePosixPath | None = None) -> None:
        self._env = env
        self._configuration = configuration
        self._path = path
        self.me = me
        self.current = configuration
        self.revision: Revision | None = None
        self.epoch = 0
        self.nursery: trio.Nursery | None = None
        self._taking = trio.Lock()
        self._changed: list[Callable[[Directory], None]] = []
        self._later: list[Callable[[], None]] = []
        #: The last version whose refusal was reported.
        self._refused = CONFIGURED
        if (revision := self._stored()) is not None:
            try:
                self._apply(revision, revision.over(configuration), is_stored=True)
            except OtherConfiguration as error:
                raise OtherConfiguration(
                    f"{me.name}: {error}. Put the roles in the file back; or, to begin anew from the file, stop all"
                    f" processes and remove {path or 'the coordinator folder'}, and of the others what keeps it"
                ) from None
        else:
            self._tell(is_stored=False)

    @property
    def version(self) -> Version:
        return self.current.version

    def on_change(self, changed: Callable[[Directory], None]) -> None:
        """Registers a callback for each new directory; callbacks are called in the order of registration."""
        self._changed.append(changed)

    def on_later_epoch(self, later: Callable[[], None]) -> None:
        """Registers a callback for the beginning of a later coordinator."""
        self._later.append(later)

    def heard_of(self, epoch: int) -> None:
        """Notes that a coordinator has begun."""
        if epoch > self.epoch:
            self.epoch = epoch
            for later in self._later:
                later()

    def over(self, epoch: int) -> str | None:
        """Returns why the coordinator of this epoch is not followed; None if it is (H6)."""
        return f"epoch {epoch} is over: {self.epoch} has begun" if epoch < self.epoch else None

    def wants(self, version: Version) -> bool:
        """Is the version newer than ours, and would we take it?"""
        return version > self.version and version.epoch >= self.epoch and version > self._refused

    def received(self, message: DirectoryAnswer) -> None:
        """Takes a requested revision, in a task of its own: no heartbeat waits for our disk.

        Raises:
          RemoteProtocolError: it is no revision.
        """
        try:
            revision = Revision.decode(message.revision)
        except ValueError as error:
            raise RemoteProtocolError(str(error)) from None
        if self.nursery is not None:
            self.nursery.start_soon(self.take, revision)

    async def take(self, revision: Revision) -> None:
        """Stores a revision and applies it, if it is newer than the current one."""
        async with self._taking:
            if not self.wants(revision.version):
                if revision.version != self.version:  # several peers may have been asked
                    self._refuse(revision.version, f"we have {self.version}, of epoch {self.epoch}")
                return
            try:
                directory = revision.over(self._configuration)
            except OtherConfiguration as error:
                self._refused = revision.version
                self._refuse(revision.version, str(error))
                say(
                    f"{self.me.name} goes on with version {self.version} of the directory: {error}",
                    Level.WARNING,
                    event="directory_refused",
                )
                return
            is_stored = await self._keep(revision)
            if why := self.over(revision.version.epoch):  # since it began to be written
                self._refuse(revision.version, why)
                if is_stored:
                    await self._keep_current()
                return
            self._apply(revision, directory, is_stored=is_stored)

    def _refuse(self, version: Version, why: str) -> None:
        self._env.trace.event("directory_refused", version=str(version), why=why)

    def _apply(self, revision: Revision, directory: Directory, *, is_stored: bool) -> None:
        """Applies a directory in one step: no task of this process runs between two directories."""
        self.revision, self.current = revision, directory
        self.me.directory = directory.version
        self.heard_of(directory.version.epoch)
        self._env.trace.event("directory", version=str(directory.version), kept=is_stored)
        self._tell(is_stored=is_stored)
        for changed in self._changed:
            changed(directory)

    def _tell(self, *, is_stored: bool) -> None:
        if (history := self._env.history) is not None:
            now = self._env.clock.monotonic_us()
            history(DirectoryApplied(now, self.me.name, *self.version, is_stored, str(self._path or "")))

    # --- on disk ---

    async def _keep(self, revision: Revision) -> bool:
        """Stores a revision before it is applied: so a restart does not use an older one, unless the disk fails."""
        if self._path is None:
            return False
        try:
            await self._env.storage.write_atomic(self._path, revision.encode())
        except OSError as error:
            self._env.trace.event("directory_not_kept", why=str(error))
            return False
        return True

    async def _keep_current(self) -> None:
        """Replaces a stored revision that was refused since by the current one."""
        if self.revision is not None:
            await self._keep(self.revision)
        elif self._path is not None:
            try:
                self._env.storage.remove(self._path)
            except OSError as error:
                self._env.trace.event("directory_not_kept", why=str(error))

    def _stored(self) -> Revision | None:
        storage, path = self._env.storage, self._path
        try:
            return Revision.decode(storage.read(path)) if path is not None and storage.exists(path) else None
        except (OSError, ValueError) as error:  # peers will send it
            self._env.trace.event("directory_damaged", path=str(path), why=str(error))
            return None


class DirectoryExchange:
    """Exchanges versions over one connection: names ours, and asks for the peer's if it is newer.  Pure.

    Args:
      keeper: ours.
      theirs: version in the peer's greeting.
      asks: whether we may ask this peer.

    Attributes:
      theirs: the peer's latest known version.
    """

    def __init__(self, keeper: DirectoryKeeper, theirs: Version, *, asks: bool = True) -> None:
        self._keeper = keeper
        self.theirs = theirs
        #: Our version as the peer knows it; None: that of our greeting, or an older one.
        self._told: Version | None = None
        self._asks = asks
        #: Time and version of our last request.
        self._asked = (0, CONFIGURED)

    def due(self, now: int) -> DirectoryRequest | None:
        """Returns the message to send with a heartbeat or its answer: none while both know that versions agree."""
        mine = self._keeper.version
        if self._told is None and mine == self.theirs == CONFIGURED:
            return None
        ask = mine != self.theirs and self._asks and self._keeper.wants(self.theirs)
        ask = ask and (self._asked[1] != self.theirs or now - self._asked[0] >= ASK_AGAIN_US)
        if mine == self._told and not ask:
            return None
        self._told = mine
        if ask:
            self._asked = now, self.theirs
        return DirectoryRequest(*mine)

    def requested(self, message: DirectoryRequest) -> DirectoryAnswer | None:
        """Returns our revision if it is newer than the peer's.  A client's is not for others: it names none."""
        self.theirs = Version(message.epoch, message.number)
        revision = self._keeper.revision
        if revision is None or revision.version <= self.theirs or self._keeper.me.role == "client":
            return None
        return DirectoryAnswer(revision.encode())
