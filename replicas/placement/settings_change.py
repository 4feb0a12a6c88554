"""Changes X, α or a policy of a running node (rule X4).  Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from replicas.placement.deciders.move import Move, some
from spe.errors import SpeError
from spe.plan.describe import show_duration
from spe.plan.directory import Directory, Role
from spe.plan.plan import Plan
from spe.plan.review import least_x_us, refused_share
from spe.plan.settings import NodeSettings, describe_waits
from spe.stream.names import NodeId
from spe.stream.times import MILLISECOND


class SettingsRefused(SpeError):
    """An order that cannot be carried out; the message has the reason and the remedy."""


@dataclass(frozen=True)
class SettingsChange:
    """Changes the settings of a node in the directory.

    Attributes:
      configured: the directory of the coordinator's configuration.
      changes: names and values, as people write them.
      moves: moves that have not ended; the partitions that they bring to the node count too.
    """

    plan: Plan
    configured: Directory
    node: NodeId
    changes: Sequence[tuple[str, str]]
    moves: Callable[[], Sequence[Move]]

    def __call__(self, directory: Directory) -> Directory:
        """Returns the changed directory.  Raises SettingsRefused."""
        if self.node not in directory.nodes:
            raise SettingsRefused(f"there is no node {self.node}; there are {some(directory.nodes)}")
        if not self.changes:
            raise SettingsRefused("nothing to change; expected one of x=4s, alpha=0.7, policy=delay")
        configured = self.configured.nodes.get(self.node) or directory.joined.get(self.node, directory.nodes[self.node])
        try:
            settings = directory.settings.get(self.node, NodeSettings()).changed(self.changes)
        except ValueError as error:
            raise SettingsRefused(str(error)) from None
        changed = directory.with_settings(configured, settings)
        assert changed.roles == directory.roles, "X4: settings change no role"
        if why := self._refused(changed):
            raise SettingsRefused(f"{self.node} cannot have {describe_waits(changed.nodes[self.node])}: {why}")
        return changed

    def _refused(self, directory: Directory) -> str | None:
        """Returns why ``spe check`` would refuse the node's αX, now or when all moves are done; None: it would not."""
        when = ""
        for move in [None, *self.moves()]:
            if move is not None and move.target == self.node and move.target not in directory.roles[move.partition]:
                directory, when = directory.with_role(move.partition, move.target, Role.STANDBY), f", once {move} ends"
            if why := refused_share(self.plan, directory, self.node):
                least_us = -(-least_x_us(self.plan, directory, self.node) // MILLISECOND) * MILLISECOND
                return f"{why}{when}; X of {show_duration(least_us)} or more would do"
        return None

    def __str__(self) -> str:
        return f"set {self.node} {' '.join(f'{name}={value}' for name, value in self.changes)}"
