"""The drawing of a plan, as ``spe check`` prints it."""

from __future__ import annotations

from pathlib import Path

import pytest

from spe.config import load, load_plan_text, load_text
from spe.connectors import READERS
from spe.plan.describe import describe_pace, show_duration
from spe.plan.draw import check_text
from spe.query.declaration import OperatorSpec
from spe.query.operators.aggregate import AggregateCall, AggregateSpec
from spe.query.operators.custom import CustomSpec
from spe.query.operators.filter import FilterSpec
from spe.query.operators.join import JoinKind, JoinSpec
from spe.query.operators.map import MapSpec
from spe.query.operators.topk import TopKSpec
from spe.query.operators.union import UnionSpec
from spe.query.windows import CountWindow, SlidingWindow, TumblingWindow
from spe.stream.names import StreamId

CONFIGS = sorted((Path(__file__).parents[4] / "configs").glob("*.yaml"))
ORDERS = StreamId("orders")
SECOND = TumblingWindow(1_000_000)

SHOP = """\
cluster: shop
sources:
  left: {from: {generator: {name: orders, rate: 100, disorder: 200ms}}}
  right: {from: {generator: {name: orders, rate: 50, seed: 1, duration: 30s}}, replay: {speed: 2}}
query:
  orders: {union: [left, right]}
  large: {filter: {from: orders, where: price >= 100}}
  totals: {aggregate: {from: large, window: 1s, group_by: key, compute: {n: count(*)}}}
outputs: [totals]
fragments:
  front: {operators: [orders, large], key: key, partitions: 2}
  back: {operators: [totals], replicas: [[n3]]}
nodes:
  n1: {address: "127.0.0.1:7101"}
  n2: {x: 4s, policy: {failure: delay}}
  n3: {x: 4s, alpha: 0.95, reconcile: undo, checkpoint: {every: 5s, disk: true}}
clients:
  board: {sinks: [{jsonl: totals.jsonl}]}
"""

DRAWN = """\
shop   bucket 100ms   plan {fingerprint}

SOURCES
  left   generator orders, 100 rows/s         1x  time ts, disorder 200ms, boundary 100ms
      ts timestamp!, key int64!, price float64!, qty int64!
  right  generator orders, 50 rows/s for 30s  2x  time ts, disorder 0s, boundary 100ms
      ts timestamp!, key int64!, price float64!, qty int64!

UNIT front   2 partitions
                    ┌ front ─────────┐
  left by key  ──┬─▶│ orders  union  │──▶ large ──▶ back
  right by key ──┘  │ large   filter │
                    └────────────────┘
  orders  union   left + right
      ts timestamp!, key int64!, price float64!, qty int64!
  large   filter  orders where price >= 100
      ts timestamp!, key int64!, price float64!, qty int64!
  replicas
    front/0  n1 (X 2s, αX 1.8s), n2 (X 4s, αX 3.6s)
    front/1  n3 (X 2s, αX 1.9s), n1 (X 2s, αX 1.8s)

UNIT back   1 partition
                ┌ back ─────────────┐
  large ×2 ────▶│ totals  aggregate │──▶ totals ──▶ client board
                └───────────────────┘
  totals  aggregate  large in tumbling 1s by key: n = count(*)
      key int64!, window_start timestamp!, window_end timestamp!, n int64!
  replicas
    back/0  n3 (X 2s, αX 1.9s)

CHECKPOINT LOG
  front  could write one  no state
  back   could write one  totals by group

NODES
  n1  127.0.0.1:7101  X 2s, αX 1.8s  process in failure, process in stabilization  checkpoint           front/0, front/1
  n2  any port        X 4s, αX 3.6s  delay in failure, process in stabilization    checkpoint           front/0
  n3  any port        X 4s, αX 3.8s  process in failure, process in stabilization  undo, disk every 5s  front/1, back/0

CLIENTS
  board  reads totals  jsonl totals.jsonl (stable)

3 WARNINGS
  warning: sources.right.replay: unit 'front' reads sources whose tuple times drift apart (left 1x, right 2x): \
once they are more than αX apart it stays tentative; the same speed for all avoids it
  warning: sources.right.replay: unit 'back' reads sources whose tuple times drift apart (left 1x, right 2x): \
once they are more than αX apart it stays tentative; the same speed for all avoids it
  warning: fragments.back.replicas: back/0 has fewer than 2 replicas: while its node is down, results are tentative
"""


def test_a_plan_is_drawn_from_sources_to_clients() -> None:
    plan, directory = load_text(SHOP)

    assert check_text(plan, directory) == DRAWN.format(fingerprint=plan.fingerprint)


def picture(text: str) -> list[str]:
    """The lines of the first unit's box."""
    lines = text.splitlines()
    top = next(i for i, line in enumerate(lines) if "┌" in line)
    bottom = next(i for i, line in enumerate(lines) if "└" in line)
    return lines[top : bottom + 1]


@pytest.mark.parametrize("count", [1, 2, 3, 6])
def test_inputs_meet_in_one_arrow(count: int) -> None:
    sources = "".join(f"  s{i}: {{from: {{generator: orders}}}}\n" for i in range(count))
    names = [f"s{i}" for i in range(count)]
    query = f"  u: {{union: {names}}}\n" if count > 1 else "  u: {filter: {from: s0, where: qty > 1}}\n"
    drawn = picture(check_text(*load_text(f"sources:\n{sources}query:\n{query}")))

    assert sum("▶│" in line for line in drawn) == 1
    assert [line.split()[0] for line in drawn[1 : count + 1]] == names
    assert len({line.index("│") for line in drawn[1:-1]}) == 1


@pytest.mark.parametrize("path", CONFIGS, ids=lambda p: p.stem)
def test_a_drawing_has_every_stream_and_node(path: Path) -> None:
    plan, directory = load(path)
    text = check_text(plan, directory)

    names = [
        *plan.sources,
        *(o.name for o in plan.query.operators),
        *directory.nodes,
        *map(str, directory.placement),
    ]
    assert [n for n in names if n not in text] == []
    assert text == check_text(*load(path))
    assert not any(line != line.rstrip() for line in text.splitlines())


def test_a_stream_without_clients_is_marked_in_the_drawing() -> None:
    text = check_text(*load_text(SHOP.replace("  board: {sinks: [{jsonl: totals.jsonl}]}\n", "  {}\n")))

    assert "──▶ totals ──▶ nobody" in text
    assert "none: nothing holds the output buffers" in text


@pytest.mark.parametrize(
    ("spec", "kind", "text"),
    [
        (FilterSpec(ORDERS, "qty > 1"), "filter", "orders where qty > 1"),
        (MapSpec(ORDERS, {"qty": "qty", "v": "qty * 2"}, True), "map", "orders: *, qty, v = qty * 2"),
        (UnionSpec((ORDERS, StreamId("more"))), "union", "orders + more"),
        (
            AggregateSpec(ORDERS, SECOND, {"k": "key", "user": "user"}, {"n": AggregateCall("sum", "qty")}),
            "aggregate",
            "orders in tumbling 1s by k = key, user: n = sum(qty)",
        ),
        (
            JoinSpec(ORDERS, StreamId("more"), JoinKind.INNER, (("key", "key"), ("a", "b")), SECOND, where="l_a > 1"),
            "join",
            "orders with more on key, a = b in tumbling 1s where l_a > 1",
        ),
        (
            JoinSpec(ORDERS, StreamId("more"), JoinKind.LEFT, (("k", "k"),), None, -1_000_000, 0, "ts", "at"),
            "join",
            "left orders with more on k within [-1s, 0s] of more.at - orders.ts",
        ),
        (
            TopKSpec(ORDERS, 3, (("qty", True), ("key", False)), ("user",), SECOND, with_ties=True),
            "topk",
            "first 3 of orders by qty desc, key per user in tumbling 1s, ties kept",
        ),
        (CustomSpec((ORDERS,), "my.module:Op", {"k": 3}), "custom", "my.module:Op(k=3) of orders"),
    ],
)
def test_operator_is_described_in_one_line(spec: OperatorSpec, kind: str, text: str) -> None:
    assert kind == spec.KEYWORD
    assert spec.describe() == text


def test_windows_show_length_step_offset_and_attribute() -> None:
    sliding = SlidingWindow(10_000_000, 2_000_000, -500_000, "ts")

    assert sliding.describe() == "sliding 10s every 2s offset -500ms over ts"
    assert CountWindow(5).describe() == "windows of 5 tuples"


@pytest.mark.parametrize(
    ("reader", "text"),
    [
        ({"kind": "csv", "path": "/data/orders.csv"}, "csv orders.csv"),
        ({"kind": "tcp", "address": "0.0.0.0:7000"}, "tcp 0.0.0.0:7000"),
        ({"kind": "stdin"}, "stdin"),
        ({"kind": "generator", "generator": "pages", "rate": 2.5, "count": 9}, "generator pages, 2.5 rows/s, 9 rows"),
    ],
)
def test_reader_is_described_in_short(reader: dict[str, object], text: str) -> None:
    assert READERS[str(reader["kind"])].describe(reader) == text


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{from: {stdin: true}}", "live, watermark by data, idle after 500ms"),
        (
            "{from: {stdin: true}, idle: {after: 5s, then: now}}",
            "live, watermark by data, idle after 5s, then by clock",
        ),
        ("{from: {stdin: true}, idle: never}", "live, watermark by data, never idle"),
        ("{from: {stdin: true}, watermark: clock}", "live, watermark by clock"),
        ("{from: {jsonl: a}, replay: {rate: 100}}", "100 rows/s"),
        ("{from: {jsonl: a}, replay: {max: true}}", "as fast as it goes"),
        ("{from: {jsonl: a}, replay: {speed: 0.5, origin: 1970-01-01T01:00:00}}", "0.5x from 1970-01-01T01:00:00"),
    ],
)
def test_pace_is_described_in_short(source: str, text: str) -> None:
    schema = source.replace("{", "{schema: {ts: timestamp}, time: ts, ", 1)
    plan = load_plan_text(f"sources: {{s: {schema}}}\nquery: {{q: {{filter: {{from: s, where: ts is not null}}}}}}\n")

    assert describe_pace(plan.sources[StreamId("s")]) == text


def test_durations_are_shown_in_common_units() -> None:
    shown = [show_duration(us) for us in (0, 1_500, 250_000, 1_800_000, 2_000_000, 60_000_000, 5_400_000_000)]

    assert shown == ["0s", "1500us", "250ms", "1.8s", "2s", "1m", "90m"]
