"""A directory in S3, or in a service with its protocol: it needs no jar, and executors read it themselves."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from shutil import copyfileobj
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import pyarrow as pa
from pyarrow import fs

from consistency.proof.session.executors import check_all_see
from consistency.proof.storage.arrow import arrow_schema
from consistency.proof.storage.folder import check_place
from consistency.proof.storage.parquet import write_parquet
from consistency.proof.storage.tables import MadeByTasks, frame_of, on_disk, over_numbers
from spe.errors import SpeError
from spe.runtime.s3 import NO_BUCKET, S3Service, reason

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from consistency.proof.storage.folder import OfFile

_BYTES_AT_ONCE: Final = 1 << 20


@dataclass(frozen=True)
class ObjectPlace:
    """Address of the objects; Spark carries it to executors.

    Attributes:
      uri: as the user wrote it, without a slash at its end.
    """

    uri: str
    service: S3Service

    @classmethod
    def of(cls, uri: str, environment: Mapping[str, str] = os.environ) -> ObjectPlace:
        """Parses a URI.  Raises SpeError if it is wrong (:func:`check_place`), or its bucket's region is not found."""
        check_place(uri)
        with _reported(uri):
            return cls(uri.rstrip("/"), S3Service.of(urlsplit(uri).netloc, environment=environment))

    @property
    def system(self) -> Any:
        """Returns Arrow's file system, one per process."""
        return self.service.system

    def path(self, name: PurePosixPath | str = "") -> str:
        """Returns Arrow's name of a file: BUCKET/KEY."""
        parts = urlsplit(self.uri)
        return f"{parts.netloc}{parts.path}/{name}".rstrip("/")

    def content(self, name: PurePosixPath | str) -> memoryview:
        """Reads a whole file.  Raises SpeError."""
        with _reported(f"{self.uri}/{name}"), self.system.open_input_file(self.path(name)) as file:
            return memoryview(file.read_buffer())


@contextmanager
def _reported(what: str) -> Iterator[None]:
    """Turns errors of Arrow into SpeError, with a sentence."""
    try:
        yield
    except FileNotFoundError as error:
        raise SpeError(f"{what}: there is no such file") from error
    except (OSError, pa.ArrowException) as error:
        raise SpeError(f"{what}: {reason(error)}") from error


@dataclass(frozen=True)
class ObjectFolder:
    """A directory (``RemoteFolder``) in a bucket."""

    spark: SparkSession | None
    place: ObjectPlace

    @property
    def uri(self) -> str:
        return self.place.uri

    def files(self) -> Iterator[tuple[PurePosixPath, int]]:
        """Yields (path below the directory, bytes) of all files; none if there is no directory.  Raises SpeError."""
        base, system = self.place.path(), self.place.system
        with _reported(self.uri):
            infos = system.get_file_info(fs.FileSelector(base, recursive=True, allow_not_found=True))
            if not infos and system.get_file_info(base.partition("/")[0]).type == fs.FileType.NotFound:
                raise SpeError(f"{self.uri}: {NO_BUCKET}")
        for info in sorted((info for info in infos if info.type == fs.FileType.File), key=lambda info: info.path):
            yield PurePosixPath(info.path.removeprefix(f"{base}/")), int(info.size)

    def read(self, name: PurePosixPath, offset: int, size: int) -> bytes:
        with _reported(f"{self.uri}/{name}"), self.place.system.open_input_file(self.place.path(name)) as file:
            return bytes(file.read_at(size, offset))

    def fetch(self, name: PurePosixPath, into: Path) -> None:
        system, path = self.place.system, self.place.path(name)
        with _reported(f"{self.uri}/{name}"), system.open_input_stream(path) as there, (into / name).open("wb") as here:
            copyfileobj(there, here, _BYTES_AT_ONCE)

    def put(self, file: Path, name: PurePosixPath) -> None:
        system, path = self.place.system, self.place.path(name)
        with _reported(f"{self.uri}/{name}"), file.open("rb") as here, system.open_output_stream(path) as there:
            copyfileobj(here, there, _BYTES_AT_ONCE)

    def remove(self, name: PurePosixPath) -> None:
        path, system = self.place.path(name), self.place.system
        with _reported(f"{self.uri}/{name}"):
            kind = system.get_file_info(path).type
            if kind == fs.FileType.Directory:
                system.delete_dir(path)
            elif kind == fs.FileType.File:
                system.delete_file(path)

    def over(self, names: Sequence[str], each: OfFile, schema: StructType | str) -> DataFrame:
        """Applies ``each`` to files, by their numbers and bytes, a task for each; executors read them."""
        place, count = self.place, len(names)
        return over_numbers(self._spark, count, lambda n: each(n, place.content(names[n])), schema, max(1, count))

    def keep(self, name: str, frame: DataFrame | MadeByTasks) -> DataFrame:
        """Writes a frame as Parquet there, a file per task, and keeps it on the executors' disks for the proof."""
        from pyspark import TaskContext

        place, folder = self.place, f"{name}.parquet"
        stored = on_disk(frame_of(frame))
        schema = arrow_schema(stored.schema)

        def write_part(number: int, batches: Iterable[pa.RecordBatch], *, at_all: bool = False) -> int:
            """Writes through a file of this machine, so that an interrupted write leaves no object."""
            file = f"{folder}/part-{number:05}.parquet"
            with TemporaryFile() as aside:
                # Not closed by its writer: it is read next.
                rows = write_parquet(lambda: nullcontext(aside), schema, batches, at_all=at_all)
                aside.seek(0)
                if rows or at_all:
                    with _reported(f"{place.uri}/{file}"), place.system.open_output_stream(place.path(file)) as there:
                        copyfileobj(aside, there, _BYTES_AT_ONCE)
            return rows

        def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            context = TaskContext.get()
            assert context is not None
            yield pa.RecordBatch.from_pydict({"rows": [write_part(context.partitionId(), batches)]})

        if not sum(row["rows"] for row in stored.mapInArrow(write, "rows long").collect()):
            write_part(0, [], at_all=True)
        return stored

    def check_executors(self) -> None:
        """Raises SpeError where an executor lacks credentials, or does not reach the service."""
        place = self.place
        (first, _), *_ = self.files()

        def unseen() -> str:
            try:
                place.content(first)
            except SpeError as error:
                return str(error)
            return ""

        check_all_see(self._spark, unseen)

    @property
    def _spark(self) -> SparkSession:
        assert self.spark is not None
        return self.spark
