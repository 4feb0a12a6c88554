"""A number in a small file, with a checksum: a flipped bit could turn it into another number."""

from __future__ import annotations

import zlib


def encode_number(number: int) -> bytes:
    text = str(number)
    return f"{text} {zlib.crc32(text.encode()):08x}".encode()


def decode_number(data: bytes) -> int:
    """Decodes a stored number.  Raises ValueError."""
    number = int(data.decode().partition(" ")[0])
    if encode_number(number) != data:
        raise ValueError("the checksum does not fit")
    return number
