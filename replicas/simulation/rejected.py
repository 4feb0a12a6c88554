"""Clusters whose operators reject rows: late ones, and such that make them fail; what their files hold then (U15)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePosixPath
from random import Random
from typing import Any, Final

from consistency.checking.counters import Counters
from consistency.checking.finding import Finding
from operators.rejections import Rejection
from replicas.simulation.cluster import SimCluster
from spe.config import load_data
from spe.plan.plan import Plan
from spe.stream.history import FaultBegan
from spe.stream.ids import PartitionId
from spe.stream.names import StreamId
from spe.stream.times import MILLISECOND, iso_timestamp

LAGGING: Final = "replicas.simulation.lagging:Lagging"
#: How many aggregates by an attribute a query gets, as far as there is a place for them.
_COUNTS: Final = (1, 1, 2)
_WINDOWS: Final = (
    {"tumbling": "100ms"},
    {"tumbling": "500ms"},
    {"sliding": "400ms", "slide": "100ms"},
    {"sliding": "300ms", "slide": "500ms"},
)
_BY_MS: Final = (60, 250, 700, 3000)
#: Share of those whose rows also make an operator fail.
_BAD: Final = 0.5
#: What every stream of a query carries, so that any operator can stand behind any other.
_COLUMNS: Final = {"key", "v", "p"}
#: Faults by which a file may hold anything, or nothing.
_LOSING: Final = ("flip", "lie")

#: (operator, whether a result was rejected, number).
_Key = tuple[str, bool, int]


def with_rejections(random: Random, config: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration in which some operators read an aggregate of what they read before, by a time that lags."""
    plan = load_data(config).plan
    places = [name for name, entry in config["query"].items() if reads_one(plan, entry)]
    query, fragments = dict(config["query"]), dict(config["fragments"])
    for name in sorted(random.sample(places, min(len(places), random.choice(_COUNTS)))):
        seen, on = f"{name}_seen", f"{name}_on"
        added = {seen: lagging(random, _input(query[name])), on: _aggregate(random, seen)}
        query = {n: e for one, entry in query.items() for n, e in _before(name, one, entry, added, on)}
        for fragment, what in fragments.items():
            made = [o for one in what["operators"] for o in ((seen, on, one) if one == name else (one,))]
            fragments[fragment] = {**what, "operators": made}
    return {**config, "query": query, "fragments": fragments}


def _before(
    name: str, one: str, entry: Mapping[str, Any], added: Mapping[str, Any], instead: str
) -> Iterator[tuple[str, Any]]:
    """An entry of the query; in front of ``name`` what is added, which it reads then."""
    if one != name:
        yield one, entry
        return
    yield from added.items()
    ((kind, body),) = entry.items()
    yield one, {kind: {**body, "from": instead if isinstance(body["from"], str) else [instead]}}


def _input(entry: Mapping[str, Any]) -> Any:
    """The one stream that an operator reads; None: it reads several."""
    (body,) = entry.values()
    given = body.get("from")
    return given[0] if isinstance(given, list) and len(given) == 1 else given if isinstance(given, str) else None


def reads_one(plan: Plan, entry: Mapping[str, Any]) -> bool:
    """Does an operator read one stream, with key, v and p, that is no source?"""
    stream = _input(entry)
    if stream is None or stream in plan.sources:
        return False
    return set(plan.query.schema_of(StreamId(stream)).names) >= _COLUMNS


def lagging(random: Random, stream: str) -> dict[str, Any]:
    """An operator that adds ``seen``."""
    arguments = {
        "late": random.choice([2, 5, 20]),
        "by_us": random.choice(_BY_MS) * MILLISECOND,
        "null": random.choice([7, 50]),
    }
    skips: dict[str, Any] = {}
    if random.random() < _BAD:
        arguments["bad"] = random.choice([11, 40])
        skips = {"on_error": "skip"}
    return {"custom": {"from": [stream], "class": LAGGING, "arguments": arguments, **skips}}


def _aggregate(random: Random, stream: str) -> dict[str, Any]:
    window = {**random.choice(_WINDOWS), "on": "seen"}
    compute = {"v": random.choice(["sum(v)", "count(*)"]), "p": random.choice(["sum(p)", "last(p)"])}
    body = {"from": stream, "window": window, "group_by": "key", "compute": compute, "on_late": "reject"}
    return {"aggregate": body}


# --- what the files hold in the end ---


def rejects(plan: Plan) -> bool:
    """Is there an operator that goes on without rows?"""
    return any(operator.spec.rejects for operator in plan.query.operators)


def check_rejected(
    cluster: SimCluster, wanted: Mapping[PartitionId, Sequence[Rejection]], complete: bool, counters: Counters
) -> Iterator[Finding]:
    """Each file holds rejections of a run without failures, in order and once; those of a partition together hold all.

    Nothing is claimed of a disk that lost what it had synced, or of which a bit has turned.

    Args:
      wanted: what a run without failures rejects.
      complete: all has come to its end, and nobody was away for good.
    """
    befallen = {e.kind: set[str]() for e in cluster.history if isinstance(e, FaultBegan)}
    for event in cluster.history:
        if isinstance(event, FaultBegan):
            befallen[event.kind].update(event.hosts)
    losing = set[str]().union(*(befallen.get(kind, set()) for kind in _LOSING))
    at_us = cluster.history.end_us
    for of, rejections in wanted.items():
        lines = {_key_of(one): _plain(cluster.plan, of, one) for one in rejections}
        missing, whole = set(lines), complete
        for host, disk in cluster.disks.items():
            path = PurePosixPath("nodes", host, "rejected", f"{of.unit}-{of.partition}.jsonl")
            if host in losing | befallen.get("wipe", set()):
                whole = False  # a row that only this disk held may be gone
            if host in losing or path not in disk.files:
                continue
            counters.add("files of rejected rows judged")
            for wrong in _wrong(cluster.plan, disk.read(path), lines, missing, host in befallen.get("power", ())):
                yield Finding("U15", "a file lists what a run without failures rejects, once", at_us, host, wrong)
        counters.add("rejected rows listed", len(lines) - len(missing))
        if whole and missing:
            first = min(missing, key=lambda key: (key[2], key))
            what = f"of {len(lines)} rejected rows of {of} {len(missing)} are in no file; the first is {lines[first]}"
            yield Finding("U15", "all rejected rows are in a file", at_us, str(of), what)


def _wrong(
    plan: Plan, data: bytes, lines: Mapping[_Key, Mapping[str, Any]], missing: set[_Key], may_be_torn: bool
) -> Iterator[str]:
    """What is wrong with a file; what it holds is not missing any more."""
    ours, last = False, dict[tuple[str, bool], int]()
    *whole, _ = data.split(b"\n")
    for at, line in enumerate(whole, 1):
        try:
            found = json.loads(line)
        except ValueError:
            if not may_be_torn:
                yield f"line {at} is {line[:200]!r}, no JSON"
            continue
        if not isinstance(found, dict):  # a torn line may be a number
            continue
        if "plan" in found:
            ours, last = found["plan"] == plan.fingerprint, {}
        elif ours:
            key = (str(found["operator"]), found["kind"] == "result", int(found["n"]))
            if found != lines.get(key):
                yield f"line {at} is {found}, expected {lines.get(key, 'no such rejection')}"
            elif key[2] <= last.get(key[:2], 0):
                yield f"line {at} has number {key[2]} of {key[0]}, after {last[key[:2]]}"
            missing.discard(key)
            last[key[:2]] = key[2]


def _key_of(one: Rejection) -> _Key:
    return str(one.operator), one.result, one.number


def _plain(plan: Plan, of: PartitionId, one: Rejection) -> dict[str, Any]:
    """The line of a rejection."""
    channels = plan.unit[of.unit].channels_in(of.partition)
    stream = str(one.stream) if one.input is None else str(channels[one.input])
    found: dict[str, Any] = {
        "operator": str(one.operator),
        "kind": "result" if one.result else "row",
        "n": one.number,
        "from": None if one.result else stream,
        "id": one.id,
        "time": iso_timestamp(one.time),
        "values": one.values,
        "reason": one.reason,
    }
    again: dict[str, Any] = json.loads(json.dumps(found))
    return again
