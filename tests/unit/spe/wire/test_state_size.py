"""How large a state is, beside what encoding it gives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from spe.stream.batch import Column, Rows
from spe.stream.frozen import Frozen
from spe.stream.strings import StringDictionary
from spe.wire.state import encode_state
from spe.wire.state_size import state_bytes

TIMES = np.arange(5_000)
WORDS = StringDictionary(f"word number {n}" for n in range(1_000))


@pytest.mark.parametrize(
    "tree",
    [
        {"values": np.zeros(10_000), "flags": np.zeros(10_000, np.bool_)},
        Frozen([np.arange(10_000), np.arange(10_000, dtype=np.int32)], 8_000).columns(),
        Rows(TIMES, TIMES, (Column(TIMES * 2), Column(np.zeros(5_000, np.int32), None, WORDS))),
        [TIMES, {"the same": TIMES}],
        [(number, {"slots": np.arange(500), "born": np.arange(500)}) for number in range(100)],
        {f"key {n}": "a value" for n in range(10_000)},
    ],
    ids=["arrays", "frozen", "rows", "shared", "panes", "map"],
)
def test_the_size_is_about_that_of_the_encoded_state(tree: Any) -> None:
    assert state_bytes(tree) == pytest.approx(len(encode_state(tree)), rel=0.25)


def test_nothing_is_nothing() -> None:
    assert state_bytes([]) == state_bytes({}) == 0
