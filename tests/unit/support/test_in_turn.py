"""Which tests run in one process, where there are several."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from tests.support.in_turn import InTurn, first_chains


@pytest.mark.parametrize(
    ("nodeid", "scope"),
    [
        ("tests/processes/test_moves.py::test_a", "processes"),
        ("tests/spark/test_truth.py::test_b[0]", "spark"),
        ("tests/unit/spe/test_c.py::test_c[1]", "tests/unit/spe/test_c.py"),
        ("tests/unit/spe/test_c.py::TestC::test_c[a::b]", "tests/unit/spe/test_c.py"),
        ("tests/mutants/test_d.py::test_d[1]", "tests/mutants/test_d.py::test_d[1]"),
    ],
)
def test_process_and_spark_tests_are_chains_and_files_stay_whole(nodeid: str, scope: str) -> None:
    assert InTurn._split_scope(cast(InTurn, None), nodeid) == scope


def test_the_chains_begin_first() -> None:
    names = [f"tests/{name}.py::test" for name in ("property/b", "processes/c", "property/a", "spark/d", "unit/e")]
    items = cast(list[pytest.Item], [SimpleNamespace(nodeid=name) for name in names])
    first_chains(items)
    assert [i.nodeid for i in items] == [names[n] for n in (1, 3, 0, 2, 4)]
