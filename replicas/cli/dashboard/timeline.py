"""The past of a cluster: states with their beginnings, rates, and earlier frames.  Pure.

Everything is bounded: the oldest changes are deleted, earlier points of a curve and earlier frames are thinned out.
"""

from __future__ import annotations

import json
import zlib
from bisect import bisect_right
from collections.abc import Mapping
from typing import Any, Final

from replicas.cli.dashboard.thinning import Thinned

#: Largest number of state changes, of all lanes together.
CHANGES_MAX: Final = 40_000
#: Points of the curves: number of recent points, and of earlier ones.
POINTS: Final = (1_200, 2_400)
#: The same for frames; beyond FRAMES_BYTES, compressed, there are half as many.
FRAMES: Final = (600, 1_200)
FRAMES_BYTES: Final = 32 << 20
#: Largest number of past recoveries.
RECOVERIES_MAX: Final = 200
#: Fields of a point: its time, results per second, the largest share of X in use, replicas that are not STABLE.
POINT: Final = ("at", "stable", "tentative", "x", "unstable")
_GOOD: Final = ("STABLE", "stands by")
_BEGINS: Final = ("starting", "RECOVERING")


class Timeline:
    """Records frames (replicas.cli.dashboard.frame) as they are made."""

    def __init__(self) -> None:
        #: lane -> [(time, state)]: a lane is ``replica``, ``output`` or ``process``, with a name.
        self._lanes: dict[tuple[str, str], list[tuple[int, str]]] = {}
        self._count = 0
        self._points: Thinned[list[float]] = Thinned(*POINTS, _one_of_two)
        #: Thinning keeps the first of two frames.
        self._frames: Thinned[tuple[int, bytes]] = Thinned(*FRAMES, lambda first, second: first)
        #: Replicas that are down: since when, and since when they are installing.
        self._down: dict[str, dict[str, Any]] = {}
        #: Replicas that have served before: only those can recover.
        self._served: set[str] = set()
        self._recoveries: list[dict[str, Any]] = []
        #: Grows with every change.
        self.version = 0

    def take(self, layout: Mapping[str, Any], columns: Mapping[str, Any], frame: Mapping[str, Any]) -> None:
        """Records the next frame."""
        at = int(frame["at"])
        replica_state, output_state = columns["replicas"].index("state"), columns["channels"].index("state")
        expected = columns["replicas"].index("expected")
        for (name, *_), row in zip(layout["replicas"], frame["replicas"]):
            self._replica(at, name, row[replica_state], row[expected])
        for (client, stream, partition, _), row in zip(layout["channels"], frame["channels"]):
            self._change(at, ("output", f"{client} {stream}/{partition}"), row[output_state])
        self._point(at, columns, frame)
        self._keep(at, frame)
        self.version += 1

    def _replica(self, at: int, name: str, state: str, expected_us: int | None) -> None:
        self._change(at, ("replica", name), state)
        if state in _GOOD:
            self._served.add(name)
            if (recovery := self._down.pop(name, None)) is not None:
                self._recoveries.append({**recovery, "ended": at, "expected": expected_us})
                del self._recoveries[:-RECOVERIES_MAX]
        elif name in self._served and (state in _BEGINS or state.islower()):
            recovery = self._down.setdefault(name, {"replica": name, "began": at, "installing": None, "expected": None})
            if state in _BEGINS:
                recovery["installing"] = recovery["installing"] or at

    def _change(self, at: int, lane: tuple[str, str], state: str) -> None:
        changes = self._lanes.setdefault(lane, [])
        if not changes or changes[-1][1] != state:
            changes.append((at, state))
            self._count += 1
            if self._count > CHANGES_MAX:
                self._forget()

    def _forget(self) -> None:
        """Deletes the older half of each lane, except its last state."""
        for lane, changes in self._lanes.items():
            self._lanes[lane] = changes[len(changes) // 2 :]
        self._count = sum(map(len, self._lanes.values()))

    def _point(self, at: int, columns: Mapping[str, Any], frame: Mapping[str, Any]) -> None:
        channels, replicas = columns["channels"], columns["replicas"]
        stable, tentative = channels.index("stable_rate"), channels.index("tentative_rate")
        waiting, x, state = replicas.index("waiting"), replicas.index("x"), replicas.index("state")
        point = [
            at,
            round(sum(row[stable] or 0 for row in frame["channels"]), 3),
            round(sum(row[tentative] or 0 for row in frame["channels"]), 3),
            round(max((row[waiting] / row[x] for row in frame["replicas"] if row[x]), default=0.0), 3),
            sum(1 for row in frame["replicas"] if row[state] not in _GOOD),
        ]
        self._points.add(point)

    def _keep(self, at: int, frame: Mapping[str, Any]) -> None:
        packed = zlib.compress(encode(frame).encode(), 1)
        self._frames.add((at, packed))
        if len(self._frames) * len(packed) > FRAMES_BYTES:
            self._frames.shrink()

    # --- queries of the page ---

    def since(self, after: int) -> dict[str, Any]:
        """Returns the changes after a time, and the state of each lane at that time."""
        lanes: dict[str, list[Any]] = {"replica": [], "output": []}
        for (kind, name), changes in self._lanes.items():
            first = bisect_right(changes, after, key=lambda change: change[0])
            if first < len(changes):
                lanes[kind].append([name, changes[max(0, first - 1) :] if after else changes])
        return {
            "from": next((at for at, _ in self._frames), None),
            "replica": lanes["replica"],
            "output": lanes["output"],
            "points": [point for point in self._points if point[0] > after],
            "recoveries": self.recoveries(),
        }

    def recoveries(self) -> list[dict[str, Any]]:
        """Returns replicas that are down, and those that have recovered."""
        return [*({**recovery, "ended": None} for recovery in self._down.values()), *reversed(self._recoveries)]

    def frame_at(self, at: int) -> bytes | None:
        """Returns the latest frame at a time, as JSON; the first one where the time is earlier."""
        frames = list(self._frames)
        if not frames:
            return None
        return zlib.decompress(frames[max(0, bisect_right(frames, at, key=lambda frame: frame[0]) - 1)][1])


def _one_of_two(a: list[float], b: list[float]) -> list[float]:
    """Merges two points: means of rates, maxima of peaks."""
    return [a[0], *((p + q) / 2 for p, q in zip(a[1:3], b[1:3])), *map(max, a[3:], b[3:])]


def encode(data: Any) -> str:
    """Encodes compact JSON; numbers that JSON does not have are errors."""
    return json.dumps(data, separators=(",", ":"), allow_nan=False, default=str)
