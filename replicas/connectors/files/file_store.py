"""Where the files of a directory are: on a disk, or in object storage.  Everything here blocks."""

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
    """What tells whether a file is still the one that it was.

    Attributes:
      modified_ns: time of the last change, since the epoch.
    """

    size: int
    modified_ns: int


class FolderRefused(SpeError):
    """A folder cannot be read, and trying again is not likely to mend it: it is missing, or not for us."""


class FileStore(Protocol):
    """Files below one folder; their paths are relative to it, and use ``/``.

    Attributes:
      name: of the folder, for messages; without secrets.
    """

    name: str

    def list(self) -> dict[str, FileVersion]:
        """All files.  Raises FolderRefused, ServerAway."""
        ...

    def look(self, path: str) -> FileVersion | None:
        """None: there is no such file.  Raises FolderRefused, ServerAway."""
        ...

    @contextmanager
    def open(self, path: str) -> Iterator[BinaryIO]:
        """For a FileFormat.  Raises OSError."""
        ...

    def trouble(self, error: OSError) -> SpeError:
        """What an error of a file says of the storage: FolderRefused or ServerAway."""
        ...


def hidden(name: str) -> bool:
    """Files that are not complete have such names, and those that programs keep for themselves."""
    return name.startswith((".", "_"))


class LocalStore:
    """A folder of a file system.  Links to files are followed, links to folders are not."""

    def __init__(self, folder: str) -> None:
        self.name = folder
        self._folder = Path(folder)

    def list(self) -> dict[str, FileVersion]:
        found: dict[str, FileVersion] = {}
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
                            found[below + entry.name] = version
        except OSError as error:
            raise self.trouble(error) from error
        return found

    def look(self, path: str) -> FileVersion | None:
        try:
            if (found := _version(self._folder / path)) is None:
                self._folder.stat()  # a folder that is away is no reason to think that its files are gone
            return found
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
    """None: it is no plain file, or gone, or a link that leads nowhere."""
    try:
        found = file.stat()
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno == errno.ELOOP:
            return None
        raise
    return FileVersion(found.st_size, found.st_mtime_ns) if stat.S_ISREG(found.st_mode) else None


class S3Store:
    """A prefix of a bucket."""

    def __init__(self, reader: Mapping[str, Any]) -> None:
        self.name = str(reader["folder"]).rstrip("/")
        self._options = {key: reader[key] for key in ("region", "endpoint", "anonymous") if reader.get(key)}
        self._base = self.name.removeprefix(S3)
        self._service: S3Service | None = None

    def _connected(self) -> Any:
        """Raises SpeError, OSError."""
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
        found = {i.path[skip:]: FileVersion(i.size, i.mtime_ns) for i in infos if i.type is fs.FileType.File}
        return {path: version for path, version in found.items() if not any(map(hidden, path.split("/")[:-1]))}

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
    """By the option ``folder``."""
    return S3Store(reader) if str(reader["folder"]).startswith(S3) else LocalStore(str(reader["folder"]))


def may_come_back(error: OSError) -> bool:
    """Is a file that cannot be read still there, as far as the error says?"""
    return is_of_storage(error) and not isinstance(error, FileNotFoundError)
