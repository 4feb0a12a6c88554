"""The statuses of a cluster's processes over a whole run, across their restarts.  Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TypeVar

from spe.status import NodeStatus, ProcessStatus
from spe.stream.names import NodeState

#: Change of a replica's state: name of the replica, before, after.
StateChange = tuple[str, str, str]

S = TypeVar("S", bound=ProcessStatus)


class EventList:
    """The last status of each start of each process.

    Counters begin again with each start, so a run's figure is the sum (or the largest) over the starts.
    """

    def __init__(self) -> None:
        #: process -> incarnation -> last status.
        self._last: dict[str, dict[int, ProcessStatus]] = {}
        self._states: dict[str, str] = {}
        #: The longest X of each node.
        self.longest_x_us: dict[str, int] = {}

    def heard(self, status: ProcessStatus) -> list[StateChange]:
        """Takes a status; returns the changes of replica states that it shows.

        A replica that stands by again holds nothing that it could serve, as one that begins.
        """
        name = status.name
        known = self._last.setdefault(name, {})
        again = bool(known) and status.incarnation not in known
        known[status.incarnation] = status
        if not isinstance(status, NodeStatus):
            return []
        if status.settings is not None:
            self.longest_x_us[name] = max(status.settings.x_us, self.longest_x_us.get(name, 0))
        changes = []
        states = {
            f"{replica_status.unit}/{replica_status.partition}@{name}": replica_status.state.name
            for replica_status in status.replicas
        }
        retired = [r for r in self._states if r.rpartition("@")[2] == name and r not in states]
        for replica, after in [*states.items(), *((r, NodeState.RECOVERING.name) for r in retired)]:
            if again:  # every replica begins so, whether it was polled at that moment or not
                self._states[replica] = NodeState.RECOVERING.name
            before = self._states.get(replica, "")
            if after != before:
                self._states[replica] = after
                changes.append((replica, before, after))
        return changes

    def in_state(self, state: str) -> str | None:
        """Returns a node with a replica in a state; None if there is none."""
        return next((r.rpartition("@")[2] for r, s in self._states.items() if s == state), None)

    def starts(self, name: str) -> int:
        """Returns the known number of starts of a process."""
        return len(self._last.get(name, ()))

    def latest(self) -> Mapping[str, ProcessStatus]:
        """Returns the latest status of each process that ever answered."""
        return {name: known[max(known)] for name, known in self._last.items()}

    def over(self, name: str, kind: type[S]) -> Iterator[S]:
        """Yields the last status of each start of a process of this kind, in order."""
        known = self._last.get(name, {})
        for incarnation in sorted(known):
            if isinstance(status := known[incarnation], kind):
                yield status

    def last(self, name: str, kind: type[S]) -> S | None:
        """Returns the latest of them; None if there never was one."""
        return next(reversed([*self.over(name, kind)]), None)
