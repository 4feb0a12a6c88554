"""Queries with options and user-defined code, which :mod:`replicas.simulation.scenarios.topologies` leaves out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from random import Random
from typing import Any, Final

from replicas.simulation.features.rejecting_operators import lagging, reads_one
from spe.config import load_data
from spe.plan.plan import Plan

#: Share of the operators with an option, among those that can have one.
_SHARE: Final = 0.5
_ADDED: Final = 0.3
GAPS: Final = "replicas.simulation.scenarios.custom_code:KeyedGaps"
CHAINED: Final = "replicas.simulation.scenarios.custom_code:Chained(v)"
_ON: Final = (["key", "v"], {"key": "key"}, [["key", "key"], "v"])
_WHERE: Final = ("l_v <= r_v", "l_p > r_p or l_v is null", "l_v % 2 = 0 and not r_p > 90")
_PARTITIONS: Final = ("key", ["key", "v"], "v")
_FORGET: Final = (3, 10, 1_000)

Body = dict[str, Any]


def with_options(random: Random, config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the configuration with options for some operators, and further operators before some."""
    plan = load_data(config).plan
    query: Body = {}
    fragments = dict(config["fragments"])
    for name, entry in config["query"].items():
        ((kind, body),) = entry.items()
        changed = dict(body)
        added = dict(_change(random, plan, name, kind, changed))
        query |= {**added, name: {kind: changed}}
        for fragment, what in fragments.items():
            operators = [
                o for operator in what["operators"] for o in ((*added, operator) if operator == name else (operator,))
            ]
            fragments[fragment] = {**what, "operators": operators}
    return {**config, "query": query, "fragments": fragments}


def _change(random: Random, plan: Plan, name: str, kind: str, body: Body) -> Iterator[tuple[str, Body]]:
    """Changes an operator; yields new operators that it then reads, by name."""
    if kind == "join":
        yield from _change_join(random, name, body)
        return
    if kind == "rejected" or not reads_one(plan, {kind: body}):
        return
    stream = body["from"] if isinstance(body["from"], str) else body["from"][0]
    lags = _set_options(random, kind, body) and not {name, stream} & _with_seen(plan)
    if random.random() < _ADDED:
        compute = {f"w_{name}": random.choice(["v * 3 - key", "p / 2"])}
        yield f"{name}_wide", {"map": {"from": stream, "keep": True, "compute": compute}}
        stream = f"{name}_wide"
    if random.random() < _ADDED:
        gaps = {"class": GAPS, "arguments": {"forget": random.choice(_FORGET)}}
        yield f"{name}_gaps", {"custom": {"from": [stream], **gaps}}
        stream, lags = f"{name}_gaps", lags or "seen" in body.get("window", {}).values()
    if lags:
        body["window"] = {**body["window"], "on": "seen"}
        yield f"{name}_lags", lagging(random, stream)
        stream = f"{name}_lags"
    body["from"] = stream if isinstance(body["from"], str) else [stream]


def _with_seen(plan: Plan) -> set[str]:
    """Returns streams that have ``seen``, or whose readers add it."""
    has = {o.name for o in plan.query.operators if "seen" in o.schema.names}
    return has | {i for o in plan.query.operators if o.name in has for i in o.spec.inputs}


def _set_options(random: Random, kind: str, body: Body) -> bool:
    """Sets options; returns whether the operator's window should go by an attribute."""
    if kind == "topk":
        drawn = {"partition_by": random.choice(_PARTITIONS), "with_ties": True, "rank_as": "rank"}
        body |= {key: value for key, value in drawn.items() if random.random() < _SHARE}
    elif kind == "aggregate" and random.random() < _SHARE:
        body["compute"] = {**body["compute"], "v": CHAINED}
    return "count" not in body.get("window", {"count": 0}) and random.random() < _SHARE


def _change_join(random: Random, name: str, body: Body) -> Iterator[tuple[str, Body]]:
    drawn = {"on": random.choice(_ON), "where": random.choice(_WHERE)}
    body |= {key: value for key, value in drawn.items() if random.random() < _SHARE}
    if random.random() < _SHARE:
        for side in ("left", "right"):
            yield f"{name}_{side}", lagging(random, body[side])
            body[side] = f"{name}_{side}"
        if "window" in body:
            body["window"] = {**body["window"], "on": "seen"}
        else:
            body |= {"left_time": "seen", "right_time": "seen"}
