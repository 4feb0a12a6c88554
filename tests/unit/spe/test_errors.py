"""Messages of errors."""

from __future__ import annotations

import pytest

from spe.errors import OperatorFailed, blaming


def test_an_error_names_its_cause_once() -> None:
    with pytest.raises(OperatorFailed) as caught, blaming("whole", "being asked"), blaming("part", "its state"):
        raise KeyError("count")
    assert str(caught.value) == "operator 'part' raised on its state: KeyError: 'count'"
