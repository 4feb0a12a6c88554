"""Tables that tasks read themselves, against what Spark reads of them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from consistency.proof.comparing.digests import BLOCKS, BlockDigests, block_digests, summed
from consistency.proof.recorded.run import Run
from consistency.proof.session.errors import explained
from consistency.proof.storage.files import TRUE_ROWS, TruthFiles, footers, local_files, through
from consistency.proof.storage.local import LocalTables
from consistency.proof.storage.tables import MadeByTasks
from consistency.proof.truth import Truth, TruthNetwork, truth
from replicas.source.reference_stream import Intake, reference_elements
from spe.config import load_plan_data
from spe.errors import SpeError
from spe.stream.names import StreamId
from tests.support.runs import make_run

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SOURCE = {"from": {"generator": {"name": "orders", "rate": 100, "duration": "5s"}}}
CONFIG: dict[str, Any] = {
    "sources": {"a": SOURCE, "b": SOURCE},
    "query": {
        "all": {"union": ["a", "b"]},
        "few": {"filter": {"from": "all", "where": "price > 50"}},
        "none": {"filter": {"from": "all", "where": "price < -1"}},
        "sums": {
            "aggregate": {"from": "all", "window": {"tumbling": "1s"}, "group_by": "key", "compute": {"n": "count(*)"}}
        },
    },
    "fragments": {
        "one": {"operators": ["all", "few", "none"]},
        "three": {"operators": ["sums"], "key": "key", "partitions": 3},
    },
    "outputs": ["few", "none", "sums"],
    "nodes": ["n1", "n2"],
}
#: A source's ids are its places.
OUTPUTS = ("a", *CONFIG["outputs"])
READ = pa.schema([("partition", pa.int32()), ("time_us", pa.int64()), ("place", pa.int64())])


def without_tuples(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        assert batch.schema.names == list(TRUE_ROWS)
        yield pa.RecordBatch.from_arrays([one.cast(to.type) for one, to in zip(batch.columns, READ)], schema=READ)


def rows(frame: DataFrame) -> list[tuple[Any, ...]]:
    return sorted(tuple(row) for row in frame.select("partition", "time_us", "place").collect())


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    path = tmp_path_factory.mktemp("files") / "run"
    inputs = {name: list(reference_elements(s, Intake())) for name, s in load_plan_data(CONFIG).sources.items()}
    make_run(path, CONFIG, inputs, segment_bytes=3_000)
    return Run.open(path)


@pytest.fixture(scope="module")
def truths(spark: SparkSession, run: Run) -> dict[str, Truth]:
    network = TruthNetwork(spark, run)
    # With brackets, which are a pattern to Spark, and with a character that an URI has not.
    tables = LocalTables(spark, run.path.parent / "[1] ü")
    return {name: truth(network, StreamId(name), tables.keep) for name in OUTPUTS}


@pytest.mark.parametrize("output", OUTPUTS)
def test_tasks_read_the_truth_as_spark_does(truths: dict[str, Truth], output: str) -> None:
    found = truths[output]
    assert found.files is not None
    assert rows(found.files.through(without_tuples, READ)) == rows(found.rows)
    assert sum(found.counts.values()) == found.rows.count()
    assert found.last_us == max((row[1] for row in rows(found.rows)), default=0)
    for partition, count in found.counts.items():
        places = [row[2] for row in rows(found.rows) if row[0] == partition]
        assert sorted(places) == list(range(1, count + 1))
    assert bool(found.counts) is (output != "none")


def test_row_groups_outside_requested_times_are_not_read(spark: SparkSession, tmp_path: Path) -> None:
    made = "0 AS partition, id + 1 AS place, 10 * id AS time_us, struct(id AS n) AS tuple"
    frame = LocalTables(spark, tmp_path).keep("truth", spark.sql(f"SELECT {made} FROM range(0, 8, 1, 4)"))
    files = TruthFiles(spark, local_files(frame), None)
    every = [(0, 10 * n, n + 1) for n in range(8)]
    assert rows(files.through(without_tuples, READ)) == every
    assert rows(files.through(without_tuples, READ, [(-5, -1), (15, 30), (71, 99)])) == every[2:4]
    assert rows(files.through(without_tuples, READ, [])) == []


@pytest.mark.parametrize(
    ("option", "value"),
    [("maxRecordsPerFile", "37"), ("parquet.block.size", "1024"), ("parquet.column.statistics.enabled", "false")],
)
def test_however_the_files_were_written(
    spark: SparkSession, run: Run, truths: dict[str, Truth], tmp_path: Path, option: str, value: str
) -> None:
    """Several files of a task, several groups of rows in a file, nothing in its footer."""

    def keep(name: str, frame: DataFrame | MadeByTasks) -> DataFrame:
        assert not isinstance(frame, MadeByTasks)
        frame.write.option(option, value).parquet(str(tmp_path / name))
        return spark.read.schema(frame.schema).parquet(str(tmp_path / name))

    found = truth(TruthNetwork(spark, run), StreamId("sums"), keep)
    assert found.files is not None
    assert found.counts == truths["sums"].counts
    assert rows(found.files.through(without_tuples, READ)) == rows(found.rows) == rows(truths["sums"].rows)


@pytest.mark.parametrize("output", ["few", "sums"])
def test_digests_of_files_are_those_that_spark_makes(truths: dict[str, Truth], output: str) -> None:
    found, schema = truths[output], load_plan_data(CONFIG).query.schema_of(StreamId(output))
    assert found.files is not None
    ours = summed(found.files.through(BlockDigests(schema), BLOCKS), "their").collect()
    theirs = block_digests(found.rows, "tuple", "time_us", schema, "their").collect()
    assert sorted(map(tuple, ours)) == sorted(map(tuple, theirs)) != []


def test_footers_are_unused_if_a_task_wrote_several_partitions(spark: SparkSession, tmp_path: Path) -> None:
    frame = spark.sql("SELECT cast(id % 2 AS int) AS partition, id AS n, 7 * id AS time_us FROM range(0, 20, 1, 1)")
    both = LocalTables(spark, tmp_path).keep("both", frame)
    assert footers(local_files(both), "n") is None
    one = LocalTables(spark, tmp_path).keep("one", frame.where("partition = 1"))
    assert footers(local_files(one), "n") == [{"partition": 1, "first": 1, "rows": 10, "last_us": 133}]


def test_a_file_that_is_damaged_or_gone_is_named(spark: SparkSession, tmp_path: Path) -> None:
    kept = LocalTables(spark, tmp_path).keep("kept", spark.sql("SELECT 0 AS partition, id AS time_us FROM range(9)"))
    first, second = local_files(kept)
    first.write_bytes(first.read_bytes()[:-9])
    second.unlink()
    made = pa.schema([("partition", pa.int32()), ("time_us", pa.int64())])
    for file in (first, second):
        with pytest.raises(SpeError, match=f"{re.escape(str(file))} cannot be read: "):
            footers([file], "time_us")
        with pytest.raises(SpeError, match=f"{re.escape(str(file))} cannot be read: "), explained():
            TruthFiles(spark, [file], None).through(lambda batches: batches, made).collect()


def test_table_without_files_is_read_by_spark(spark: SparkSession, tmp_path: Path) -> None:
    made = pa.schema([("n", pa.int64())])

    def doubled(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield pa.RecordBatch.from_arrays([pa.array([2 * n for n in batch.column("n").to_pylist()])], schema=made)

    frame = spark.sql("SELECT id AS n, 'x' AS s FROM range(5)")
    assert local_files(frame) == []
    kept = LocalTables(spark, tmp_path).keep("kept", frame)
    assert len(local_files(kept)) == 2
    found = [through(one, doubled, made, ["n"]).collect() for one in (frame, kept)]
    assert [sorted(row["n"] for row in one) for one in found] == [[0, 2, 4, 6, 8]] * 2
