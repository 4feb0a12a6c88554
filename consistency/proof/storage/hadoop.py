"""A directory on a file system of Hadoop, read by Spark's Java: hdfs://, and others that this Spark supports."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from consistency.proof.storage.tables import MadeByTasks, frame_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from consistency.proof.storage.folder import OfFile


def spark_path(path: Path) -> str:
    """Returns a path of this machine in the form of Spark and Hadoop: as a text, in which they decode no %20."""
    return f"file:{path.absolute()}"


def literal(place: str) -> str:
    """Escapes a path or URI where a pattern is expected, so that it matches literally."""
    return re.sub(r"[*?\[\]{}\\]", r"\\\g<0>", place)


def reads(spark: SparkSession, scheme: str) -> bool:
    """Does this session's Hadoop have a file system with that scheme?"""
    from py4j.protocol import Py4JJavaError

    jvm: Any = spark._jvm
    try:
        jvm.org.apache.hadoop.fs.FileSystem.getFileSystemClass(scheme, spark._jsc.hadoopConfiguration())
    except Py4JJavaError:
        return False
    return True


@dataclass(frozen=True)
class HadoopFolder:
    """A directory (``RemoteFolder``), through Hadoop's FileSystem with this session's settings.

    Attributes:
      uri: without a slash at its end.
    """

    spark: SparkSession
    uri: str

    def files(self) -> Iterator[tuple[PurePosixPath, int]]:
        system, root = self._system(), self._path("")
        if not system.exists(root):
            return
        above = len(str(system.makeQualified(root))) + 1
        entries = system.listFiles(root, True)
        while entries.hasNext():
            status = entries.next()
            yield PurePosixPath(str(status.getPath())[above:]), int(status.getLen())

    def read(self, name: PurePosixPath, offset: int, size: int) -> bytes:
        jvm: Any = self.spark._jvm
        stream = self._system().open(self._path(name))
        try:
            stream.seek(offset)
            return bytes(jvm.org.apache.commons.io.IOUtils.toByteArray(stream, size))
        finally:
            stream.close()

    def fetch(self, name: PurePosixPath, into: Path) -> None:
        self._system().copyToLocalFile(False, self._path(name), self._local(into / name), True)

    def put(self, file: Path, name: PurePosixPath) -> None:
        self._system().copyFromLocalFile(False, True, self._local(file), self._path(name))

    def remove(self, name: PurePosixPath) -> None:
        self._system().delete(self._path(name), True)

    def over(self, names: Sequence[str], each: OfFile, schema: StructType | str) -> DataFrame:
        """Applies ``each`` to files, by their numbers and bytes; executors get these from Spark."""

        def of_files(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                for path, content in zip(batch.column(0).to_pylist(), batch.column(1)):
                    number = next(n for n, name in enumerate(names) if path.endswith(f"/{name}"))
                    yield from each(number, memoryview(content.as_buffer()))

        files = self.spark.read.format("binaryFile").load([f"{self.uri}/{name}" for name in names])
        return files.select("path", "content").mapInArrow(of_files, schema)

    def keep(self, name: str, frame: DataFrame | MadeByTasks) -> DataFrame:
        """Writes a frame as Parquet there; the returned frame is not computed again."""
        path, frame = f"{self.uri}/{name}.parquet", frame_of(frame)
        frame.write.mode("overwrite").parquet(path)
        return self.spark.read.schema(frame.schema).parquet(literal(path))

    def check_executors(self) -> None:
        """Does nothing: executors read with the settings of the driver."""

    def _system(self) -> Any:
        return self._path("").getFileSystem(self.spark._jsc.hadoopConfiguration())

    def _path(self, name: PurePosixPath | str) -> Any:
        return self._hadoop_path(f"{self.uri}/{name}".rstrip("/"))

    def _local(self, path: Path) -> Any:
        return self._hadoop_path(spark_path(path))

    def _hadoop_path(self, text: str) -> Any:
        jvm: Any = self.spark._jvm
        return jvm.org.apache.hadoop.fs.Path(text)
