"""Clusters whose operators reject rows, which a client reads (U15)."""

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
#: Number of aggregates by an attribute that a query gets, if there are places for them.
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
#: Attributes of every stream of a query, so that any operator can follow any other.
_COLUMNS: Final = {"key", "v", "p"}


def with_rejections(random: Random, config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the configuration with operators that read an aggregate of their input, by a time that lags."""
    plan = load_data(config).plan
    places = [name for name, entry in config["query"].items() if reads_one(plan, entry)]
    query, fragments, streams = dict(config["query"]), dict(config["fragments"]), list[str]()
    for name in sorted(random.sample(places, min(len(places), random.choice(_COUNTS)))):
        seen_name, on = f"{name}_seen", f"{name}_on"
        added = {seen_name: lagging(random, _input(query[name])), on: _aggregate(random, seen_name)}
        rejecting = [
            operator for operator, entry in added.items() if {"on_error", "on_late"} & next(iter(entry.values())).keys()
        ]
        added |= {f"{operator}_rejected": {"rejected": {"from": operator}} for operator in rejecting}
        streams += [f"{operator}_rejected" for operator in rejecting]
        query = {n: e for operator, entry in query.items() for n, e in _before(name, operator, entry, added, on)}
        for fragment, what in fragments.items():
            made = [
                o for operator in what["operators"] for o in ((*added, operator) if operator == name else (operator,))
            ]
            fragments[fragment] = {**what, "operators": made}
    client, body = random.choice(sorted(config["clients"].items()))
    reading = {**body, "reads": [*body["reads"], *streams], "sinks": [*body.get("sinks", ()), {"jsonl": "rejected"}]}
    clients = {**config["clients"], client: reading if streams else body}
    outputs = [*config["outputs"], *streams]
    return {**config, "query": query, "fragments": fragments, "outputs": outputs, "clients": clients}


def _before(
    name: str, operator: str, entry: Mapping[str, Any], added: Mapping[str, Any], instead: str
) -> Iterator[tuple[str, Any]]:
    """Yields entries of the query; before ``name`` the added ones, which it then reads."""
    if operator != name:
        yield operator, entry
        return
    yield from added.items()
    ((kind, body),) = entry.items()
    yield operator, {kind: {**body, "from": instead if isinstance(body["from"], str) else [instead]}}


def _input(entry: Mapping[str, Any]) -> Any:
    """Returns the only stream that an operator reads; None: it reads several."""
    (body,) = entry.values()
    source = body.get("from")
    return source[0] if isinstance(source, list) and len(source) == 1 else source if isinstance(source, str) else None


def reads_one(plan: Plan, entry: Mapping[str, Any]) -> bool:
    """Returns whether an operator reads one stream, with key, v and p, that is not a source."""
    stream = _input(entry)
    if stream is None or stream in plan.sources:
        return False
    return set(plan.query.schema_of(StreamId(stream)).names) >= _COLUMNS


def lagging(random: Random, stream: str) -> dict[str, Any]:
    """Returns an operator that adds ``seen``."""
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


# --- expected rejections ---


def check_rejected(
    plan: Plan,
    reference: Mapping[Channel, ChannelRows],
    wanted: Mapping[PartitionId, Sequence[Rejection]],
    at_us: int,
    counters: Counters,
) -> Iterator[Finding]:
    """Checks that the rejection streams of a run without failures, which judge recordings and sinks, have all rejected
    rows.

    Args:
      wanted: the rejected rows.
    """
    for operator in plan.query.operators:
        for partition in range(plan.partitions_of(operator.name)) if operator.spec.TAKES_REJECTED else ():
            channel = Channel(operator.name, partition)
            _, rows = reference[channel]
            listed = Counter(zip(rows.time.tolist(), rows.to_tuples(), strict=True))
            partition_id = PartitionId(plan.producer[operator.name].id, partition)
            expected = Counter(
                _row(rejection)
                for rejection in wanted.get(partition_id, ())
                if rejection.operator == operator.spec.inputs[0]
            )
            counters.add("rejected rows listed", listed.total())
            if listed != expected:
                what = f"{(listed - expected) or 'nothing'} more, {(expected - listed) or 'nothing'} less than rejected"
                yield Finding("U15", "a stream has what an operator rejects, once", at_us, str(channel), what[:1000])


def _row(rejection: Rejection) -> tuple[int, tuple[Any, ...]]:
    kind, text = "result" if rejection.result else "row", json.dumps(rejection.values, ensure_ascii=False)
    return rejection.time, (kind, rejection.number, rejection.input, rejection.id, rejection.reason, text)
