"""Tables stored as files, which tasks read themselves if all executors have them on a disk.

Spark would convert the columns to rows, and the rows to columns for the task.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit
from urllib.request import url2pathname

import numpy as np
import pyarrow as pa
from pyarrow import parquet

from consistency.proof.storage.arrow import spark_schema
from consistency.proof.storage.tables import OfBatches, over_numbers
from spe.errors import SpeError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: Number of a row, with that of the task that wrote it (``monotonically_increasing_id``).
ROW: Final = "__row"
TASK_BITS: Final = 33
#: Columns of the truth for tasks.
TRUE_ROWS: Final = ("partition", "time_us", "place", "tuple")
#: Rows read at once; with texts, rows of about this many bytes.
_BATCH: Final = 1 << 18
_BATCH_WITH_TEXTS: Final = 1 << 12
_BATCH_BYTES: Final = 16 << 20
#: A task has a fixed cost of a tenth of a second, as much as some hundred thousand tuples.
_TASKS_PER_CORE: Final = 4


@dataclass(frozen=True)
class TruthFiles:
    """The files of a table of the truth.

    Attributes:
      files: in the order of the tasks that wrote them, one per task.
      added: offset from a row's number to its place, by task and partition; None: the number is the place.
    """

    spark: SparkSession
    files: Sequence[Path]
    added: Mapping[int, Mapping[int, int]] | None

    def through(self, each: OfBatches, made: pa.Schema, spans: Sequence[tuple[int, int]] | None = None) -> DataFrame:
        """Applies ``each`` to TRUE_ROWS within tasks.

        Args:
          made: the schema of the result.
          spans: of the wanted times, disjoint and sorted; other times may be read, too.
        """
        added, wanted = self.added, None if spans is None else np.array(spans, np.int64).reshape(-1, 2)
        return _of_files(self.spark, self.files, lambda file: each(_true_rows(file, added, wanted)), made)


def local_files(table: DataFrame) -> list[Path]:
    """Returns the files of a table, in the order of the tasks that wrote them; none if they are on no disk here.

    Args:
      table: as it was stored, not a frame derived from it.
    """
    places = table.inputFiles()
    if not all(place.startswith("file:") for place in places):
        return []
    return sorted(Path(url2pathname(urlsplit(place).path)) for place in places)


def through(table: DataFrame, each: OfBatches, made: pa.Schema, names: Sequence[str]) -> DataFrame:
    """Applies ``each`` to a stored table within tasks.

    Args:
      made: the schema of the result.
      names: the columns that it reads, and attributes of structs as ``column.attribute``.
    """
    files = local_files(table)
    if not files:
        return table.mapInArrow(each, spark_schema(made))
    return _of_files(table.sparkSession, files, lambda file: each(_read(file, names)), made)


def _of_files(
    spark: SparkSession, files: Sequence[Path], each: Callable[[Path], Iterator[pa.RecordBatch]], made: pa.Schema
) -> DataFrame:
    """Reads files in tasks; a task reads one or several."""
    tasks = tasks_for(spark, len(files))
    return over_numbers(spark, len(files), lambda number: each(files[number]), spark_schema(made), tasks)


def tasks_for(spark: SparkSession, pieces: int) -> int:
    """Returns the number of tasks for so many pieces, at least one."""
    return max(1, min(pieces, _TASKS_PER_CORE * spark.sparkContext.defaultParallelism))


def footers(files: Sequence[Path], number: str) -> list[dict[str, int]] | None:
    """Returns figures of files from their footers: ``partition, rows, last_us``, and the least number as ``first``.

    A row for each group of rows; None if a group has several partitions, or was written without such figures.
    """
    figures: list[dict[str, int]] = []
    for file in files:
        with _reported(file):
            about = parquet.read_metadata(file)
        for group in (about.row_group(i) for i in range(about.num_row_groups)):
            columns = {c.path_in_schema: c.statistics for c in (group.column(i) for i in range(group.num_columns))}
            statistics = [columns.get(name) for name in ("partition", number, "time_us")]
            if not all(column_figures is not None and column_figures.has_min_max for column_figures in statistics):
                return None
            partition, first, time = (
                (column_figures.min, column_figures.max) for column_figures in statistics if column_figures is not None
            )
            if partition[0] != partition[1]:
                return None
            figures.append({"partition": partition[0], "first": first[0], "rows": group.num_rows, "last_us": time[1]})
    return figures


@contextmanager
def _reported(file: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, pa.ArrowException) as error:
        raise SpeError(f"{file} cannot be read: {error}") from error


def _read(file: Path, names: Sequence[str], wanted: Any = None) -> Iterator[pa.RecordBatch]:
    with _reported(file):
        opened = parquet.ParquetFile(file, coerce_int96_timestamp_unit="us")
    with opened:
        for group in range(opened.num_row_groups):
            about = opened.metadata.row_group(group)
            if wanted is None or _some(about, wanted):
                batches = opened.iter_batches(_rows_at_once(about), [group], names, use_threads=False)
                while True:
                    with _reported(file):
                        batch = next(batches, None)
                    if batch is None:
                        break
                    yield batch


def _rows_at_once(group: Any) -> int:
    if all(group.column(i).physical_type != "BYTE_ARRAY" for i in range(group.num_columns)):
        return _BATCH
    of_a_row = 1 + group.total_byte_size // max(1, group.num_rows)
    return min(_BATCH_WITH_TEXTS, 1 + _BATCH_BYTES // int(of_a_row))


def _true_rows(file: Path, added: Mapping[int, Mapping[int, int]] | None, wanted: Any) -> Iterator[pa.RecordBatch]:
    names = ["partition", "time_us", "place" if added is None else ROW, "tuple"]
    for batch in _read(file, names, wanted):
        partition, time, place, tuple_ = (batch.column(name) for name in names)
        if added is not None and len(batch):
            number = np.asarray(place)
            of_task = added[int(number[0]) >> TASK_BITS]
            add = np.zeros(1 + max(of_task), np.int64)
            add[list(of_task)] = list(of_task.values())
            place = pa.array(number + add[np.asarray(partition)])
        yield pa.RecordBatch.from_arrays([partition, time, place, tuple_], names=list(TRUE_ROWS))


def _some(group: Any, wanted: Any) -> bool:
    """Does a group of rows have times in one of the spans?"""
    columns = (group.column(i) for i in range(group.num_columns))
    times = next(column.statistics for column in columns if column.path_in_schema == "time_us")
    if times is None or not times.has_min_max:
        return True
    return bool(((wanted[:, 0] <= times.max) & (wanted[:, 1] >= times.min)).any())
