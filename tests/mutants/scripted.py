"""Hand-made scenarios of situations that random ones seldom have: long failures, switches between replicas, ties."""

from __future__ import annotations

from typing import Any

from replicas.simulation.scenarios.scenario import VERSION, Scenario

_CONFIG: dict[str, Any] = {
    "cluster": "scripted",
    "bucket": "40ms",
    "defaults": {"x": "1s", "alpha": 0.6, "policy": "process"},
    "nodes": ["n1a", "n1b", "n2a", "n2b"],
    "sources": {
        # Equal times on all sources: the number of the input breaks ties.
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


#: Every tuple is passed on unchanged, so that a duplicate is seen.
_TUPLES: dict[str, Any] = {
    "cluster": "scripted",
    "bucket": "100ms",
    "defaults": {"x": "2s", "alpha": 0.6, "policy": "process"},
    "nodes": ["n1a", "n1b", "n2"],
    "sources": {
        name: {
            "boundary": "100ms",
            "from": {"generator": {"name": "orders", "rate": rate, "keys": 5, "seed": seed, "duration": "18s"}},
        }
        for seed, (name, rate) in enumerate({"a": 40, "b": 40, "c": 40}.items())
    },
    "query": {
        "all": {"union": {"from": ["a", "b", "c"]}},
        "same": {"map": {"from": "all", "compute": {"key": "key", "price": "price", "qty": "qty"}}},
    },
    "outputs": ["same"],
    "fragments": {
        "f1": {"operators": ["all"], "replicas": ["n1a", "n1b"]},
        "f2": {"operators": ["same"], "replicas": ["n2"]},
    },
    "clients": {"client": {"reads": ["same"]}},
}


def _with(base: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """A configuration with other values; mappings are merged."""
    merged = {
        k: _with(base[k], **v) if isinstance(v, dict) and isinstance(base.get(k), dict) else v
        for k, v in changes.items()
    }
    return {**base, **merged}


#: Two replicas of one unit, and a short X, so that long steps make results late.
_SOON: dict[str, Any] = {
    **_TUPLES,
    "bucket": "40ms",
    "defaults": {"x": "500ms", "alpha": 0.6, "policy": "process"},
    "nodes": ["n1a", "n1b"],
    "sources": {
        name: {
            "boundary": "40ms",
            "from": {"generator": {"name": "orders", "rate": 40, "keys": 5, "seed": seed, "duration": "18s"}},
        }
        for seed, name in enumerate("abc")
    },
    "fragments": {"f": {"operators": ["all", "same"], "replicas": ["n1a", "n1b"]}},
}
#: The first of two units lags behind its partner.
_SLOWLY_READ = _with(
    _SOON,
    defaults={"x": "1s", "alpha": 0.9},
    nodes=["n1a", "n1b", "n2"],
    sources={name: {"from": {"generator": {"rate": 50}}} for name in "abc"},
)
_SLOWLY_READ["fragments"] = {
    "f1": {"operators": ["all"], "replicas": ["n1a", "n1b"]},
    "f2": {"operators": ["same"], "replicas": ["n2"]},
}
_ALONE = _with(
    _TUPLES,
    nodes=["n1a", "n2"],
    fragments={"f1": {"operators": ["all"], "replicas": ["n1a"]}, "f2": {"operators": ["same"], "replicas": ["n2"]}},
)
#: Silence is noticed late, so seconds pass between a heal and the next failure.
_PATIENT = _with(
    _ALONE,
    defaults={"x": "5s"},
    sources={name: {"boundary": "500ms"} for name in "abc"},
)
_DELAYS = _with(_TUPLES, nodes={"n1a": {}, "n1b": {}, "n2": {"policy": "delay", "x": "6s"}})
_PERIODIC = _with(_CONFIG, defaults={"checkpoint": {"every": "4s"}})
#: A join whose inputs come in bursts, each matching the one before, beside a steady stream; with undo/redo.
_BURSTS: dict[str, Any] = {
    "cluster": "scripted",
    "bucket": "100ms",
    "defaults": {"x": "2s", "alpha": 0.6, "policy": "process", "reconcile": "undo"},
    "nodes": ["n1a", "n1b"],
    "sources": {
        name: {
            "boundary": "100ms",
            "from": {
                "generator": {"name": "orders", "rate": 10, "keys": 5, "seed": seed, "duration": "18s", **bursts},
            },
        }
        for seed, (name, bursts) in enumerate({"a": {"burst": "2s"}, "b": {"burst": "2s"}, "c": {}}.items())
    },
    "query": {
        "pairs": {"join": {"left": "a", "right": "b", "kind": "inner", "on": "key", "within": ["-3s", "3s"]}},
        "numbers": {"map": {"from": "pairs", "compute": {"key": "l_key", "qty": "l_qty + 100 * r_qty"}}},
        "others": {"map": {"from": "c", "compute": {"key": "key", "qty": "qty"}}},
        "all": {"union": {"from": ["numbers", "others"]}},
    },
    "outputs": ["all"],
    "fragments": {"f": {"operators": ["pairs", "numbers", "others", "all"], "replicas": ["n1a", "n1b"]}},
    "clients": {"client": {"reads": ["all"]}},
}
#: An order of one source matches about one of the other.
_SELDOM: dict[str, Any] = {
    **_BURSTS,
    "sources": {
        name: {
            "boundary": "100ms",
            "from": {"generator": {"name": "orders", "rate": 50, "keys": 100, "seed": seed, "duration": "18s"}},
        }
        for seed, name in enumerate("ab")
    },
    "query": {"pairs": {"join": {"left": "a", "right": "b", "kind": "left", "on": "key", "within": ["-1s", "1s"]}}},
    "outputs": ["pairs"],
    "fragments": {"f": {"operators": ["pairs"], "replicas": ["n1a", "n1b"]}},
    "clients": {"client": {"reads": ["pairs"]}},
}
_ON_DISK = _with(_ALONE, defaults={"checkpoint": {"every": "2s", "disk": True}})
#: All tuples of a source are out of order, within its disorder.
_UNSORTED = _with(
    _TUPLES,
    sources={
        "a": {
            "disorder": "500ms",
            "from": {
                "generator": {
                    "name": "orders",
                    "rate": 60,
                    "disorder": "500ms",
                    "keys": 5,
                    "seed": 7,
                    "duration": "18s",
                }
            },
        }
    },
)


def _late(*faults: dict[str, Any]) -> list[dict[str, Any]]:
    """An input becomes slower and buffers are small, so stabilization takes long, beside live data."""
    slow = {"kind": "slow", "from": "source:b", "to": "all", "bytes_per_second": 1500, "for": "12s"}
    return [{"at": "2s", **slow}, *faults]


#: Each partition on one node, with a standby on another.
_BACKED = _with(
    _TUPLES,
    nodes=["n1a", "n1b", "n2a", "n2b"],
    fragments={
        "f1": {"operators": ["all"], "replicas": ["n1a"], "standby": ["n1b"], "checkpoint": "500ms"},
        "f2": {"operators": ["same"], "replicas": ["n2a"], "standby": ["n2b"], "checkpoint": "500ms"},
    },
)
#: Lasts until a late order has arrived.
_COORDINATED = _with(_BACKED, sources={name: {"from": {"generator": {"duration": "24s"}}} for name in "abc"})
#: Two unreplicated partitions, one of which may have an active standby: first the one that reads more, later the other.
_RATES: dict[str, Any] = {
    "cluster": "scripted",
    "bucket": "100ms",
    "defaults": {"x": "2s", "alpha": 0.6},
    "nodes": ["n1", "n2", "n3", "n4", "n5"],
    "sources": {
        name: {
            "boundary": "100ms",
            "from": {"generator": {"name": "sequence", "rate": rate, "seed": seed, "duration": "18s"}},
        }
        for seed, (name, rate) in enumerate({"a": 60, "b": 100}.items())
    },
    "query": {
        "all_of_a": {"filter": {"from": "a", "where": "n >= 0"}},
        "some_of_b": {"filter": {"from": "b", "where": "n % 10 = 0"}},
        "both": {"union": {"from": ["all_of_a", "some_of_b"]}},
    },
    "outputs": ["both"],
    "fragments": {
        "fa": {"operators": ["all_of_a"], "replicas": ["n1"], "standby": ["n3"], "checkpoint": "1s"},
        "fb": {"operators": ["some_of_b"], "replicas": ["n2"], "standby": ["n3"], "checkpoint": "1s"},
        "fc": {"operators": ["both"], "replicas": ["n4", "n5"]},
    },
    "clients": {"client": {"reads": ["both"]}},
    "coordinator": {"budget": 1, "adapt": "2s", "margin": 0.2},
}
#: Divided by one key throughout: four partitions, then two, then two again.
_DIVIDED = _with(
    _TUPLES,
    nodes=["n1", "n2", "n3"],
    query={
        "again": {"map": {"from": "same", "compute": {"key": "key", "price": "price", "qty": "2 * qty"}}},
    },
    outputs=["again"],
    fragments={
        "f1": {"operators": ["all"], "replicas": [["n1"]] * 4, "partitions": 4, "key": dict.fromkeys("abc", "key")},
        "f2": {"operators": ["same"], "replicas": [["n2"]] * 2, "partitions": 2, "key": {"all": "key"}},
        "f3": {"operators": ["again"], "replicas": [["n3"]] * 2, "partitions": 2, "key": {"same": "key"}},
    },
    clients={"client": {"reads": ["again"]}},
)
_LITTLE = {"limits": {"input_bytes": 6_000}}
_MORE: dict[str, tuple[dict[str, Any], dict[str, Any], list[dict[str, Any]]]] = {
    "what comes back is old": (
        _PATIENT,
        {},
        [
            {"at": "2s", "kind": "cut", "target": "source:b", "for": "5s"},
            {"at": "5500ms", "kind": "stall", "target": "source:b", "for": "6s"},
        ],
    ),
    "late": (_TUPLES, _LITTLE, _late()),
    "late, and the consumer freezes": (
        _TUPLES,
        _LITTLE,
        _late(*({"at": f"{at}s", "kind": "freeze", "target": "n2", "for": "2500ms"} for at in (6,))),
    ),
    "a slow correction is taken over": (
        _DELAYS,
        {"limits": {"slice_rows": 10}, "turn_us": 60_000},
        [
            {"at": "3s", "kind": "cut", "target": "source:b", "for": "7s"},
            {"at": "10550ms", "kind": "freeze", "target": "n1a", "for": "1500ms"},
        ],
    ),
    "one replica fails, then the other": (
        _TUPLES,
        {},
        [
            {"at": "3s", "kind": "cut", "from": "source:b", "to": "n1a", "for": "6s"},
            {"at": "11s", "kind": "cut", "from": "source:b", "to": "n1b", "for": "6s"},
        ],
    ),
    "kills beside a failure": (
        _TUPLES,
        {},
        [
            {"at": "3s", "kind": "cut", "target": "source:b", "for": "5s"},
            {"at": "6s", "kind": "kill", "target": "n1a", "for": "1s"},
            {"at": "12s", "kind": "kill", "target": "n1b", "for": "1s"},
        ],
    ),
    "connections become half open": (
        _ALONE,
        {},
        [
            {"at": f"{at}s", "kind": "half-open", "from": a, "to": b}
            for at, (a, b) in enumerate([("source:a", "n1a"), ("n1a", "n2"), ("n2", "client:client")] * 4, start=3)
        ],
    ),
    "kills where a source is unsorted": (
        _UNSORTED,
        {},
        [
            {"at": f"{at}ms", "kind": "kill", "target": node, "for": "1s"}
            for at, node in ((4020, "n1a"), (7270, "n1b"), (10520, "n1a"), (13830, "n1b"))
        ],
    ),
    "failures beside periodic checkpoints": (
        _PERIODIC,
        {},
        [
            {"at": "3s", "kind": "cut", "target": "source:b", "for": "4s"},
            {"at": "10s", "kind": "cut", "target": "source:a", "for": "3s"},
        ],
    ),
    "a join sees only time pass": (
        _BURSTS,
        {},
        [{"at": "3s", "kind": "cut", "target": ["source:a", "source:b"], "for": "6s"}],
    ),
    "an outer join is made again": (
        _SELDOM,
        {},
        [{"at": f"{at}s", "kind": "cut", "target": "source:b", "for": "3s"} for at in (3, 9)],
    ),
    # Its snapshot is requested between the beginning of the redo and its first slice.
    "one restarts as the other begins to correct": (
        _with(
            _SELDOM,
            defaults={"checkpoint": {"every": "4s"}, "reconcile": "checkpoint"},
            query={"pairs": {"join": {"within": ["-2s", "2s"]}}},
        ),
        {"turn_us": 300_000},
        [
            {"at": "6s", "kind": "cut", "target": "source:b", "for": "3s"},
            {"at": "7s", "kind": "kill", "target": "n1b", "for": "2700ms"},
        ],
    ),
    "everybody dies, and has a checkpoint": (
        _ON_DISK,
        {"unlimited": True},
        [
            {"at": "5500ms", "kind": "kill", "target": "n1a", "for": "1s"},
            {"at": "11500ms", "kind": "kill", "target": "n2", "for": "1s"},
        ],
    ),
    "both feeds of a lone replica wait": (
        _ALONE,
        {"limits": {"slice_rows": 10}, "turn_us": 20_000},
        [
            {"at": "3s", "kind": "cut", "target": "source:b", "for": "7s"},
            {"at": "10300ms", "kind": "freeze", "target": "n2", "for": "2s"},
        ],
    ),
    "neighbours that run alone die": (
        _BACKED,
        {},
        [
            {"at": "5s", "kind": "kill", "target": "n1a", "for": "4s"},
            {"at": "5s", "kind": "kill", "target": "n2a", "for": "4s"},
            {"at": "12s", "kind": "power", "target": "n2a", "for": "1s"},
            {"at": "16s", "kind": "restart", "target": "n2a"},
        ],
    ),
    "all that a standby holds is damaged": (
        _BACKED,
        {},
        [
            *({"at": "6s", "kind": "flip", "target": "n2b"} for _ in range(16)),
            {"at": "6100ms", "kind": "kill", "target": "n2a", "for": "8s"},
        ],
    ),
    "the newest checkpoint is damaged": (
        _BACKED,
        {},
        [
            {"at": "6s", "kind": "flip", "target": "n2b"},
            {"at": "6s", "kind": "kill", "target": "n2a", "for": "8s"},
        ],
    ),
    "an order comes from the past": (
        _COORDINATED,
        {},
        [
            {"at": "4s", "kind": "kill", "target": "n1a", "for": "1500ms"},
            {"at": "4s", "kind": "delay", "from": "coordinator", "to": "n1b", "by": "9s", "one_way": True, "for": "1s"},
            {"at": "4700ms", "kind": "restart", "target": "coordinator"},
            {"at": "7s", "kind": "kill", "target": "n1a", "for": "2s"},
        ],
    ),
    "a standby reads everything again, and slowly": (
        _with(_BACKED, defaults={"x": "1s"}, fragments={"f2": {"checkpoint": "8s"}}),
        {"limits": {"slice_rows": 10}, "turn_us": 25_000},
        [
            {"at": "7800ms", "kind": "kill", "target": "n2a", "for": "9500ms"},
            # The time to restore a partition is judged only where all processes hear the coordinator.
            {"at": "7800ms", "kind": "cut", "from": "coordinator", "to": "source:a", "for": "9500ms"},
        ],
    ),
    "rates are others than was thought": (_RATES, {}, []),
    "divided by one key": (_DIVIDED, {}, [{"at": "5s", "kind": "cut", "target": "source:b", "for": "3s"}]),
    "one replica has nothing, the other one most": (
        _SOON,
        {},
        [
            {"at": "3s", "kind": "cut", "from": ["source:a", "source:b", "source:c"], "to": "n1a", "for": "12s"},
            {"at": "3s", "kind": "cut", "from": "source:b", "to": "n1b", "for": "12s"},
        ],
    ),
    "one replica has nothing, the other one corrects": (
        _SOON,
        {"limits": {"slice_rows": 4}, "turn_us": 25_000},
        [
            {"at": "2s", "kind": "cut", "from": "source:b", "to": "n1b", "for": "9s"},
            {"at": "2400ms", "kind": "cut", "from": ["source:a", "source:b", "source:c"], "to": "n1a", "for": "15s"},
        ],
    ),
    "one of those that begin anew lags": (
        _SLOWLY_READ,
        {"limits": {"slice_rows": 4}, "turn_us": 5_000, "unlimited": True},
        [
            {"at": "0s", "kind": "delay", "from": ["source:a", "source:b", "source:c"], "to": "n1a", "by": "150ms"},
            {"at": "50ms", "kind": "kill", "target": ["n1a", "n2"], "for": "5s"},
            {"at": "50ms", "kind": "kill", "target": "n1b", "for": "7s"},
        ],
    ),
    "redo passes what live holds back": (
        _with(_SOON, defaults={"x": "1s", "alpha": 0.9, "policy": "delay"}),
        {"limits": {"slice_rows": 4}, "turn_us": 25_000},
        [
            {"at": "1s", "kind": "kill", "target": "n1b", "for": "16s"},
            {"at": "2s", "kind": "cut", "target": "source:b", "for": "8s"},
        ],
    ),
    "a partition moves to where the budget has it run": (
        {**_RATES, "coordinator": {"budget": 1}},
        {"moves": [{"at_us": 5_000_000, "partition": "fb/0", "source": "n2", "target": "n3"}]},
        [],
    ),
}


#: The scenario that kills a mutant without its own case.
KILLS: dict[str, str] = {
    "useless-partner-grants": "one replica has nothing, the other one corrects",
    "caught-up-with-the-furthest": "one of those that begin anew lags",
    "live-lacks-what-redo-took": "redo passes what live holds back",
    "duplicates-kept": "both feeds of a lone replica wait",
    "frontier-of-the-fastest": "what comes back is old",
    "clocks-start-anew": "a long failure of one input",
    "undo-forgotten-by-the-input": "what comes back is old",
    "tentative-beside-stable": "a slow correction is taken over",
    "no-cut-at-a-switch": "a slow correction is taken over",
    "acknowledged-on-arrival": "kills beside a failure",
    "acknowledged-before-it-is-durable": "everybody dies, and has a checkpoint",
    "boundary-before-its-tuples": "everybody dies, and has a checkpoint",
    "released-forgotten": "failures beside periodic checkpoints",
    "redo-runs-ahead": "late, and the consumer freezes",
    "redo-leaves-out-what-the-checkpoint-lacks": "one restarts as the other begins to correct",
    "join-stays-where-it-forgot": "a join sees only time pass",
    "marks-of-gone-rows-forgotten": "an outer join is made again",
    "redo-too-early": "one replica fails, then the other",
    "forced-rec-done-after-forced-rec-done": "late",
    "stale-generation-accepted": "late, and the consumer freezes",
    "half-open-for-ever": "connections become half open",
    "never-switches": "one replica fails, then the other",
    "no-skip-after-an-install": "kills where a source is unsorted",
    "sends-before-sync": "everybody dies, and has a checkpoint",
    "client-ignores-undo": "what comes back is old",
    "standby-acknowledges-what-it-lacks": "neighbours that run alone die",
    "nobody-takes-over": "neighbours that run alone die",
    "recovering-counts-as-served": "neighbours that run alone die",
    "standby-acknowledges-its-newest": "the newest checkpoint is damaged",
    "begins-from-nothing-in-any-case": "all that a standby holds is damaged",
    "helper-serves-before-it-has-caught-up": "a standby reads everything again, and slowly",
    "order-of-the-past-followed": "an order comes from the past",
    "old-active-goes-first": "rates are others than was thought",
    "moves-onto-the-chosen-standby-never-end": "a partition moves to where the budget has it run",
    "helpers-never-leave": "neighbours that run alone die",
    "nobody-begins-anew": "all that a standby holds is damaged",
    "range-of-the-neighbour": "divided by one key",
    "last-of-a-range-left-out": "divided by one key",
}


#: Orders of tasks that kill at once.
_SEEDS = {"both feeds of a lone replica wait": 4}


def scripted() -> dict[str, Scenario]:
    """All of them, by name."""
    shared = {"version": VERSION, "heal_us": 18_000_000, "grace_us": 20_000_000}
    data = {"version": VERSION, "config": _CONFIG, "heal_us": 15_000_000, "grace_us": 20_000_000}
    made = {
        name: Scenario.from_data({**data, "seed": seed, "faults": faults})
        for seed, (name, faults) in enumerate(_FAULTS.items())
    }
    for seed, (name, (config, options, faults)) in enumerate(_MORE.items()):
        made[name] = Scenario.from_data(
            {**shared, "seed": _SEEDS.get(name, seed), "config": config, "options": options, "faults": faults}
        )
    return made
