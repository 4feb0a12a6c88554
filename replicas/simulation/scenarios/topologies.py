"""Random configurations, on which a swarm runs its faults.  Everything follows from the random numbers passed in.

All streams have ``key`` (int64), ``v`` (int64) and ``p`` (float64), so that any operator can follow any other.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final

from replicas.simulation.scenarios.feature_set import NONE, Feature, Features

#: Replicas of a whole cluster: a run should cost about a second of computing.
MOST_REPLICAS: Final = 14
#: Share of the clusters in which the partition counts of two neighbours divide each other.
_RELATED: Final = 0.5
#: Partitions of two neighbours: they read each other one-to-one, split or merged.
_RELATED_COUNTS: Final = ((2, 2), (2, 4), (2, 4), (4, 2), (4, 2))
#: Share of the clusters with several nodes per partition in which only the first one runs it.
_PASSIVE: Final = 0.3
#: Share of those in which some standbys run anyway, chosen by the planner.
_ACTIVES: Final = 0.5
HASH_CHAIN: Final = "replicas.simulation.features.hash_chain:HashChain"

#: Schema of sources with extreme values: every type, and everything may be null.
_EXTREME_SCHEMA: Final = {
    "ts": "timestamp!",
    "key": "int64",
    "qty": "int64",
    "price": "float64",
    "text": "string",
    "flag": "bool",
    "stamp": "timestamp",
}
#: Factors of the lengths of time windows in runs with long ones; and the keys of windows.
_LONG_WINDOWS: Final = (10, 20, 40)
_LENGTHS: Final = frozenset(("tumbling", "sliding", "slide"))
_FAILURE_POLICIES: Final = ("process", "process", "delay", "suspend")
_X_MS: Final = (400, 700, 1000, 2000)
_BUCKET_MS: Final = 40
_BOUNDARY_MS: Final = 40
#: Settings of clusters with differing nodes.  Bucket and heartbeat belong to the whole cluster, so they differ between
#: clusters.
_BUCKETS_MS: Final = (20, 40, 80, 160)
#: Bucket of clusters with long corrections: few steps, each of which takes long.
LONG_BUCKET_MS: Final = 100
_HEARTBEATS: Final = (None, "50ms", "200ms")
#: X of nodes whose replicas are to notice the same failure at different times.
_FAR_APART_X_MS: Final = (400, 700, 2000, 4000, 6000)
#: Clusters in which replicas read replicas, each fragment on its own nodes.
_IN_SEQUENCE: Final = frozenset((Feature.CHANGING_FEEDS, Feature.OLD_CHECKPOINTS))
#: Rows of all sources per second in clusters of changing feeds: with ten in a step each bucket takes one.
_ROWS_PER_S: Final = 100
#: Share of the clusters of changing feeds whose operators take rows one by one, which shows rows that count twice.
_ROW_BY_ROW: Final = 0.75
#: Clusters in which each step of a correction takes long.
SLOW: Final = frozenset((Feature.LONG_CORRECTIONS, Feature.CHANGING_FEEDS))
#: Interval of checkpoints in memory, in multiples of X.
_LONG_CHECKPOINTS: Final = (1.5, 3.0)


def random_configuration(random: Random, seconds: int, features: Features = NONE) -> dict[str, Any]:
    """Returns a configuration, as in a YAML file, whose sources last ``seconds``."""
    names = "abc"[: random.choice([1, 2, 2, 3])]
    disorder_ms = random.choice([0, 0, 60])
    sources = {name: _source(random, name, seconds, disorder_ms) for name in names}
    if Feature.EXTREMES in features:
        for source in sources.values():
            _with_extremes(random, source)
    single, most = False, 4
    if Feature.CHANGING_FEEDS in features:
        single, most = random.random() < _ROW_BY_ROW, 3
        for source in sources.values():
            _make_steady(source, _ROWS_PER_S // len(sources), seconds)
    query = _Query(random, sources, single)
    query.draw()
    while features & _IN_SEQUENCE and not 1 < len(query.groups) <= most:
        query = _Query(random, sources, single)
        query.draw()
    if Feature.CHANGING_FEEDS in features:  # extra rows of a replica show at its reader, seldom further on
        query.outputs = [group[-1] for group in query.groups]
    bucket_ms = random.choice(_BUCKETS_MS) if Feature.MIXED_NODES in features else _BUCKET_MS
    if features & SLOW:
        bucket_ms = LONG_BUCKET_MS
    bare_ms = bucket_ms + _BOUNDARY_MS + disorder_ms
    shared = random.random() < 0.25  # then units in sequence on one node divide its X
    shared = shared and not features & (SLOW | _IN_SEQUENCE)  # one node would have too much to do
    nodes, fragments = _placed(random, query, shared, features)
    bare_ms *= len(fragments) if shared else 1
    data: dict[str, Any] = {
        "cluster": "swarm",
        "bucket": f"{bucket_ms}ms",
        "defaults": _defaults(random, bare_ms, features),
        "nodes": nodes,
        "sources": query.sources,
        "query": query.operators,
        "outputs": query.outputs,
        "fragments": fragments,
        "clients": {"client": {"reads": query.outputs}},
    }
    if random.random() < 0.3:
        data["clients"]["second"] = {"reads": query.outputs[:1]}
    if Feature.CLIENTS in features:
        for client in data["clients"].values():
            client["sinks"] = [{"jsonl": "final"}, {"jsonl": "changes", "mode": "corrections"}]
    passive = sum(len(f["standby"]) for f in fragments.values() if "standby" in f)
    if passive and (random.random() < _ACTIVES or Feature.OLD_CHECKPOINTS in features):
        budget = passive if Feature.OLD_CHECKPOINTS in features else random.randint(1, passive)
        data["coordinator"] = {"budget": budget, "margin": 0.01}
        if random.random() < 0.6:
            data["coordinator"]["adapt"] = random.choice(["800ms", "2s"])
    limits = {} if features & {Feature.LASTING_LINKS, *_IN_SEQUENCE} else _limits(random)
    if Feature.MIXED_NODES in features:
        data["nodes"] = {node: _own(random, data["defaults"]["alpha"], bare_ms) for node in nodes}
        if (heartbeat := random.choice(_HEARTBEATS)) is not None:
            data["timing"] = {"heartbeat": heartbeat}
    if Feature.CHANGING_FEEDS in features:
        data["nodes"] = {node: _of_another_x(random, data["defaults"]["alpha"], bare_ms) for node in nodes}
    return data | ({"limits": limits} if limits else {})


def _own(random: Random, alpha: float, bare_ms: int) -> dict[str, Any]:
    """Returns the settings of one node, in place of the defaults."""
    drawn: dict[str, Any] = {
        "x": _x(random, alpha, bare_ms),
        "policy": {"failure": random.choice(_FAILURE_POLICIES), "stabilization": random.choice(_FAILURE_POLICIES)},
        "reconcile": random.choice(["checkpoint", "undo"]),
        "checkpoint": random.choice([{"every": "300ms"}, {"every": "1s", "disk": True}]),
    }
    return {name: value for name, value in drawn.items() if random.random() < 0.5}


def _of_another_x(random: Random, alpha: float, bare_ms: int) -> dict[str, Any]:
    policy = {"failure": random.choice(("process", "delay")), "stabilization": random.choice(_FAILURE_POLICIES)}
    return {"x": _x(random, alpha, bare_ms, _FAR_APART_X_MS), "policy": policy}


def _x(random: Random, alpha: float, bare_ms: int, of_ms: Sequence[int] = _X_MS) -> str:
    return f"{max(random.choice(of_ms), round(2 * bare_ms / alpha))}ms"


def _defaults(random: Random, bare_ms: int, features: Features) -> dict[str, Any]:
    alpha = random.choice([0.6, 0.9])
    settings: dict[str, Any] = {
        "x": _x(random, alpha, bare_ms),
        "alpha": alpha,
        "policy": {"failure": random.choice(_FAILURE_POLICIES), "stabilization": random.choice(_FAILURE_POLICIES)},
        "reconcile": random.choice(["checkpoint", "undo"]),
    }
    checkpoint = random.choice([None, None, {"every": "300ms"}, {"every": "1s", "disk": True}])
    if Feature.LONG_CHECKPOINTS in features:
        x_ms = int(settings["x"].removesuffix("ms"))
        checkpoint = {"every": f"{round(random.choice(_LONG_CHECKPOINTS) * x_ms)}ms"}
    elif Feature.DISKS in features:
        checkpoint = {"every": random.choice(["300ms", "1s"]), "disk": True}
    return settings if checkpoint is None else settings | {"checkpoint": checkpoint}


def _limits(random: Random) -> dict[str, int]:
    """Returns limits: half of the configurations have room for everything; the others block, evict and redo."""
    if random.random() < 0.5:
        return {}
    drawn = {
        "output": random.choice([None, 6_000, 30_000]),
        "input": random.choice([None, 1_000, 10_000]),
        "suffix": random.choice([None, 10_000]),
    }
    return {name: size for name, size in drawn.items() if size is not None}


def _source(random: Random, name: str, seconds: int, disorder_ms: int) -> dict[str, Any]:
    """Returns a source: ordered or out of order; even, in bursts, almost silent, or over early."""
    generator: dict[str, Any] = {
        "name": random.choice(["orders", "orders", "sequence"]),
        "seed": random.randrange(1000),
        "duration": f"{seconds}s",
        "rate": random.choice([10, 20, 20, 40]),
        "disorder": f"{disorder_ms}ms",
    }
    if generator["name"] == "orders":
        generator["keys"] = 6
    match random.choice(["even", "even", "bursts", "silent", "short"]):
        case "bursts":
            generator["burst"] = random.choice(["1s", "4s"])
        case "silent":
            generator["rate"] = 0.5
        case "short":
            generator["duration"] = f"{max(1, seconds // 2)}s"
    return {"boundary": f"{_BOUNDARY_MS}ms", "disorder": f"{disorder_ms}ms", "from": {"generator": generator}}


def with_long_windows(random: Random, config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the configuration with longer time windows; except those of joins, whose pairs grow faster."""
    times = random.choice(_LONG_WINDOWS)

    def longer(window: Mapping[str, Any]) -> dict[str, Any]:
        return {k: f"{times * int(v.removesuffix('ms'))}ms" if k in _LENGTHS else v for k, v in window.items()}

    def changed(operator: Mapping[str, Any]) -> dict[str, Any]:
        ((kind, what),) = operator.items()
        is_longer = kind != "join" and "window" in what
        return {kind: {**what, "window": longer(what["window"])}} if is_longer else {kind: what}

    return {**config, "query": {name: changed(operator) for name, operator in config["query"].items()}}


def _make_steady(source: dict[str, Any], rate: int, seconds: int) -> None:
    """Spreads the rows evenly to the end, so that any failure needs corrections."""
    generator = source["from"]["generator"]
    generator.pop("burst", None)
    generator |= {"rate": rate, "duration": f"{seconds}s"}


def _with_extremes(random: Random, source: dict[str, Any]) -> None:
    """Replaces the rows by rows of every type, with nulls and values at the ends of their types."""
    generator = source["from"]["generator"]
    generator |= {"name": "rows", "keys": 6, "extremes": random.choice([0.02, 0.2])}
    source |= {"schema": _EXTREME_SCHEMA, "time": "ts"}


@dataclass
class _Query:
    """A query that grows fragment by fragment.

    Attributes:
      single: operators take rows one by one.
      groups: operators of each fragment.
      keys: per fragment, the partitioning attribute of each stream that it reads from outside.
    """

    random: Random
    sources: dict[str, dict[str, Any]]
    single: bool = False
    operators: dict[str, Any] = field(default_factory=dict)
    groups: list[list[str]] = field(default_factory=list)
    keys: list[dict[str, str]] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)

    def draw(self) -> None:
        """Draws a shape: a chain, a diamond, or one fragment with two independent paths."""
        names = list(self.sources)
        shape = self.random.choice(["chain", "chain", "chain", "diamond", "paths"])
        if shape == "paths" and len(names) > 1:
            self._open(names)
            self.outputs = [self._steps(self._canonical(name), 1) for name in names]
            return
        more = self.random.choice([0, 1, 1, 2, 3])
        late = names.pop() if shape == "chain" and more and len(names) > 1 and self.random.random() < 0.3 else None
        self._open(names)
        last = self._steps(self._merged([self._canonical(name) for name in names]), 1)
        if shape == "diamond":
            branches = []
            for _ in range(2):
                self._open([last])
                branches.append(self._steps(last, 1))
            self._open(branches)
            last = self._merged(branches)
        else:
            for _ in range(more):
                self._open([last] if late is None else [last, late])
                if late is not None:
                    last, late = self._merged([last, self._canonical(late)]), None
                last = self._steps(last, self.random.choice([1, 1, 2]))
        self.outputs = [last]
        if len(self.groups) > 1 and self.random.random() < 0.3:
            self.outputs.insert(0, self.groups[0][-1])

    def _open(self, inputs: Sequence[str]) -> None:
        """Begins a new fragment."""
        self.groups.append([])
        self.keys.append({name: self._key_of(name) for name in inputs})

    def _key_of(self, stream: str) -> str:
        source = self.sources.get(stream)
        return "n" if source is not None and source["from"]["generator"]["name"] == "sequence" else "key"

    def _add(self, operator: str, /, **body: Any) -> str:
        name = f"s{len(self.operators) + 1}"
        self.operators[name] = {operator: {("from" if k == "from_" else k): v for k, v in body.items()}}
        self.groups[-1].append(name)
        return name

    def _canonical(self, source: str) -> str:
        if self._key_of(source) == "n":
            return self._add("map", from_=source, compute={"key": "n % 6", "v": "n", "p": "value"})
        if self.sources[source]["from"]["generator"]["name"] == "rows":
            return self._of_every_type(source)
        return self._add("map", from_=source, compute={"key": "key", "v": "qty", "p": "price"})

    def _of_every_type(self, source: str) -> str:
        """Reads rows of every type: their numbers, or results of an operator on the other attributes."""
        match self.random.choice(["numbers", "numbers", "texts", "grouped", "stamps"]):
            case "texts":
                where = "flag or text is null or text >= 'value 2' or length(text) > 100"
                source = self._add("filter", from_=source, where=where)
                return self._again(source, v="length(text)", p="price")
            case "grouped":
                compute = {"v": "count(distinct text)", "p": "max(price)", "t": "min(text)", "s": "max(stamp)"}
                by = {"key": "key", "flag": "flag", "text": "text"}
                made = self._add("aggregate", from_=source, window={"tumbling": "200ms"}, group_by=by, compute=compute)
                return self._again(made)
            case "stamps":
                compute = {"v": "sum(qty)", "p": "last(price)"}
                window = {"tumbling": "200ms", "on": "stamp"}
                return self._again(self._add("aggregate", from_=source, window=window, group_by="key", compute=compute))
        return self._add("map", from_=source, compute={"key": "key", "v": "qty", "p": "price"})

    def _again(self, stream: str, key: str = "key", v: str = "v", p: str = "p") -> str:
        return self._add("map", from_=stream, compute={"key": key, "v": v, "p": p})

    def _merged(self, streams: list[str]) -> str:
        if len(streams) == 1:
            return streams[0]
        if self.single or self.random.random() < 0.5:
            return self._add("union", from_=[self._again(s) for s in streams])
        left, right, *others = streams
        if others:
            right = self._add("union", from_=[self._again(s) for s in (right, *others)])
        return self._joined(left, right)

    def _joined(self, left: str, right: str) -> str:
        how: dict[str, Any] = {"kind": self.random.choice(["inner", "left", "right", "full"]), "on": "key"}
        if self.random.random() < 0.6:
            how["within"] = self.random.choice([["-200ms", "200ms"], ["0ms", "300ms"]])
        else:
            how["window"] = self.random.choice([{"tumbling": "200ms"}, {"sliding": "300ms", "slide": "100ms"}])
        made = self._add("join", left=left, right=right, **how)
        return self._again(made, "coalesce(l_key, r_key)", "coalesce(l_v, 0) + coalesce(r_v, 0)", "coalesce(l_p, r_p)")

    def _steps(self, stream: str, count: int) -> str:
        for _ in range(count):
            stream = self._step(stream)
        return stream

    def _step(self, stream: str) -> str:
        random = self.random
        kinds = ["filter", "map"] if self.single else ["filter", "map", "tumbling", "sliding", "count", "topk", "chain"]
        match random.choice(kinds):
            case "filter":
                return self._add("filter", from_=stream, where="v % 3 > 0 or p > 50")
            case "map":
                return self._again(stream, v="v * 2 + key", p="p / 3")
            case "topk":
                ranked: Any = random.choice([{}, {"window": {"tumbling": "200ms"}}])
                order: Any = random.choice(["v desc, key", "p desc, v", "v"]).split(", ")
                return self._again(self._add("topk", from_=stream, k=2, order_by=order, **ranked))
            case "chain":
                # By the name, not by a draw: the other draws of a seed stay the same.
                skips = zlib.crc32(stream.encode()) % 2
                failing: dict[str, Any] = {"arguments": {"bad": 5}, "on_error": "skip"} if skips else {}
                return self._add("custom", from_=[stream], **{"class": HASH_CHAIN}, **failing)
            case "count":
                window: dict[str, Any] = {"count": random.choice([3, 7])}
            case "tumbling":
                window = {"tumbling": random.choice(["100ms", "500ms"])}
            case _:
                window = {"sliding": "400ms", "slide": "100ms"}
        v = random.choice(["sum(v)", "count(*)", "count(distinct v)", "max(v)"])
        p = random.choice(["sum(p)", "avg(p)", "first(p)", "last(p)", "min(p)"])
        return self._add("aggregate", from_=stream, window=window, group_by="key", compute={"v": v, "p": p})


def _placed(
    random: Random, query: _Query, shared: bool, features: Features
) -> tuple[list[str], dict[str, dict[str, Any]]]:
    """Returns nodes, and the placement of fragments: each on its own nodes, or all on the same few."""
    replicas = random.choice([1, 2, 2, 2, 3])
    if features & {Feature.LEFT_DEAD, Feature.LASTING_LINKS, *SLOW}:
        replicas = max(2, replicas)  # otherwise nothing would be promised
    passive = replicas > 1 and random.random() < _PASSIVE and not features & SLOW
    if Feature.OLD_CHECKPOINTS in features:
        replicas, passive = 2, True  # a third replica would have the state
    counts = _partitions(random, query, replicas)
    nodes: list[str] = []
    fragments: dict[str, dict[str, Any]] = {}
    for at, (operators, key) in enumerate(zip(query.groups, query.keys, strict=True), 1):
        where = [f"n{'' if shared else at}{letter}" for letter in "abc"[:replicas]]
        nodes += [n for n in where if n not in nodes]
        partitions = counts[at - 1]
        fragments[f"f{at}"] = {"operators": operators, "replicas": where}
        if partitions > 1:
            fragments[f"f{at}"] |= {"key": key, "partitions": partitions, "replicas": [where] * partitions}
        if passive:
            fragments[f"f{at}"] |= {
                "replicas": [where[:1]] * partitions,
                "standby": [where[1:]] * partitions,
                "checkpoint": random.choice(["200ms", "700ms", "2s"]),
            }
    return nodes, fragments


def _partitions(random: Random, query: _Query, replicas: int) -> list[int]:
    """Returns the number of partitions of each fragment.

    Of two fragments that divide a stream by the same key, one reads the other one-to-one, merged or split if one count
    divides the other: that takes two neighbours with several partitions, so such counts are drawn on purpose.
    """
    fragments = len(query.groups)
    if fragments == 1 or random.random() >= _RELATED:
        room = max(1, MOST_REPLICAS // (replicas * max(fragments, len(query.outputs))))
        return [min(room, random.choice([1, 1, 2, 3, 4])) for _ in range(fragments)]
    at = random.randrange(fragments - 1)
    room = MOST_REPLICAS // replicas - (fragments - 2)
    fitting = [pair for pair in _RELATED_COUNTS if sum(pair) <= room] or [(1, 1)]
    return [1] * at + list(random.choice(fitting)) + [1] * (fragments - 2 - at)
