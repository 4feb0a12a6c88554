"""What a Spark task makes of its rows before it pushes them; no session, and no cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import types as T

from replicas.spark import writer
from replicas.spark.options import write_options
from replicas.spark.writer import LiveSource, LiveWriter, Staged, check_columns, rows_of
from spe.errors import SpeError
from spe.log.pushed_batches import decode_part
from spe.stream.schema import Schema
from spe.stream.strings import StringPool

SCHEMA = Schema.of(ts="timestamp!", n="int64", price="float64", word="string", on="bool")
COLUMNS = T.StructType(
    [
        T.StructField("word", T.StringType()),
        T.StructField("ts", T.TimestampType()),
        T.StructField("n", T.IntegerType()),
        T.StructField("on", T.BooleanType()),
        T.StructField("price", T.FloatType()),
    ]
)
CONFIG = """
cluster: shop
sources:
  c: {schema: {ts: timestamp!, n: int64}, time: ts, from: {push: [etl]}, address: "127.0.0.1:7001"}
  d: {from: {generator: orders}, address: "127.0.0.1:7004"}
query:
  some: {filter: {from: c, where: n > 0}}
  others: {filter: {from: d, where: key > 0}}
nodes: {n1: {address: "127.0.0.1:7002"}, n2: {address: "127.0.0.1:7003"}}
"""


def arrow(**columns: Any) -> pa.RecordBatch:
    given = {
        "word": pa.array(["wörd", None], pa.string()),
        "ts": pa.array([5, 7], pa.timestamp("us", tz="UTC")),
        "n": pa.array([1, None], pa.int32()),
        "on": pa.array([True, False]),
        "price": pa.array([0.5, -0.0], pa.float32()),
    }
    return pa.RecordBatch.from_pydict({**given, **columns})


def test_columns_in_any_order_and_smaller_types_are_accepted() -> None:
    check_columns("c", SCHEMA, COLUMNS)
    rows = rows_of(arrow(), SCHEMA, "ts")
    assert rows.to_tuples() == [(5, 1, 0.5, "wörd", True), (7, None, 0.0, None, False)]
    assert rows.time.tolist() == [5, 7]


def test_a_timestamp_without_zone_is_taken_as_utc() -> None:
    rows = rows_of(arrow(ts=pa.array([5, 7], pa.timestamp("us"))), SCHEMA, "ts")
    assert rows.time.tolist() == [5, 7]


def test_forbidden_null_is_reported_with_its_column() -> None:
    with pytest.raises(SpeError, match="column 'ts' has 1 nulls in 2 rows, and is never null"):
        rows_of(arrow(ts=pa.array([None, 7], pa.timestamp("us", tz="UTC"))), SCHEMA, None)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"n": T.StringType()}, "column 'n' is string, and bigint is expected"),
        ({"n": T.DecimalType(9, 2)}, r"column 'n' is decimal\(9,2\), and bigint is expected"),
        ({"price": T.LongType()}, "column 'price' is bigint, and double is expected"),
        ({"n": None}, "there is no column 'n'"),
        ({"words": T.StringType()}, r"column 'words' is no attribute of it \(did you mean 'word'\?\)"),
    ],
)
def test_unsuitable_columns_are_reported(change: dict[str, T.DataType | None], said: str) -> None:
    types = {**{f.name: f.dataType for f in COLUMNS.fields}, **change}
    fields = [T.StructField(name, type_) for name, type_ in types.items() if type_ is not None]
    with pytest.raises(SpeError, match=f"source 'c': .*{said}"):
        check_columns("c", SCHEMA, T.StructType(fields))


class Source:
    """Stands in for a connection to the source."""

    def __init__(self) -> None:
        self.said: list[tuple[Any, ...]] = []

    async def stage(self, query: str, batch: int, data: bytes) -> str:
        part = f"part {len(self.said)}"
        self.said.append(("stage", query, batch, part, data))
        return part

    async def commit(self, query: str, batch: int, parts: list[str], replaces: str) -> None:
        self.said.append(("commit", query, batch, parts, replaces))

    async def drop(self, parts: list[str]) -> None:
        self.said.append(("drop", parts))


class Context:
    """Stands in for the context of a Spark task."""

    def __init__(self, **properties: str) -> None:
        self._properties = properties

    def getLocalProperty(self, name: str) -> str | None:
        return self._properties.get(name.rpartition(".")[2])


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[LiveWriter, Source]:
    (tmp_path / "shop.yaml").write_text(CONFIG)
    options = {"cluster": str(tmp_path / "shop.yaml"), "source": "c", "writer": "etl"}
    there = Source()
    live = LiveSource.of(write_options(options))
    monkeypatch.setattr(LiveSource, "pusher", lambda self: there)
    columns = T.StructType([T.StructField("ts", T.TimestampType()), T.StructField("n", T.LongType())])
    return LiveWriter(live, columns), there


def two_rows() -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"n": [1, 2], "ts": pa.array([5, 7], pa.timestamp("us", tz="UTC"))})


def test_a_task_stages_its_rows_and_the_driver_commits_all_parts(
    source: tuple[LiveWriter, Source], monkeypatch: pytest.MonkeyPatch
) -> None:
    (one, there), context = source, Context(queryId="q", batchId="3")
    monkeypatch.setattr(writer.TaskContext, "get", lambda: context)
    staged = [one.write(iter([two_rows(), two_rows()])), one.write(iter([]))]
    one.commit(staged, 3)
    (_, query, batch, part, data), (_, _, _, empty, nothing), committed = there.said
    assert (query, batch) == ("q", 3)
    schema = one._source.schema
    rows = decode_part(data, schema, StringPool())
    assert [row for some in rows for row in some.to_tuples()] == [(5, 1), (7, 2)] * 2
    assert decode_part(nothing, schema, StringPool()) == []
    assert committed == ("commit", "q", 3, [part, empty], "")
    assert part != empty


def test_failed_batch_is_dropped_and_empty_one_needs_no_commit(
    source: tuple[LiveWriter, Source],
) -> None:
    one, there = source
    one.abort([Staged("q", "p"), None], 3)
    one.abort([None], 3)
    one.commit([], 4)
    assert there.said == [("drop", ["p"])]
    with pytest.raises(SpeError, match="batch 5: 1 tasks do not say what they have staged"):
        one.commit([Staged("q", "p"), None], 5)


def test_rows_of_no_stream_are_refused(source: tuple[LiveWriter, Source], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer.TaskContext, "get", lambda: Context())
    with pytest.raises(SpeError, match="expected a query of writeStream"):
        source[0].write(iter([two_rows()]))


def test_oversized_part_is_refused_before_it_is_sent(
    source: tuple[LiveWriter, Source], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer.TaskContext, "get", lambda: Context(queryId="q", batchId="3"))
    monkeypatch.setattr(writer, "PART_BYTES", 20)
    with pytest.raises(SpeError, match="divide it into more partitions"):
        source[0].write(iter([two_rows()]))
    assert source[1].said == []


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"writer": "x"}, "takes no rows from writer 'x'; it takes them from etl"),
        ({"source": "d"}, "takes no rows from writer 'etl'; it takes them from nobody"),
        ({"source": "e"}, "no source 'e'"),
        ({"writer": None}, "the option writer is missing"),
        ({"output": "some"}, "no option 'output'"),
    ],
)
def test_wrong_option_is_reported(tmp_path: Path, change: dict[str, str | None], said: str) -> None:
    (tmp_path / "shop.yaml").write_text(CONFIG)
    options = {"cluster": str(tmp_path / "shop.yaml"), "source": "c", "writer": "etl", **change}
    with pytest.raises(SpeError, match=said):
        LiveSource.of(write_options({n: v for n, v in options.items() if v is not None}))
