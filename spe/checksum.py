"""CRC-32, as zlib computes it."""

from __future__ import annotations

try:
    # 13 times as fast with 64 KiB, and twice with 64 bytes.
    from isal.isal_zlib import crc32
except ImportError:  # there is no wheel for this machine
    from zlib import crc32

__all__ = ["crc32"]
