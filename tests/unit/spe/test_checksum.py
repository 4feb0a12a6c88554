"""The quick CRC-32 is zlib's: logs, spill files and states of before stay readable, and so do ours without it."""

from __future__ import annotations

import runpy
import sys
import zlib
from unittest.mock import patch

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from spe import checksum


@given(st.lists(st.binary(max_size=3_000), max_size=5))
def test_parts_have_the_checksum_of_the_whole(parts: list[bytes]) -> None:
    crc = 0
    for part in parts:
        crc = checksum.crc32(memoryview(part), crc)
    assert crc == zlib.crc32(b"".join(parts))


@given(st.integers(0, 300_000), st.integers(0, 7))
def test_large_buffers_at_any_address(size: int, offset: int) -> None:
    made = np.random.default_rng(size).integers(0, 256, size + offset, np.uint8)
    assert checksum.crc32(made[offset:].data) == zlib.crc32(made[offset:])


def test_where_there_is_no_wheel_zlib_computes_it() -> None:
    with patch.dict(sys.modules, {"isal": None, "isal.isal_zlib": None}):
        assert runpy.run_path(checksum.__file__)["crc32"] is zlib.crc32
