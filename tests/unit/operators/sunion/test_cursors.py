"""Places of the two instances that do not go together cannot be made."""

from __future__ import annotations

from typing import Any

import pytest

from operators.sunion.cursors import Cursors


@pytest.mark.parametrize(
    ("places", "named"),
    [
        ({"live": 20, "redo": 10}, "R5: there is nothing to redo"),
        ({"live": 20, "restart": 30}, "C1: n"),
        ({"live": 20, "kept_from": 30}, "R8: redo starts"),
        ({"live": 40, "restart": 20, "kept_from": 30}, "R8: redo starts"),
        ({"live": 20, "restart": 10, "beside_redo": True}, "R5: live runs beside a redo"),
    ],
)
def test_places_that_break_a_rule_are_refused(places: dict[str, Any], named: str) -> None:
    with pytest.raises(AssertionError, match=named):
        Cursors(**places)


def test_live_needs_the_rows_that_redo_has_taken() -> None:
    assert Cursors(live=20, restart=10, redo=30).needed_from == 30
    assert Cursors(live=20, restart=10, redo=30, beside_redo=True).needed_from == 20
