"""Digests of the part read of a growing log, so that a later change of it is found.

Each of the latest segments has a digest; those of older ones are folded into one, so that the size is bounded.
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

#: Number of segments with their own digest.
KEPT: Final = 32
_PIECE_BYTES: Final = 1 << 20


class Altered(SpeError):
    """A part of a log that was read before has been changed."""


class Read(BaseModel):
    """The part read of one segment.

    Attributes:
      name: of the file.
      bytes: number of bytes from its beginning.
      sha256: of these bytes.
      until_us: tuple time that the log reached there.
      changed_ns: when it was last written, if later segments follow; 0: it is still being written.
    """

    model_config = ConfigDict(extra="forbid")
    name: str
    bytes: int
    sha256: str
    until_us: int
    changed_ns: int = 0


class Prefix(BaseModel):
    """The part read of a log.

    Attributes:
      folded: number of the oldest segments with one common digest.
      sha256: that digest.
      until_us: tuple time that these reached.
      latest: the segments behind them, in order.
    """

    model_config = ConfigDict(extra="forbid")
    folded: int = 0
    sha256: str = ""
    until_us: int = 0
    latest: list[Read] = []

    def read(self, folder: Path, ends: list[tuple[str, int, int]]) -> Prefix:
        """Returns the prefix after reading more.

        Args:
          ends: (file, bytes, tuple time) of each segment in which something new was read, in order.

        Raises:
          Altered: a part read before was changed.
        """
        reads = {segment.name: segment for segment in self.latest}
        for at, (name, size, until_us) in enumerate(ends):
            file = folder / name
            before = reads.get(name)
            known, made = _digests(file, 0 if before is None else before.bytes, size)
            if before is not None and known != before.sha256:
                raise Altered(_differs(file, before))
            changed_ns = file.stat().st_mtime_ns if at + 1 < len(ends) else 0
            reads[name] = Read(name=name, bytes=size, sha256=made, until_us=until_us, changed_ns=changed_ns)
        result = Prefix(folded=self.folded, sha256=self.sha256, until_us=self.until_us, latest=list(reads.values()))
        while len(result.latest) > KEPT:
            oldest = result.latest.pop(0)
            file = folder / oldest.name
            known = made = oldest.sha256
            try:
                if not _deleted(folder, oldest.name):
                    known, made = _digests(file, oldest.bytes, file.stat().st_size)
            except FileNotFoundError:
                if not _deleted(folder, oldest.name):  # deleted in the meantime
                    raise
            if known != oldest.sha256:
                raise Altered(_differs(file, oldest))
            result.sha256, result.folded = _folded(result.sha256, oldest.name, made), result.folded + 1
            result.until_us = oldest.until_us
        return result

    def differs(self, folder: Path, *, quick: bool = False) -> str:
        """Returns a sentence on the first change of the part read; "" if there is none.

        Args:
          quick: skip segments that were not written since, and those without their own digest.
        """
        try:
            for segment in self.latest:
                if _deleted(folder, segment.name):
                    continue
                file = folder / segment.name
                stat = file.stat()
                if quick and segment.changed_ns == stat.st_mtime_ns and stat.st_size >= segment.bytes:
                    continue
                if _digests(file, segment.bytes, segment.bytes)[0] != segment.sha256:
                    return _differs(file, segment)
            # Segments that `retain` deleted were proved before, and can no longer be compared.
            some = quick or not self.folded or read_kept(DiskStorage(folder), PurePosixPath()).first > 1
            return "" if some else self._oldest_differ(folder)
        except FileNotFoundError as error:
            if _deleted(folder, Path(error.filename).name):  # deleted in the meantime
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


def _differs(file: Path, segment: Read) -> str:
    return (
        f"{file} is not as it was read: its first {plural(segment.bytes, 'byte')}, until {moment(segment.until_us)}, "
        "were altered since"
    )


def _digests(file: Path, first: int, size: int) -> tuple[str, str]:
    """Returns SHA-256 of the first ``first`` and of the first ``size`` bytes; ``first`` is no larger.

    Of a shorter file the digests are of all its bytes.
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
