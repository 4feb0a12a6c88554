"""A number in a small file, with a checksum: a flipped bit could turn it into another number."""

from __future__ import annotations

import zlib
from typing import Final

from spe.errors import other_version

NUMBER_VERSION: Final = 1


def encode_number(number: int) -> bytes:
    return _sealed(NUMBER_VERSION, number)


def decode_number(data: bytes) -> int:
    """Decodes a stored number.  Raises ValueError: it is damaged, or of another version."""
    version, number = map(int, data.decode().split(" ")[:2])
    if _sealed(version, number) != data:
        raise ValueError("the checksum does not fit")
    if why := other_version("a number", version, NUMBER_VERSION):
        raise ValueError(why)
    return number


def _sealed(version: int, number: int) -> bytes:
    text = f"{version} {number}"
    return f"{text} {zlib.crc32(text.encode()):08x}".encode()
