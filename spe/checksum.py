"""CRC-32, as zlib computes it, by the fastest available library.

    python -m timeit -s "from isal.isal_zlib import crc32; data = bytes(65536)" "crc32(data)"

takes 1.2 µs, with ``zlib`` 16; with 64 bytes 80 and 185 ns.
"""

from __future__ import annotations

try:
    from isal.isal_zlib import crc32
except ImportError:  # there is no wheel for this machine
    from zlib import crc32

__all__ = ["crc32"]
