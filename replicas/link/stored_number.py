"""A number that a process keeps in a small file: a flipped bit may make another number of it, so it has a checksum."""

from __future__ import annotations

import zlib


def encode_number(number: int) -> bytes:
    text = str(number)
    return f"{text} {zlib.crc32(text.encode()):08x}".encode()


def decode_number(data: bytes) -> int:
    """Raises ValueError."""
    number = int(data.decode().partition(" ")[0])
    if encode_number(number) != data:
        raise ValueError("the checksum does not fit")
    return number
