"""What is worth a line while a cluster runs: who failed, who goes on from whom, what was taken back.  Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class Story:
    """Turns statuses into lines, each told once."""

    def __init__(self) -> None:
        self._told: set[tuple[Any, ...]] = set()
        #: (client, incarnation, channel) -> tentative, undone.
        self._counts: dict[tuple[str, int, str], tuple[int, int]] = {}

    def heard(self, name: str, data: Mapping[str, Any]) -> list[str]:
        """Takes the status of a process; returns what is new in it."""
        lines = [f"{who} {text}" for who, text in failures_of(name, data) if self._once(name, data, who, text)]
        note = data.get("note")
        if note and self._once(name, data, note):
            lines.append(str(note))
        for switch in data.get("switches", ()):
            if self._once(name, data, switch["channel"], switch["at_us"]):
                lines.append(f"{name} reads {switch['channel']} from {switch['after']}, before from {switch['before']}")
        for one in data.get("channels", ()):
            lines += self._channel(name, int(data.get("incarnation", 0)), one)
        return lines

    def _once(self, name: str, data: Mapping[str, Any], *what: Any) -> bool:
        key = (name, data.get("incarnation"), *what)
        new = key not in self._told
        self._told.add(key)
        return new

    def _channel(self, name: str, incarnation: int, one: Mapping[str, Any]) -> list[str]:
        channel, tentative, undone = str(one["channel"]), int(one["tentative"]), int(one["undone"])
        tentative_before, undone_before = self._counts.get((name, incarnation, channel), (0, 0))
        self._counts[name, incarnation, channel] = tentative, undone
        lines = []
        if tentative > tentative_before == undone_before:
            lines.append(f"{name}: tentative tuples on {channel}")
        if undone > undone_before:
            again = ", stable again" if tentative == undone else ""
            lines.append(f"{name}: undo of {undone - undone_before:,} tentative tuples on {channel}{again}")
        return lines


def failures_of(name: str, data: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What has stopped for good by the last status of a process: who, and why in a line."""
    found = [(name, f"FAILED: {data['fault']}")] if data.get("fault") else []
    return found + [
        (f"{one['unit']}/{one['partition']}@{name}", f"STOPPED: {one['error']}")
        for one in data.get("replicas", ())
        if one.get("error")
    ]
