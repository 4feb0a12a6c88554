"""Which files of a directory are known, which are new and complete, and which have changed.  Pure."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, Final, NamedTuple

from replicas.connectors.files.file_store import FileVersion, hidden
from spe.errors import SpeError

#: Files that one source may know.  All of their names are in memory.
FILES_MAX: Final = 1_000_000
#: Files in one record of the list on disk.
_RECORD_FILES: Final = 1_000


class FilePosition(NamedTuple):
    """How far the files are read: a cursor.

    Attributes:
      files: that are behind us, in the order of the list.
      path: of the next one, where something of it was read; else "".
      rows: of that one that were read.
    """

    files: int = 0
    path: str = ""
    rows: int = 0

    def encode(self) -> bytes:
        return json.dumps(self, separators=(",", ":")).encode()

    @classmethod
    def decode(cls, cursor: bytes) -> FilePosition:
        """Raises SpeError where another reader made it."""
        if not cursor:
            return cls()
        try:
            files, path, rows = json.loads(cursor)
            return cls(int(files), str(path), int(rows))
        except (ValueError, TypeError) as error:
            raise SpeError(f"the source's log ends with a position that is none of a directory: {error}") from error


class Listed(NamedTuple):
    """A file as the list on disk has it: new at the end of the list, or another version of one that is there."""

    path: str
    version: FileVersion


class FileList:
    """Attributes:
    count: files that the list has.
    waiting: paths of those that are still to be read, in order.
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
        #: Files that are new, as they were seen last, and since when they are so.
        self._seen: dict[str, tuple[FileVersion, int]] = {}
        self._first_look_us: int | None = None

    def add(self, files: Iterable[Listed]) -> None:
        """What stands in the list on disk."""
        for path, version in files:
            if path not in self._versions:
                self.count += 1
                if self.count > self._behind:
                    self.waiting.append(path)
            self._versions[path] = version

    def check(self, position: FilePosition, where: str) -> None:
        """Raises SpeError where the list does not have all that was read."""
        nxt = self.waiting[0] if self.waiting else ""
        if self.count < position.files or (position.path and position.path != nxt):
            raise SpeError(
                f"{where}: the list of the files that were read is lost, or older than the log of the source; restore "
                "both, or begin with another source"
            )

    def version(self, path: str) -> FileVersion:
        """Of a file that the list has."""
        return self._versions[path]

    def changed(self, found: Mapping[str, FileVersion]) -> list[Listed]:
        """Files that were read and are not any more what they were, by path."""
        waiting = set(self.waiting)
        known = self._versions
        changed = [p for p, version in found.items() if known.get(p, version) != version and p not in waiting]
        return [Listed(path, found[path]) for path in sorted(changed)]

    def news(self, found: Mapping[str, FileVersion], now_us: int) -> list[Listed]:
        """Complete files that the list does not have, in the order in which they are to be read.

        Args:
          now_us: on a clock that never goes back.

        Raises:
          SpeError: there are too many.
        """
        if self._first_look_us is None:
            self._first_look_us = now_us
        fresh = {path: found[path] for path in found if path not in self._versions and self._wanted(path)}
        if self._marker is not None:
            fresh = {path: v for path, v in fresh.items() if path + self._marker in found}
        if self._settle_us is not None:
            seen = self._seen
            self._seen = {
                path: seen[path] if path in seen and seen[path][0] == version else (version, now_us)
                for path, version in fresh.items()
            }
            fresh = {path: v for path, (v, since_us) in self._seen.items() if now_us - since_us >= self._settle_us}
        if self.count + len(fresh) > FILES_MAX:
            raise SpeError(f"more than {FILES_MAX:,} files; begin another folder, with another source")
        order = sorted(fresh, key=lambda path: (fresh[path].modified_ns if self._by_time else 0, path))
        return [Listed(path, fresh[path]) for path in order]

    @property
    def settling(self) -> bool:
        """Are there files that may be complete soon?"""
        return any(path not in self._versions for path in self._seen)

    @property
    def first_left(self) -> bool:
        """May files of the first look be complete soon?  One that has grown since then is input that comes now."""
        first_us = self._first_look_us
        return first_us is None or any(at == first_us and p not in self._versions for p, (_, at) in self._seen.items())

    def ends(self, found: Mapping[str, FileVersion]) -> bool:
        """Does the file lie there that says that no more files come?"""
        return self._until is not None and self._until in found

    def _wanted(self, path: str) -> bool:
        name = path.rpartition("/")[2]
        if hidden(name) or path == self._until or (self._marker is not None and name.endswith(self._marker)):
            return False
        return self._pattern is None or fnmatchcase(name, self._pattern)


def encoded(files: Sequence[Listed]) -> list[bytes]:
    """Records of the list on disk."""
    parts = [files[at : at + _RECORD_FILES] for at in range(0, len(files), _RECORD_FILES)]
    return [json.dumps([(f.path, *f.version) for f in part], separators=(",", ":")).encode() for part in parts]


def decoded(record: bytes) -> list[Listed]:
    """Raises SpeError where it is none."""
    try:
        return [Listed(str(path), FileVersion(int(size), int(at))) for path, size, at in json.loads(record)]
    except (ValueError, TypeError) as error:
        raise SpeError(f"expected a record of a list of files: {error}") from error
