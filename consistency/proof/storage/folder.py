"""A directory on another file system, as the proof uses it, and the URIs that name one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Final, Protocol
from urllib.parse import urlsplit
from urllib.request import url2pathname

from consistency.proof.storage.tables import MadeByTasks
from spe.errors import SpeError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

#: Schemes of object storage, which Arrow reads if Hadoop does not.
OBJECTS: Final = ("s3", "s3a")

#: Applied to a file in a task, from its number and its bytes.
OfFile = Callable[[int, memoryview], Iterator["pa.RecordBatch"]]


class FileFolder(Protocol):
    """A directory anywhere."""

    @property
    def uri(self) -> str:
        """Path or URI, without a slash at its end."""

    def files(self) -> Iterator[tuple[PurePosixPath, int]]:
        """Yields (path below the directory, bytes) of all files in it; none if there is no such directory."""

    def put(self, file: Path, name: PurePosixPath) -> None:
        """Copies a file of this machine to the directory; replaces an existing one."""


class RemoteFolder(FileFolder, Protocol):
    """A directory on another file system."""

    def read(self, name: PurePosixPath, offset: int, size: int) -> bytes:
        """Reads ``size`` bytes of a file, which has as many."""

    def fetch(self, name: PurePosixPath, into: Path) -> None:
        """Copies a file to this machine."""

    def remove(self, name: PurePosixPath) -> None:
        """Removes a file or a directory, if it is there."""

    def over(self, names: Sequence[str], each: OfFile, schema: StructType | str) -> DataFrame:
        """Applies ``each`` to files, on executors."""

    def keep(self, name: str, frame: DataFrame | MadeByTasks) -> DataFrame:
        """Writes a frame as Parquet there, and returns it as one that is not computed again."""

    def check_executors(self) -> None:
        """Raises SpeError where an executor cannot read the driver's files."""


def is_remote(place: str) -> bool:
    """Is it a URI of another file system than this machine's?"""
    return "://" in place and urlsplit(place).scheme != "file"


def is_object(place: str) -> bool:
    """Is it a URI of object storage?"""
    return urlsplit(place).scheme in OBJECTS


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
    """Returns the path of a ``file:`` URI; or the path itself."""
    return Path(url2pathname(urlsplit(place).path)) if place.startswith("file:") else Path(place)
