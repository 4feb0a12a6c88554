"""Scenarios for situations that random ones seldom have: faults of a replica that corrects or restarts."""

from __future__ import annotations

from typing import Any, Final

from replicas.cli.campaigns.cases import read_case
from replicas.simulation.scenarios.scenario import Scenario
from tests.support.regressions import FOLDER

#: Two units of two replicas each: the first merges, the second counts.
CONFIG: Final[dict[str, Any]] = {
    "cluster": "seldom",
    "bucket": "40ms",
    "defaults": {"x": "1s", "alpha": 0.6, "policy": "process"},
    "nodes": ["n1a", "n1b", "n2a", "n2b"],
    "sources": {
        name: {
            "boundary": "40ms",
            "from": {"generator": {"name": "orders", "rate": 50, "keys": 5, "seed": seed, "duration": "24s"}},
        }
        for seed, name in enumerate("ab")
    },
    "query": {
        "all": {"union": {"from": ["a", "b"]}},
        "sums": {
            "aggregate": {
                "from": "all",
                "window": {"tumbling": "200ms"},
                "group_by": "key",
                "compute": {"n": "sum(qty)"},
            }
        },
    },
    "outputs": ["sums"],
    "fragments": {
        "f1": {"operators": ["all"], "replicas": ["n1a", "n1b"]},
        "f2": {"operators": ["sums"], "replicas": ["n2a", "n2b"]},
    },
    "clients": {"client": {"reads": ["sums"]}},
}
#: Regressions with a situation that small configurations seldom have: a STABLE replica whose main feed is corrected.
_KEPT: Final = ("a-frozen-consumer-reads-an-old-rec-done-late",)
#: Corrections last a while.
_SLOW: Final = {"limits": {"slice_rows": 10}, "turn_us": 20_000}


def _cut(at: float, seconds: float = 2.5, source: str = "source:b") -> dict[str, Any]:
    return {"at": f"{at}s", "kind": "cut", "target": source, "for": f"{seconds}s"}


def _befalls(at: float, kind: str, seconds: float = 0.0) -> dict[str, Any]:
    """A fault of the first replica that corrects from then on."""
    lasts = {"for": f"{seconds}s"} if seconds else {}
    return {"at": f"{at}s", "kind": kind, "target": "state:STABILIZATION", **lasts}


_FAULTS: Final[dict[str, list[dict[str, Any]]]] = {
    "killed, cut off and cut off again while it corrects": [
        _cut(3),
        _befalls(5.4, "kill", 1),
        _cut(9),
        _befalls(11.4, "cut", 1),
        _cut(15),
        _cut(17.8, 2),
    ],
    "frozen, without power and half open while it corrects": [
        _cut(3),
        _befalls(5.4, "freeze", 1),
        _cut(9),
        _befalls(11.4, "power", 1),
        _cut(15),
        _befalls(17.4, "half-open"),
    ],
    "dies again, and loses its input, while it begins anew": [
        {"at": "3s", "kind": "cut", "from": "source:b", "to": "all", "for": "8s"},
        {"at": "5s", "kind": "kill", "target": "n1a", "for": "1s"},
        {"at": "6020ms", "kind": "kill", "target": "n1a", "for": "1s"},
        {"at": "7500ms", "kind": "reset", "from": "source:a", "to": "n1a"},
        {"at": "8s", "kind": "kill", "target": "n2a", "for": "1s"},
        {"at": "9040ms", "kind": "power", "target": "n2a", "for": "1s"},
        _cut(14, 4),
        {"at": "15500ms", "kind": "freeze", "target": "state:UP_FAILURE", "for": "500ms"},
        {"at": "16500ms", "kind": "power", "target": "state:UP_FAILURE", "for": "1s"},
    ],
}
#: Nodes with different settings.
_MIXED: Final = {
    "n1a": {"x": "1500ms", "reconcile": "undo", "checkpoint": {"every": "3s"}},
    "n1b": {},
    "n2a": {"policy": "delay"},
    "n2b": {},
}
_LASTING: Final[list[dict[str, Any]]] = [
    {"at": "2s", "kind": "kill", "target": "n2b"},
    {"at": "3s", "kind": "cut", "from": "n1a", "to": "source:a", "one_way": True, "for": "16s"},
]
#: Faulty disks that hold checkpoints.
_ON_DISK: Final[dict[str, Any]] = {
    **CONFIG,
    "defaults": {**CONFIG["defaults"], "checkpoint": {"every": "300ms", "disk": True}},
}
#: A source of extreme values.
_EXTREMES: Final[dict[str, Any]] = {
    "boundary": "40ms",
    "schema": {"ts": "timestamp!", "key": "int64", "qty": "int64", "price": "float64"},
    "time": "ts",
    "from": {"generator": {"name": "rows", "rate": 50, "keys": 5, "seed": 9, "duration": "24s", "extremes": 0.2}},
}
_OF_EXTREMES: Final[dict[str, Any]] = {
    **_ON_DISK,
    "clients": {"client": {"reads": ["sums"], "sinks": [{"jsonl": "a"}, {"jsonl": "b", "mode": "corrections"}]}},
    "sources": dict.fromkeys("ab", _EXTREMES),
    "query": {
        "all": {"union": {"from": ["a", "b"]}},
        "sums": {
            "aggregate": {
                "from": "all",
                "window": {"tumbling": "200ms"},
                "group_by": "key",
                "compute": {"n": "sum(qty)", "least": "min(price)", "most": "max(qty)", "mean": "avg(price)"},
            }
        },
    },
}
#: Nodes and a client that restart with another plan, or only other limits and timing.
_REPLANNED: Final[list[dict[str, Any]]] = [
    {"at": "12s", "kind": "replan", "target": "n1a", "change": "query", "for": "1s"},
    {"at": "14s", "kind": "replan", "target": "client:client", "change": "bucket", "for": "1s"},
    {"at": "16s", "kind": "replan", "target": "n2a", "change": "limits", "for": "1s"},
    {"at": "18s", "kind": "replan", "target": "n2b", "change": "timing", "for": "1s"},
    {"at": "19500ms", "kind": "replan", "target": "n1a", "change": "checkpoints", "for": "1s"},
    {"at": "20s", "kind": "power", "target": "client:client", "for": "500ms"},
]
_DISKS: Final[list[dict[str, Any]]] = [
    {"at": "2s", "kind": "slow-disk", "target": ["n1a", "source:a"], "by": "50ms", "for": "4s"},
    {"at": "3s", "kind": "lie", "target": "n1b", "for": "4s"},
    {"at": "6s", "kind": "power", "target": "n1b", "for": "1s"},
    {"at": "9s", "kind": "wipe", "target": "n2a", "for": "1s"},
]


def seldom() -> dict[str, Scenario]:
    """All of them, by name."""
    shared = {"version": 1, "config": CONFIG, "options": _SLOW, "heal_us": 22_000_000, "grace_us": 20_000_000}
    made = {
        name: Scenario.from_data({**shared, "seed": seed, "faults": faults})
        for seed, (name, faults) in enumerate(_FAULTS.items())
    }
    made["nodes that differ, one of them left dead, and a link cut one way for long"] = Scenario.from_data(
        {
            **shared,
            "config": {**CONFIG, "nodes": _MIXED},
            "options": {**_SLOW, "state_ns": 20_000},
            "seed": len(made),
            "faults": _LASTING,
        }
    )
    made["extreme values, disks that are slow, lie, and are lost, and other plans"] = Scenario.from_data(
        {**shared, "config": _OF_EXTREMES, "seed": len(made), "faults": [*_DISKS, *_REPLANNED]}
    )
    return made | {name: read_case(FOLDER / f"{name}.json") for name in _KEPT}
