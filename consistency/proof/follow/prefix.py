"""Digests of what was read of a log that grows, so that a part that is altered later is found.

Of the latest segments each has a digest; those of older ones are folded into one, so that the size has a bound.
"""

from __future__ import annotations

import hashlib
from pathlib import Path, PurePosixPath
from typing import Final

from pydantic import BaseModel, ConfigDict

from consistency.proof.report.words import moment, plural
from spe.errors import SpeError
from spe.log.format import Segment
from spe.log.log_start import read_kept
from spe.log.recovery import live_segments
from spe.runtime.storage import DiskStorage

#: Segments that have a digest of their own.
KEPT: Final = 32
_PIECE_BYTES: Final = 1 << 20


class Altered(SpeError):
    """What was read of a log before is not as it was."""


class Read(BaseModel):
    """What was read of one segment.

    Attributes:
      name: of the file.
      bytes: from its beginning.
      sha256: of these.
      until_us: how far in tuple time the log went there.
      changed_ns: when it was last written, of a segment that later ones follow; 0: it is still written.
    """

    model_config = ConfigDict(extra="forbid")
    name: str
    bytes: int
    sha256: str
    until_us: int
    changed_ns: int = 0


class Prefix(BaseModel):
    """What was read of a log.

    Attributes:
      folded: how many of the oldest segments have one digest together.
      sha256: that digest.
      until_us: how far in tuple time these go.
      latest: the segments behind them, in order.
    """

    model_config = ConfigDict(extra="forbid")
    folded: int = 0
    sha256: str = ""
    until_us: int = 0
    latest: list[Read] = []

    def read(self, folder: Path, ends: list[tuple[str, int, int]]) -> Prefix:
        """With more read.

        Args:
          ends: (file, bytes, tuple time) of each segment in which something new was read, in order.

        Raises:
          Altered: what was read before is not as it was.
        """
        kept = {one.name: one for one in self.latest}
        for at, (name, size, until_us) in enumerate(ends):
            file = folder / name
            before = kept.get(name)
            known, made = _digests(file, 0 if before is None else before.bytes, size)
            if before is not None and known != before.sha256:
                raise Altered(_differs(file, before))
            changed_ns = file.stat().st_mtime_ns if at + 1 < len(ends) else 0
            kept[name] = Read(name=name, bytes=size, sha256=made, until_us=until_us, changed_ns=changed_ns)
        found = Prefix(folded=self.folded, sha256=self.sha256, until_us=self.until_us, latest=list(kept.values()))
        while len(found.latest) > KEPT:
            oldest = found.latest.pop(0)
            file = folder / oldest.name
            known = made = oldest.sha256
            try:
                if not _deleted(folder, oldest.name):
                    known, made = _digests(file, oldest.bytes, file.stat().st_size)
            except FileNotFoundError:
                if not _deleted(folder, oldest.name):  # it was, since we looked
                    raise
            if known != oldest.sha256:
                raise Altered(_differs(file, oldest))
            found.sha256, found.folded = _folded(found.sha256, oldest.name, made), found.folded + 1
            found.until_us = oldest.until_us
        return found

    def differs(self, folder: Path, *, quick: bool = False) -> str:
        """What is no longer as it was read, in a sentence; "" where all is.

        Args:
          quick: a segment that was not written since is not read, nor are those that have no digest of their own.
        """
        try:
            for one in self.latest:
                if _deleted(folder, one.name):
                    continue
                file = folder / one.name
                found = file.stat()
                if quick and one.changed_ns == found.st_mtime_ns and found.st_size >= one.bytes:
                    continue
                if _digests(file, one.bytes, one.bytes)[0] != one.sha256:
                    return _differs(file, one)
            # What `retain` has deleted was proved before, and cannot be compared any more.
            some = quick or not self.folded or read_kept(DiskStorage(folder), PurePosixPath()).first > 1
            return "" if some else self._oldest_differ(folder)
        except FileNotFoundError as error:
            if _deleted(folder, Path(error.filename).name):  # it was, since we looked
                return self.differs(folder, quick=quick)
            return f"{error.filename} is gone, and was read before"
        except OSError as error:
            raise SpeError(f"{folder}: cannot be read: {error.strerror}") from error

    def _oldest_differ(self, folder: Path) -> str:
        made = ""
        for segment in live_segments([p.name for p in folder.iterdir()])[: self.folded]:
            file = folder / segment.name
            size = file.stat().st_size
            made = _folded(made, segment.name, _digests(file, size, size)[0])
        if made == self.sha256:
            return ""
        return (
            f"{folder}: of the first {plural(self.folded, 'segment')}, until {moment(self.until_us)}, not all are as "
            "they were read"
        )


def _deleted(folder: Path, name: str) -> bool:
    """Was a segment deleted by ``retain``?"""
    segment = Segment.parse(name)
    return segment is not None and segment.first < read_kept(DiskStorage(folder), PurePosixPath()).first


def _differs(file: Path, one: Read) -> str:
    return (
        f"{file} is not as it was read: its first {plural(one.bytes, 'byte')}, until {moment(one.until_us)}, were "
        "altered since"
    )


def _digests(file: Path, first: int, size: int) -> tuple[str, str]:
    """SHA-256 of the first ``first`` and of the first ``size`` bytes, of which ``first`` are some.

    Of a shorter file the digests are of what there is.
    """
    sum_ = hashlib.sha256()
    with file.open("rb") as opened:

        def take(left: int) -> str:
            while left and (data := opened.read(min(_PIECE_BYTES, left))):
                sum_.update(data)
                left -= len(data)
            return sum_.hexdigest()

        return take(first), take(size - first)


def _folded(before: str, name: str, sha256: str) -> str:
    return hashlib.sha256(f"{before} {name} {sha256}".encode()).hexdigest()
