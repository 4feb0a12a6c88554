"""Blocks of Avro container files, with a limit on their decompressed size."""

from __future__ import annotations

import bz2
import io
import lzma
import zlib
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, Final

from replicas.connectors.formats import file_format
from spe.errors import SpeError

#: Decompressors that stop at a number of bytes.
_BOUNDED: Final[Mapping[str, Callable[[], Any]]] = {
    "deflate": lambda: zlib.decompressobj(-15),
    "bzip2": bz2.BZ2Decompressor,
    "xz": lambda: lzma.LZMADecompressor(memlimit=2 * file_format.UNPACKED_BYTES_MAX),
    "zstandard": lambda: import_module("backports.zstd").ZstdDecompressor(),
}
#: Size at the beginning of a compressed block, which its decompressor does not exceed.
_SIZED: Final[Mapping[str, Callable[[bytes], int]]] = {
    "snappy": lambda data: _varint(io.BytesIO(data))[1],
    "lz4": lambda data: int.from_bytes(data[:4], "little"),
}


def left_compressed(codec: str) -> str:
    """Returns the codec of the output of :class:`AvroBlocks` for a file of this codec."""
    return "null" if codec in _BOUNDED else codec


class AvroBlocks:
    """A container file with decompressed blocks, for fastavro.

    Args:
      head: the header, with the codec of :func:`left_compressed`.
      file: the file after its header.
      codec: codec of the file.
      name: name for messages.
    """

    def __init__(self, head: bytes, file: io.BufferedReader, codec: str, name: str) -> None:
        self._part = io.BytesIO(head)
        self._file = file
        self._codec = codec
        self._name = name
        self._at = 0

    def read(self, count: int) -> bytes:
        data = self._part.read(count)
        while len(data) < count and (block := self._block()):
            self._part = io.BytesIO(block)
            data += self._part.read(count - len(data))
        self._at += len(data)
        return data

    def tell(self) -> int:
        return self._at

    def _block(self) -> bytes:
        """Returns the next block; empty at the end."""
        count, rows = _varint(self._file)
        if not count:
            return b""
        _, size = _varint(self._file)  # both are zigzag: odd numbers are negative
        if rows & 1 or size & 1:
            raise SpeError(f"{self._name}: cannot be read: a block says that its size is negative")
        self._check(size >> 1)
        data, sync = self._file.read(size >> 1), self._file.read(16)
        if len(data) < size >> 1:
            raise SpeError(f"{self._name}: cannot be read: a block is cut")
        if self._codec in _BOUNDED:
            data = _BOUNDED[self._codec]().decompress(data, file_format.UNPACKED_BYTES_MAX + 1)
        self._check(_SIZED.get(self._codec, len)(data))
        return count + encoded(2 * len(data)) + data + sync

    def _check(self, size: int) -> None:
        if size > file_format.UNPACKED_BYTES_MAX:
            raise SpeError(file_format.too_large(self._name, "a block"))


def _varint(file: io.BufferedReader | io.BytesIO) -> tuple[bytes, int]:
    """Returns the bytes of a number, and the number; no bytes at the end of the file."""
    data, number = b"", 0
    while byte := file.read(1):
        number |= (byte[0] & 127) << 7 * len(data)
        data += byte
        if byte[0] < 128 or len(data) == 10:
            break
    return data, number


def encoded(number: int) -> bytes:
    """Encodes a varint."""
    data = b""
    while number > 127:
        data, number = data + bytes((number & 127 | 128,)), number >> 7
    return data + bytes((number,))
