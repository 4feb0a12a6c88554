"""A directory in S3, or in what speaks its protocol, through Arrow: it needs no jar, and executors read it themselves.

Credentials come from where the AWS SDK looks for them on each machine: the environment, ``~/.aws``, the machine's role.
They are in no option, no URI and no report.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import pyarrow as pa
from pyarrow import fs, parquet

from consistency.proof.kept import on_disk
from consistency.proof.remote import check_place
from consistency.proof.seen import check_all_see
from spe.errors import SpeError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from consistency.proof.remote import OfFile

#: Where a service other than Amazon's is; and its regions.
_ENDPOINT: Final = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
_REGION: Final = ("AWS_REGION", "AWS_DEFAULT_REGION")
_CONNECT_S: Final = 10.0
_ATTEMPTS: Final = 3
#: How Arrow tells an error of the service.
_CODE: Final = re.compile(r"AWS Error (\w+)")
_STATUS: Final = re.compile(r"HTTP status (\d+)")
_DENIED: Final = ("ACCESS_DENIED", "INVALID_ACCESS_KEY_ID", "SIGNATURE_DOES_NOT_MATCH", "INVALID_CLIENT_TOKEN_ID")
_NO_BUCKET: Final = "there is no such bucket"
_BYTES_AT_ONCE: Final = 1 << 20


@dataclass(frozen=True)
class ObjectPlace:
    """Where the objects are.  Spark carries it to executors, so it holds no credentials.

    Attributes:
      uri: as the user gave it, without a slash at its end.
      endpoint: URL of the service; "": Amazon's.
    """

    uri: str
    endpoint: str
    region: str

    @classmethod
    def of(cls, uri: str, environment: Mapping[str, str] = os.environ) -> ObjectPlace:
        """Raises SpeError: the URI is wrong (:func:`check_place`), or the region of its bucket is not found."""
        check_place(uri)
        bucket = urlsplit(uri).netloc
        endpoint = next((environment[name] for name in _ENDPOINT if environment.get(name)), "")
        if endpoint and (urlsplit(endpoint).scheme not in ("http", "https") or not urlsplit(endpoint).netloc):
            raise SpeError(f"{' or '.join(_ENDPOINT)}: expected a URL such as https://host:9000, got {endpoint!r}")
        region = next((environment[name] for name in _REGION if environment.get(name)), "")
        if not region:
            with _told(uri):
                region = "us-east-1" if endpoint else _region(bucket)
        return cls(uri.rstrip("/"), endpoint, region)

    @property
    def system(self) -> Any:
        """Of this process."""
        return _system(self.endpoint, self.region)

    def path(self, name: PurePosixPath | str = "") -> str:
        """As Arrow names a file: BUCKET/KEY."""
        parts = urlsplit(self.uri)
        return f"{parts.netloc}{parts.path}/{name}".rstrip("/")

    def content(self, name: PurePosixPath | str) -> memoryview:
        """All of a file.  Raises SpeError."""
        with _told(f"{self.uri}/{name}"), self.system.open_input_file(self.path(name)) as file:
            return memoryview(file.read_buffer())


@lru_cache
def _region(bucket: str) -> str:
    """Asked of Amazon, once."""
    return str(fs.resolve_s3_region(bucket))


@lru_cache
def _system(endpoint: str, region: str) -> Any:
    where = {"endpoint_override": urlsplit(endpoint).netloc, "scheme": urlsplit(endpoint).scheme} if endpoint else {}
    retries = fs.AwsStandardS3RetryStrategy(max_attempts=_ATTEMPTS)
    return fs.S3FileSystem(region=region, connect_timeout=_CONNECT_S, retry_strategy=retries, **where)


@contextmanager
def _told(what: str) -> Iterator[None]:
    """Errors of Arrow leave as SpeError, in a sentence."""
    try:
        yield
    except FileNotFoundError as error:
        raise SpeError(f"{what}: there is no such file") from error
    except (OSError, pa.ArrowException) as error:
        raise SpeError(f"{what}: {_reason(str(error))}") from error


def _reason(text: str) -> str:
    found, status = _CODE.search(text), _STATUS.search(text)
    code = "" if found is None else found[1]
    if code == "NO_SUCH_BUCKET" or re.search(r"Bucket '.*' not found", text):
        return _NO_BUCKET
    if code in _DENIED or (status is not None and status[1] in ("401", "403")):
        return (
            "access was denied: expected credentials that may use this bucket, in the environment (AWS_ACCESS_KEY_ID, "
            "AWS_SECRET_ACCESS_KEY), in ~/.aws/credentials, or of the machine's role"
        )
    if code == "NETWORK_CONNECTION":
        return f"the service is not reached ({text.rpartition(': ')[2].strip()}); see AWS_ENDPOINT_URL, AWS_REGION"
    return text.strip().splitlines()[0]


@dataclass(frozen=True)
class ObjectFolder:
    """A directory in a bucket."""

    spark: SparkSession | None
    place: ObjectPlace

    @property
    def uri(self) -> str:
        return self.place.uri

    def files(self) -> Iterator[tuple[PurePosixPath, int]]:
        """(path below the directory, bytes) of all files in it; none where there is none.  Raises SpeError."""
        base, system = self.place.path(), self.place.system
        with _told(self.uri):
            found = system.get_file_info(fs.FileSelector(base, recursive=True, allow_not_found=True))
            if not found and system.get_file_info(base.partition("/")[0]).type == fs.FileType.NotFound:
                raise SpeError(f"{self.uri}: {_NO_BUCKET}")
        for one in sorted((one for one in found if one.type == fs.FileType.File), key=lambda one: one.path):
            yield PurePosixPath(one.path.removeprefix(f"{base}/")), int(one.size)

    def read(self, name: PurePosixPath, offset: int, size: int) -> bytes:
        """Bytes of a file, which has so many."""
        with _told(f"{self.uri}/{name}"), self.place.system.open_input_file(self.place.path(name)) as file:
            return bytes(file.read_at(size, offset))

    def fetch(self, name: PurePosixPath, into: Path) -> None:
        """Copies a file to this machine."""
        system, path = self.place.system, self.place.path(name)
        with _told(f"{self.uri}/{name}"), system.open_input_stream(path) as there, (into / name).open("wb") as here:
            while part := there.read(_BYTES_AT_ONCE):
                here.write(part)

    def put(self, file: Path, name: PurePosixPath) -> None:
        """Copies a file of this machine there, over what there is."""
        system, path = self.place.system, self.place.path(name)
        with _told(f"{self.uri}/{name}"), file.open("rb") as here, system.open_output_stream(path) as there:
            while part := here.read(_BYTES_AT_ONCE):
                there.write(part)

    def remove(self, name: PurePosixPath) -> None:
        """Removes a file or a directory, if it is there."""
        path, system = self.place.path(name), self.place.system
        with _told(f"{self.uri}/{name}"):
            kind = system.get_file_info(path).type
            if kind == fs.FileType.Directory:
                system.delete_dir(path)
            elif kind == fs.FileType.File:
                system.delete_file(path)

    def over(self, names: Sequence[str], each: OfFile, schema: StructType | str) -> DataFrame:
        """What ``each`` makes of files, by their numbers and bytes, a task for each; executors read them."""
        place = self.place

        def of_files(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                for number in batch.column(0).to_pylist():
                    yield from each(number, place.content(names[number]))

        return self._spark.range(0, len(names), 1, max(1, len(names))).mapInArrow(of_files, schema)

    def keep(self, name: str, frame: DataFrame) -> DataFrame:
        """Writes a frame as Parquet there, a file per task, and keeps it on the executors' disks for the proof."""
        from pyspark import TaskContext
        from pyspark.sql.pandas.types import to_arrow_schema

        place, folder = self.place, f"{name}.parquet"
        schema = to_arrow_schema(frame.schema, timezone="UTC", prefers_large_types=False)

        def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            context = TaskContext.get()
            assert context is not None
            rows = write_parquet(place, f"{folder}/part-{context.partitionId():05}.parquet", schema, batches)
            yield pa.RecordBatch.from_pydict({"rows": [rows]})

        kept = on_disk(frame)
        if not sum(row["rows"] for row in kept.mapInArrow(write, "rows long").collect()):
            write_parquet(place, f"{folder}/part-00000.parquet", schema, [], at_all=True)
        return kept

    def check_executors(self) -> None:
        """Raises SpeError where one lacks credentials, or does not reach the service."""
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


def write_parquet(
    place: ObjectPlace, name: str, schema: pa.Schema, batches: Iterator[pa.RecordBatch] | Sequence[pa.RecordBatch],
    *, at_all: bool = False,
) -> int:  # fmt: skip
    """Writes a file; none without rows, but where it is wanted ``at_all``.  Returns the number of rows."""
    rows, writer, file = 0, None, None
    with _told(f"{place.uri}/{name}"):
        for batch in batches:
            if not len(batch):
                continue
            if writer is None:
                file = place.system.open_output_stream(place.path(name))
                writer = parquet.ParquetWriter(file, batch.schema)
            writer.write_batch(batch)
            rows += len(batch)
        if writer is None and at_all:
            file = place.system.open_output_stream(place.path(name))
            writer = parquet.ParquetWriter(file, schema)
        if writer is not None and file is not None:
            writer.close()
            file.close()
    return rows
