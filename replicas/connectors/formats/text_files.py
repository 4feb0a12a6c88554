"""Opens files of lines, whole and in parts."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Final, TextIO

from replicas.connectors.reader import FilePart
from spe.errors import SpeError

_BLOCK: Final = 1 << 20


def open_text(path: str) -> TextIO:
    """Opens a file as UTF-8, with or without a byte order mark.

    Bytes that are not UTF-8 become lone surrogates, which make their row malformed instead of stopping the file.

    Raises:
      SpeError: it cannot be read; names it.
    """
    try:
        return open(path, encoding="utf-8-sig", errors="surrogateescape", newline="")
    except OSError as error:
        raise SpeError(f"{path}: cannot be read: {error.strerror}") from error


def holds(path: str, text: str) -> bool:
    """Returns whether a file has a text of one character."""
    wanted = text.encode()
    with _open(path) as file:
        tail = b""
        while block := file.read(_BLOCK):
            if wanted in tail + block:
                return True
            tail = block[-len(wanted) :]
    return False


def text_parts(path: str, size: int) -> list[FilePart]:
    """Returns parts of about ``size`` bytes that end with lines; at least one."""
    with _open(path) as file:
        end = file.seek(0, 2)
        parts, first = [], 0
        while end - first > size:
            file.seek(first + size)
            file.readline()
            if file.tell() >= end:
                break
            parts.append(FilePart(first, file.tell()))
            first = file.tell()
    return [*parts, FilePart(first, None)]


@contextmanager
def opened_part(path: str, part: FilePart) -> Iterator[TextIO]:
    """Opens a part as a file, decoded as by :func:`open_text`."""
    with _open(path) as file:
        file.seek(part.first)
        left = None if part.until is None else part.until - part.first
        encoding = "utf-8" if part.first else "utf-8-sig"
        yield io.TextIOWrapper(
            io.BufferedReader(_Beginning(file, left), _BLOCK), encoding=encoding, errors="surrogateescape", newline=""
        )


class _Beginning(io.RawIOBase):
    """The next bytes of a file, up to a number."""

    def __init__(self, file: BinaryIO, left: int | None) -> None:
        self._file = file
        self._left = left

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer)
        if self._left is not None:
            view = view[: self._left]
        count = self._file.readinto(view) if len(view) else 0  # type: ignore[attr-defined]
        if self._left is not None:
            self._left -= count
        return int(count)


def _open(path: str) -> BinaryIO:
    try:
        return Path(path).open("rb")
    except OSError as error:
        raise SpeError(f"{path}: cannot be read: {error.strerror}") from error
