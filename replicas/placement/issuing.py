"""The coordinator's directory: issues the revisions that all processes follow (docs/internals/directory.md)."""

from __future__ import annotations

from collections.abc import Callable

from replicas.link.connection import Identity
from replicas.link.directory import DirectoryKeeper
from replicas.placement.store import CoordinatorStore
from spe.errors import OtherConfiguration
from spe.plan.directory import Directory, Version
from spe.plan.plan import Plan
from spe.plan.revision import Revision, revised
from spe.runtime.env import Env


class DirectoryIssuer(DirectoryKeeper):
    """Issues revisions, each of the coordinator's epoch, and stores each before it is sent.

    Attributes:
      later: latest epoch in which another coordinator has issued a revision.

    Raises:
      OtherConfiguration: the store holds a revision of another configuration.
    """

    def __init__(self, env: Env, plan: Plan, configuration: Directory, me: Identity, store: CoordinatorStore) -> None:
        self._plan = plan
        self._store = store
        self.later = 0
        super().__init__(env, configuration, me)

    async def begin(self) -> None:
        """Issues the stored directory again in our epoch, so that revisions of older coordinators are refused.

        Raises OSError.
        """
        if self.revision is not None:
            await self.publish(lambda directory: directory, f"coordinator {self.me.incarnation} began")

    async def publish(self, change: Callable[[Directory], Directory], why: str = "") -> Version:
        """Issues the directory that ``change`` makes of the current one.

        Args:
          why: reason, for people.

        Raises:
          OSError: it cannot be stored; nothing has changed.
          ValueError: it is too large.
        """
        return await self.propose(lambda directory: (change(directory), why))

    async def propose(self, decide: Callable[[Directory], tuple[Directory, str] | None]) -> Version:
        """Issues the directory that ``decide`` makes of the one that is current when the disk is free.

        Args:
          decide: returns the changed directory and the reason, for people; None: nothing changes.

        Raises:
          OSError: it cannot be stored; nothing has changed.
          ValueError: it is too large.
        """
        async with self._taking:
            if (proposed := decide(self.current)) is not None:
                changed, why = proposed
                await self._issue(changed, self.version.number, why)
            return self.version

    @property
    def configuration(self) -> Directory:
        """Directory of the configuration, version 0."""
        return self._configuration

    def wants(self, version: Version) -> bool:
        """Is a version later than ours?  Then our store has lost it, and we take it, whatever its epoch is."""
        return version > self.version and version > self._refused

    async def take(self, revision: Revision) -> None:
        """Issues again a revision that another process knows."""
        if revision.version.epoch > self.me.incarnation:
            self.later = max(self.later, revision.version.epoch)
            return
        async with self._taking:
            if not self.wants(revision.version):
                return
            try:
                directory = revision.over(self._configuration)
                await self._issue(directory, revision.version.number, f"version {revision.version} of somebody else")
            except OtherConfiguration as error:
                self._refuse(revision.version, str(error))
            except OSError as error:
                self._env.trace.event("directory_not_kept", why=str(error))

    async def _issue(self, changed: Directory, after: int, why: str) -> None:
        assert self.me.incarnation > 0, "D2: a version is of the epoch of its coordinator"
        revision = revised(self._configuration, Version(self.me.incarnation, after + 1), changed)
        directory = revision.over(self._configuration)
        await self._store.keep(self._plan.fingerprint, revision, self._env.clock.wall_us(), why)
        self._apply(revision, directory, is_stored=True)

    def _stored(self) -> Revision | None:
        return self._store.revision(self._plan.fingerprint)
