"""Directories of runs on other file systems: S3 through Arrow, those of Hadoop through Spark.

What is small (configuration, events, traces, marks, what nodes announced, the coordinator's database) is fetched into a
folder that looks like the run's own; a log's segments stay where they are, with sparse files of their size in their
place, and executors read them.  Of each source's log the first record of each segment is fetched, too, which says what
it continues, and the last segment: it says how far the source came.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final, Protocol
from urllib.parse import urlsplit
from urllib.request import url2pathname

from consistency.proof.evidence import is_read
from consistency.proof.hadoop import HadoopFolder, reads
from consistency.proof.kept import Keep, MadeByTasks
from consistency.proof.run import Run
from consistency.proof.seen import check_all_see, path_unseen
from spe.errors import SpeError
from spe.log.announced import ANNOUNCED
from spe.log.format import FIRST_BYTES, Segment, first_record_bytes

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

#: Schemes of object storage, which Arrow reads where Hadoop does not.
_OBJECTS: Final = ("s3", "s3a")

#: What a task makes of a file: of its number and its bytes.
OfFile = Callable[[int, memoryview], Iterator["pa.RecordBatch"]]


class RemoteFolder(Protocol):
    """A directory on another file system."""

    @property
    def uri(self) -> str:
        """Without a slash at its end."""

    def files(self) -> Iterator[tuple[PurePosixPath, int]]:
        """(path below the directory, bytes) of all files in it; none where there is no such directory."""

    def read(self, name: PurePosixPath, offset: int, size: int) -> bytes:
        """Bytes of a file, which has so many."""

    def fetch(self, name: PurePosixPath, into: Path) -> None:
        """Copies a file to this machine."""

    def put(self, file: Path, name: PurePosixPath) -> None:
        """Copies a file of this machine there, over what there is."""

    def remove(self, name: PurePosixPath) -> None:
        """Removes a file or a directory, if it is there."""

    def over(self, names: Sequence[str], each: OfFile, schema: StructType | str) -> DataFrame:
        """What ``each`` makes of files, on executors."""

    def keep(self, name: str, frame: DataFrame | MadeByTasks) -> DataFrame:
        """Writes a frame as Parquet there, and gives it back as one that is not computed again."""

    def check_executors(self) -> None:
        """Raises SpeError where an executor cannot read what the driver reads."""


def folder_of(spark: SparkSession, uri: str) -> RemoteFolder:
    """A directory, by whoever can read it.  Raises SpeError where the URI is wrong."""
    scheme = urlsplit(uri).scheme
    if scheme in _OBJECTS and not reads(spark, scheme):
        from consistency.proof.objects import ObjectFolder, ObjectPlace

        return ObjectFolder(spark, ObjectPlace.of(uri))
    return HadoopFolder(spark, uri.rstrip("/"))


def keeper(spark: SparkSession, where: str) -> Keep:
    """Writes frames as Parquet below a path or URI."""
    if is_remote(where):
        return folder_of(spark, where).keep
    from consistency.proof.local import LocalTables

    return LocalTables(spark, local_path(where).absolute()).keep


def listed(folder: RemoteFolder) -> dict[PurePosixPath, int]:
    """Bytes of all files of a directory, by their paths below it.  Raises SpeError where there is none."""
    if not (found := dict(folder.files())):
        raise SpeError(f"{folder.uri}: there is no such directory")
    return found


def check_spark_reads(spark: SparkSession, uri: str) -> None:
    """Raises SpeError where Spark itself has to read it and cannot: a table of the user's."""
    scheme = urlsplit(uri).scheme
    if scheme in _OBJECTS and not reads(spark, scheme):
        raise SpeError(
            f"{uri}: this Spark has no file system {scheme}://, so it reads runs there, and no tables; expected a copy "
            "of the table elsewhere, or Spark with the jar hadoop-aws"
        )


@contextmanager
def opened(spark: SparkSession, place: str | Path) -> Iterator[Run]:
    """The run in a directory: a path, a ``file:`` URI, or one of another file system.  Raises as ``Run.open``."""
    where = str(place)
    if not is_remote(where):
        run = Run.open(local_path(where))
        path = str(run.path.absolute())
        check_all_see(spark, lambda: path_unseen(path))
        yield run
        return
    folder = folder_of(spark, where)
    with TemporaryDirectory(prefix="spe-report-") as aside:
        run = _fetched(folder, Path(aside, PurePosixPath(folder.uri).name))
        folder.check_executors()
        yield run


def is_remote(place: str) -> bool:
    """Is it a URI of another file system than this machine's?"""
    return "://" in place and urlsplit(place).scheme != "file"


def is_object(place: str) -> bool:
    """Is it a URI of object storage?"""
    return urlsplit(place).scheme in _OBJECTS


def check_place(place: str) -> None:
    """Raises SpeError for a URI of object storage that is no ``s3://BUCKET/KEY``, or carries credentials."""
    if not is_object(place):
        return
    parts = urlsplit(place)
    if "@" in parts.netloc or parts.query or parts.fragment:
        shown = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
        raise SpeError(
            f"{shown} was given with credentials or options, which the report would show; expected s3://BUCKET/KEY, "
            "and credentials in the environment, in ~/.aws, or of the machine's role"
        )
    if not parts.netloc or not parts.path.strip("/"):
        raise SpeError(f"{place}: expected s3://BUCKET/KEY, a directory in a bucket")


def local_path(place: str) -> Path:
    """A path, or what a ``file:`` URI names."""
    return Path(url2pathname(urlsplit(place).path)) if place.startswith("file:") else Path(place)


def fetched_text(spark: SparkSession, uri: str) -> str:
    """The text of a file on another file system.  Raises SpeError where there is none."""
    beside, _, name = uri.rpartition("/")
    folder = folder_of(spark, beside)
    if PurePosixPath(name) not in listed(folder):
        raise SpeError(f"{uri}: there is no such file")
    with TemporaryDirectory(prefix="spe-report-") as aside:
        folder.fetch(PurePosixPath(name), Path(aside))
        return Path(aside, name).read_text(encoding="utf-8")


def is_segment(name: PurePosixPath) -> bool:
    """Is it a segment of a stream, which executors read?"""
    return Segment.parse(name.name) is not None and name.parent.name != ANNOUNCED


def _fetched(folder: RemoteFolder, into: Path) -> Run:
    """The run, whose path is ``into``."""
    from consistency.proof.source import source_table, stretches

    into.mkdir()
    for name, size in listed(folder).items():
        if not is_read(name):
            continue
        there = into / name
        there.parent.mkdir(parents=True, exist_ok=True)
        if is_segment(name):
            there.touch()
            os.truncate(there, size)
        else:
            folder.fetch(name, into)
    run = Run.open(into, folder.uri)
    for stream in run.plan.sources:
        table = source_table(run, stream)
        log = run.relative(Path(table.folders[0]))
        segments = [log / one.segment.name for one in stretches(table, 0)]
        for name in segments[:-1]:
            _fetch_first_record(folder, name, into / name)
        for name in segments[-1:]:
            folder.fetch(name, into)
    return run


def _fetch_first_record(folder: RemoteFolder, name: PurePosixPath, into: Path) -> None:
    """Copies the beginning of a segment into the file that stands for it on this machine."""
    size = into.stat().st_size
    data = folder.read(name, 0, min(size, FIRST_BYTES))
    if more := min(size, first_record_bytes(data)) - len(data):
        data += folder.read(name, len(data), more)
    with into.open("r+b") as file:
        file.write(data)
