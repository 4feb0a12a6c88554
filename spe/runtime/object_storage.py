"""Files in an object store, written and read as a whole."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import PurePosixPath
from typing import Any

import trio

from spe.errors import SpeError
from spe.runtime.s3 import NO_BUCKET, S3Service, is_no_bucket, reason
from spe.values import S3


class ObjectStorage:
    """Files below a URL of any file system of Arrow: s3, gs, hdfs, and others.

    Args:
      files: a ``pyarrow.fs.FileSystem``.
      root: bucket and prefix.
      url: URL of the root, for messages.
    """

    def __init__(self, files: Any, root: str, url: str) -> None:
        self._files = files
        self._root = root.rstrip("/")
        self._url = url.rstrip("/")

    @classmethod
    def open(cls, url: str) -> ObjectStorage:
        """Opens a store.  Raises SpeError: the kind is unknown, the store refuses, or pyarrow is missing."""
        try:
            from pyarrow import ArrowException
            from pyarrow.fs import FileSystem
        except ImportError:
            raise SpeError(f"{url}: needs pyarrow; expected pip install '.[spark]', or a folder") from None
        try:
            if url.startswith(S3):
                root = url.removeprefix(S3)
                return cls(S3Service.of(root.partition("/")[0]).system, root, url)
            files, root = FileSystem.from_uri(url)
            return cls(files, root, url)
        except (ArrowException, ValueError, OSError) as error:
            raise SpeError(f"{url}: expected a folder, or a URL such as s3://bucket/logs: {reason(error)}") from None

    def list(self, folder: PurePosixPath) -> list[str]:
        """Names below a folder, sorted; empty if it does not exist.  Raises OSError."""
        from pyarrow.fs import FileSelector

        with self._explained(folder):
            files = self._files.get_file_info(FileSelector(self._path(folder), allow_not_found=True))
        return sorted(info.base_name for info in files if info.is_file)

    def exists(self, path: PurePosixPath) -> bool:
        """Does a file exist?  Raises OSError."""
        with self._explained(path):
            return bool(self._files.get_file_info(self._path(path)).is_file)

    def read(self, path: PurePosixPath) -> bytes:
        """Reads a file.  Raises OSError."""
        with self._explained(path), self._files.open_input_stream(self._path(path)) as stream:
            return bytes(stream.read())

    async def write_atomic(self, path: PurePosixPath, data: bytes | bytearray | memoryview) -> None:
        """Writes a file; stores show an object only when it is complete.  Raises OSError."""
        await trio.to_thread.run_sync(self._write, path, data)

    def _write(self, path: PurePosixPath, data: bytes | bytearray | memoryview) -> None:
        with self._explained(path):
            if self._files.type_name == "local":  # other stores have no folders, or make them
                self._files.create_dir(self._path(path.parent), recursive=True)
            with self._files.open_output_stream(self._path(path)) as stream:
                stream.write(data)

    def _path(self, path: PurePosixPath) -> str:
        return f"{self._root}/{path}"

    @contextmanager
    def _explained(self, path: PurePosixPath) -> Iterator[None]:
        """Makes errors name the file and the reason."""
        try:
            yield
        except FileNotFoundError as error:
            why = NO_BUCKET if is_no_bucket(str(error)) else os.strerror(errno.ENOENT)
            raise FileNotFoundError(errno.ENOENT, why, f"{self._url}/{path}") from None
        except OSError as error:
            if error.errno:  # an error of this machine
                raise OSError(error.errno, os.strerror(error.errno), f"{self._url}/{path}") from error
            raise OSError(f"{self._url}/{path}: {reason(error)}") from error
