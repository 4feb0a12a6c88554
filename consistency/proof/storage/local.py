"""Tables on a disk that all executors have."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from consistency.proof.storage.arrow import arrow_schema
from consistency.proof.storage.hadoop import HadoopFolder, literal, spark_path
from consistency.proof.storage.parquet import write_file
from consistency.proof.storage.tables import MadeByTasks
from spe.errors import SpeError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True)
class LocalTables:
    """A folder of tables."""

    spark: SparkSession
    path: Path

    def keep(self, name: str, frame: DataFrame | MadeByTasks) -> DataFrame:
        """Writes a frame as Parquet there; the returned frame is not computed again."""
        if not isinstance(frame, MadeByTasks):
            return HadoopFolder(self.spark, spark_path(self.path)).keep(name, frame)
        import pyarrow as pa
        from pyspark import TaskContext

        each, schema, folder = frame.each, arrow_schema(frame.schema), self.path / f"{name}.parquet"
        shutil.rmtree(folder, ignore_errors=True)
        try:
            folder.mkdir(parents=True)
        except OSError as error:
            raise SpeError(f"{folder} cannot be made: {error.strerror}") from error

        def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            task = TaskContext.get()
            assert task is not None
            file = folder / f"part-{task.partitionId():05}.parquet"
            yield pa.RecordBatch.from_pydict({"rows": [write_file(file, task.taskAttemptId(), schema, each(batches))]})

        frame.frame.mapInArrow(write, "rows long").collect()
        return self.spark.read.schema(frame.schema).parquet(literal(spark_path(folder)))
