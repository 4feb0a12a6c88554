"""Directories of runs on the file systems of Hadoop: hdfs://, s3a://, whatever this Spark can read.

What is small (configuration, events, traces, marks, what nodes announced, the coordinator's database) is fetched into a
folder that looks like the run's own; a log's segments stay where they are, with sparse files of their size in their
place, and executors read them through Spark's ``binaryFile``.  Of each source's log the first record of each segment is
fetched, too, which says what it continues, and the last segment: it says how far the source came.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit
from urllib.request import url2pathname

from consistency.proof.run import Run
from spe.errors import SpeError
from spe.log.announced import ANNOUNCED
from spe.log.format import FIRST_BYTES, Segment, first_record_bytes
from spe.log.issued import PATH as DATABASE
from spe.log.provenance import PROVENANCE

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: What the proof reads of a run beside the segments of streams: patterns below its directory.
_SMALL: Final = (
    "*.yaml",
    "*.json",
    "events.jsonl",
    "trace/*.jsonl",
    "malformed/*.jsonl",
    "sources/*/*",
    f"clients/*/{PROVENANCE}",
    f"clients/*/{ANNOUNCED}/*",
    str(DATABASE),
)


@contextmanager
def opened(spark: SparkSession, place: str | Path) -> Iterator[Run]:
    """The run in a directory: a path, a ``file:`` URI, or one of another file system.  Raises as ``Run.open``."""
    where = str(place)
    if not is_remote(where):
        yield Run.open(local_path(where))
        return
    folder = HadoopFolder(spark, where.rstrip("/"))
    with TemporaryDirectory(prefix="spe-report-") as aside:
        yield _fetched(folder, Path(aside, PurePosixPath(folder.uri).name))


def is_remote(place: str) -> bool:
    """Is it a URI of another file system than this machine's?"""
    return "://" in place and urlsplit(place).scheme != "file"


def local_path(place: str) -> Path:
    """A path, or what a ``file:`` URI names."""
    return Path(url2pathname(urlsplit(place).path)) if place.startswith("file:") else Path(place)


def spark_path(path: Path) -> str:
    """A path of this machine as Spark and Hadoop take it: as a text, in which they decode no %20."""
    return f"file:{path.absolute()}"


def literal(place: str) -> str:
    """A path or URI where they take a pattern: the characters of one stand for themselves."""
    return re.sub(r"[*?\[\]{}\\]", r"\\\g<0>", place)


def fetched_text(spark: SparkSession, uri: str) -> str:
    """The text of a file on another file system.  Raises SpeError where there is none."""
    beside, _, name = uri.rpartition("/")
    folder = HadoopFolder(spark, beside)
    if PurePosixPath(name) not in {found for found, _ in folder.files()}:
        raise SpeError(f"{uri}: there is no such file")
    with TemporaryDirectory(prefix="spe-report-") as aside:
        folder.fetch(PurePosixPath(name), Path(aside))
        return Path(aside, name).read_text(encoding="utf-8")


@dataclass(frozen=True)
class HadoopFolder:
    """A directory, through Hadoop's FileSystem as this session's settings give it.

    Attributes:
      uri: without a slash at its end.
    """

    spark: SparkSession
    uri: str

    def files(self) -> Iterator[tuple[PurePosixPath, int]]:
        """(path below the directory, bytes) of all files in it.  Raises SpeError where there is no such directory."""
        system, root = self._system(), self._path("")
        if not system.exists(root):
            raise SpeError(f"{self.uri}: there is no such directory")
        above = len(str(system.makeQualified(root))) + 1
        found = system.listFiles(root, True)
        while found.hasNext():
            status = found.next()
            yield PurePosixPath(str(status.getPath())[above:]), int(status.getLen())

    def fetch(self, name: PurePosixPath, into: Path) -> None:
        """Copies a file to this machine."""
        self._system().copyToLocalFile(False, self._path(name), self._local(into / name), True)

    def fetch_first_record(self, name: PurePosixPath, into: Path) -> None:
        """Copies the beginning of a segment into the file that stands for it on this machine."""
        jvm: Any = self.spark._jvm
        read = jvm.org.apache.commons.io.IOUtils.toByteArray
        stream = self._system().open(self._path(name))
        try:
            size = (into / name).stat().st_size
            data = bytes(read(stream, min(size, FIRST_BYTES)))
            data += bytes(read(stream, min(size, first_record_bytes(data)) - len(data)))
        finally:
            stream.close()
        with (into / name).open("r+b") as file:
            file.write(data)

    def put(self, file: Path, name: PurePosixPath) -> None:
        """Copies a file of this machine there, over what there is."""
        self._system().copyFromLocalFile(False, True, self._local(file), self._path(name))

    def remove(self, name: PurePosixPath) -> None:
        """Removes a file or a directory, if it is there."""
        self._system().delete(self._path(name), True)

    def _system(self) -> Any:
        return self._path("").getFileSystem(self.spark._jsc.hadoopConfiguration())

    def _path(self, name: PurePosixPath | str) -> Any:
        return self._hadoop_path(f"{self.uri}/{name}".rstrip("/"))

    def _local(self, path: Path) -> Any:
        return self._hadoop_path(spark_path(path))

    def _hadoop_path(self, text: str) -> Any:
        jvm: Any = self.spark._jvm
        return jvm.org.apache.hadoop.fs.Path(text)


def _fetched(folder: HadoopFolder, into: Path) -> Run:
    """The run, whose path is ``into``."""
    from consistency.proof.source import source_table, stretches

    into.mkdir()
    for name, size in folder.files():
        there = into / name
        if Segment.parse(name.name) is not None and name.parent.name != ANNOUNCED:
            there.parent.mkdir(parents=True, exist_ok=True)
            there.touch()
            os.truncate(there, size)
        elif any(name.match(pattern) and len(name.parts) == len(Path(pattern).parts) for pattern in _SMALL):
            there.parent.mkdir(parents=True, exist_ok=True)
            folder.fetch(name, into)
    run = Run.open(into, folder.uri)
    for stream in run.plan.sources:
        table = source_table(run, stream)
        log = run.relative(Path(table.folders[0]))
        segments = [log / one.segment.name for one in stretches(table, 0)]
        for name in segments[:-1]:
            folder.fetch_first_record(name, into)
        for name in segments[-1:]:
            folder.fetch(name, into)
    return run
