"""Tracks the files of a directory: known ones, new complete ones, and changed ones.  Pure."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, Final, NamedTuple

from replicas.connectors.files.file_store import FileVersion, hidden
from spe.errors import SpeError

#: Largest number of files of a source.  All of their names are in memory.
FILES_MAX: Final = 1_000_000
#: Files in one record of the list on disk.
_RECORD_FILES: Final = 1_000


class FilePosition(NamedTuple):
    """The position in the files: a cursor.

    Attributes:
      files: number of files that were read, in the order of the list.
      path: path of the next file if a part of it was read; else "".
      rows: number of rows of that file that were read.
    """

    files: int = 0
    path: str = ""
    rows: int = 0

    def encode(self) -> bytes:
        return json.dumps(self, separators=(",", ":")).encode()

    @classmethod
    def decode(cls, cursor: bytes) -> FilePosition:
        """Decodes a cursor.  Raises SpeError: another reader made it."""
        if not cursor:
            return cls()
        try:
            files, path, rows = json.loads(cursor)
            return cls(int(files), str(path), int(rows))
        except (ValueError, TypeError) as error:
            raise SpeError(f"the source's log ends with a position that is none of a directory: {error}") from error


class Listed(NamedTuple):
    """An entry of the list on disk: a new file, or another version of a listed one."""

    path: str
    version: FileVersion


class FileList:
    """The files of a directory.

    Attributes:
      count: number of files in the list.
      waiting: paths of the files that are still to be read, in order.
    """

    def __init__(self, reader: Mapping[str, Any], position: FilePosition) -> None:
        self._pattern: str | None = reader.get("pattern")
        self._marker: str | None = reader.get("marker")
        self._settle_us: int | None = reader.get("settle")
        self._until: str | None = reader.get("until")
        self._by_time = reader.get("order") == "modified"
        self._behind = position.files
        self._versions: dict[str, FileVersion] = {}
        self.count = 0
        self.waiting: deque[str] = deque()
        #: Last versions of new files, and since when they are unchanged.
        self._seen: dict[str, tuple[FileVersion, int]] = {}
        self._first_look_us: int | None = None

    def add(self, files: Iterable[Listed]) -> None:
        """Adds entries of the list on disk."""
        for path, version in files:
            if path not in self._versions:
                self.count += 1
                if self.count > self._behind:
                    self.waiting.append(path)
            self._versions[path] = version

    def check(self, position: FilePosition, where: str) -> None:
        """Raises SpeError: the list lacks files that were read."""
        nxt = self.waiting[0] if self.waiting else ""
        if self.count < position.files or (position.path and position.path != nxt):
            raise SpeError(
                f"{where}: the list of the files that were read is lost, or older than the log of the source; restore "
                "both, or begin with another source"
            )

    def version(self, path: str) -> FileVersion:
        """Returns the version of a listed file."""
        return self._versions[path]

    def changed(self, versions: Mapping[str, FileVersion]) -> list[Listed]:
        """Returns files that have changed after they were read, by path."""
        waiting = set(self.waiting)
        known = self._versions
        changed = [p for p, version in versions.items() if known.get(p, version) != version and p not in waiting]
        return [Listed(path, versions[path]) for path in sorted(changed)]

    def news(self, versions: Mapping[str, FileVersion], now_us: int) -> list[Listed]:
        """Returns complete files that are not in the list, in reading order.

        Args:
          now_us: time of a clock that never goes back.

        Raises:
          SpeError: there are too many files.
        """
        if self._first_look_us is None:
            self._first_look_us = now_us
        fresh = {path: versions[path] for path in versions if path not in self._versions and self._wanted(path)}
        if self._marker is not None:
            fresh = {path: v for path, v in fresh.items() if path + self._marker in versions}
        if self._settle_us is not None:
            before = self._seen
            self._seen = {
                path: before[path] if path in before and before[path][0] == version else (version, now_us)
                for path, version in fresh.items()
            }
            fresh = {path: v for path, (v, since_us) in self._seen.items() if now_us - since_us >= self._settle_us}
        if self.count + len(fresh) > FILES_MAX:
            raise SpeError(f"more than {FILES_MAX:,} files; begin another folder, with another source")
        order = sorted(fresh, key=lambda path: (fresh[path].modified_ns if self._by_time else 0, path))
        return [Listed(path, fresh[path]) for path in order]

    @property
    def settling(self) -> bool:
        """Returns whether there are files that may be complete soon."""
        return any(path not in self._versions for path in self._seen)

    @property
    def first_left(self) -> bool:
        """Whether files of the first look may be complete soon.  A file that has grown since then is new input."""
        first_us = self._first_look_us
        return first_us is None or any(at == first_us and p not in self._versions for p, (_, at) in self._seen.items())

    def ends(self, versions: Mapping[str, FileVersion]) -> bool:
        """Returns whether the end marker exists, after which no more files come."""
        return self._until is not None and self._until in versions

    def _wanted(self, path: str) -> bool:
        name = path.rpartition("/")[2]
        if hidden(name) or path == self._until or (self._marker is not None and name.endswith(self._marker)):
            return False
        return self._pattern is None or fnmatchcase(name, self._pattern)


def encoded(files: Sequence[Listed]) -> list[bytes]:
    """Encodes records of the list on disk."""
    parts = [files[at : at + _RECORD_FILES] for at in range(0, len(files), _RECORD_FILES)]
    return [json.dumps([(f.path, *f.version) for f in part], separators=(",", ":")).encode() for part in parts]


def decoded(record: bytes) -> list[Listed]:
    """Decodes a record.  Raises SpeError: not a record of the list."""
    try:
        return [Listed(str(path), FileVersion(int(size), int(at))) for path, size, at in json.loads(record)]
    except (ValueError, TypeError) as error:
        raise SpeError(f"expected a record of a list of files: {error}") from error
