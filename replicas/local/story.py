"""The events that a run prints: failures, switches, corrections.  Pure."""

from __future__ import annotations

from typing import Any

from spe.status import ChannelStatus, ClientStatus, NodeStatus, ProcessStatus, SourceStatus


class Story:
    """Turns statuses into lines, each once."""

    def __init__(self) -> None:
        self._told: set[tuple[Any, ...]] = set()
        #: (client, incarnation, channel) -> tentative, undone.
        self._counts: dict[tuple[str, int, str], tuple[int, int]] = {}

    def heard(self, status: ProcessStatus) -> list[str]:
        """Takes the status of a process; returns lines for its news."""
        lines = [f"{who} {text}" for who, text in failures_of(status) if self._once(status, who, text)]
        if isinstance(status, SourceStatus) and status.log is not None:
            note = status.log.note
            if note and self._once(status, note):
                lines.append(note)
        if isinstance(status, ClientStatus):
            for switch in status.switches:
                if self._once(status, switch.channel, switch.at_us):
                    lines.append(
                        f"{status.name} reads {switch.channel} from {switch.after}, before from {switch.before}"
                    )
            for received in status.channels:
                lines += self._channel(status, received)
        return lines

    def _once(self, status: ProcessStatus, *what: Any) -> bool:
        key = (status.name, status.incarnation, *what)
        new = key not in self._told
        self._told.add(key)
        return new

    def _channel(self, client: ClientStatus, received: ChannelStatus) -> list[str]:
        name, channel, tentative, undone = client.name, received.channel, received.tentative, received.undone
        key = (name, client.incarnation, channel)
        tentative_before, undone_before = self._counts.get(key, (0, 0))
        self._counts[key] = tentative, undone
        lines = []
        if tentative > tentative_before == undone_before:
            lines.append(f"{name}: tentative tuples on {channel}")
        if undone > undone_before:
            again = ", stable again" if tentative == undone else ""
            lines.append(f"{name}: undo of {undone - undone_before:,} tentative tuples on {channel}{again}")
        return lines


def failures_of(status: ProcessStatus) -> list[tuple[str, str]]:
    """Returns permanent failures by the last status of a process: its name, and a line."""
    name = status.name
    if isinstance(status, SourceStatus) and status.log is not None and status.log.fault:
        return [(name, f"FAILED: {status.log.fault}")]
    if isinstance(status, NodeStatus):
        return [(f"{r.unit}/{r.partition}@{name}", f"STOPPED: {r.error}") for r in status.replicas if r.error]
    return []
