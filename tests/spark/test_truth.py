"""The truth by Spark against the engine's reference: every operator on unpleasant data, and random query networks."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pytest

from consistency.proof.recorded.records import TimedStretch
from consistency.proof.recorded.run import Run
from consistency.proof.recorded.stamps import look_through
from consistency.proof.truth import TruthNetwork
from operators.aggregate.custom import Aggregator
from operators.custom import CustomOperator
from replicas.simulation.scenarios.topologies import random_configuration
from replicas.source.reference_stream import Intake, reference_elements
from replicas.source.stamping import Stamper
from spe.config import load_plan_data
from spe.stream import text_size
from spe.stream.batch import Boundary, Element, Rows, merge_rows
from spe.stream.names import Kind, StreamId
from spe.stream.schema import Schema
from spe.stream.times import END_OF_TIME
from tests.support.comparing import differences
from tests.support.long_forms import long_but
from tests.support.runs import make_run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

A, B = StreamId("a"), StreamId("b")
SCHEMA = Schema.of(ts="timestamp", at="timestamp", k="string", n="int64", x="float64", b="bool", j="int64")
DISORDER_US = 30
BOUNDARY_US = 20


class Span(Aggregator):
    """Largest − smallest."""

    returns = "float64"

    def create(self) -> Any:
        return None

    def add(self, state: Any, values: npt.NDArray[Any]) -> Any:
        return self.merge(state, (float(values.min()), float(values.max())))

    def merge(self, state: Any, later: Any) -> Any:
        if state is None or later is None:
            return later if state is None else state
        return min(state[0], later[0]), max(state[1], later[1])

    def result(self, state: Any) -> Any:
        return None if state is None else state[1] - state[0]


class Words(Aggregator):
    """Joins texts, so that the order shows."""

    returns = "string"

    def create(self) -> str:
        return ""

    def add(self, state: str, values: npt.NDArray[Any]) -> str:
        return state + "".join(values)

    def merge(self, state: str, later: str) -> str:
        return state + later

    def result(self, state: str) -> str:
        return state[:40]


class Short(Aggregator):
    """Joins texts; refuses those that begin with z, and has no result that is short or long."""

    returns = "string"

    def create(self) -> str:
        return ""

    def add(self, state: str, values: npt.NDArray[Any]) -> str:
        for text in values:
            if text.startswith("z"):
                raise ValueError(text)
            state += text
        return state

    def merge(self, state: str, later: str) -> str:
        if state and later and len(state) + len(later) > 8:
            raise LookupError(state + later)
        return state + later

    def result(self, state: str) -> str:
        return state if len(state) != 1 else state[1]


class Careful(CustomOperator):
    """Sums ``j`` row by row; raises for a null, and for two equal values in a row."""

    def __init__(self, inputs: Sequence[Schema], **arguments: Any) -> None:
        super().__init__(inputs, **arguments)
        self._sum, self._last = 0, -1

    @classmethod
    def output_schema(cls, inputs: Sequence[Schema], **arguments: Any) -> Schema:
        return Schema.of(sum="int64")

    def step(self, ports: Sequence[Rows | None], boundary: int) -> Rows | None:
        there = [rows for rows in ports if rows is not None]
        if not there:
            return None
        rows, sums = merge_rows(there), []
        for j in rows.columns[SCHEMA.index("j")].to_list():
            self._sum += j
            if j == self._last:
                raise ValueError(f"{j} once more")
            self._last = j
            sums.append((self._sum,))
        return Rows.from_tuples(self.schema, rows.time, sums)

    def snapshot(self) -> Mapping[str, Any]:
        return {"sum": self._sum, "last": self._last}

    def restore(self, state: Mapping[str, Any]) -> None:
        self._sum, self._last = state["sum"], state["last"]


class Weave(CustomOperator):
    """Rows of both ports by time, as they come."""

    @classmethod
    def output_schema(cls, inputs: Sequence[Schema], **arguments: Any) -> Schema:
        return inputs[0]

    def step(self, ports: Sequence[Rows | None], boundary: int) -> Rows | None:
        there = [rows for rows in ports if rows is not None]
        return merge_rows(there) if there else None


def window(kind: str, **more: Any) -> dict[str, Any]:
    sizes: dict[str, dict[str, str]] = {
        "tumbling": {"tumbling": "50us"},
        "sliding": {"sliding": "70us", "slide": "30us"},
        "gaps": {"sliding": "20us", "slide": "50us"},
        "dense": {"sliding": "60us", "slide": "20us", "offset": "7us"},
    }
    return sizes[kind] | more


def aggregate(from_: str, window_: Mapping[str, Any], group_by: Any, **compute: str) -> dict[str, Any]:
    return {"aggregate": {"from": from_, "window": dict(window_), "group_by": group_by, "compute": compute}}


def join(kind: str, **more: Any) -> dict[str, Any]:
    return {"join": {"left": "a", "right": "b", "kind": kind, "on": "j", **more}}


EVERYTHING = {
    "count": "count(*)", "some": "count(x)", "kinds": "count(distinct k)", "total": "sum(n)", "mean": "avg(n)",
    "least": "min(x)", "most": "max(k)", "first": "first(k)", "last": "last(x)", "any": "max(b)", "when": "min(at)",
    "sum": "sum(x)", "average": "avg(x)",
}  # fmt: skip
SIMPLE = {k: EVERYTHING[k] for k in ("count", "some", "total", "mean", "least", "most", "sum", "average")}
HERE = "tests.spark.test_truth"

QUERY: dict[str, Any] = {
    "positive": {"filter": {"from": "a", "where": "n > 0 or k like 'w%'"}},
    "computed": {"map": {"from": "a", "keep": True, "compute": {"y": "x * n / 3", "u": "upper(k)", "m": "n % 5"}}},
    "both": {"union": ["b", "a"]},
    "tumbling": aggregate("both", window("tumbling"), {"k": "k"}, **EVERYTHING),
    "tumbling_on": aggregate("a", window("tumbling", on="at"), {"x": "x > 0", "k": "k"}, **EVERYTHING),
    "sliding": aggregate("a", window("sliding"), {"j": "j"}, **SIMPLE),
    "sliding_all": aggregate("both", window("dense"), {"j": "j"}, **EVERYTHING),
    "sliding_on": aggregate("a", window("sliding", on="at"), {"k": "k"}, **SIMPLE),
    "gaps": aggregate("a", window("gaps"), {}, **SIMPLE),
    "counted": aggregate("both", {"count": 3}, {"k": "k"}, **EVERYTHING),
    "by_float": aggregate("a", window("tumbling"), {"x": "round(x)"}, count="count(*)"),
    "own": aggregate("a", window("dense"), {"j": "j"}, span=f"{HERE}:Span(x)", words=f"{HERE}:Words(k)"),
    "sums": aggregate("both", window("dense", on="at"), {"j": "j"}, x="sum(x)", n="count(*)"),
    "of_sums": {"filter": {"from": "sums", "where": "x > 1.0 or x is null"}},
    "top_instant": {"topk": {"from": "both", "k": 2, "order_by": ["x desc", "k"], "rank_as": "place"}},
    "top_window": {"topk": {"from": "both", "k": 3, "order_by": ["n desc"], "partition_by": "k",
                            "window": window("sliding"), "rank_as": "place"}},
    "top_ties": {"topk": {"from": "a", "k": 2, "order_by": ["b", "j desc"], "with_ties": True,
                          "window": window("tumbling", on="at")}},
    "top_sums": {"topk": {"from": "sums", "k": 2, "order_by": ["x desc", "j"]}},
    "inner": join("inner", within=["-20us", "30us"]),
    "left": join("left", within=["-20us", "0us"], where="l_n < r_n"),
    "full": join("full", within=["5us", "20us"]),
    "full_on": join("full", within=["-20us", "20us"], left_time="at", right_time="at"),
    "right_window": join("right", window=window("sliding"), where="l_n + r_n > 0 and window_start < l_at"),
    "full_window": join("full", window=window("tumbling", on="at")),
    "woven": {"custom": {"from": ["a", "positive"], "class": f"{HERE}:Weave"}},
}  # fmt: skip
SOURCE = {
    "schema": {a.name: str(a.type) for a in SCHEMA},
    "time": "ts",
    "boundary": f"{BOUNDARY_US}us",
    "disorder": f"{DISORDER_US}us",
    "from": {"jsonl": "none.jsonl"},
    "replay": {"max": True},
}
CONFIG: dict[str, Any] = {
    "bucket": "20us",
    "sources": {"a": SOURCE, "b": SOURCE},
    "query": QUERY,
    "outputs": [name for name in QUERY if name != "sums"],
}
FLOATS = [None, 0.0, -1.5, 2.25, float("nan"), float("inf"), 1e300, 0.1, 1 / 3, 7.0]
TEXTS = [None, "", "w", "word", "Ωmega", "z", "Z", "\U0001f600"]


def logged(seed: int, count: int, end: bool = True) -> Iterator[Element]:
    """Tuples out of order, some late beyond the disorder, with nulls in every attribute."""
    random = Random(seed)
    stamper = Stamper(disorder_us=DISORDER_US, boundary_us=BOUNDARY_US)
    now, bound = 0, 0
    while stamper.last_id < count:
        size = random.choice([1, 3, 10])
        rows = []
        for _ in range(size):
            now += random.choice([0, 0, 1, 2, 5])
            ts = max(0, now - random.choice([0, 0, 0, 10, 25, 60]))
            at = None if random.random() < 0.05 else ts + random.choice([0, 0, -40, 20])
            n = random.choice([None, *range(-4, 10), 2**62, 2**63 - 1, -(2**63)])
            j = random.choice([None, 1, 2, 3])
            rows.append((ts, at, random.choice(TEXTS), n, random.choice(FLOATS), random.choice([True, False, None]), j))
        events = np.array([r[0] for r in rows], np.int64)
        yield stamper.stamp(events, Rows.from_tuples(SCHEMA, events, rows).columns)
        if stamper.bound_us > bound:
            bound = stamper.bound_us
            yield Boundary(Kind.STABLE, bound, stamper.last_id)
    if end:
        yield Boundary(Kind.STABLE, END_OF_TIME, stamper.last_id)


def test_every_operator_equals_the_engine(spark: SparkSession, tmp_path: Path) -> None:
    inputs = {A: list(logged(1, 150)), B: list(logged(2, 130))}
    make_run(tmp_path / "run", CONFIG, inputs)
    compared, found = differences(spark, Run.open(tmp_path / "run"), inputs)
    assert not found, "\n".join(found)
    assert compared > 2000


def test_windows_over_sources_are_aggregated_without_a_sort(spark: SparkSession, tmp_path: Path) -> None:
    query = {"both": QUERY["both"]}
    query["by_attribute"] = aggregate("both", window("tumbling", on="at"), {"j": "j"}, n="count(*)")
    query["tumbling"] = aggregate("both", window("tumbling"), {"j": "j"}, n="count(*)", first="first(n)")
    make_run(
        tmp_path / "run",
        CONFIG | {"query": query, "outputs": [*query]},
        {A: list(logged(1, 20)), B: list(logged(2, 20))},
    )
    network = TruthNetwork(spark, Run.open(tmp_path / "run"))

    def sorts(output: str) -> bool:
        plan = network.stream(StreamId(output)).frame._jdf.queryExecution().executedPlan().toString()
        return "SortAggregate" in plan

    assert not sorts("tumbling")
    assert sorts("by_attribute")  # its tuples may have any times


@pytest.mark.parametrize("merged", [True, False], ids=["read in order", "sorted"])
def test_stream_divided_at_segment_times_equals_engine(spark: SparkSession, tmp_path: Path, merged: bool) -> None:
    """Its logs merged and filtered; what windows make of them is divided by a sample."""
    some = {"some": {"filter": {"from": "both", "where": "n > 0"}}, "few": {"filter": {"from": "b", "where": "b"}}}
    config = CONFIG | {"query": {name: QUERY[name] for name in ("both", "tumbling_on")} | some}
    inputs = {A: list(logged(1, 150)), B: list(logged(2, 130))}
    outputs = ["both", "some", "few", "tumbling_on"]
    make_run(tmp_path / "run", config | {"outputs": outputs}, inputs, segment_bytes=1_200)
    run = Run.open(tmp_path / "run")

    def segments(source: StreamId) -> list[TimedStretch]:
        found = look_through(spark, run, source, run.reading.sources[source])
        assert not found.flaws
        assert any(one.most_us > other.least_us for one, other in pairwise(found.segments))  # they overlap
        return found.segments

    asked = segments if merged else None
    network = TruthNetwork(spark, run, asked)
    for output in ("both", "some", "few"):
        assert len(network.edges(StreamId(output))) == 2 * spark.sparkContext.defaultParallelism - 1
        assert network.stream(StreamId(output)).in_order is merged
    assert network.edges(StreamId("tumbling_on")) == []
    compared, found = differences(spark, run, inputs, segments=asked)
    assert not found, "\n".join(found)
    assert compared > 400


def test_an_unfinished_run_is_judged_up_to_its_frontier(spark: SparkSession, tmp_path: Path) -> None:
    outputs = ["tumbling_on", "left", "top_window", "woven"]
    query = {n: QUERY[n] for n in ("positive", "both", *outputs)}
    inputs = {A: list(logged(3, 100, end=False)), B: list(logged(4, 60, end=False))}
    make_run(tmp_path / "run", CONFIG | {"query": query, "outputs": outputs}, inputs)
    run = Run.open(tmp_path / "run")
    compared, found = differences(spark, run, inputs)
    assert not found, "\n".join(found)
    assert compared > 100
    frontier = TruthNetwork(spark, run).frontier
    assert frontier[StreamId("left")] < frontier[StreamId("tumbling_on")] < END_OF_TIME


SKIPPING: dict[str, Any] = {
    "careful": {"custom": {"from": ["a", "b"], "class": f"{HERE}:Careful", "on_error": "skip"}},
    "short": aggregate("a", window("dense"), {"j": "j"}, text=f"{HERE}:Short(k)", n="count(*)"),
    "counted": aggregate("b", {"count": 3}, {}, text=f"{HERE}:Short(k)"),
    "long": {"map": {"from": "a", "keep": True, "compute": {"u": "concat(k, k)"}, "on_error": "skip"}},
    "of_long": {"map": {"from": "long", "compute": {"u": "length(u)"}}},
}
for _name in ("short", "counted"):
    SKIPPING[_name]["aggregate"]["on_error"] = "skip"


def test_with_skip_the_same_rows_are_left_out(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows for which a user's operator raises, results of functions that raise, results that are too large."""
    monkeypatch.setattr(text_size, "ROW_TEXT_BYTES", 12)
    config = {**CONFIG, "query": SKIPPING, "outputs": ["careful", "short", "counted", "of_long"]}
    inputs = {A: list(logged(8, 150)), B: list(logged(9, 130))}
    make_run(tmp_path / "run", config, inputs)
    run = Run.open(tmp_path / "run")
    compared, found = differences(spark, run, inputs)
    assert not found, "\n".join(found)
    assert compared > 200
    rejected = {}
    for unit in run.plan.units:
        for operator in unit.operators:
            rejected[str(operator.name)] = operator.spec.skips
    assert rejected == {"careful": True, "short": True, "counted": True, "long": True, "of_long": False}


def test_the_order_does_not_depend_on_how_the_work_is_divided(spark: SparkSession, tmp_path: Path) -> None:
    inputs = {A: list(logged(5, 400))}
    config = {**CONFIG, "sources": {"a": SOURCE}, "query": {"computed": QUERY["computed"]}, "outputs": ["computed"]}
    make_run(tmp_path / "run", config, inputs, segment_bytes=2000)
    run = Run.open(tmp_path / "run")
    spark.conf.set("spark.sql.shuffle.partitions", "7")
    try:
        compared, wrong = differences(spark, run, inputs)
    finally:
        spark.conf.set("spark.sql.shuffle.partitions", "2")
    assert not wrong, "\n".join(wrong)
    assert compared >= 400


def test_a_filter_after_many_computed_attributes_is_not_slow(spark: SparkSession, tmp_path: Path) -> None:
    """Each of 27 is computed from the two before it; written out in the filter, they would be millions of terms."""
    names, query = ["x", "x"], dict[str, Any]()
    for i in range(27):
        made = {f"y{i}": f"least({names[-1]}, 5) + coalesce({names[-2]}, {names[-1]})"}
        query[f"m{i}"] = {"map": {"from": f"m{i - 1}" if i else "a", "keep": True, "compute": made}}
        names += made
    query["behind"] = {"filter": {"from": "m26", "where": "y26 > 0 or y26 is null or n > 0"}}
    inputs = {A: list(logged(8, 60))}
    make_run(tmp_path / "run", {**CONFIG, "sources": {"a": SOURCE}, "query": query, "outputs": ["behind"]}, inputs)
    began = time.monotonic()
    compared, found = differences(spark, Run.open(tmp_path / "run"), inputs)
    assert not found, "\n".join(found)
    assert compared > 20
    assert time.monotonic() - began < 90  # some seconds where nothing else runs


#: Networks of one to three sources, up to nine operators, fragments of several partitions.
SEEDS = (2, 3, 5, 6, 8, 11)


@pytest.mark.long
@pytest.mark.usefixtures("compiling")
def test_compiled_stages_give_the_same_results(spark: SparkSession, tmp_path: Path) -> None:
    """Stages as users' runs have them; the other tests here interpret, which is faster on a few rows."""
    outputs = ["tumbling", "of_sums", "top_window", "full", "own"]
    query = {n: QUERY[n] for n in ("both", "sums", *outputs)}
    inputs = {A: list(logged(6, 80)), B: list(logged(7, 60))}
    make_run(tmp_path / "run", CONFIG | {"query": query, "outputs": outputs}, inputs)
    compared, found = differences(spark, Run.open(tmp_path / "run"), inputs)
    assert not found, "\n".join(found)
    assert compared > 200


@pytest.mark.parametrize("seed", long_but(SEEDS[:1], SEEDS))
def test_random_queries_equal_the_engine(spark: SparkSession, tmp_path: Path, seed: int) -> None:
    config = random_configuration(Random(f"truth {seed}"), 2)
    inputs = {name: list(reference_elements(s, Intake())) for name, s in load_plan_data(config).sources.items()}
    make_run(tmp_path / "run", config, inputs)
    compared, found = differences(spark, Run.open(tmp_path / "run"), inputs)
    assert not found, "\n".join(found)
    assert compared > 0
