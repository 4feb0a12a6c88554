"""Clusters whose operators reject rows, which a client keeps (U15)."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from random import Random
from typing import Any, Final

from consistency.checking.counters import Counters
from consistency.checking.finding import Finding
from consistency.comparison import ChannelRows
from operators.rejections import Rejection
from spe.config import load_data
from spe.plan.plan import Plan
from spe.stream.ids import Channel, PartitionId
from spe.stream.names import StreamId
from spe.stream.times import MILLISECOND

LAGGING: Final = "replicas.simulation.features.lagging_operator:Lagging"
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


def with_rejections(random: Random, config: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration in which some operators read an aggregate of what they read before, by a time that lags."""
    plan = load_data(config).plan
    places = [name for name, entry in config["query"].items() if reads_one(plan, entry)]
    query, fragments, streams = dict(config["query"]), dict(config["fragments"]), list[str]()
    for name in sorted(random.sample(places, min(len(places), random.choice(_COUNTS)))):
        seen, on = f"{name}_seen", f"{name}_on"
        added = {seen: lagging(random, _input(query[name])), on: _aggregate(random, seen)}
        rejecting = [one for one, entry in added.items() if {"on_error", "on_late"} & next(iter(entry.values())).keys()]
        added |= {f"{one}_rejected": {"rejected": {"from": one}} for one in rejecting}
        streams += [f"{one}_rejected" for one in rejecting]
        query = {n: e for one, entry in query.items() for n, e in _before(name, one, entry, added, on)}
        for fragment, what in fragments.items():
            made = [o for one in what["operators"] for o in ((*added, one) if one == name else (one,))]
            fragments[fragment] = {**what, "operators": made}
    client, body = random.choice(sorted(config["clients"].items()))
    kept = {**body, "reads": [*body["reads"], *streams], "sinks": [*body.get("sinks", ()), {"jsonl": "rejected"}]}
    clients = {**config["clients"], client: kept if streams else body}
    outputs = [*config["outputs"], *streams]
    return {**config, "query": query, "fragments": fragments, "outputs": outputs, "clients": clients}


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


# --- what is to be rejected ---


def check_rejected(
    plan: Plan,
    reference: Mapping[Channel, ChannelRows],
    wanted: Mapping[PartitionId, Sequence[Rejection]],
    at_us: int,
    counters: Counters,
) -> Iterator[Finding]:
    """The streams of a run without failures, by which recordings and sinks are judged, hold what operators rejected.

    Args:
      wanted: what they rejected.
    """
    for operator in plan.query.operators:
        for partition in range(plan.partitions_of(operator.name)) if operator.spec.TAKES_REJECTED else ():
            channel = Channel(operator.name, partition)
            _, rows = reference[channel]
            found = Counter(zip(rows.time.tolist(), rows.to_tuples(), strict=True))
            of = PartitionId(plan.producer[operator.name].id, partition)
            expected = Counter(_row(one) for one in wanted.get(of, ()) if one.operator == operator.spec.inputs[0])
            counters.add("rejected rows listed", found.total())
            if found != expected:
                what = f"{(found - expected) or 'nothing'} more, {(expected - found) or 'nothing'} less than rejected"
                yield Finding("U15", "a stream has what an operator rejects, once", at_us, str(channel), what[:1000])


def _row(one: Rejection) -> tuple[int, tuple[Any, ...]]:
    kind, text = "result" if one.result else "row", json.dumps(one.values, ensure_ascii=False)
    return one.time, (kind, one.number, one.input, one.id, one.reason, text)
