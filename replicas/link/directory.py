"""The directory that a process works with, and how it gets newer ones: docs/internals/directory.md."""

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
from spe.wire.messages import DirectoryAnswer, DirectoryRequest

#: Who is behind, and has asked, asks again after this.
ASK_AGAIN_US: Final = 1_000_000


def revision_file(folder: PurePosixPath, plan: Plan) -> PurePosixPath:
    """File of the newest revision of a process with this folder: one per plan, for another has other partitions."""
    return folder / f"directory.{plan.fingerprint}"


class DirectoryKeeper:
    """Its configuration, overlaid by the newest revision that it knows, which it keeps on disk.

    Args:
      env: storage, trace, history.
      configuration: version 0.
      me: who we are; hellos name the version.
      path: of the file with the revision; None: it is kept nowhere.

    Attributes:
      current: what everybody here goes by.
      revision: the newest that was taken; None: what the configuration says counts.
      epoch: the latest coordinator's that we have heard of; earlier ones are refused, and what they issued (H6).
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
        #: Up to this version we have said why we do not take it.
        self._refused = CONFIGURED
        if (revision := self._stored()) is not None:
            try:
                self._apply(revision, revision.over(configuration), kept=True)
            except OtherConfiguration as error:
                raise OtherConfiguration(
                    f"{me.name}: {error}. Put the roles in the file back; or, to begin anew from the file, stop all"
                    f" processes and remove {path or 'the coordinator folder'}, and of the others what keeps it"
                ) from None
        else:
            self._tell(kept=False)

    @property
    def version(self) -> Version:
        return self.current.version

    def on_change(self, changed: Callable[[Directory], None]) -> None:
        """From now on this is called with each new directory, in the order of the calls."""
        self._changed.append(changed)

    def on_later_epoch(self, later: Callable[[], None]) -> None:
        """From now on this is called when a later coordinator has begun."""
        self._later.append(later)

    def heard_of(self, epoch: int) -> None:
        """A coordinator has begun."""
        if epoch > self.epoch:
            self.epoch = epoch
            for later in self._later:
                later()

    def over(self, epoch: int) -> str:
        """Why the coordinator of this epoch is not followed; "" where it is (H6)."""
        return f"epoch {epoch} is over: {self.epoch} has begun" if epoch < self.epoch else ""

    def wants(self, version: Version) -> bool:
        """Is it newer than ours, and would we take it?"""
        return version > self.version and version.epoch >= self.epoch and version > self._refused

    def received(self, message: DirectoryAnswer) -> None:
        """What we asked for.  It is taken in a task of its own: no heartbeat waits for our disk.

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
        """Keeps a revision and goes by it, if it is newer than what we have."""
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
            kept = await self._keep(revision)
            if why := self.over(revision.version.epoch):  # since it began to be written
                self._refuse(revision.version, why)
                if kept:
                    await self._keep_current()
                return
            self._apply(revision, directory, kept=kept)

    def _refuse(self, version: Version, why: str) -> None:
        self._env.trace.event("directory_refused", version=str(version), why=why)

    def _apply(self, revision: Revision, directory: Directory, *, kept: bool) -> None:
        """In one step: nobody here acts between two directories."""
        self.revision, self.current = revision, directory
        self.me.directory = directory.version
        self.heard_of(directory.version.epoch)
        self._env.trace.event("directory", version=str(directory.version), kept=kept)
        self._tell(kept=kept)
        for changed in self._changed:
            changed(directory)

    def _tell(self, *, kept: bool) -> None:
        if (history := self._env.history) is not None:
            now = self._env.clock.monotonic_us()
            history(DirectoryApplied(now, self.me.name, *self.version, kept, str(self._path or "")))

    # --- on disk ---

    async def _keep(self, revision: Revision) -> bool:
        """Before it is applied: so a restart does not begin with an older one, unless the disk refuses."""
        if self._path is None:
            return False
        try:
            await self._env.storage.write_atomic(self._path, revision.encode())
        except OSError as error:
            self._env.trace.event("directory_not_kept", why=str(error))
            return False
        return True

    async def _keep_current(self) -> None:
        """The file holds what was refused since: what we go by is in its place again."""
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
        except (OSError, ValueError) as error:  # we shall be told
            self._env.trace.event("directory_damaged", path=str(path), why=str(error))
            return None


class DirectoryExchange:
    """One connection's part: tells the peer which version we have, and asks for its own where that is newer.  Pure.

    Args:
      keeper: ours.
      theirs: version that the peer named when it greeted us.
      asks: whether we may ask this peer.

    Attributes:
      theirs: what the peer goes by, as far as it has said.
    """

    def __init__(self, keeper: DirectoryKeeper, theirs: Version, *, asks: bool = True) -> None:
        self._keeper = keeper
        self.theirs = theirs
        #: What the peer knows that we have; None: what our greeting said, or something older.
        self._told: Version | None = None
        self._asks = asks
        #: When we asked last, and for which version.
        self._asked = (0, CONFIGURED)

    def due(self, now: int) -> DirectoryRequest | None:
        """What to send with a heartbeat, or its answer: nothing while both know that their versions agree."""
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
        """The peer names its version; ours, if it is newer.  A client's is not for others: it says nothing."""
        self.theirs = Version(message.epoch, message.number)
        revision = self._keeper.revision
        if revision is None or revision.version <= self.theirs or self._keeper.me.role == "client":
            return None
        return DirectoryAnswer(revision.encode())
