"""The cell of each row's group: groups are numbered by first arrival, however many rows come at once."""

from __future__ import annotations

import numpy as np
import pytest

from operators.aggregate import group_cells as module
from operators.aggregate.calls import Calls
from operators.aggregate.group_cells import Cells
from operators.strings import KeptStrings
from spe.stream.schema import Schema


@pytest.mark.parametrize("groups", [1, 50, 40_000])
@pytest.mark.parametrize("numbered", [False, True], ids=["consecutive rows", "rows with numbers of their own"])
def test_groups_are_numbered_by_their_first_row(groups: int, numbered: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Few groups, many, and almost one per row; more rows than one step looks at."""
    monkeypatch.setattr(module, "_FIRST_ROWS", 512)
    random = np.random.default_rng(groups)
    made = Cells(Calls({}, Schema.of(n="int64!")), KeptStrings())
    number_of: dict[int, int] = {}
    born: list[int] = []
    sequence = 100
    for count in (3_000, 1, 600, 0, 5_000):
        slots = random.integers(0, groups, count)
        numbers = sequence + np.arange(count) * (3 if numbered else 1)
        found = made.cells_of(slots, groups, numbers if numbered else sequence)
        for slot, number in zip(slots.tolist(), numbers.tolist(), strict=True):
            if slot not in number_of:
                number_of[slot] = len(number_of)
                born.append(number)
        assert found.tolist() == [number_of[slot] for slot in slots.tolist()]
        sequence += 3 * count
    assert made.count == len(number_of)
    assert made.slots.tolist() == list(number_of)
    assert made.born.tolist() == born
