"""The past of a cluster: which state everything was in and since when, rates, and frames to go back to.  Pure.

All of it has a bound: the oldest changes are forgotten, earlier points of a curve and frames become sparser.
"""

from __future__ import annotations

import json
import zlib
from bisect import bisect_right
from collections.abc import Mapping
from typing import Any, Final

from replicas.cli.dashboard.thinning import Thinned

#: Changes of state, of all lanes together.
CHANGES_MAX: Final = 40_000
#: Points of the curves: all of the last while, and so many of all before.
POINTS: Final = (1_200, 2_400)
#: The same of frames, and what all of them may need, compressed; beyond, there are half as many.
FRAMES: Final = (600, 1_200)
FRAMES_BYTES: Final = 32 << 20
#: Of recoveries that are over.
RECOVERIES_MAX: Final = 200
#: Fields of a point: its time, results per second, the largest share of X in use, replicas that are not STABLE.
POINT: Final = ("at", "stable", "tentative", "x", "unstable")
_GOOD: Final = ("STABLE", "stands by")
_BEGINS: Final = ("starting", "RECOVERING")


class Timeline:
    """Takes frames (replicas.cli.dashboard.frame) as they are made."""

    def __init__(self) -> None:
        #: lane -> [(time, state)]: a lane is ``replica``, ``output`` or ``process``, with a name.
        self._lanes: dict[tuple[str, str], list[tuple[int, str]]] = {}
        self._count = 0
        self._points: Thinned[list[float]] = Thinned(*POINTS, _one_of_two)
        #: The first of two frames stays.
        self._frames: Thinned[tuple[int, bytes]] = Thinned(*FRAMES, lambda first, second: first)
        #: Of replicas that are not back yet: since when, and since when they are installing.
        self._down: dict[str, dict[str, Any]] = {}
        #: Replicas that have been there: for others it is no recovery.
        self._served: set[str] = set()
        self._recoveries: list[dict[str, Any]] = []
        #: Grows with everything that is kept.
        self.version = 0

    def take(self, layout: Mapping[str, Any], columns: Mapping[str, Any], frame: Mapping[str, Any]) -> None:
        """Takes the next frame."""
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
            if (one := self._down.pop(name, None)) is not None:
                self._recoveries.append({**one, "ended": at, "expected": expected_us})
                del self._recoveries[:-RECOVERIES_MAX]
        elif name in self._served and (state in _BEGINS or state.islower()):
            one = self._down.setdefault(name, {"replica": name, "began": at, "installing": None, "expected": None})
            if state in _BEGINS:
                one["installing"] = one["installing"] or at

    def _change(self, at: int, lane: tuple[str, str], state: str) -> None:
        changes = self._lanes.setdefault(lane, [])
        if not changes or changes[-1][1] != state:
            changes.append((at, state))
            self._count += 1
            if self._count > CHANGES_MAX:
                self._forget()

    def _forget(self) -> None:
        """The older half of each lane goes; what it was in last stays."""
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

    # --- what the page asks for ---

    def since(self, after: int) -> dict[str, Any]:
        """What happened after a time; the state that each lane was in then is in it as well."""
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
        """Replicas that are not back, and those that came back."""
        return [*({**one, "ended": None} for one in self._down.values()), *reversed(self._recoveries)]

    def frame_at(self, at: int) -> bytes | None:
        """The frame that was the latest at a time, as JSON; the first one where there was none yet."""
        frames = list(self._frames)
        if not frames:
            return None
        return zlib.decompress(frames[max(0, bisect_right(frames, at, key=lambda one: one[0]) - 1)][1])


def _one_of_two(a: list[float], b: list[float]) -> list[float]:
    """Of two points: rates in the mean, peaks as they are."""
    return [a[0], *((p + q) / 2 for p, q in zip(a[1:3], b[1:3])), *map(max, a[3:], b[3:])]


def encode(data: Any) -> str:
    """JSON, short; numbers that JSON does not have are errors."""
    return json.dumps(data, separators=(",", ":"), allow_nan=False, default=str)
