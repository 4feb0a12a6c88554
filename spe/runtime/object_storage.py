"""Files in an object store: whole ones, that are there when the store has said so."""

from __future__ import annotations

import errno
from pathlib import PurePosixPath
from typing import Any

import trio

from spe.errors import SpeError


class ObjectStorage:
    """What lies below a URL: s3, gs, hdfs, or whatever the file systems of Arrow have.

    Args:
      files: a ``pyarrow.fs.FileSystem``.
      root: bucket and prefix.
    """

    def __init__(self, files: Any, root: str) -> None:
        self._files = files
        self._root = root.rstrip("/")

    @classmethod
    def open(cls, url: str) -> ObjectStorage:
        """Raises SpeError: there is no such kind of store, or pyarrow is missing."""
        try:
            from pyarrow import ArrowException
            from pyarrow.fs import FileSystem
        except ImportError:
            raise SpeError(f"{url}: needs pyarrow; expected pip install 'tentative-spe[spark]', or a folder") from None
        try:
            files, root = FileSystem.from_uri(url)
        except (ArrowException, ValueError, OSError) as error:
            raise SpeError(f"{url}: expected a folder, or a URL such as s3://bucket/logs: {error}") from None
        return cls(files, root)

    def list(self, folder: PurePosixPath) -> list[str]:
        """Names below a folder, sorted; empty where there is none.  Raises OSError."""
        from pyarrow.fs import FileSelector

        found = self._files.get_file_info(FileSelector(self._path(folder), allow_not_found=True))
        return sorted(info.base_name for info in found if info.is_file)

    def exists(self, path: PurePosixPath) -> bool:
        """Raises OSError."""
        return bool(self._files.get_file_info(self._path(path)).is_file)

    def read(self, path: PurePosixPath) -> bytes:
        """Raises OSError."""
        try:
            with self._files.open_input_stream(self._path(path)) as stream:
                return bytes(stream.read())
        except FileNotFoundError:
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", str(path)) from None

    async def write_atomic(self, path: PurePosixPath, data: bytes | bytearray | memoryview) -> None:
        """A store shows an object when all of it is there.  Raises OSError."""
        await trio.to_thread.run_sync(self._write, self._path(path), data)

    def _write(self, path: str, data: bytes | bytearray | memoryview) -> None:
        if self._files.type_name == "local":  # others have no folders, or make them
            self._files.create_dir(path.rpartition("/")[0], recursive=True)
        with self._files.open_output_stream(path) as stream:
            stream.write(data)

    def _path(self, path: PurePosixPath) -> str:
        return f"{self._root}/{path}"
