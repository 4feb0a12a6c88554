"""Directories of runs on other file systems: S3 through Arrow, those of Hadoop through Spark.

Small files (configuration, events, traces, marks, announcements, the coordinator's database) are fetched into a
folder that looks like the run's own; a log's segments stay where they are, with sparse files of their size in their
place, and executors read them.  Of each source's log the first record of each segment is fetched, too, which says what
it continues, and the last segment, which has the last position of the source.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from consistency.proof.recorded.run import Run
from consistency.proof.recorded.run_files import is_read
from consistency.proof.session.executors import check_all_see, path_unseen
from consistency.proof.storage.folder import OBJECTS, RemoteFolder, is_remote, local_path
from consistency.proof.storage.hadoop import HadoopFolder, reads
from consistency.proof.storage.tables import Keep
from spe.errors import SpeError
from spe.log.announced_settings import ANNOUNCED
from spe.log.format import FIRST_BYTES, Segment, first_record_bytes

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def folder_of(spark: SparkSession, uri: str) -> RemoteFolder:
    """Returns a directory with a reader for its scheme.  Raises SpeError where the URI is wrong."""
    scheme = urlsplit(uri).scheme
    if scheme in OBJECTS and not reads(spark, scheme):
        from consistency.proof.storage.objects import ObjectFolder, ObjectPlace

        return ObjectFolder(spark, ObjectPlace.of(uri))
    return HadoopFolder(spark, uri.rstrip("/"))


def keeper(spark: SparkSession, where: str) -> Keep:
    """Returns a function that writes frames as Parquet below a path or URI."""
    if is_remote(where):
        return folder_of(spark, where).keep
    from consistency.proof.storage.local import LocalTables

    return LocalTables(spark, local_path(where).absolute()).keep


def listed(folder: RemoteFolder) -> dict[PurePosixPath, int]:
    """Returns bytes of all files of a directory, by their paths below it.  Raises SpeError where there is none."""
    if not (sizes := dict(folder.files())):
        raise SpeError(f"{folder.uri}: there is no such directory")
    return sizes


def check_spark_reads(spark: SparkSession, uri: str) -> None:
    """Raises SpeError where Spark itself has to read a URI and cannot: a table of the user's."""
    scheme = urlsplit(uri).scheme
    if scheme in OBJECTS and not reads(spark, scheme):
        raise SpeError(
            f"{uri}: this Spark has no file system {scheme}://, so it reads runs there, and no tables; expected a copy "
            "of the table elsewhere, or Spark with the jar hadoop-aws"
        )


@contextmanager
def opened(spark: SparkSession, place: str | Path) -> Iterator[Run]:
    """Opens the run in a directory: a path, a ``file:`` URI, or one of another file system.  Raises as ``Run.open``."""
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


def fetched_text(spark: SparkSession, uri: str) -> str:
    """Returns the text of a file on another file system.  Raises SpeError where there is none."""
    parent, _, name = uri.rpartition("/")
    folder = folder_of(spark, parent)
    if PurePosixPath(name) not in listed(folder):
        raise SpeError(f"{uri}: there is no such file")
    with TemporaryDirectory(prefix="spe-report-") as aside:
        folder.fetch(PurePosixPath(name), Path(aside))
        return Path(aside, name).read_text(encoding="utf-8")


def is_segment(name: PurePosixPath) -> bool:
    """Is it a segment of a stream, which executors read?"""
    return Segment.parse(name.name) is not None and name.parent.name != ANNOUNCED


def _fetched(folder: RemoteFolder, into: Path) -> Run:
    """Opens the run after fetching it to the path ``into``."""
    from consistency.proof.recorded.table_source import source_table, stretches

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
        segments = [log / stretch.segment.name for stretch in stretches(table, 0)]
        for name in segments[:-1]:
            _fetch_first_record(folder, name, into / name)
        for name in segments[-1:]:
            folder.fetch(name, into)
    return run


def _fetch_first_record(folder: RemoteFolder, name: PurePosixPath, into: Path) -> None:
    """Copies the beginning of a segment into its placeholder file on this machine."""
    size = into.stat().st_size
    data = folder.read(name, 0, min(size, FIRST_BYTES))
    if more := min(size, first_record_bytes(data)) - len(data):
        data += folder.read(name, len(data), more)
    with into.open("r+b") as file:
        file.write(data)
