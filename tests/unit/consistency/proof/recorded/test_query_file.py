"""The proof's own reader of the configuration, compared with the engine's; the two share no code."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
import yaml

from consistency.proof import spark_expressions as rewriting
from consistency.proof.agreement import disagreements
from consistency.proof.recorded import query_file as reading
from consistency.proof.recorded.query_file import CountEntry, Reading, TimeEntry, duration_us, read
from replicas.simulation.scenarios.topologies import random_configuration
from spe.config import load, load_text
from spe.plan.deploy import Deployed
from spe.plan.directory import Directory
from spe.plan.plan import Plan
from spe.query.declaration import OnError
from spe.query.operators.aggregate import AggregateSpec
from spe.query.operators.filter import FilterSpec
from spe.query.operators.join import JoinSpec
from spe.query.operators.map import MapSpec
from spe.query.operators.topk import TopKSpec
from spe.query.operators.union import UnionSpec
from spe.query.query import QueryOperator
from spe.query.windows import Window as EngineWindow
from spe.stream.names import StreamId

CONFIGS = sorted((Path(__file__).parents[5] / "configs").glob("*.yaml"))
#: Every setting in each spelling that the manual allows.
UNUSUAL = """
bucket: 1m 30.5s
sources:
  a: &defaults
    schema: {ts: timestamp!, "on": int64, 'k:1': string, x: float64!, no: bool}
    time: ts
    disorder: 1h30m
    boundary: 2ms
    from: {csv: a.csv, columns: {ts: when}}
    replay: {max: true}
  b: {<<: *defaults, disorder: 0}
  c: {<<: [{disorder: 5s}, *defaults], boundary: 1s}
  g: {schema: {ts: timestamp!}, from: {tcp: "127.0.0.1:0", format: csv}, time: ~}
  d: {from: {generator: pages}}
  e: {from: {generator: {name: orders, disorder: 200ms, duration: 1s}}}
  f: {schema: {at: timestamp!}, time: at, from: {generator: {name: rows, count: 5}}}
query:
  none: {filter: {from: a, where: true}}
  nulls: {filter: {from: a, where: "null is null"}}
  numbers: {map: {from: a, compute: {one: 1, half: 0.5, text: "'it''s'", "yes": no}}}
  kept: {map: {from: a, compute: {y: 'x * 2'}, keep: true, on_error: skip}}
  nothing: {map: {from: a, keep: TRUE, compute: {}, on_error: "stop"}}
  pair: {union: {from: [a, b]}}
  again: {union: [pair, kept_away]}
  kept_away: {map: {from: b, compute: {ts: ts, "on": "`on`", "k:1": "`k:1`", x: x, no: no}}}
  short: {aggregate: {from: pair, window: 1s, group_by: "on", compute: {n: COUNT( * ), u: "count(Distinct  x)"}}}
  long:
    aggregate:
      from: pair
      window: {sliding: 1m30s, slide: 250ms, offset: -10s, on: ts}
      group_by: {day: "date_trunc('day', ts)", k: "`k:1`"}
      compute: {total: ' sum ( (x + 1) * 2 ) ', first: first(x)}
  rows: {aggregate: {from: a, window: {count: 7}, group_by: ["on", no], compute: {m: "max(if(x > 1, 1, 2))"},
                     on_error: 'skip'}}
  close: {join: {left: a, right: b, on: "on", within: 5s}}
  apart: {join: {left: a, right: b, kind: full, on: {"on": "on", "k:1": "k:1"}, within: [-1s, 0],
                 left_time: ts, right_time: ts, where: l_x < r_x}}
  same: {join: {left: a, right: b, kind: left, on: [["on", "on"], no], window: {tumbling: 1d, offset: 8h},
                prefix: [one_, two_], on_error: skip}}
  best: {topk: {from: a, k: 3, order_by: x DESC}}
  most: {topk: {from: a, k: 1, order_by: ["x + 1 asc", "`on`"], partition_by: no, window: {tumbling: 2s},
                with_ties: true, rank_as: rank}}
outputs: [short, long, rows, close, apart, same, best, most, again, nothing, numbers, nulls, none, kept]
fragments:
  left: {operators: [none, nulls, numbers, kept, nothing, pair, kept_away, again, short, long, rows, best, most]}
  right: {operators: [close, apart, same], key: {a: ["on"], b: "on"}, partitions: 3}
clients: {all: , one: {reads: best}, some: {reads: [long, short]}}
"""


def window(one: TimeEntry | CountEntry | None, other: EngineWindow | None) -> bool:
    if one is None or other is None:
        return one is other
    names = ("size_us", "slide_us", "offset_us", "on") if isinstance(one, TimeEntry) else ("count",)
    return all(getattr(one, name) == getattr(other, name) for name in names)


def alike(ours: Any, spec: Any) -> bool:
    """Do both readers mean the same operator?"""
    if isinstance(spec, AggregateSpec):
        calls = [(n, c.function, c.argument) for n, c in spec.aggregates.items()]
        return (
            window(ours.window, spec.window)
            and [*ours.group_by.items()] == [*spec.group_by.items()]
            and [(n, c.function, c.argument) for n, c in ours.calls.items()] == calls
        )
    if isinstance(spec, JoinSpec):
        within = None if spec.lower_us is None else (spec.lower_us, spec.upper_us)
        names = ("on", "left_time", "right_time", "where", "prefix", "kind")
        same = all(getattr(ours, name) == getattr(spec, name) for name in names)
        return same and window(ours.window, spec.window) and ours.within_us == within
    if isinstance(spec, TopKSpec):
        names = ("k", "order_by", "partition_by", "with_ties", "rank_as")
        return all(getattr(ours, n) == getattr(spec, n) for n in names) and window(ours.window, spec.window)
    if isinstance(spec, MapSpec):
        return [*ours.columns.items()] == [*spec.columns.items()] and bool(ours.keep) is spec.keep
    if isinstance(spec, FilterSpec):
        return bool(ours.where == spec.where)
    return isinstance(spec, UnionSpec) or bool(ours.path == spec.path)


def differences(ours: Reading, plan: Plan, directory: Directory) -> list[str]:
    found = disagreements(ours, plan, directory)
    found += [str(o) for o in plan.query.operators if not alike(ours.operators[o.name], o.spec)]
    for name, source in plan.sources.items():
        one = ours.sources[name]
        if (one.time, one.disorder_us, one.kind) != (source.time, source.disorder_us, source.reader["kind"]):
            found.append(f"{one} {source}")
        if one.types is not None and one.types != {a.name: a.type for a in source.schema}:
            found.append(f"{one.types} {source.schema}")
    return found


@pytest.mark.parametrize("path", CONFIGS, ids=[path.stem for path in CONFIGS])
def test_both_readers_agree_on_every_configuration(path: Path) -> None:
    assert differences(read(path.read_text()), *load(path)) == []


def test_both_readers_agree_on_every_spelling() -> None:
    assert differences(read(UNUSUAL), *load_text(UNUSUAL)) == []


@pytest.mark.parametrize(
    "reader",
    [
        *("{tcp: 'localhost:9001'}", "{stdin: true}", "{push: etl}", "{push: [etl, other]}"),
        *("{format: csv, kafka: {servers: 'a:1', topics: [t]}}", "{postgres: t}"),
    ],
)
def test_both_readers_agree_on_live_sources(reader: str) -> None:
    text = f"""
    sources: {{a: {{schema: {{ts: timestamp!, x: int64}}, time: ts, disorder: 1s, from: {reader}}}}}
    query: {{kept: {{filter: {{from: a, where: x > 0}}}}}}
    """
    assert differences(read(text), *load_text(text)) == []
    assert read(text).sources["a"].live


@pytest.mark.parametrize("seed", range(20))
def test_both_readers_agree_on_random_configurations(seed: int) -> None:
    text = yaml.safe_dump(random_configuration(Random(f"reading {seed}"), 2), sort_keys=False)
    assert differences(read(text), *load_text(text)) == []


@pytest.mark.parametrize(
    ("text", "us"),
    [("0", 0), ("1.5ms", 1500), ("-2m", -120_000_000), ("1h 2min 3us", 3_720_000_003), ("1d", 86_400 * 10**6)],
)
def test_both_readers_agree_on_durations(text: str, us: int) -> None:
    assert duration_us(text) == us


def stopping(operator: QueryOperator) -> QueryOperator:
    """The same operator without ``on_error``."""
    skips = operator.spec.skips
    return replace(operator, spec=replace(operator.spec, on_error=OnError.STOP)) if skips else operator


def plan_of(change: Mapping[str, Any]) -> Deployed:
    plan, directory = load_text(UNUSUAL)
    plan = replace(plan, **{name: value(plan) for name, value in change.items() if name != "clients"})
    return Deployed(plan, replace(directory, clients=change.get("clients", directory.clients)))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"bucket_us": lambda plan: 1}, "bucket: the file says 90500000, the plan 1"),
        ({"query": lambda plan: replace(plan.query, outputs=plan.query.outputs[1:])}, "outputs: "),
        ({"query": lambda plan: replace(plan.query, operators=plan.query.operators[1:])}, "operators: "),
        ({"sources": lambda plan: {}}, "sources: "),
        ({"units": lambda plan: [replace(u, partitions=u.partitions + 1) for u in plan.units]}, "partitions of 'none'"),
        (
            {
                "clients": {
                    n: replace(c, reads=(StreamId("long"),)) for n, c in load_text(UNUSUAL).directory.clients.items()
                }
            },
            "reads of",
        ),
        ({"query": lambda plan: replace(plan.query, operators=tuple(map(stopping, plan.query.operators)))}, "skip of "),
    ],
)
def test_a_plan_of_another_shape_is_reported(change: Mapping[str, Any], said: str) -> None:
    assert any(one.startswith(said) for one in disagreements(read(UNUSUAL), *plan_of(change)))


def test_a_key_that_differs_from_the_plan_is_reported() -> None:
    def turned(plan: Plan) -> list[Any]:
        return [replace(u, inputs=tuple(replace(i, key=("x",)) for i in u.inputs)) for u in plan.units]

    assert "key of 'a': the file says ('on',), the plan ('x',)" in disagreements(
        read(UNUSUAL), *plan_of({"units": turned})
    )


def test_the_second_reader_uses_nothing_of_the_engine() -> None:
    for module in (reading, rewriting):
        tree = ast.parse(Path(str(module.__file__)).read_text())
        imported = [n.module for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)]
        imported += [a.name for n in ast.walk(tree) if isinstance(n, ast.Import) for a in n.names]
        assert not [
            name for name in imported if str(name).split(".")[0] in ("spe", "operators", "consistency", "replicas")
        ]
