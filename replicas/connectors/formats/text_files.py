"""Divides files of lines into parts."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO, Final, TextIO

from replicas.connectors.reader import FilePart

_BLOCK: Final = 1 << 20


def holds(file: BinaryIO, text: str) -> bool:
    """Returns whether a file has a text of one character."""
    wanted, tail = text.encode(), b""
    file.seek(0)
    while block := file.read(_BLOCK):
        if wanted in tail + block:
            return True
        tail = block[-len(wanted) :]
    return False


def text_parts(file: BinaryIO, size: int) -> list[FilePart]:
    """Returns parts of about ``size`` bytes that end with lines; at least one."""
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
def text_of_part(file: BinaryIO, part: FilePart) -> Iterator[TextIO]:
    """Opens a part of a file as text, decoded as by ``file_format.text_of``."""
    file.seek(part.first)
    left = None if part.until is None else part.until - part.first
    encoding = "utf-8" if part.first else "utf-8-sig"
    bytes_ = io.BufferedReader(_Beginning(file, left), _BLOCK)
    yield io.TextIOWrapper(bytes_, encoding=encoding, errors="surrogateescape", newline="")


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
