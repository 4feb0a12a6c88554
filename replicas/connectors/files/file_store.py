"""Access to the files of a directory, on a disk or in object storage.  All functions block."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, Protocol

from replicas.connectors.formats.file_format import is_of_storage
from spe.errors import ServerAway, SpeError
from spe.runtime.s3 import NO_BUCKET, S3Service, is_final, reason
from spe.values import S3


class FileVersion(NamedTuple):
    """Identifies a version of a file, to detect changes.

    Attributes:
      modified_ns: time of the last change, since the epoch.
    """

    size: int
    modified_ns: int


class FolderRefused(SpeError):
    """A folder cannot be read, and a retry is unlikely to help: it is missing, or access is denied."""


class FileStore(Protocol):
    """Files below one folder; their paths are relative to it, and use ``/``.

    Attributes:
      name: name of the folder in messages; without secrets.
    """

    name: str

    def list(self) -> dict[str, FileVersion]:
        """Returns all files.  Raises FolderRefused, ServerAway."""
        ...

    def look(self, path: str) -> FileVersion | None:
        """Returns the version of a file; None: there is no such file.  Raises FolderRefused, ServerAway."""
        ...

    @contextmanager
    def open(self, path: str) -> Iterator[BinaryIO]:
        """Opens a file for a FileFormat.  Raises OSError."""
        ...

    def trouble(self, error: OSError) -> SpeError:
        """Converts an error of a file to FolderRefused or ServerAway."""
        ...


def hidden(name: str) -> bool:
    """Returns whether a name marks an incomplete file, or a private one of a program."""
    return name.startswith((".", "_"))


class LocalStore:
    """A folder of a file system.  Links to files are followed, links to folders are not."""

    def __init__(self, folder: str) -> None:
        self.name = folder
        self._folder = Path(folder)

    def list(self) -> dict[str, FileVersion]:
        versions: dict[str, FileVersion] = {}
        try:
            folders = [""]
            while folders:
                below = folders.pop()
                with os.scandir(self._folder / below) as entries:
                    for entry in entries:
                        if entry.is_dir(follow_symlinks=False):
                            if not hidden(entry.name):
                                folders.append(f"{below}{entry.name}/")
                        elif (version := _version(entry)) is not None:
                            versions[below + entry.name] = version
        except OSError as error:
            raise self.trouble(error) from error
        return versions

    def look(self, path: str) -> FileVersion | None:
        try:
            if (version := _version(self._folder / path)) is None:
                self._folder.stat()  # an unreachable folder does not mean that its files are gone
            return version
        except OSError as error:
            raise self.trouble(error) from error

    @contextmanager
    def open(self, path: str) -> Iterator[BinaryIO]:
        with (self._folder / path).open("rb") as file:
            yield file

    def trouble(self, error: OSError) -> SpeError:
        refused = isinstance(error, FileNotFoundError | PermissionError | NotADirectoryError)
        where = self.name if error.filename in (None, str(self._folder)) else error.filename
        return (FolderRefused if refused else ServerAway)(f"{where} cannot be read: {error.strerror or error}")


def _version(file: os.DirEntry[str] | Path) -> FileVersion | None:
    """Returns the version of a file; None: not a plain file, or gone, or a dangling link."""
    try:
        status = file.stat()
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno == errno.ELOOP:
            return None
        raise
    return FileVersion(status.st_size, status.st_mtime_ns) if stat.S_ISREG(status.st_mode) else None


class S3Store:
    """A prefix of a bucket."""

    def __init__(self, reader: Mapping[str, Any]) -> None:
        self.name = str(reader["folder"]).rstrip("/")
        self._options = {key: reader[key] for key in ("region", "endpoint", "anonymous") if reader.get(key)}
        self._base = self.name.removeprefix(S3)
        self._service: S3Service | None = None

    def _connected(self) -> Any:
        """Returns a connection.  Raises SpeError, OSError."""
        if self._service is None:
            self._service = S3Service.of(self._base.partition("/")[0], **self._options)
        return self._service.system

    def list(self) -> dict[str, FileVersion]:
        from pyarrow import fs

        try:
            system = self._connected()
            bucket = self._base.partition("/")[0]
            if system.get_file_info(bucket).type is fs.FileType.NotFound:
                raise FolderRefused(f"{self.name} cannot be read: {NO_BUCKET}")
            selector = fs.FileSelector(self._base, allow_not_found=True, recursive=True)
            infos = system.get_file_info(selector)
        except OSError as error:
            raise self.trouble(error) from error
        skip = len(self._base) + 1
        versions = {i.path[skip:]: FileVersion(i.size, i.mtime_ns) for i in infos if i.type is fs.FileType.File}
        return {path: version for path, version in versions.items() if not any(map(hidden, path.split("/")[:-1]))}

    def look(self, path: str) -> FileVersion | None:
        from pyarrow import fs

        try:
            info = self._connected().get_file_info(f"{self._base}/{path}")
        except OSError as error:
            raise self.trouble(error) from error
        return FileVersion(info.size, info.mtime_ns) if info.type is fs.FileType.File else None

    @contextmanager
    def open(self, path: str) -> Iterator[BinaryIO]:
        with self._connected().open_input_file(f"{self._base}/{path}") as file:
            yield file

    def trouble(self, error: OSError) -> SpeError:
        return (FolderRefused if is_final(error) else ServerAway)(f"{self.name} cannot be read: {reason(error)}")


def file_store(reader: Mapping[str, Any]) -> FileStore:
    """Returns the store named by the option ``folder``."""
    return S3Store(reader) if str(reader["folder"]).startswith(S3) else LocalStore(str(reader["folder"]))


def may_come_back(error: OSError) -> bool:
    """Returns whether an unreadable file may still exist, as far as the error shows."""
    return is_of_storage(error) and not isinstance(error, FileNotFoundError)
