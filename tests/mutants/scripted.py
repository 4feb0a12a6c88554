"""Scenarios made by hand for what random ones seldom meet: long failures, switches between diverged replicas, ties."""

from __future__ import annotations

from typing import Any

from replicas.simulation.scenario import Scenario

_CONFIG: dict[str, Any] = {
    "cluster": "scripted",
    "bucket": "40ms",
    "defaults": {"x": "1s", "alpha": 0.6, "policy": "process"},
    "nodes": ["n1a", "n1b", "n2a", "n2b"],
    "sources": {
        # The same times on all: ties are settled by the input's number.
        name: {
            "boundary": "40ms",
            "from": {"generator": {"name": "orders", "rate": rate, "keys": 5, "seed": seed, "duration": "18s"}},
        }
        for seed, (name, rate) in enumerate({"a": 50, "b": 50, "c": 2}.items())
    },
    "query": {
        "all": {"union": {"from": ["a", "b", "c"]}},
        "sums": {
            "aggregate": {
                "from": "all",
                "window": "200ms",
                "group_by": "key",
                "compute": {"n": "sum(qty)", "first": "first(price)"},
            }
        },
        "tens": {"aggregate": {"from": "sums", "window": {"count": 5}, "group_by": "key", "compute": {"n": "sum(n)"}}},
    },
    "outputs": ["sums", "tens"],
    "fragments": {
        "f1": {"operators": ["all", "sums"], "replicas": ["n1a", "n1b"]},
        "f2": {"operators": ["tens"], "replicas": ["n2a", "n2b"]},
    },
    "clients": {"client": {"reads": ["sums", "tens"]}},
}

_FAULTS: dict[str, list[dict[str, Any]]] = {
    "a long failure of one input": [{"at": "3s", "kind": "cut", "target": "source:b", "for": "8s"}],
    "inputs that freeze": [{"at": "3s", "kind": "freeze", "target": ["source:b", "source:c"], "for": "7s"}],
    "a switch between diverged replicas": [
        {"at": "3s", "kind": "cut", "from": "source:b", "to": "n1a", "for": "9s"},
        {"at": "4s", "kind": "cut", "from": "source:c", "to": "n1b", "for": "8s"},
        {"at": "7s", "kind": "cut", "from": "n1a", "to": "all", "for": "1500ms"},
        {"at": "9s", "kind": "cut", "from": "n1b", "to": "all", "for": "1500ms"},
    ],
    "fails again while it corrects": [
        {"at": "3s", "kind": "cut", "target": "source:b", "for": "3s"},
        {"at": "6100ms", "kind": "cut", "target": "source:a", "for": "3s"},
        {"at": "8s", "kind": "cut", "target": "source:b", "for": "3s"},
    ],
    "kills in turn beside a failure": [
        {"at": "3s", "kind": "cut", "target": "source:c", "for": "6s"},
        {"at": "5s", "kind": "kill", "target": "n1a", "for": "1s"},
        {"at": "7500ms", "kind": "kill", "target": "n1b", "for": "1s"},
        {"at": "10s", "kind": "kill", "target": "n2a", "for": "2s"},
        {"at": "14s", "kind": "kill", "target": "n2b", "for": "500ms"},
    ],
    "frozen replicas wake": [
        {"at": "3s", "kind": "freeze", "target": "n1a", "for": "3s"},
        {"at": "7s", "kind": "freeze", "target": "reads:client", "for": "4s"},
        {"at": "12s", "kind": "kill", "target": "source:a", "for": "1s"},
    ],
    "sources lose power": [
        {"at": "3s", "kind": "power", "target": "source:a", "for": "1s"},
        {"at": "6s", "kind": "stall", "target": "source:b", "for": "500ms"},
        {"at": "6300ms", "kind": "power", "target": "source:b", "for": "1s"},
        {"at": "10s", "kind": "power", "target": "source:c", "for": "1s"},
    ],
    "a consumer is away": [
        {"at": "3s", "kind": "kill", "target": "n2a", "for": "3s"},
        {"at": "5s", "kind": "cut", "from": "n2b", "to": "client:client", "for": "4s"},
        {"at": "10s", "kind": "kill", "target": "n2b", "for": "1s"},
        {"at": "11500ms", "kind": "kill", "target": "n1a", "for": "1s"},
    ],
}


def scripted() -> dict[str, Scenario]:
    """All of them, by name."""
    data = {"config": _CONFIG, "heal_us": 15_000_000, "grace_us": 20_000_000}
    return {
        name: Scenario.from_data({**data, "seed": seed, "faults": faults})
        for seed, (name, faults) in enumerate(_FAULTS.items())
    }
