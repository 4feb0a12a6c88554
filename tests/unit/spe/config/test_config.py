"""A configuration gives a plan, or a list of all mistakes with their lines."""

from __future__ import annotations

import contextlib
import copy
import inspect
import json
import re
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spe import api
from spe.config import load, load_plan, load_plan_data, load_plan_text, load_text, missing_files
from spe.config.document import parse
from spe.config.query import read_operators
from spe.errors import ConfigError
from spe.plan.deploy import Deployed
from spe.plan.directory import ANY_ADDRESS, CoordinatorSettings, ExpectedLoad, RecoverySettings, Standbys
from spe.plan.nodes import Checkpoints, Policy, Reconcile
from spe.plan.plan import Limits, Plan, Timing, Watermark
from spe.plan.review import review
from spe.problems import Problems
from spe.query.declaration import OnError, OnLate, OperatorSpec
from spe.query.operators.aggregate import AggregateCall, AggregateSpec
from spe.query.operators.filter import FilterSpec
from spe.query.operators.join import JoinKind, JoinSpec
from spe.query.operators.map import MapSpec
from spe.query.operators.rejected import RejectedSpec
from spe.query.operators.topk import TopKSpec
from spe.query.operators.union import UnionSpec
from spe.query.windows import CountWindow, SlidingWindow, TumblingWindow, Window
from spe.stream.ids import PartitionId
from spe.stream.names import NodeId, StreamId, UnitId

CONFIGS = sorted((Path(__file__).parents[4] / "configs").glob("*.yaml"))

SOURCE = """
sources:
  orders:
    schema: {ts: timestamp!, user: string, price: float64, qty: int64!}
    time: ts
    from: {csv: orders.csv}
"""


def plan_of(text: str) -> Deployed:
    return load_text(textwrap.dedent(text), "test.yaml")


def problems_of(text: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        plan_of(text)
    return caught.value.problems


def spec_of(entry: str) -> OperatorSpec:
    """The specification of an operator over ``orders`` (and ``more``, of the same schema)."""
    more = "  more:\n    schema: {ts: timestamp!, user: string, price: float64, qty: int64!}\n    time: ts\n"
    plan = plan_of(f"{SOURCE}{more}    from: {{jsonl: more.jsonl}}\nquery:\n  q: {entry}\n").plan
    return plan.query.operators[0].spec


# -- what is there


def test_the_smallest_configuration_gets_two_nodes_and_a_client() -> None:
    plan, directory = plan_of(f"{SOURCE}\nquery:\n  big: {{filter: {{from: orders, where: price > 10}}}}\n")

    assert plan.query.outputs == ("big",)
    assert [str(u.id) for u in plan.units] == ["main"]
    assert list(directory.placement.values()) == [("n1", "n2")]
    assert directory.clients["client"].reads == ("big",)
    assert plan.timing == Timing()
    assert plan.limits == Limits()


def test_nodes_take_missing_settings_from_the_defaults() -> None:
    directory = plan_of(
        f"""{SOURCE}
query:
  big: {{filter: {{from: orders, where: price > 10}}}}
defaults: {{x: 3s, alpha: 0.5, policy: delay}}
nodes:
  n1: {{x: 5s, policy: {{failure: suspend}}}}
  n2: {{address: "10.0.0.1:7102"}}
"""
    ).directory
    n1, n2 = directory.nodes[NodeId("n1")], directory.nodes[NodeId("n2")]

    assert (n1.x_us, n1.alpha, n1.during_failure, n1.during_stabilization) == (
        5_000_000,
        0.5,
        Policy.SUSPEND,
        Policy.DELAY,
    )
    assert (n2.x_us, n2.address, n2.during_failure) == (3_000_000, "10.0.0.1:7102", Policy.DELAY)


def test_nodes_may_choose_their_way_to_reconcile() -> None:
    directory = plan_of(
        f"""{SOURCE}
query:
  big: {{filter: {{from: orders, where: price > 10}}}}
defaults: {{reconcile: undo, checkpoint: {{every: 200ms}}}}
nodes:
  n1: {{reconcile: checkpoint, checkpoint: {{every: 5s, disk: true}}}}
  n2: {{}}
"""
    ).directory
    n1, n2 = directory.nodes[NodeId("n1")], directory.nodes[NodeId("n2")]

    assert (n1.reconcile, n1.checkpoints) == (Reconcile.CHECKPOINT, Checkpoints(5_000_000, disk=True))
    assert (n2.reconcile, n2.checkpoints) == (Reconcile.UNDO, Checkpoints(200_000))


def test_timing_limits_and_bucket_are_read_with_their_units() -> None:
    plan = plan_of(
        f"""{SOURCE}
cluster: shop
bucket: 250ms
timing: {{heartbeat: 50ms, connect: 300ms}}
limits: {{output: 64MB, suffix: 1MiB}}
query:
  big: {{filter: {{from: orders, where: price > 10}}}}
"""
    ).plan
    assert (plan.cluster, plan.bucket_us) == ("shop", 250_000)
    assert (plan.timing.heartbeat_us, plan.timing.connect_us) == (50_000, 300_000)
    assert (plan.limits.output_bytes, plan.limits.suffix_bytes) == (64_000_000, 1 << 20)


@pytest.mark.parametrize("size", ["63KiB", "17MiB"])
def test_a_frame_limit_out_of_range_is_refused(size: str) -> None:
    with pytest.raises(ConfigError, match="frame"):
        plan_of(
            f"""{SOURCE}
limits: {{frame: {size}}}
query:
  big: {{filter: {{from: orders, where: price > 10}}}}
"""
        )


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        ("{filter: {from: orders, where: price > 10}}", FilterSpec(StreamId("orders"), "price > 10")),
        ("{filter: {from: orders, where: true}}", FilterSpec(StreamId("orders"), "true")),
        (
            "{map: {from: orders, compute: {value: price * qty, one: 1}, keep: true}}",
            MapSpec(StreamId("orders"), {"value": "price * qty", "one": "1"}, True),
        ),
        ("{union: [orders, more]}", UnionSpec((StreamId("orders"), StreamId("more")))),
        ("{union: {from: [orders, more]}}", UnionSpec((StreamId("orders"), StreamId("more")))),
        (
            "{topk: {from: orders, k: 3, order_by: [price DESC, user, qty asc], partition_by: user, rank_as: r}}",
            TopKSpec(StreamId("orders"), 3, (("price", True), ("user", False), ("qty", False)), ("user",), rank_as="r"),
        ),
    ],
)
def test_operator_entries_mean_their_specification(entry: str, expected: OperatorSpec) -> None:
    assert spec_of(entry) == expected


@pytest.mark.parametrize(
    ("window", "expected"),
    [
        ("1s", TumblingWindow(1_000_000)),
        ("{tumbling: 1h, offset: -15m}", TumblingWindow(3_600_000_000, -900_000_000)),
        ("{sliding: 10s, slide: 3s, on: ts}", SlidingWindow(10_000_000, 3_000_000, 0, "ts")),
        ("{count: 100}", CountWindow(100)),
    ],
)
def test_windows_are_given_by_their_lengths(window: str, expected: Window) -> None:
    spec = spec_of(f"{{aggregate: {{from: orders, window: {window}, compute: {{n: count(*)}}}}}}")

    assert isinstance(spec, AggregateSpec)
    assert spec.window == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("count(*)", AggregateCall("count")),
        ("COUNT ( * )", AggregateCall("count")),
        ("count(user)", AggregateCall("count", "user")),
        ("count(distinct user)", AggregateCall("count_distinct", "user")),
        ("sum(price * (qty + 1))", AggregateCall("sum", "price * (qty + 1)")),
        ("max(case when user = ')' then price end)", AggregateCall("max", "case when user = ')' then price end")),
    ],
)
def test_aggregates_are_given_as_calls(text: str, expected: AggregateCall) -> None:
    spec = spec_of(f'{{aggregate: {{from: orders, window: 1s, compute: {{a: "{text}"}}}}}}')

    assert isinstance(spec, AggregateSpec)
    assert spec.aggregates == {"a": expected}


@pytest.mark.parametrize(
    ("on", "expected"),
    [
        ("user", (("user", "user"),)),
        ("[user, qty]", (("user", "user"), ("qty", "qty"))),
        ("{user: user}", (("user", "user"),)),
        ("[[user, user], qty]", (("user", "user"), ("qty", "qty"))),
    ],
)
def test_join_keys_are_names_or_pairs(on: str, expected: tuple[tuple[str, str], ...]) -> None:
    spec = spec_of(f"{{join: {{left: orders, right: more, kind: left, on: {on}, within: 5s}}}}")

    assert isinstance(spec, JoinSpec)
    assert (spec.on, spec.kind) == (expected, JoinKind.LEFT)
    assert (spec.lower_us, spec.upper_us) == (-5_000_000, 5_000_000)


def test_join_interval_may_be_one_sided_and_over_attributes() -> None:
    spec = spec_of(
        "{join: {left: orders, right: more, on: user, within: [0, 1m], "
        "left_time: ts, right_time: ts, prefix: [a_, b_]}}"
    )
    assert isinstance(spec, JoinSpec)
    assert (spec.lower_us, spec.upper_us, spec.left_time, spec.prefix) == (0, 60_000_000, "ts", ("a_", "b_"))


def test_group_by_takes_names_or_named_expressions() -> None:
    short = spec_of("{aggregate: {from: orders, window: 1s, group_by: [user, qty], compute: {n: count(*)}}}")
    long = spec_of("{aggregate: {from: orders, window: 1s, group_by: {who: user, q: qty + 1}, compute: {n: count(*)}}}")

    assert isinstance(short, AggregateSpec)
    assert isinstance(long, AggregateSpec)
    assert short.group_by == {"user": "user", "qty": "qty"}
    assert long.group_by == {"who": "user", "q": "qty + 1"}


@pytest.mark.parametrize(
    ("written", "reader"),
    [
        (
            "{csv: a.csv, delimiter: ';', header: false, columns: {v: 1}, null: ['', NA], timestamps: ms}",
            {
                "kind": "csv",
                "path": "/data/a.csv",
                "delimiter": ";",
                "header": False,
                "columns": {"v": 1},
                "null": ["", "NA"],
                "timestamps": "ms",
            },
        ),
        ("{jsonl: /x/a.jsonl}", {"kind": "jsonl", "path": "/x/a.jsonl"}),
        (
            "{parquet: a.parquet, columns: {v: value}, sort: seq}",
            {"kind": "parquet", "path": "/data/a.parquet", "columns": {"v": "value"}, "sort": "seq"},
        ),
        ("{tcp: '0.0.0.0:7000', format: csv}", {"kind": "tcp", "address": "0.0.0.0:7000", "format": "csv"}),
        ("{stdin: true}", {"kind": "stdin", "format": "jsonl"}),
    ],
)
def test_readers_get_options_and_paths_below_data_folder(written: str, reader: dict[str, Any]) -> None:
    text = f"sources: {{s: {{schema: {{t: timestamp, v: int64}}, time: t, from: {written}}}}}\n"
    text += "query: {q: {filter: {from: s, where: v > 0}}}\n"

    assert load_plan_text(text, data="/data").sources[StreamId("s")].reader == reader


def test_generator_brings_schema_time_and_disorder() -> None:
    plan = plan_of(
        """
        sources:
          s: {from: {generator: {name: orders, rate: 50, disorder: 300ms, duration: 1m, start: "2026-01-01"}}}
        query:
          q: {filter: {from: s, where: qty > 1}}
        """
    ).plan
    source = plan.sources[StreamId("s")]

    assert source.time == "ts"
    assert source.schema.names == ("ts", "key", "price", "qty")
    assert source.disorder_us == 300_000
    assert source.reader == {
        "kind": "generator",
        "generator": "orders",
        "rate": 50,
        "seed": 0,
        "disorder": 300_000,
        "duration": 60_000_000,
        "start": 1_767_225_600_000_000,
    }


def test_the_generator_rows_uses_the_schema_of_its_source() -> None:
    from_ = "from: {generator: {name: rows, burst: 2s}}"
    read = "query: {q: {filter: {from: s, where: v > 0}}}\n"
    plan = load_plan_text(f"sources: {{s: {{schema: {{v: int64, at: timestamp!}}, time: at, {from_}}}}}\n{read}")
    assert plan.sources[StreamId("s")].schema.names == ("v", "at")
    assert plan.sources[StreamId("s")].reader["burst"] == 2_000_000
    with pytest.raises(ConfigError, match="schema: is missing"):
        load_plan_text(f"sources: {{s: {{time: at, {from_}}}}}\n{read}")


@pytest.mark.parametrize(
    ("replay", "expected"),
    [
        ("{speed: 60}", {"speed": 60, "rate": None, "max": False}),
        ("{rate: 1000}", {"speed": None, "rate": 1000, "max": False}),
        ("{max: true}", {"speed": None, "rate": None, "max": True}),
        ("{origin: 1970-01-02}", {"speed": 1.0, "rate": None, "max": False, "origin_us": 86_400_000_000}),
    ],
)
def test_a_replay_has_a_speed_a_rate_or_no_limit(replay: str, expected: dict[str, Any]) -> None:
    plan = plan_of(f"{SOURCE}    replay: {replay}\nquery:\n  q: {{filter: {{from: orders, where: price > 1}}}}\n").plan

    assert plan.sources[StreamId("orders")].replay == expected


def test_by_default_only_live_sources_refuse_future_rows() -> None:
    body = "schema: {t: timestamp, v: int64}, time: t"
    plan = plan_of(
        f"""
        sources:
          live: {{{body}, from: {{tcp: "127.0.0.1:7000"}}}}
          file: {{{body}, from: {{jsonl: a.jsonl}}}}
          told: {{{body}, from: {{jsonl: a.jsonl}}, ahead: 10s}}
        query:
          q: {{union: [live, file, told]}}
        """
    ).plan
    assert [s.ahead_us for s in plan.sources.values()] == [3_600_000_000, None, 10_000_000]


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("", (Watermark.DATA, 500_000, False)),
        ("idle: 5s", (Watermark.DATA, 5_000_000, False)),
        ("watermark: data, idle: {after: 5s}", (Watermark.DATA, 5_000_000, False)),
        ("idle: {after: 5s, then: now}", (Watermark.DATA, 5_000_000, True)),
        ("idle: never", (Watermark.DATA, None, False)),
        ("watermark: clock", (Watermark.CLOCK, None, False)),
    ],
)
def test_by_default_a_live_source_promises_by_data(written: str, expected: Any) -> None:
    options = f", {written}}}" if written else "}"
    plan = plan_of(
        f"""
        sources:
          live: {{schema: {{t: timestamp, v: int64}}, time: t, from: {{tcp: "127.0.0.1:7000"}}{options}
        query:
          q: {{filter: {{from: live, where: v > 0}}}}
        """
    ).plan
    (live,) = plan.sources.values()
    assert (live.watermark, live.idle_us, live.idle_to_now) == expected


def test_rows_without_an_event_time_get_the_clocks() -> None:
    plan = plan_of(
        "sources: {live: {schema: {v: int64}, from: {stdin: true}}}\nquery: {q: {filter: {from: live, where: v > 0}}}\n"
    ).plan
    assert [s.watermark for s in plan.sources.values()] == [Watermark.CLOCK]


def test_sinks_become_kind_path_and_mode() -> None:
    directory = plan_of(
        f"""{SOURCE}
query:
  q: {{filter: {{from: orders, where: price > 1}}}}
clients:
  c: {{sinks: [{{parquet: out}}, {{jsonl: all.jsonl, mode: corrections}}]}}
"""
    ).directory
    assert directory.clients["c"].sinks == (
        {"kind": "parquet", "path": "out", "mode": "stable"},
        {"kind": "jsonl", "path": "all.jsonl", "mode": "corrections"},
    )


def test_missing_data_files_are_listed_separately(tmp_path: Path) -> None:
    (tmp_path / "conf.yaml").write_text(f"{SOURCE}query:\n  q: {{filter: {{from: orders, where: price > 1}}}}\n")
    plan = load_plan(tmp_path / "conf.yaml")

    assert missing_files(plan) == [f"sources.orders: {tmp_path / 'orders.csv'}"]
    (tmp_path / "orders.csv").touch()
    assert missing_files(plan) == []


# -- YAML


def test_yes_no_on_and_off_are_texts() -> None:
    problems = Problems()
    document = parse("{on: ts, no: yes, t: true, at: 12:30, n: 12, f: 1.5, e: null, q: '12'}", "x", problems)

    assert document.data == {
        "on": "ts", "no": "yes", "t": True, "at": "12:30", "n": 12, "f": 1.5, "e": None, "q": "12",
    }  # fmt: skip
    assert not problems


def test_merge_keys_work_and_mistakes_point_to_the_own_value() -> None:
    problems = problems_of(
        """
        sources:
          a: &a
            schema: {ts: timestamp!, v: int64}
            time: ts
            from: {csv: a.csv}
          b:
            <<: *a
            from: {csv: b.csv, sort: v}
        query:
          q: {union: [a, b]}
        """
    )
    assert problems == [
        "test.yaml:9: sources.b.from: sort does not go with csv; expected one of: columns, delimiter, quote, header, "
        "null, timestamps"
    ]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a: [1, 2", "test.yaml:1: the configuration: not YAML: expected ',' or ']', but got '<stream end>'"),
        ("a: &x [*x]", "test.yaml:1: a[0]: an alias that refers to what it stands in"),
        ("query: {}\nquery: {}", "test.yaml:2: query: is given twice"),
        ("- 1", "test.yaml:1: the configuration: is no mapping; expected sections, at least sources and query"),
        ("", "test.yaml:1: the configuration: is empty; expected sections, at least sources and query"),
        ("# a remark\n", "test.yaml:1: the configuration: is empty; expected sections"),
        ("a: \x01", "test.yaml:1: the configuration: not YAML: special characters are not allowed"),
        ("{[1]: 2}", "test.yaml:1: ?: a key that is not a text; expected a name"),
    ],
)
def test_broken_yaml_is_a_problem_with_a_line(text: str, problem: str) -> None:
    assert any(p.startswith(problem) for p in problems_of(text)), problems_of(text)


@pytest.mark.parametrize(
    ("text", "advice", "excerpt"),
    [
        ("a: [1, 2", "; a bracket or a quote above is not closed", ""),
        ("query:\n\ta: 1", "; indent with spaces", "a: 1\n^"),
        ("a: {b: price: qty}", "; put a text with a comma, a colon, a quote", "a: {b: price: qty}\n            ^"),
        ("a: {b: concat(key, 'a')}", "; put a text with a comma, a colon, a quote", "a: {b: concat(key, 'a')}"),
        ("a:\n  b: price: qty", "; put a text with a colon in quotes", "b: price: qty\n        ^"),
        ("a:\n    b: 1\n  c: 2", "; indent the line as those of the same section", "c: 2\n^"),
    ],
)
def test_broken_yaml_comes_with_advice_and_place(text: str, advice: str, excerpt: str) -> None:
    (problem,) = problems_of(text)
    shown = problem.partition("\n")
    assert advice in shown[0]
    assert "\n".join(line[4:] for line in shown[2].splitlines()).startswith(excerpt)


@pytest.mark.parametrize(
    ("entry", "name", "text"),
    [
        ("{map: {from: orders, compute: {p: coalesce(price, 0)}}}", "p", "coalesce(price, 0)"),
        (
            "{map: {from: orders, compute: {p: if(qty > 1, least(qty, 3), 0), n: qty}}}",
            "p",
            "if(qty > 1, least(qty, 3), 0)",
        ),
        ("{filter: {from: orders, where: price in (1, 2)}}", "where", "price in (1, 2)"),
        ("{aggregate: {from: orders, compute: {n: sum(least(qty, 3))}, window: 1s}}", "n", "sum(least(qty, 3))"),
    ],
)
def test_a_comma_in_a_text_without_quotes_is_named(entry: str, name: str, text: str) -> None:
    (problem,) = problems_of(f"{SOURCE}query:\n  q: {entry}\n")

    assert problem.endswith(f'{name}: a comma ends the text here; put it in quotes: {name}: "{text}"')
    load_plan_text(f"{SOURCE}query:\n  q: {entry.replace(text, json.dumps(text))}\n")


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        (
            "query:\nq: {union: [a, b]}",
            ["query: is missing or empty; expected a mapping of operators, indented", "q: unk"],
        ),
        ("query: SELECT a FROM orders", ["query: a query has operators, whose expressions alone are SQL; expected a"]),
        ("query:\n  q: SELECT a FROM orders", ["query.q: a query has operators, whose expressions alone are SQL"]),
        ("query:\n  q:", ["query.q: is empty; expected an operator, indented below it, one of: filter"]),
        (
            "query:\n  q:\n  filter:\n    from: orders\n    where: qty > 1",
            ["query.q: is empty", "query.filter: is a kind of operator; expected it below a name, indented"],
        ),
        (
            "query:\n  q:\n    filter:\n    from: orders\n    where: qty > 1",
            ["query.q: from, where: keys of filter; expected below it, indented deeper"],
        ),
        (
            "query:\n  q:\n    filter:\n      from: orders\n    where: qty > 1",
            ["query.q: where: keys of filter; expected below it, indented deeper"],
        ),
        (
            "  query:\n    q: {union: [a, b]}",
            ["query: is missing or empty", "sources.query: query is a section; expected"],
        ),
    ],
)
def test_wrong_indentation_and_sql_say_what_was_expected(query: str, expected: list[str]) -> None:
    problems = [p.partition(": ")[2] for p in problems_of(f"{SOURCE}{query}\n")]

    assert [p[: len(e)] for p, e in zip(problems, expected, strict=True)] == expected


def test_unreadable_file_is_a_configuration_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        load_plan(tmp_path / "none.yaml")


# -- mistakes

MANY_MISTAKES = """\
buckt: 100ms
sources:
  a:
    schema: {ts: timestamp!, user: strng}
    time: ts
    disordr: 2s
    from: {csv: a.csv}
  b:
    schema: {ts: timestamp!, user: string, n: int64!}
    time: user
    disorder: 5
    from: {jsonl: b.jsonl, delimiter: ";"}
  c:
    schema: {ts: timestamp!, user: string, n: int64!}
    time: ts
    from: {jsonl: c.jsonl}
query:
  f: {filter: {from: c, where: "nn > 10"}}
  m:
    map:
      from: c
      compute:
        good: n + 1
        bad: nope + 1
        worse: n + nix
  g: {aggregat: {from: c}}
  h: {aggregate: {from: cc, window: {tumbling: 1s, count: 2}, compute: {n: counts(*)}}}
  i: {topk: {from: c, k: 0, order_by: n desc}}
outputs: [f, mm]
fragments:
  p: {operators: [f, m, zz], replicas: [n1, n9]}
nodes:
  n1: {x: 2, alfa: 3}
clients:
  me: {reads: [g]}
"""


def test_all_mistakes_are_reported_in_file_order() -> None:
    found = [p.splitlines()[0].split("; expected")[0] for p in problems_of(MANY_MISTAKES)]
    heads = [f.split(": no attribute")[0] for f in found]

    assert heads == [
        "test.yaml:1: buckt: unknown section (did you mean 'bucket'?)",
        "test.yaml:4: sources.a.schema.user: no type 'strng' (did you mean 'string'?)",
        "test.yaml:6: sources.a.disordr: unknown key (did you mean 'disorder'?)",
        "test.yaml:10: sources.b.time: 'user' is string",
        "test.yaml:11: sources.b.disorder: expected a duration with its unit, such as 500ms, 2s or 1h30m, got 5",
        "test.yaml:12: sources.b.from: delimiter does not go with jsonl",
        "test.yaml:18:33: query.f.filter.where",
        "test.yaml:24:14: query.m.map.compute.bad",
        "test.yaml:25:20: query.m.map.compute.worse",
        "test.yaml:26: query.g.aggregat: no operator 'aggregat' (did you mean 'aggregate'?)",
        "test.yaml:27: query.h.aggregate.window: expected exactly one of tumbling, sliding, count, "
        "got tumbling and count",
        "test.yaml:27: query.h.aggregate.compute.n: no aggregate 'counts' (did you mean 'count'?)",
        "test.yaml:28: query.i.topk.k: expected a number of at least 1, got 0",
        "test.yaml:29: outputs[1]: no operator 'mm' (did you mean 'm'?)",
        "test.yaml:30: fragments: operator g, h, i is in no fragment",
        "test.yaml:31: fragments.p.operators[2]: no operator 'zz'",
        "test.yaml:31: fragments.p.replicas[0][1]: no node 'n9'",
        "test.yaml:33: nodes.n1.x: expected a duration with its unit, such as 500ms, 2s or 1h30m, got 2",
        "test.yaml:33: nodes.n1.alfa: unknown key (did you mean 'alpha'?)",
        "test.yaml:35: clients.me.reads[0]: 'g' is no output; list it in outputs",
    ]


@pytest.mark.parametrize(
    ("where", "place", "excerpt"),
    [
        ("prise > 10", "8:39", "where: prise > 10"),
        ('"price > 0 and prise > 10"', "8:54", 'where: "price > 0 and prise > 10"'),
        ("'price > 0 and prise > 10'", "8:54", "where: 'price > 0 and prise > 10'"),
    ],
)
def test_expression_error_points_into_the_line(where: str, place: str, excerpt: str) -> None:
    (problem,) = problems_of(f"{SOURCE}query:\n  big: {{filter: {{from: orders, where: {where}}}}}\n")
    head, line, caret = problem.splitlines()

    assert head.startswith(f"test.yaml:{place}: query.big.filter.where: ")
    assert excerpt in line
    assert line[caret.index("^") :].startswith("prise")


def test_expression_error_in_a_folded_text_shows_the_expression() -> None:
    where = "where: >\n        price > 0\n        and prise > 1\n"
    (problem,) = problems_of(f"{SOURCE}query:\n  big:\n    filter:\n      from: orders\n      {where}")
    head, *lines = problem.splitlines()

    assert head.startswith("test.yaml:11: query.big.filter.where: ")
    assert lines[-1].strip() == "^"


def test_a_mistake_in_an_aggregate_points_into_the_call() -> None:
    entry = "agg: {aggregate: {from: orders, window: 1s, compute: {n: sum(price * quantity)}}}"
    (problem,) = problems_of(f"{SOURCE}query:\n  {entry}\n")
    _, line, caret = problem.splitlines()

    assert "query.agg.aggregate.compute.n" in problem
    assert line[caret.index("^") :].startswith("quantity")


def test_readers_of_a_wrong_operator_have_no_mistake() -> None:
    problems = problems_of(
        f"""{SOURCE}
query:
  a: {{filter: {{from: orders, where: nope = 1}}}}
  b: {{filter: {{from: a, where: price > 1}}}}
  c: {{union: [b, orders]}}
"""
    )
    assert len(problems) == 1


def test_a_cycle_is_reported_and_the_rest_still_checked() -> None:
    problems = problems_of(
        f"""{SOURCE}
query:
  a: {{union: [b, orders]}}
  b: {{union: [a, orders]}}
  c: {{filter: {{from: orders, where: nope = 1}}}}
"""
    )
    assert [p.splitlines()[0].split(": ")[1] for p in problems] == ["query.a", "query.c.filter.where"]
    assert "reads itself: a → b → a" in problems[0] or "reads itself: b → a → b" in problems[0]


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("{union: orders}", "at least 2"),
        ("{aggregate: {from: orders, window: {sliding: 1s}, compute: {n: count(*)}}}", "slide: is missing"),
        (
            "{aggregate: {from: orders, window: {count: 3, on: ts}, compute: {n: count(*)}}}",
            "has no 'on'; expected one of: count",
        ),
        ("{aggregate: {from: orders, window: {on: price, tumbling: 1s}, compute: {n: count(*)}}}", "timestamp"),
        ("{aggregate: {from: orders, window: 1s, compute: {n: sum(qty) + sum(price)}}}", "expected one aggregate call"),
        ("{aggregate: {from: orders, window: 1s, compute: {n: sum(*)}}}", "needs an argument"),
        ("{aggregate: {from: orders, window: 1s, compute: {n: count(}}}", "n: a parenthesis is not closed; expected"),
        ("{aggregate: {from: orders, window: 1s, compute: {n: SELECT sum(a)}}}", "n: SELECT is not expected here; exp"),
        ("{filter: {from: orders, where: select qty > 1}}", "where: SELECT is not expected here; expected an express"),
        ("{aggregate: {from: orders, window: 1s, compute: {n: median(qty)}}}", "no aggregate 'median'"),
        ("{aggregate: {from: orders, window: -1s, compute: {n: count(*)}}}", "above zero"),
        ("{aggregate: {from: orders, window: 5, compute: {n: count(*)}}}", "expected a mapping, got 5"),
        (
            "{aggregate: {from: orders, window: {session: 5s}, compute: {n: count(*)}}}",
            "(there are no session windows",
        ),
        ("{aggregate: {from: orders, window: {hop: 5s}, compute: {n: count(*)}}}", "(that is 'sliding' here)"),
        (
            "{aggregate: {from: orders, window: 5s, keyBy: user, compute: {n: count(*)}}}",
            "aggregate.keyBy: unknown key (that is 'group_by' here); expected one of: from, window",
        ),
        ("{aggregate: {from: orders, window: 5s, compute: {n: count(*)}, having: n > 1}}", "(put a filter behind"),
        ("{filter: {from: orders, where: prise > 1}}", "no attribute 'prise' (did you mean 'price'?); there are: "),
        (
            "{aggregate: {from: orders, window: {tumbling: 5s, on: tss}, compute: {n: count(*)}}}",
            "(did you mean 'ts'?)",
        ),
        ("{topk: {from: orders, limit: 2, k: 2, order_by: qty}}", "topk.limit: unknown key (that is 'k' here)"),
        ("{join: {left: orders, right: orders, on: {left: user}, within: 1s}}", "no attribute 'left' on the left"),
        ("{aggregate: {from: orders, compute: {n: count(*)}}}", "query.q.aggregate.window: is missing"),
        ("{join: {left: orders, right: orders, on: user}}", "either window or within"),
        ("{join: {left: orders, right: orders, on: user, within: [5s, 1s]}}", "the interval is empty"),
        ("{join: {left: orders, right: orders, on: [], within: 1s}}", "attributes to join on"),
        ("{join: {left: orders, right: orders, on: {user: qty}, within: 1s}}", "expected equal types"),
        ("{join: {left: orders, right: orders, on: user, kind: outer, within: 1s}}", "expected 'inner', 'left'"),
        ("{join: {left: orders, right: nobody, on: user, within: 1s}}", "query.q.join.right: no stream 'nobody'"),
        ("{topk: {from: orders, k: 2, order_by: []}}", "at least one expression"),
        ("{topk: {from: orders, k: 2, order_by: qty, window: {count: 2}}}", "not a count window"),
        ("{topk: {from: orders, k: true, order_by: qty}}", "expected a whole number, got true"),
        ("{custom: {class: nowhere, from: orders}}", "query.q.custom.class"),
        ("{custom: {class: 'no_such_module:Class', from: orders}}", "query.q.custom.class: cannot load"),
        ("{filter: {from: orders, where: }}", "expected an SQL expression"),
        ("{filter: {from: orders, where: qty > 1}, map: {}}", "expected one operator, got filter, map"),
        ("filter", "expected an operator, one of: filter, map"),
        (
            "{filter: {from: orders, where: qty > 1, on_error: skip}}",
            "test.yaml:8: query.q.filter.on_error: filter has no on_error: no row makes it fail",
        ),
        ("{topk: {from: orders, k: 2, order_by: qty, on_error: stop}}", "topk has no on_error: no row makes it fail"),
        ("{map: {from: orders, compute: {q: qty}, on_late: reject}}", "map has no on_late: no row is late for it"),
        (
            "{topk: {from: orders, k: 2, order_by: qty, on_late: reject}}",
            "test.yaml:8: query.q.topk.on_late: nothing is late without windows by an attribute, such as",
        ),
        ("{aggregate: {from: orders, window: 1s, compute: {n: count(*)}, on_late: reject}}", "nothing is late without"),
        (
            "{aggregate: {from: orders, window: {count: 2}, compute: {n: count(*)}, on_late: reject}}",
            "nothing is late without",
        ),
        (
            "{join: {left: orders, right: orders, on: qty, within: 1s, on_late: reject}}",
            "nothing is late without",
        ),
        (
            "{aggregate: {from: orders, window: {tumbling: 1s, on: ts}, compute: {n: count(*)}, on_late: skip}}",
            "on_late: expected 'count' or 'reject', got 'skip'",
        ),
        ("{map: {from: orders, compute: {q: qty}, on_error: ignore}}", "on_error: expected 'stop' or 'skip', got"),
        ("{rejected: orders}", "query.q.rejected: 'orders' rejects nothing; expected an operator with on_error: skip"),
    ],
)
def test_operator_mistakes_say_what_was_expected(entry: str, message: str) -> None:
    (problem,) = problems_of(f"{SOURCE}query:\n  q: {entry}\n")

    assert message in problem


@pytest.mark.parametrize("key", ["lateness", "allowed_lateness", "allowedLateness", "grace", "grace_period"])
@pytest.mark.parametrize(
    "text",
    [
        "sources: {s: {schema: {t: timestamp}, time: t, from: {csv: a}, KEY: 5s}}",
        "sources: {s: {schema: {t: timestamp}, time: t, from: {csv: a}, late: {jsonl: x, KEY: 5s}}}",
        SOURCE + "query: {q: {aggregate: {from: orders, window: 1s, compute: {n: count(*)}, KEY: 5s}}}",
        SOURCE + "query: {q: {aggregate: {from: orders, window: {tumbling: 1s, KEY: 5s}, compute: {n: count(*)}}}}",
        SOURCE + "query: {q: {join: {left: orders, right: orders, on: qty, within: 1s, KEY: 5s}}}",
        SOURCE + "defaults: {KEY: 5s}",
    ],
)
def test_allowed_lateness_is_refused_with_the_reason(text: str, key: str) -> None:
    found = [problem for problem in problems_of(text.replace("KEY", key)) if f".{key}: unknown key" in problem]
    assert len(found) == 1
    assert "(a stable window never changes, so no late row can be added to it: raise disorder of the source" in found[0]
    assert "or repair windows from its late sink, as docs/explanation/live.md shows)" in found[0]


MAPPED = "{map: {from: orders, compute: {qty: qty}, on_error: skip}}"


def test_only_clients_read_rejected_rows() -> None:
    entries = f"query:\n  m: {MAPPED}\n  r: {{rejected: m}}\n  f: {{filter: {{from: r, where: n > 1}}}}\n"
    (problem,) = problems_of(SOURCE + entries)
    assert "query.f.filter.from: 'r' has what an operator rejects, which only clients read" in problem


def test_rejected_rows_belong_to_the_fragment_of_their_operator() -> None:
    entries = f"query:\n  m: {MAPPED}\n  r: {{rejected: m}}\n"
    fragments = "fragments: {one: {operators: [m], replicas: 1}, two: {operators: [r], replicas: 1}}\nnodes: [n1]\n"
    problems = problems_of(f"{SOURCE}{entries}outputs: [m, r]\n{fragments}")
    assert any("fragments.two.operators[0]: 'r' is expected in the fragment of 'm'" in p for p in problems), problems


def test_a_stream_of_rejections_cuts_no_unit() -> None:
    """Both operators stay in one unit, and both outputs are read by default."""
    other = "  j: {join: {left: m, right: orders, on: qty, within: 1s}}\n"
    plan = load_text(f"{SOURCE}query:\n  m: {MAPPED}\n{other}  r: {{rejected: m}}\nnodes: [n1, n2]\n").plan
    assert [unit.outputs for unit in plan.units] == [("j", "r")]
    assert set(plan.query.outputs) == {"j", "r"}


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{schema: {t: timestamp}, time: t}", "sources.s.from: is missing"),
        ("{schema: {t: timestamp}, from: {csv: a}}", "sources.s.time: is missing; a replayed stream needs"),
        ("{time: t, from: {csv: a}}", "sources.s.schema: is missing"),
        ("{schema: {}, time: t, from: {csv: a}}", "at least one attribute"),
        ("{schema: {t: timestamp}, time: t, from: {csv: a, jsonl: b}}", "exactly one of csv, jsonl"),
        ("{schema: {t: timestamp}, time: t, from: {}}", "exactly one of csv, jsonl"),
        (
            "{schema: {t: timestamp}, time: t, from: {stdin: true}, watermark: 5s}",
            "expected 'data' or 'clock', got '5s'",
        ),
        (
            "{schema: {t: timestamp}, time: t, from: {csv: a}, watermark: data}",
            "csv is replayed and knows its next row",
        ),
        ("{schema: {t: timestamp}, time: t, from: {csv: a}, idle: 5s}", "expected no idle"),
        ("{schema: {t: timestamp}, from: {stdin: true}, watermark: data}", "expected time: ATTRIBUTE, or watermark"),
        ("{schema: {t: timestamp}, from: {stdin: true}, idle: 1s}", "expected no idle"),
        ("{schema: {t: timestamp}, time: t, from: {stdin: true}, idle: 5}", "{after: 5s, then: now} or never, got 5"),
        ("{schema: {t: timestamp}, time: t, from: {stdin: true}, idle: {after: 0s}}", "expected a duration above zero"),
        ("{schema: {t: timestamp}, time: t, from: {stdin: true}, idle: {then: now}}", "idle.after: is missing"),
        ("{schema: {t: timestamp}, time: t, from: {csv: a, columns: {x: y}}}", "no attribute 'x'"),
        ("{schema: {t: timestamp}, time: t, from: {csv: a}, replay: {speed: 1, max: true}}", "one of speed, rate"),
        ("{schema: {t: timestamp}, time: t, from: {stdin: true}, replay: {speed: 2}}", "live and has its own pace"),
        ("{schema: {t: timestamp}, time: t, from: {tcp: localhost}}", "expected host:port"),
        ("{schema: {t: timestamp}, time: t, from: {csv: a}, address: 'h:99999'}", "expected host:port"),
        ("{schema: {t: timestamp}, from: {stdin: true, format: csv, header: true}}", "header does not go with lines"),
        ("{schema: {t: timestamp}, from: {stdin: true, null: NA}}", "null does not go with format jsonl; expected"),
        (
            "{schema: {t: timestamp, n: int64}, from: {stdin: true, format: csv, columns: {t: when, n: 0}}}",
            "columns: there is no header for t: when; expected a number from 0",
        ),
        (
            "{schema: {t: timestamp}, time: t, from: {csv: a, header: false, columns: {t: when}}}",
            "columns: there is no header for t: when",
        ),
        ("{from: {generator: order}}", "no generator 'order' (did you mean 'orders'?)"),
        ("{from: {generator: {name: orders, count: 1, duration: 1s}}}", "duration or count, not both"),
        ("{from: {generator: {name: sequence, drift: 1s}}}", "drift goes with keys that follow skew"),
        ("{schema: {t: timestamp}, from: {generator: orders}}", "makes (ts timestamp not null"),
        ("{from: {generator: orders}, on_malformed: ignore}", "expected 'skip' or 'stop', got 'ignore'"),
        ("{from: {generator: {name: orders, rate: 0}}}", "expected a number above 0, got 0"),
        ("{from: {generator: orders}, replay: {speed: 1.0e-308}}", "speed: expected a number from 1e-06 to 1e+12, got"),
        ("{from: {generator: orders}, replay: {rate: 1.0e+300}}", "rate: expected a number from 1e-06 to 1e+12, got"),
        ("5", "expected a mapping, got 5"),
    ],
)
def test_source_mistakes_say_what_was_expected(source: str, message: str) -> None:
    problems = problems_of(f"sources:\n  s: {source}\nquery:\n  q: {{filter: {{from: s, where: 1 = 1}}}}\n")

    assert [p for p in problems if message in p], problems


def test_a_mapping_of_unknown_keys_gives_one_mistake() -> None:
    source = "{schema: {t: timestamp}, time: t, from: {topic: orders}}"
    (problem,) = problems_of(f"sources:\n  s: {source}\nquery:\n  q: {{filter: {{from: s, where: 1 = 1}}}}\n")

    assert "sources.s.from.topic: no reader 'topic'; expected one of: csv" in problem


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ("bucket: 0s", "bucket: expected a duration above zero"),
        (f"bucket: {'9' * 309}s", "bucket: expected a duration below 145,"),
        (f"bucket: {'9' * 309}", "bucket: expected a duration with its unit"),
        (f"timing: {{heartbeat: {'9' * 309}s}}", "timing.heartbeat: expected a duration below 145,"),
        (f"limits: {{output: {'9' * 309}MB}}", "limits.output: expected a size such as 64MB"),
        ("bucket: 3", "bucket: expected a duration with its unit"),
        ("cluster: two words", "cluster: 'two words' has ' ' in it; expected a name of letters, digits"),
        ("cluster: ..", "cluster: '..' is no name"),
        ("cluster: 5", "cluster: got 5; expected a name"),
        ('cluster: "a\\u200bb"', r"cluster: 'a\u200bb' has '\u200b' in it"),
        ("timing: {heartbeat: -1s}", "timing.heartbeat: expected a duration above zero"),
        ("limits: {output: plenty}", "limits.output: expected a size such as 64MB"),
        ("defaults: {policy: ignore}", "defaults.policy.failure: expected 'suspend', 'delay' or 'process'"),
        ("defaults: {reconcile: hope}", "defaults.reconcile: expected 'checkpoint' or 'undo'"),
        ("defaults: {checkpoint: {every: 0s}}", "defaults.checkpoint.every: expected a duration above zero"),
        ("defaults: {checkpoint: {disk: true}}", "defaults.checkpoint: disk: true needs to know how often to write"),
        ("nodes: {a/b: {}}", "nodes.a/b: 'a/b' has '/' in it"),
        ("nodes: {..: {}}", "nodes...: '..' is no name"),
        ("nodes: [.]", "nodes[0]: '.' is no name"),
        ('nodes: ["\\u202een"]', r"nodes[0]: '\u202een' has '\u202e' in it"),
        (
            "nodes: {source-orders: {}}",
            "sources.orders: has the same file names (source-orders) as nodes.source-orders",
        ),
        ("nodes: {coordinator: {}}", "has the same file names (coordinator) as the coordinator"),
        ("nodes: {supervisor: {}}", "has the same file names (supervisor) as the supervisor"),
        ("nodes: {a: {address: 'h:1'}, b: {address: 'h:1'}}", "nodes.b.address: h:1 is the address of nodes.a already"),
        ("nodes: 3", "nodes: expected a list of names, or a mapping"),
        ("outputs: []", "outputs: expected a list of operators"),
        ("outputs: [q, q]", "outputs[1]: 'q' is listed twice"),
        ("fragments: {}", "fragments: expected a mapping"),
        ("fragments: {f: {operators: [q], replicas: 0}}", "fragments.f.replicas: expected a number"),
        ("fragments: {f: {operators: [q, q]}}", "'q' is listed twice"),
        ("fragments: {f: {operators: [q], key: 5}}", "fragments.f.key: expected a name or a list"),
        ("clients: {c: {external: true, sinks: [{jsonl: a}]}}", "clients.c: an external client is a program of yours"),
        (
            "clients: {c: {sinks: [{jsonl: a}, {jsonl: ./a, mode: corrections}]}}",
            "clients.c: two sinks of one kind write to 'a'; expected a place for each",
        ),
        ("clients: {c: {sinks: [{jsonl: a, parquet: b}]}}", "clients.c.sinks[0]: expected parquet: PATH or jsonl"),
        (
            "clients: {c: {sinks: [{jsonl: a, mod: stable}]}}",
            "clients.c.sinks[0].mod: unknown key (did you mean 'mode'",
        ),
        ("clients: {c: {reads: q2}}", "clients.c.reads[0]: no output 'q2'"),
    ],
)
def test_deployment_mistakes_say_what_was_expected(section: str, message: str) -> None:
    text = f"{SOURCE}query:\n  q: {{filter: {{from: orders, where: price > 1}}}}\n{section}\n"

    assert [p for p in problems_of(text) if message in p], problems_of(text)


# -- X against the sources (rule T7)


def timed(x: str, disorder: str = "0s", replay: str = "{speed: 1}", alpha: float = 1.0) -> str:
    return f"""{SOURCE}    disorder: {disorder}
    boundary: 100ms
    replay: {replay}
bucket: 100ms
query:
  q: {{filter: {{from: orders, where: price > 1}}}}
defaults: {{alpha: {alpha}}}
nodes:
  n1: {{x: {x}}}
  n2: {{x: 1h}}
"""


def test_an_x_too_small_for_a_healthy_system_is_refused() -> None:
    (problem,) = problems_of(timed(x="2s", disorder="1800ms"))

    assert problem.startswith("test.yaml:15: nodes.n1.x: αX = 2s of 'n1' is too short for unit 'main'")
    assert "bucket + boundary + disorder = 2s of wall time" in problem


def test_an_x_shared_by_all_nodes_is_refused_once() -> None:
    text = f"""{SOURCE}    disorder: 1800ms
    boundary: 100ms
bucket: 100ms
query:
  q: {{filter: {{from: orders, where: price > 1}}}}
  r: {{filter: {{from: q, where: price > 2}}}}
outputs: [q, r]
fragments:
  f: {{operators: [q]}}
  g: {{operators: [r]}}
defaults: {{alpha: 1.0, x: 2s}}
nodes: [n1, n2, n3, n4]
"""

    (problem,) = problems_of(text)

    assert problem.startswith("test.yaml:"), problem
    assert ": defaults.x: αX = " in problem, problem
    assert "'n1', 'n2'" in problem, problem
    assert problem.endswith("(and 1 more unit)"), problem


def test_x_counts_wall_time_so_a_faster_replay_needs_less() -> None:
    plan, directory = plan_of(timed(x="2s", disorder="1m", replay="{speed: 60}"))

    assert review(plan, directory) == []


def test_an_x_with_little_room_gives_a_warning() -> None:
    findings = review(*plan_of(timed(x="2050ms", disorder="1800ms")))

    assert [f.path for f in findings] == [("nodes", "n1", "x")]
    assert "leaves room for a normal one" in findings[0].message


def test_an_x_below_the_time_to_switch_gives_a_warning() -> None:
    findings = review(*plan_of(timed(x="1s")))

    assert "less than 2·(stall + connect) = 1.8s" in findings[0].message


SOURCE_OF_A_FILE = """
sources:
  s: {schema: {ts: timestamp!, n: int64}, time: ts, from: {csv: x.csv}}
query:
  q: {filter: {from: s, where: n > 1}}
"""


def test_a_file_without_disorder_gives_a_warning_unless_zero() -> None:
    file = SOURCE_OF_A_FILE
    (finding,) = review(*plan_of(file))

    assert finding.path == ("sources", "s", "disorder")
    assert "0s if the file is sorted" in finding.message
    assert review(*plan_of(file.replace("time: ts", "time: ts, disorder: 0s"))) == []


def live(idle: str, alpha_x: str = "2s", disorder: str = "500ms") -> str:
    return f"""
bucket: 100ms
sources:
  s: {{schema: {{ts: timestamp!, n: int64}}, time: ts, disorder: {disorder}, idle: {idle}, from: {{stdin: true}}}}
query:
  q: {{filter: {{from: s, where: n > 1}}}}
defaults: {{alpha: 1.0, x: {alpha_x}}}
"""


@pytest.mark.parametrize(
    ("idle", "room"),
    [("1s", None), ("1199ms", None), ("1200ms", "1.199s"), ("5s", "1.199s"), ("{after: 1799ms, then: now}", None)],
)
def test_an_idle_time_that_alpha_x_cannot_hold_gives_a_warning(idle: str, room: str | None) -> None:
    """bucket + boundary + disorder + a normal delay = 800ms, of αX = 2s."""
    findings = review(*plan_of(live(idle)))
    if room is None:
        assert findings == []
        return
    (finding,) = findings
    assert finding.path == ("sources", "s", "idle")
    assert "is long for unit 'main', whose αX is 2s" in finding.message
    assert f"expected at most {room}, or αX above" in finding.message


def test_an_idle_time_that_alpha_x_can_hold_gives_no_warning() -> None:
    plan, directory = plan_of(live("1200ms"))
    (finding,) = review(plan, directory)
    assert finding.message.endswith("αX above 2s")
    assert review(*plan_of(live("1200ms", alpha_x="2001ms"))) == []
    assert review(*plan_of(live("1199ms"))) == []


def test_then_now_needs_only_the_idle_time() -> None:
    (finding,) = review(*plan_of(live("{after: 1800ms, then: now}")))
    assert "expected at most 1.799s, or αX above 2s" in finding.message


def test_a_source_without_idle_gives_a_warning() -> None:
    (finding,) = review(*plan_of(live("never")))
    assert finding.message.startswith("is never: whenever no row comes for αX, results are tentative")


STORED = """
sources:
  s: {{schema: {{ts: timestamp!, n: int64}}, time: ts, {time}, from: {{{reader}}}}}
  g: {{from: {{generator: {{name: orders, rate: 5}}}}}}
query:
  q: {{filter: {{from: s, where: n > 1}}}}
  r: {{filter: {{from: g, where: price > 1}}}}
"""


@pytest.mark.parametrize("reader", ["directory: in", "postgres: t", "postgres: {table: t, snapshot: false}"])
def test_a_start_that_can_be_slow_gives_a_warning(reader: str) -> None:
    def paths(time: str) -> list[Any]:
        return [one.path for one in review(*plan_of(STORED.format(time=time, reader=reader)))]

    stored = "false" not in reader
    assert paths("watermark: clock") == ([("sources", "s", "watermark")] if stored else [])
    assert paths("idle: {after: 500ms, then: now}") == ([("sources", "s", "idle")] if stored else [])
    assert paths("idle: 500ms") == []


# -- configurations that come with the software


@pytest.mark.parametrize("path", CONFIGS, ids=lambda p: p.stem)
def test_shipped_configuration_loads_without_a_warning(path: Path) -> None:
    assert review(*load(path, data="/data")) == []


@pytest.mark.parametrize(
    ("deployment", "paths"),
    [
        ("", [("sources", "s", "from", "tcp")]),
        (
            "nodes: {n1: {address: '10.0.0.1:7100'}, n2: {}}\n",
            [("nodes", "n1", "address"), ("sources", "s", "from", "tcp")],
        ),
        ("security: {insecure: true}\n", []),
    ],
)
def test_processes_reachable_from_other_hosts_are_named(deployment: str, paths: list[tuple[str, ...]]) -> None:
    source = "{schema: {t: timestamp!, n: int64}, from: {tcp: '0.0.0.0:7000'}}"
    text = f"sources:\n  s: {source}\nquery:\n  q: {{filter: {{from: s, where: n > 1}}}}\n{deployment}"
    found = review(*plan_of(text))
    assert [f.path for f in found] == paths
    assert all("expected security: {certificates: FOLDER}" in f.message for f in found)


METRICS_QUERY = """
sources: {s: {schema: {t: timestamp!, n: int64}, from: {tcp: '127.0.0.1:7000'}}}
query: {q: {filter: {from: s, where: n > 1}}}
"""


@pytest.mark.parametrize(
    ("section", "address"),
    [
        ("", None),
        ("metrics:\n", "127.0.0.1:9464"),
        ("metrics: {port: 9000}\n", "127.0.0.1:9000"),
        ("metrics: {bind: 0.0.0.0}\n", "0.0.0.0:9464"),
        ("metrics: {bind: '::1', port: 0}\n", "[::1]:0"),
    ],
)
def test_metrics_are_on_loopback_unless_asked(section: str, address: str | None) -> None:
    found = load_text(METRICS_QUERY + section).plan.metrics
    assert (None if found is None else found.address) == address
    assert load_text(METRICS_QUERY + section).plan.fingerprint == load_text(METRICS_QUERY).plan.fingerprint


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ("metrics: {port: 70000}\n", "c.yaml:4: metrics.port: "),
        ("metrics: {bind: everywhere}\n", "c.yaml:4: metrics.bind: expected an IP address of this machine"),
        ("metrics: {prot: 1}\n", "c.yaml:4: metrics.prot: "),
    ],
)
def test_mistakes_in_metrics_are_named_with_their_place(section: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_text(METRICS_QUERY + section, "c.yaml")
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize("path", CONFIGS, ids=lambda p: p.stem)
def test_shipped_configuration_survives_the_loss_of_any_one_node(path: Path) -> None:
    directory = load(path).directory
    assert all(len(set(directory.hosts(partition))) >= 2 for partition in directory.placement)


# -- Python


def test_reconcile_is_the_same_in_python_and_yaml() -> None:
    env = api.Environment(reconcile="undo", checkpoint={"every": "200ms"})
    orders = env.source("orders", api.generator("orders", rate=10))
    env.node("n1", reconcile="checkpoint", checkpoint={"every": "5s", "disk": True}).node("n2")
    nodes = env.outputs(orders.filter("qty > 1", name="some")).deployed().directory.nodes

    n1, n2 = nodes[NodeId("n1")], nodes[NodeId("n2")]
    assert (n1.reconcile, n1.checkpoints) == (Reconcile.CHECKPOINT, Checkpoints(5_000_000, disk=True))
    assert (n2.reconcile, n2.checkpoints) == (Reconcile.UNDO, Checkpoints(200_000))


BACKED = """
nodes: [n1, n2, n3]
sources:
  s: {from: {generator: {name: orders, rate: 10}}}
query:
  q: {filter: {from: s, where: qty > 1}}
fragments:
  f: {operators: [q], key: key, partitions: 2, replicas: [[n1], [n2]], standby: [[n3, n2], []], checkpoint: 700ms}
coordinator: {budget: 1, adapt: 30s, margin: 0.2, algorithm: greedy, cap: 0.7}
recovery: {value: complete, priorities: {q: 3}, loads: {f: {load: [0.3, 0.2], work: 4s}}}
"""


def test_standbys_are_the_same_in_python_and_yaml() -> None:
    env = api.Environment(
        coordinator={"budget": 1, "adapt": "30s", "margin": 0.2, "algorithm": "greedy", "cap": 0.7},
        recovery={
            "value": "complete",
            "priorities": {"q": 3},
            "loads": {"f": {"load": [0.3, 0.2], "work": "4s"}},
        },
    )
    orders = env.source("s", api.generator("orders", rate=10))
    some = orders.filter("qty > 1", name="q")
    env.outputs(some).node("n1").node("n2").node("n3")
    env.fragment(
        "f",
        [some],
        key="key",
        partitions=2,
        replicas=[["n1"], ["n2"]],
        standby=[["n3", "n2"], []],
        checkpoint="700ms",
    )
    plan, directory = plan_of(BACKED)
    first = PartitionId(UnitId("f"), 0)

    assert env.plan() == plan
    assert directory.standbys == {first: Standbys((NodeId("n3"), NodeId("n2")), 700_000)}
    assert directory.hosts(first) == ("n1", "n3", "n2")
    assert directory.coordinator == CoordinatorSettings(ANY_ADDRESS, 1, "greedy", 30_000_000, 0.2, 0.7, configured=True)
    loads = {UnitId("f"): ExpectedLoad((0.3, 0.2), (4_000_000,))}
    assert directory.recovery == RecoverySettings("complete", {StreamId("q"): 3.0}, loads)
    assert env.deployed().directory.recovery == directory.recovery
    assert plan_of(BACKED.partition("recovery:")[0])[1].recovery == RecoverySettings()


@pytest.mark.parametrize(
    ("was", "now", "said"),
    [
        ("[[n3, n2], []]", "[[n3, n1], []]", "standby[0][1]: 'n1' runs this partition already; expected another node"),
        ("[[n3, n2], []]", "[[n3, n4], []]", "standby[0][1]: no node 'n4'"),
        ("[[n3, n2], []]", "3", "4 replicas and standbys of a partition need 4 nodes; there are 3"),
        ("[[n3, n2], []]", "[[n3]]", "lists 1 partitions; expected nodes for each of 2"),
        (
            "budget: 1",
            "budget: 2",
            "coordinator.budget: expected at most 1, as many partitions have one replica and a standby, got 2",
        ),
        ("greedy", "best", "coordinator.algorithm"),
        ("cap: 0.7", "cap: 80", "coordinator.cap: expected a number of at most 1"),
        ("cap: 0.7", "cap: 0", "coordinator.cap: expected a number above 0"),
        ("value: complete", "value: all", "test.yaml:10: recovery.value: expected 'fidelity' or 'complete', got 'all'"),
        ("{q: 3}", "{p: 3}", "test.yaml:10: recovery.priorities.p: no output 'p'"),
        ("{q: 3}", "{q: -1}", "test.yaml:10: recovery.priorities.q: expected a number above 0, got -1"),
        ("{q: 3}", "3", "test.yaml:10: recovery.priorities: expected a mapping"),
        ("f: {load", "g: {load", "test.yaml:10: recovery.loads.g: no unit 'g'"),
        (
            "[0.3, 0.2]",
            "[0.3, 0.2, 0.1]",
            "recovery.loads.f: load is one, or 2, one per partition; got 3",
        ),
        ("[0.3, 0.2]", "-1", "test.yaml:10: recovery.loads.f.load"),
        ("4s", "long", "test.yaml:10: recovery.loads.f.work"),
        ("{load: [0.3, 0.2], work: 4s}", "heavy", "test.yaml:10: recovery.loads.f"),
        ("priorities", "priority", "test.yaml:10: recovery.priority: unknown key (did you mean 'priorities'?)"),
    ],
)
def test_mistakes_in_standbys_are_reported(was: str, now: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        plan_of(BACKED.replace(was, now))
    assert said in str(caught.value)


ROOMY = """
sources: {s: {from: {generator: {name: orders, rate: 10}}}}
query: {q: {filter: {from: s, where: qty > 1}}}
nodes:
  n1: {capacity: 3.5, memory: 2GB}
  n2: {}
"""


def test_capacities_are_the_same_in_python_and_yaml() -> None:
    env = api.Environment()
    env.outputs(env.source("s", api.generator("orders", rate=10)).filter("qty > 1", name="q"))
    env.node("n1", capacity=3.5, memory="2GB").node("n2")
    nodes = plan_of(ROOMY)[1].nodes

    assert {(n.id, n.capacity, n.memory) for n in nodes.values()} == {("n1", 3.5, 2 * 10**9), ("n2", 1.0, None)}
    assert env.deployed().directory.nodes == nodes


@pytest.mark.parametrize(
    ("was", "now", "said"),
    [
        ("3.5", "0", "test.yaml:5: nodes.n1.capacity: expected a number above 0, got 0"),
        ("3.5", ".inf", "test.yaml:5: nodes.n1.capacity: expected a"),
        ("2GB", "2 things", "test.yaml:5: nodes.n1.memory: expected a size such as 64MB or 1GiB"),
        ("memory", "memroy", "test.yaml:5: nodes.n1.memroy: unknown key (did you mean 'memory'?)"),
    ],
)
def test_mistakes_in_capacities_are_reported(was: str, now: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        plan_of(ROOMY.replace(was, now))
    assert said in str(caught.value)


def quickstart_in_python() -> api.Environment:
    env = api.Environment("quickstart", bucket="100ms", x="2s", alpha=0.9, policy="process")
    shops = [
        env.source(
            f"shop_{name}",
            api.generator("orders", rate=rate, keys=8, seed=seed, duration="40s", disorder="150ms"),
        )
        for seed, (name, rate) in enumerate([("a", 500), ("b", 300), ("c", 200)], start=1)
    ]
    orders = shops[0].union(*shops[1:], name="orders")
    large = orders.filter("price * qty >= 100", name="large")
    per_second = (
        large.key_by("key")
        .window(api.tumbling("1s"))
        .aggregate("per_second", orders="count(*)", revenue="sum(price * qty)", mean_price="avg(price)")
    )
    env.outputs(per_second)
    env.fragment("totals", [orders, large, per_second], replicas=["n1", "n2"])
    env.node("n1").node("n2")
    env.client("dashboard", [per_second], sinks=[{"jsonl": "per_second", "mode": "corrections"}])
    return env


def test_python_builder_makes_the_same_plan_as_the_file() -> None:
    (path,) = [p for p in CONFIGS if p.stem == "quickstart"]

    assert quickstart_in_python().plan() == load_plan(path)
    assert quickstart_in_python().plan().fingerprint == load_plan(path).fingerprint


def test_python_builder_writes_a_file_that_reads_back() -> None:
    env = quickstart_in_python()

    assert load_plan_text(env.to_yaml()) == env.plan()


def test_every_operator_can_be_built_in_python() -> None:
    env = api.Environment()
    left = env.source("l", api.csv("l.csv"), {"ts": "timestamp!", "user": "string", "n": "int64"}, time="ts")
    right = env.source("r", api.jsonl("r.jsonl"), {"ts": "timestamp!", "user": "string", "n": "int64"}, time="ts")
    pairs = left.join(right, "user", within=[0, "5s"], kind="left", name="pairs")
    doubled = left.map({"twice": "n * 2"}, keep=True)
    runs = doubled.key_by("user").window(api.count_window(3)).aggregate(first="first(n)")
    best = left.window(api.sliding("10s", "2s")).top_k(3, "n desc", with_ties=True, rank_as="rank")
    now = left.key_by(bucket="n % 10").window(api.tumbling("1s", offset="500ms", on="ts")).aggregate(n="count(*)")
    plan = env.outputs(pairs, runs, best, now.top_k(1, ["n desc"], partition_by=["window_start"])).plan()

    assert [o.name for o in plan.query.operators if isinstance(o.spec, AggregateSpec)] == ["aggregate_1", "aggregate_2"]
    assert plan.query.outputs == ("pairs", "aggregate_1", "topk_1", "topk_2")


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("{push: []}", "sources.s.from.push: expected at least one name, of who may push"),
        ("{push: [etl, etl]}", "sources.s.from.push: 'etl' is listed twice"),
        ("{push: etl, format: csv}", "format does not go with push"),
    ],
)
def test_mistakes_in_a_pushed_source_are_reported(written: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        plan_of(
            f"sources: {{s: {{schema: {{ts: timestamp!}}, time: ts, from: {written}}}}}\nquery: {{q: {{union: [s]}}}}"
        )
    assert said in str(caught.value)


def test_pushed_source_and_external_client_are_built_in_python() -> None:
    env = api.Environment()
    clicks = env.source("clicks", api.push("etl", "more"), {"ts": "timestamp!", "n": "int64"}, time="ts")
    env.outputs(clicks.filter("n > 0", name="some")).client("board").client("spark", ["some"], external=True)
    plan = env.plan()
    source = plan.sources[StreamId("clicks")]

    assert source.writers == ("writer:etl", "writer:more")
    assert plan.writers == set(source.writers)
    assert source.live
    assert (source.watermark, source.idle_us) == (Watermark.DATA, None)  # batches come with pauses between them
    assert {name: c.external for name, c in env.deployed().directory.clients.items()} == {"board": False, "spark": True}
    assert load_plan_text(env.to_yaml()) == plan


@pytest.mark.parametrize(
    ("misuse", "hint"),
    [
        (lambda s: s.key_by("key").aggregate(n="count(*)"), "a group needs a window"),
        (lambda s: s.key_by("key").top_k(3, "price desc"), "a group needs a window"),
        (lambda s: s.map(lambda row: row), "map takes expressions by attribute.*got a function"),
        (lambda s: s.map("price * 2"), "map takes expressions by attribute.*got 'price"),
        (lambda s: s.filter(lambda row: True), "filter takes an expression.*got a function"),
    ],
)
def test_unsupported_calls_in_python_name_an_alternative(misuse: Callable[[api.Stream], object], hint: str) -> None:
    with pytest.raises(ConfigError, match=hint):
        misuse(api.Environment("shop").source("s", api.generator("orders")))


def test_mistakes_of_a_python_query_have_their_paths() -> None:
    env = api.Environment("shop")
    line_number = inspect.currentframe().f_lineno + 1  # type: ignore[union-attr]
    env.source("s", api.generator("orders")).filter("prise > 1", name="big")

    with pytest.raises(ConfigError) as caught:
        env.plan()
    head, line, caret = caught.value.problems[0].splitlines()
    assert head.startswith(f"{__file__}:{line_number}: query.big.filter.where: ")
    assert line[caret.index("^") :].startswith("prise")


def test_a_repeated_name_in_python_is_refused_at_once() -> None:
    env = api.Environment()
    env.source("s", api.generator("orders"))

    with pytest.raises(ConfigError, match=rf"^{re.escape(__file__)}:\d+: sources\.s: there is a stream 's' already"):
        env.source("s", api.generator("orders"))


# -- the documentation


def code_in_docs(language: str) -> list[str]:
    text = (CONFIGS[0].parents[1] / "docs" / "reference" / "configuration.md").read_text(encoding="utf-8")
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


def test_documented_configuration_is_read_as_it_stands() -> None:
    parts = code_in_docs("yaml")
    problems = Problems()
    (query,) = [parse(p, "docs", problems).data["query"] for p in parts if p.startswith("query:")]

    assert None not in read_operators(query, problems).values()
    assert not problems


# -- anything at all

JUNK = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-5, 5),
    st.floats(allow_nan=True),
    st.sampled_from([5e-324, 1e-308, 1e-30, 1e30, 1.7e308, 2**31, 2**63, -(2**63), 10**30, 10**400]),
    st.sampled_from(["", "x", "2s", "n1", "orders", "count(*)", "price >", "a: b", "(((", "*", "%", "ö'"]),
    st.lists(st.sampled_from(["n1", 3, None, []]), max_size=3),
    st.dictionaries(
        st.sampled_from(["from", "where", "x", "filter"]), st.sampled_from(["orders", 1, None]), max_size=3
    ),
)


def places(data: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    return [path, *(p for key, value in inner for p in places(value, (*path, key)))]


@pytest.mark.parametrize("path", CONFIGS, ids=lambda p: p.stem)
@settings(max_examples=15, deadline=None)
@given(chooser=st.data())
def test_any_configuration_gives_a_plan_or_a_configuration_error(path: Path, chooser: st.DataObject) -> None:
    problems = Problems()
    data = copy.deepcopy(parse(path.read_text(), path.name, problems).data)
    where = chooser.draw(st.sampled_from([p for p in places(data) if p]))
    parent = data
    for key in where[:-1]:
        parent = parent[key]
    parent[where[-1]] = chooser.draw(JUNK)

    with contextlib.suppress(ConfigError):
        assert isinstance(load_plan_data(data), Plan)


def test_aliases_of_aliases_are_refused_before_they_fill_memory() -> None:
    bomb = "a: &a [x, x, x, x, x, x, x, x, x]\n"
    for this, before in zip("bcdefghi", "abcdefgh"):
        bomb += f"{this}: &{this} [{', '.join([f'*{before}'] * 9)}]\n"
    with pytest.raises(ConfigError, match="expected at most 100,000 values, aliases followed"):
        load_plan_text(bomb, "bomb.yaml")


def test_on_error_is_the_same_in_python_and_yaml() -> None:
    env = api.Environment()
    orders = env.source("s", api.generator("orders", rate=10))
    plan = env.outputs(orders.map({"key": "key"}, name="q").on_error("skip")).plan()
    (operator,) = plan.query.operators
    assert operator.spec == MapSpec(StreamId("s"), {"key": "key"}, False, OnError.SKIP)
    assert operator.spec.describe() == "s: key; goes on without rows that fail"
    with pytest.raises(ConfigError, match="'s' has no on_error"):
        orders.on_error("skip")


def test_on_late_is_the_same_in_python_and_yaml() -> None:
    env = api.Environment()
    readings = env.source("s", api.generator("readings", rate=10))
    window = api.tumbling("1s", on="ts")
    counts = readings.key_by("sensor").window(window).aggregate("q", n="count(*)").on_late("reject")
    (operator,) = env.outputs(counts).plan().query.operators
    calls = {"n": AggregateCall("count")}
    spec = AggregateSpec(
        StreamId("s"),
        TumblingWindow(10**6, 0, "ts"),
        {"sensor": "sensor"},
        calls,
        on_late=OnLate.REJECT,
    )
    assert operator.spec == spec
    assert operator.spec.describe() == "s in tumbling 1s over ts by sensor: n = count(*); rejects late rows"
    with pytest.raises(ConfigError, match="'s' has no on_late: no row is late for it"):
        readings.on_late("reject")


def test_rejected_is_the_same_in_python_and_yaml() -> None:
    env = api.Environment()
    mapped = env.source("s", api.generator("orders", rate=10)).map({"key": "key"}, name="q").on_error("skip")
    plan = env.outputs(mapped, mapped.rejected(name="lost")).plan()
    assert [o.spec for o in plan.query.operators if o.name == "lost"] == [RejectedSpec(StreamId("q"))]
    assert plan.query.outputs == ("q", "lost")


def test_sources_need_a_replication_slot_each() -> None:
    text = """
sources:
  a: {schema: {ts: timestamp!}, time: ts, from: {postgres: {table: public.src, connection: service=shop}}}
  b: {schema: {ts: timestamp!}, time: ts, from: {postgres: {table: o.src, connection: service=shop%s}}}
query: {rows: {union: [a, b]}}
"""
    (problem,) = problems_of(text % "")
    assert "sources.b.from: a reads replication slot 'spe_src' too; expected a slot for each" in problem
    load_text(text % ", slot: spe_o_src")
    load_text(text % "2")
