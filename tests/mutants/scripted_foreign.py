"""Hand-made scenarios for :mod:`tests.mutants.foreign`."""

from __future__ import annotations

from typing import Any, Final

from tests.mutants.scripted import _BACKED, _CONFIG, _ON_DISK, _RATES, _SOON, _TUPLES, _with

Parts = tuple[dict[str, Any], dict[str, Any], list[dict[str, Any]]]

#: Each step of a correction takes a while.
_SLOWLY: dict[str, Any] = {"limits": {"slice_rows": 10}, "turn_us": 60_000}
_THREE = _with(_TUPLES, nodes=["n1a", "n1b", "n1c", "n2"], fragments={"f1": {"replicas": ["n1a", "n1b", "n1c"]}})
_FAR_APART = _with(_TUPLES, nodes={"n1a": {"x": "800ms"}, "n1b": {"x": "3s"}, "n2": {"policy": "delay", "x": "6s"}})
#: A unit of two replicas with one working input from a node, and one failed input.
_TWO_LEVELS = _with(
    _TUPLES,
    nodes=["n1a", "n2a", "n2b"],
    query={
        "all": {"union": {"from": ["a", "b"]}},
        "same": {"union": {"from": ["all", "c"]}},
    },
    fragments={"f1": {"replicas": ["n1a"]}, "f2": {"replicas": ["n2a", "n2b"]}},
)
del _TWO_LEVELS["query"]["same"]["map"]


def _lasting(config: dict[str, Any], length: str) -> dict[str, Any]:
    """A configuration whose sources end sooner."""
    return _with(config, sources={name: {"from": {"generator": {"duration": length}}} for name in "abc"})


#: The second unit waits for a source with rare boundaries, so it holds tentative rows of the first one.
_RARE = _with(
    _TUPLES,
    query={"all": {"union": {"from": ["a", "b"]}}, "same": {"union": {"from": ["all", "c"]}}},
    sources={"c": {"boundary": "500ms", "from": {"generator": {"rate": 2}}}},
)
del _RARE["query"]["same"]["map"]
_PAIR: dict[str, Any] = {
    **_TUPLES,
    "nodes": ["n1a", "n1b"],
    "fragments": {"f": {"operators": ["all", "same"], "replicas": ["n1a", "n1b"]}},
}
#: Links are slow, and αX has room for a freeze or for the time of a connection, but not for both.
_ONE: dict[str, Any] = {
    **_with(_SOON, defaults={"x": "1350ms"}),
    "nodes": ["n1"],
    "fragments": {"f": {"operators": ["all", "same"], "replicas": ["n1"]}},
}
#: A standby can get the state of either of two replicas; its input is not from sources, so it is truncated.
_TWO_MAKERS: dict[str, Any] = {
    **_with(_TUPLES, defaults={"x": "1s"}),
    "nodes": ["n1", "n2a", "n2b", "n3"],
    "fragments": {
        "f1": {"operators": ["all"], "replicas": ["n1"]},
        "f2": {"operators": ["same"], "replicas": ["n2a", "n2b"], "standby": ["n3"], "checkpoint": "2s"},
    },
}
#: The first rows of a window wait for long, and are read in the order of arrival.
_FIRSTS = _with(
    _CONFIG,
    query={
        "sums": {"aggregate": {"window": "2s"}},
        "tens": {"aggregate": {"compute": {"n": "first(n)", "m": "last(n)"}}},
    },
)


def _cut(source: str, at: str, length: str, to: str | list[str] = "all") -> dict[str, Any]:
    return {"at": at, "kind": "cut", "from": f"source:{source}", "to": to, "for": length}


def _kill(node: str, at: str, length: str) -> dict[str, Any]:
    return {"at": at, "kind": "kill", "target": node, "for": length}


#: Nodes are told of another X while they run.
_TOLD: dict[str, Any] = {
    **_with(_TUPLES, defaults={"policy": "delay"}, coordinator={}),
    "nodes": ["n1a", "n2"],
    "fragments": {"f1": {"operators": ["all"], "replicas": ["n1a"]}, "f2": {"operators": ["same"], "replicas": ["n2"]}},
}


def _told(x: str) -> dict[str, Any]:
    return {"settings": [{"at_us": 1_500_000, "node": node, "changes": [["x", x]]} for node in ("n1a", "n2")]}


SCENARIOS: Final[dict[str, Parts]] = {
    "an input heals as another one has failed": (_TUPLES, {}, [_cut("a", "3s", "4s"), _cut("b", "6200ms", "4s")]),
    "two of three correct, and slowly": (_THREE, _SLOWLY, [_cut("b", "3s", "6s")]),
    "the partner dies in a slow correction": (_TUPLES, _SLOWLY, [_cut("b", "3s", "6s"), _kill("n1b", "9300ms", "6s")]),
    # Who is read tentatively goes on without the input soon, who has corrected later, and is read then.
    "stands still as a slow correction ends": (
        _FAR_APART,
        _SLOWLY,
        [_cut("b", "3s", "7s"), {"at": "11500ms", "kind": "stall", "target": "source:b", "for": "5s"}],
    ),
    "a helper beside a primary, and both die": (
        _with(_BACKED, coordinator={"budget": 2}),
        {},
        [
            {"at": "6s", "kind": "flip", "target": "n2b"},
            _kill("n2b", "6s", "500ms"),
            _kill("n2a", "6s", "8s"),
        ],
    ),
    "two actives begin": (_with(_RATES, coordinator={"budget": 2}), {}, []),
    "windows over a correction": (_FIRSTS, {}, [_cut("b", "3s", "3s")]),
    "one can correct, the other only could for a moment": (
        _TUPLES,
        _SLOWLY,
        [
            _cut("b", "2s", "3s", to="n1a"),
            _cut("b", "2s", "3400ms", to="n1b"),
            _cut("b", "5600ms", "12s", to="n1b"),
            _cut("a", "8s", "2s", to="n1a"),
        ],
    ),
    "a consumer dies while there is little room": (
        _ON_DISK,
        {"limits": {"output_bytes": 30_000, "spill_bytes": 0}, "unlimited": True},
        [_kill("n2", "4s", "8s")],
    ),
    "one of two restarts while redo data are spilled": (
        _TWO_LEVELS,
        {"limits": {"input_bytes": 20_000}, "unlimited": True},
        [_cut("c", "3s", "8s"), _kill("n2a", "8s", "1s")],
    ),
    "a coordinator begins again": (_BACKED, {}, [{"at": "4s", "kind": "restart", "target": "coordinator"}]),
    "two failures, one after the other": (_TUPLES, {}, [_cut("b", "3s", "3s"), _cut("a", "9s", "3s")]),
    "a live source dies, and then rows come of before its promise": (
        _TUPLES,
        {"live": {"a": {"idle_us": 300_000, "pauses_us": [[5_000_000, 4_000_000]]}}},
        [_kill("source:a", "8900ms", "500ms")],
    ),
    "tentative rows wait as a slow correction begins": (_lasting(_RARE, "9s"), _SLOWLY, [_cut("b", "3s", "4s")]),
    # The first asks and is granted; the grant arrives with the request of the other, which noticed the source later.
    "a grant and a question cross": (
        _lasting(_PAIR, "8s"),
        _SLOWLY,
        [
            {"at": "2s", "kind": "delay", "from": "source:b", "to": "n1b", "by": "20ms", "one_way": True},
            _cut("b", "3s", "3s", to=["n1a", "n1b"]),
            {
                "at": "5900ms",
                "kind": "delay",
                "from": "n1b",
                "to": "n1a",
                "by": "300ms",
                "one_way": True,
                "for": "160ms",
            },
        ],
    ),
    "it stands still as it connects anew": (
        _lasting(_ONE, "7s"),
        {"link": {"delay_us": 50_000}, "timing": {"heartbeat_us": 50_000}},
        [
            {"at": "5s", "kind": "reset", "from": "source:b", "to": "n1"},
            {"at": "5010ms", "kind": "freeze", "target": "n1", "for": "400ms"},
        ],
    ),
    # Whenever the standby asks, only the replica in failure can give its state; then it corrects, and both die.
    "whoever is behind gives its state": (
        _lasting(_TWO_MAKERS, "13s"),
        {},
        [
            {"at": "3s", "kind": "cut", "from": "n1", "to": "n2b", "for": "5300ms"},
            *({"at": at, "kind": "cut", "from": "n2a", "to": "n3", "for": "800ms"} for at in ("5300ms", "7300ms")),
            _kill("n2a", "9200ms", "8s"),
            _kill("n2b", "9200ms", "8s"),
        ],
    ),
    "X is longer from then on": (_with(_TOLD, defaults={"x": "800ms"}), _told("4s"), [_cut("b", "4s", "8s")]),
    "X is shorter from then on": (_with(_TOLD, defaults={"x": "4s"}), _told("800ms"), [_cut("b", "4s", "8s")]),
}

#: Scenarios whose outcome depends on the order of tasks, or on which bit flips.
SEEDS: Final[dict[str, int]] = {"a helper beside a primary, and both die": 2}

KILLS: Final[dict[str, str]] = {
    "partner-serves-whatever-it-does": "two of three correct, and slowly",
    "dead-partner-keeps-its-state": "the partner dies in a slow correction",
    "request-is-never-withdrawn": "one can correct, the other only could for a moment",
    "mark-outlives-its-redo": "two failures, one after the other",
    "feed-promoted-without-a-cut": "stands still as a slow correction ends",
    "only-who-is-read-hears-acks": "two actives begin",
    "never-heard-counts-for-nothing": "two actives begin",
    "evicted-without-a-sibling": "a consumer dies while there is little room",
    "spilled-is-acknowledged": "one of two restarts while redo data are spilled",
    "arrival-starts-again-in-count-windows": "windows over a correction",
    "helper-acknowledges-its-newest": "a helper beside a primary, and both die",
    "epoch-begins-again": "a coordinator begins again",
    "undo-of-the-correcting-feed-counts": "tentative rows wait as a slow correction begins",
    "own-request-outlives-a-grant": "a grant and a question cross",
    "own-silence-counts": "it stands still as it connects anew",
    "older-checkpoint-taken": "whoever is behind gives its state",
    "judged-by-the-file": "X is longer from then on",
    "another-x-at-the-next-start": "X is shorter from then on",
    "lease-is-not-logged": "a live source dies, and then rows come of before its promise",
}
