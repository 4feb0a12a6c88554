"""Which cases of a test are long."""

from __future__ import annotations

from typing import NamedTuple, cast
from unittest.mock import Mock

import pytest

from tests.support.long_forms import Part, leave_part, long_but


def test_all_but_some_cases_are_long_and_keep_their_order() -> None:
    made = long_but(["b"], "abc")
    assert [(case.values, [m.name for m in case.marks]) for case in made] == [
        (("a",), ["long"]),
        (("b",), []),
        (("c",), ["long"]),
    ]


def test_a_case_of_several_arguments_is_a_tuple() -> None:
    assert [case.values for case in long_but([(1, "a")], [(1, "a"), (1, "b")])] == [(1, "a"), (1, "b")]


def test_a_case_that_does_not_exist_is_refused() -> None:
    with pytest.raises(AssertionError, match="not all among"):
        long_but(["d"], "abc")


@pytest.mark.parametrize("of", [1, 2, 4])
def test_each_test_is_in_one_part_and_parts_are_of_one_size(of: int) -> None:
    names = [f"tests/simulation/test_moves.py::test_a_death[{n}]" for n in range(400)]
    parts = [[name for name in names if Part(number, of).has(name)] for number in range(1, of + 1)]
    assert sorted(name for part in parts for name in part) == sorted(names)
    assert all(len(part) > 300 / of for part in parts)


def test_the_part_of_a_test_does_not_change() -> None:
    """It does not depend on the process, the machine or the version of Python."""
    assert [n for n in range(1, 5) if Part(n, 4).has("tests/simulation/test_moves.py::test_a")] == [3]


@pytest.mark.parametrize("text", ["0/4", "5/4", "2", "2/4x", "a/b"])
def test_a_part_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(pytest.UsageError, match="such as 2/4"):
        Part.parse(text)


def test_only_a_part_of_long_tests_but_all_others_run() -> None:
    class Item(NamedTuple):
        nodeid: str
        markers: tuple[str, ...]

        def get_closest_marker(self, name: str) -> str | None:
            return name if name in self.markers else None

    short = [Item(f"a.py::test_short[{n}]", ("trio",)) for n in range(20)]
    long = [Item(f"a.py::test_long[{n}]", ("trio", "long")) for n in range(20)]
    items, told = cast(list[pytest.Item], [*long, *short]), Mock()
    leave_part(told, items, Part(1, 2))
    told.hook.pytest_deselected.assert_called_once_with(items=[i for i in long if i not in items])
    assert items == [*(i for i in long if Part(1, 2).has(i.nodeid)), *short]
    assert 20 < len(items) < 40
