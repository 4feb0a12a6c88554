"""Follows orders of the coordinator: a standby runs, or stands by again (docs/internals/rules.md H)."""

from __future__ import annotations

from replicas.link.directory import DirectoryKeeper
from replicas.node.hosting import Hosting, Tasks
from replicas.placement.epoch import FollowedEpoch
from spe.errors import OperatorFailed, SpeError
from spe.plan.directory import COORDINATOR
from spe.runtime.log_line import Level, say
from spe.stream.ids import ReplicaId
from spe.stream.names import NodeState, UnitId
from spe.wire.messages.replicas import Order, OrderAnswer


class OrderRefused(SpeError):
    """An order that this node does not follow, with the reason."""


class OrderFollower:
    """Follows orders of the latest coordinator that it has heard of (H6).

    Args:
      hosting: the replicas and standbys of the node.
      keeper: knows the latest coordinator.
      run: runs the tasks of a partition with a replica.
      stand_by: runs the tasks of a partition with a standby.
    """

    def __init__(self, hosting: Hosting, keeper: DirectoryKeeper, run: Tasks, stand_by: Tasks) -> None:
        self._hosting = hosting
        self._run = run
        self._stand_by = stand_by
        self._keeper = keeper
        self._epoch = FollowedEpoch(hosting.env, hosting.node, keeper)
        # In its own task: neither an answer nor a hello waits for the disk.
        keeper.on_later_epoch(lambda: hosting.nursery.start_soon(self._epoch.keep))

    def order(self, peer: str, message: Order) -> OrderAnswer:
        """Answers an order: a standby is to run, or a replica is to stand by again."""
        id = ReplicaId(UnitId(message.unit), message.partition, self._hosting.node)
        refused = ""
        try:
            self._follow(peer, message, id)
        except (OrderRefused, OperatorFailed) as error:  # it cannot be made here; another node may be able to
            refused = str(error)
        self._hosting.env.trace.event("order", verb=message.verb, replica=str(id), epoch=message.epoch, refused=refused)
        return OrderAnswer(message.number, self._epoch.latest, refused)

    def _follow(self, peer: str, message: Order, id: ReplicaId) -> None:
        """Raises OrderRefused, OperatorFailed."""
        hosting = self._hosting
        if peer != COORDINATOR:
            raise OrderRefused(f"{peer} is not the coordinator")
        if (over := self._keeper.over(message.epoch)) is not None:
            raise OrderRefused(over)
        if message.verb != "replay" and id not in hosting.directory.standbys_on(hosting.node):
            raise OrderRefused(f"{hosting.node} is no standby of {id.of}")
        self._keeper.heard_of(message.epoch)
        if message.verb in ("install", "restore") and id.of in hosting.standbys:
            self._install(id, prefers_own=message.verb == "restore")
        elif message.verb == "retire" and id.of in hosting.running:
            hosting.told(id, NodeState.RECOVERING, False)  # its readers and partners learn that at once
            self.stand_by(id)
        elif message.verb == "replay":
            if id.of not in hosting.running:
                raise OrderRefused(f"{hosting.node} does not run {id.of}")
            hosting.host(id).replica.recovery.replays = True

    def _install(self, id: ReplicaId, *, prefers_own: bool = False) -> None:
        hosting = self._hosting
        assert id.of not in hosting.running, "H3: only a standby is installed"
        made = hosting.make(id)  # first: where this fails we continue to stand by
        standby = hosting.standbys.pop(id.of)
        hosting.upstream.remove(standby.name)
        made.replica.recovery.partners_are_known = True
        made.replica.recovery.prefers_own = prefers_own
        made.replica.partners.told |= standby.partners()
        hosting.place(made)
        hosting.begin(id.of, self._run)

    def follow_roles(self) -> None:
        """Follows a changed directory: runs partitions with an active role here, and removes those without a role.

        A standby that runs, or a replica that is a standby now, runs on until an order comes: others may need it.
        """
        hosting = self._hosting
        directory, node = hosting.directory, hosting.node
        for partition in [*hosting.running, *hosting.standbys]:
            if node not in directory.hosts(partition):
                hosting.leave(partition)
        for id in directory.replicas_on(node):
            try:
                if id.of in hosting.standbys:
                    self._install(id)
                elif id.of not in hosting.running:
                    self.run(id)
            except OperatorFailed as error:  # another node may be able to
                hosting.env.trace.event("role_not_taken", replica=str(id), why=str(error))
                say(f"{id} cannot run here: {error}", Level.ERROR, event="role_not_taken", replica=str(id))
        for id in directory.standbys_on(node):
            if id.of not in hosting.running and id.of not in hosting.standbys:
                self.stand_by(id)

    def run(self, id: ReplicaId) -> None:
        """Runs a partition in an active role."""
        self._hosting.host(id)
        self._hosting.begin(id.of, self._run)

    def stand_by(self, id: ReplicaId) -> None:
        self._hosting.stand_by(id)
        self._hosting.begin(id.of, self._stand_by)
