"""Which tests run in one process, where there are several."""

from __future__ import annotations

from typing import cast

import pytest

from tests.support.in_turn import InTurn


@pytest.mark.parametrize(
    ("nodeid", "scope"),
    [
        ("tests/processes/test_moves.py::test_a", "processes"),
        ("tests/spark/test_truth.py::test_b[0]", "spark"),
        ("tests/unit/spe/test_c.py::test_c[1]", "tests/unit/spe/test_c.py::test_c[1]"),
    ],
)
def test_tests_of_processes_and_of_spark_are_a_chain_each(nodeid: str, scope: str) -> None:
    assert InTurn._split_scope(cast(InTurn, None), nodeid) == scope
