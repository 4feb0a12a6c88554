"""What a cluster's processes have said over a whole run, across their restarts.  Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from spe.stream.names import NodeState

#: State of a replica as it was heard: name of the replica, before, after.
StateChange = tuple[str, str, str]


class EventList:
    """The last status of each start of each process.

    Counters begin anew with each start, so a run's figure is the sum (or the largest) over the starts.
    """

    def __init__(self) -> None:
        #: process -> incarnation -> last status.
        self._last: dict[str, dict[int, Mapping[str, Any]]] = {}
        self._states: dict[str, str] = {}

    def heard(self, name: str, data: Mapping[str, Any]) -> list[StateChange]:
        """Takes a status; returns the changes of replica states that it shows.

        One that stands by again holds nothing that it could serve, as one that begins.
        """
        known, incarnation = self._last.setdefault(name, {}), int(data.get("incarnation", 0))
        again = bool(known) and incarnation not in known
        known[incarnation] = data
        changes = []
        told = {f"{one['unit']}/{one['partition']}@{name}": str(one["state"]) for one in data.get("replicas", ())}
        retired = [r for r in self._states if r.rpartition("@")[2] == name and r not in told]
        for replica, after in [*told.items(), *((r, NodeState.RECOVERING.name) for r in retired)]:
            if again:  # every replica begins so, whether it was asked in that moment or not
                self._states[replica] = NodeState.RECOVERING.name
            before = self._states.get(replica, "")
            if after != before:
                self._states[replica] = after
                changes.append((replica, before, after))
        return changes

    def in_state(self, state: str) -> str | None:
        """A node one of whose replicas is in a state; None where there is none."""
        return next((r.rpartition("@")[2] for r, s in self._states.items() if s == state), None)

    def starts(self, name: str) -> int:
        """How many starts of a process were heard of."""
        return len(self._last.get(name, ()))

    def last(self, name: str) -> Mapping[str, Any]:
        """The latest status of a process; empty where there never was one."""
        known = self._last.get(name)
        return known[max(known)] if known else {}

    def over(self, name: str) -> Iterator[Mapping[str, Any]]:
        """The last status of each start, in order."""
        known = self._last.get(name, {})
        for incarnation in sorted(known):
            yield known[incarnation]

    def parts(self, name: str, of: str, key: str, value: str) -> list[Mapping[str, Any]]:
        """The same entry of a list in each start's status: ``parts("n1", "replicas", "unit", "totals")``."""
        return [p for data in self.over(name) for p in data.get(of, ()) if str(p.get(key)) == value]
