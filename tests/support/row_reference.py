"""A configuration's results, a row at a time, and sharing nothing with the engine: neither its operators nor its
expressions, its order of input, its partitions, nor how it reads a configuration.

Knows what random configurations have (replicas/simulation/scenarios/topologies.py), and the operators of its own that
they name.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from tests.support.row_expressions import expression
from tests.support.row_operators import (
    Call,
    Join,
    OfValues,
    Ranking,
    Row,
    Values,
    Windows,
    aggregated,
    counted,
    joined_in,
    joined_within,
    ranked_at_once,
    ranked_in,
    wrapped,
)

Body = Mapping[str, Any]
_UNITS: Final = {"us": 1, "ms": 1_000, "s": 1_000_000}
_MASK: Final = (1 << 64) - 1


class Stream(NamedTuple):
    """Rows in their order, and the names of their attributes."""

    names: tuple[str, ...]
    rows: list[Row]

    def of(self, text: str) -> OfValues:
        return expression(text, self.names)


#: (stream, partition) -> its rows; the id of a row is its place, from 1.
Results = dict[tuple[str, int], list[Row]]


def row_results(config: Mapping[str, Any], sources: Mapping[str, Stream]) -> Results:
    """The output channels of a configuration with fragments, by the rows of its sources in order of their ids."""
    made = {name: [source] for name, source in sources.items()}
    for fragment in _in_order(config):
        names, count = fragment["operators"], fragment.get("partitions", 1)
        keys = fragment.get("key", {})
        inside = set(names)
        read = {s for name in names for s in _inputs(config["query"][name]) if s not in inside}
        parts: dict[str, list[Stream]] = {name: [] for name in names}
        for partition in range(count):
            known = {s: _part(made[s], keys.get(s) if count > 1 else None, partition, count) for s in read}
            for name in names:
                ((kind, body),) = config["query"][name].items()
                if kind == "rejected":  # judged beside what operators reject (U15)
                    continue
                known[name] = _OPERATORS[kind](body, [known[s] for s in _inputs(config["query"][name])])
                parts[name].append(known[name])
        made.update(parts)
    return {(name, p): stream.rows for name in config["outputs"] for p, stream in enumerate(made[name])}


def _in_order(config: Mapping[str, Any]) -> list[Body]:
    """Fragments, each after those that it reads."""
    query, known, found = config["query"], set(config["sources"]), list[Body]()
    left = list(config["fragments"].values())
    while left:
        for fragment in left:
            read = {stream for name in fragment["operators"] for stream in _inputs(query[name])}
            if read <= known | set(fragment["operators"]):
                break
        else:
            raise ValueError("fragments read each other")
        left.remove(fragment)
        known.update(fragment["operators"])
        found.append(fragment)
    return found


def _inputs(entry: Body) -> list[str]:
    ((_, body),) = entry.items()
    if isinstance(body, list):
        return body
    given = [body["from"]] if "from" in body else [body["left"], body["right"]]
    return [name for one in given for name in ([one] if isinstance(one, str) else one)]


# --- partitions, and the order of input ---


def _part(channels: Sequence[Stream], key: str | None, partition: int, count: int) -> Stream:
    """The rows of a partition, of all channels of a stream: by (time, channel, id)."""
    names = channels[0].names
    at = None if key is None else names.index(key)
    rows = [
        (row[0], channel, id, row)
        for channel, stream in enumerate(channels)
        for id, row in enumerate(stream.rows, 1)
        if at is None or partition_of(row[1][at], count) == partition
    ]
    return Stream(names, [row for *_, row in sorted(rows, key=lambda r: r[:3])])


def partition_of(value: Any, count: int) -> int:
    """splitmix64 of a number's 64 bits; each partition has an equal range of hashes."""
    if value is None:
        x = 0x9E3779B97F4A7C15
    else:
        x = struct.unpack("<Q", struct.pack("<d" if isinstance(value, float) else "<q", value))[0]
    x = (x + 0x9E3779B97F4A7C15) & _MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    x ^= x >> 31
    return ((x >> 32) * count) >> 32


# --- operators by their configuration ---


def microseconds(text: str) -> int:
    """``-200ms``."""
    number = text.rstrip("usm")
    return int(number) * _UNITS[text[len(number) :]]


def _windows(said: Body, names: Sequence[str], on: str | None = None) -> Windows:
    on = on or said.get("on")
    size = microseconds(said["tumbling"] if "tumbling" in said else said["sliding"])
    slide = microseconds(said["slide"]) if "slide" in said else size
    offset = microseconds(said.get("offset", "0us"))
    return Windows(size, slide, offset, None if on is None else expression(on, names))


def _filter(body: Body, inputs: Sequence[Stream]) -> Stream:
    (stream,) = inputs
    passes = stream.of(body["where"])
    return Stream(stream.names, [row for row in stream.rows if passes(row[1]) is True])


def _map(body: Body, inputs: Sequence[Stream]) -> Stream:
    (stream,) = inputs
    kept = stream.names if body.get("keep") else ()
    made = [stream.of(text) for text in body["compute"].values()]
    rows = [(time, (*(values if kept else ()), *(of(values) for of in made))) for time, values in stream.rows]
    return Stream((*kept, *body["compute"]), rows)


def _union(_: Any, inputs: Sequence[Stream]) -> Stream:
    rows = [(row[0], port, row) for port, stream in enumerate(inputs) for row in stream.rows]
    return Stream(inputs[0].names, [row for *_, row in sorted(rows, key=lambda r: r[:2])])


def _aggregate(body: Body, inputs: Sequence[Stream]) -> Stream:
    (stream,) = inputs
    by = body.get("group_by", {})
    by = by if isinstance(by, Mapping) else {name: name for name in ([by] if isinstance(by, str) else by)}
    keys = [stream.of(text) for text in by.values()]
    calls = [_call(text, stream) for text in body["compute"].values()]

    def group(values: Values) -> Values:
        return tuple(of(values) for of in keys)

    if "count" in body["window"]:
        return Stream((*by, *body["compute"]), counted(stream.rows, body["window"]["count"], group, calls))
    windows = _windows(body["window"], stream.names)
    names = (*by, "window_start", "window_end", *body["compute"])
    return Stream(names, aggregated(stream.rows, windows, group, len(by), calls))


def _call(text: str, stream: Stream) -> Call:
    """``sum(v)``, ``count(distinct v)``, ``module:Class(v)``."""
    function, _, argument = text.removesuffix(")").partition("(")
    if argument == "*":
        return Call("count")
    if argument.startswith("distinct "):
        return Call("count_distinct", stream.of(argument.removeprefix("distinct ")))
    return Call(_FUNCTIONS.get(function, function), stream.of(argument))


def _chained(panes: list[list[Any]]) -> int:
    state = 0
    for value in (v for pane in panes for v in pane):
        state = (state * 31 + value) % (2**31 - 1)
    return state


_FUNCTIONS: Final[Mapping[str, Any]] = {"replicas.simulation.scenarios.custom_code:Chained": _chained}


def _join(body: Body, inputs: Sequence[Stream]) -> Stream:
    left, right = inputs
    names = (*(f"l_{n}" for n in left.names), *(f"r_{n}" for n in right.names))
    on = body["on"]
    named = list(on.items()) if isinstance(on, Mapping) else [on] if isinstance(on, str) else on
    pairs = [(one, one) if isinstance(one, str) else one for one in named]
    keys = [[stream.of(pair[side]) for pair in pairs] for side, stream in enumerate(inputs)]
    join = Join(
        (lambda values: tuple(of(values) for of in keys[0]), lambda values: tuple(of(values) for of in keys[1])),
        (body.get("kind") in ("left", "full"), body.get("kind") in ("right", "full")),
        (len(left.names), len(right.names)),
        expression(body["where"], names) if "where" in body else lambda _: True,
    )
    by = (body.get("left_time"), body.get("right_time"))
    if "within" in body:
        bounds = (microseconds(body["within"][0]), microseconds(body["within"][1]))
        times = [None if name is None else stream.of(name) for name, stream in zip(by, inputs, strict=True)]
        return Stream(names, joined_within(join, left.rows, right.rows, bounds, times))
    windows = [_windows(body["window"], stream.names, name) for name, stream in zip(by, inputs, strict=True)]
    return Stream((*names, "window_start", "window_end"), joined_in(join, left.rows, right.rows, windows))


def _topk(body: Body, inputs: Sequence[Stream]) -> Stream:
    (stream,) = inputs
    orders = body["order_by"] if isinstance(body["order_by"], list) else [body["order_by"]]
    by = body.get("partition_by", [])
    places = [stream.names.index(name) for name in ([by] if isinstance(by, str) else by)]
    ranking = Ranking(
        body["k"],
        [(stream.of(text.removesuffix(" desc")), text.endswith(" desc")) for text in orders],
        lambda values: tuple(values[at] for at in places),
        body.get("with_ties", False),
    )
    ranked_as = ("rank",) if "rank_as" in body else ()
    names = stream.names

    def with_rank(values: Values, rank: int) -> Values:
        return (*values, rank) if ranked_as else values

    if "window" not in body:
        ranked = ranked_at_once(ranking, stream.rows)
        return Stream((*names, *ranked_as), [(time, with_rank(values, rank)) for time, values, rank in ranked])
    windows = _windows(body["window"], names)
    added = [name for name in ("window_start", "window_end") if name not in names]
    rows = []
    for end, values, rank in ranked_in(ranking, stream.rows, windows):
        window = dict(zip(("window_start", "window_end"), windows.bounds(end), strict=True))
        rows.append((window["window_end"] - 1, with_rank((*values, *(window[name] for name in added)), rank)))
    return Stream((*names, *added, *ranked_as), rows)


# --- operators of the simulation's own ---


def _custom(body: Body, inputs: Sequence[Stream]) -> Stream:
    (stream,) = inputs
    return _CLASSES[body["class"]](stream, body.get("arguments", {}))


def _hash_chain(stream: Stream, arguments: Body) -> Stream:
    """Without rows that make it fail: they leave no trace."""
    places = [stream.names.index(name) for name in ("key", "v", "p")]
    state, rows = 0, []
    for time, values in stream.rows:
        key, v, p = (values[at] for at in places)
        if "bad" in arguments and (v is None or v % arguments["bad"] == 0):
            continue
        bits = None if p is None else struct.unpack("<q", struct.pack("<d", math.nan if p != p else p))[0]
        for part in (time, key, v, bits):
            state = (state * 31 + (0 if part is None else part)) % ((1 << 61) - 1)
        rows.append((time, (key, state, p)))
    return Stream(("key", "v", "p"), rows)


def _lagging(stream: Stream, arguments: Body) -> Stream:
    at = stream.names.index("v")
    rows = []
    for time, values in stream.rows:
        number = wrapped(time // 1_000 + (values[at] or 0))
        if "bad" in arguments and number % arguments["bad"] == 0:
            continue
        seen = time - arguments["by_us"] if number % arguments["late"] == 0 else time
        rows.append((time, (*values, None if number % arguments["null"] == 0 else seen)))
    return Stream((*stream.names, "seen"), rows)


def _gaps(stream: Stream, arguments: Body) -> Stream:
    places = [stream.names.index(name) for name in ("key", "v", "p")]
    known: dict[Any, list[int]] = {}
    rows = []
    for time, values in stream.rows:
        key, v, p = (values[at] for at in places)
        before = known.setdefault(key, [])
        before.append((v or 0) % (2**31 - 1))
        rows.append((time, (key, before[-1] - before[-2] if len(before) > 1 else 0, p)))
        if len(before) == arguments["forget"]:
            before.clear()
    return Stream(("key", "v", "p"), rows)


_CLASSES: Final[Mapping[str, Callable[[Stream, Body], Stream]]] = {
    "replicas.simulation.features.hash_chain:HashChain": _hash_chain,
    "replicas.simulation.features.lagging_operator:Lagging": _lagging,
    "replicas.simulation.scenarios.custom_code:KeyedGaps": _gaps,
}
_OPERATORS: Final[Mapping[str, Callable[[Any, Sequence[Stream]], Stream]]] = {
    "filter": _filter,
    "map": _map,
    "union": _union,
    "aggregate": _aggregate,
    "join": _join,
    "topk": _topk,
    "custom": _custom,
}
