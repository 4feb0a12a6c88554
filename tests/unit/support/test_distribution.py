"""A property test that never meets what it is about fails."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.distribution import Situations, cuts_among


@pytest.fixture(autouse=True)
def same_examples_each_time() -> Iterator[None]:
    """As where ``CI`` is set."""
    before = settings.get_current_profile_name()
    settings.load_profile("ci")
    yield
    settings.load_profile(before)


def of_numbers(least: float) -> None:
    """A property of numbers from 1 to 4 that needs an even one in a share of its examples."""
    meets = Situations({"an even number": least})

    @meets.required
    @settings(max_examples=40, derandomize=True, database=None)
    @given(st.integers(1, 4))
    def check(number: int) -> None:
        meets.example({"an even number": number % 2 == 0})
        assert 1 <= number <= 4

    check()


def test_enough_examples_of_each_situation_pass() -> None:
    of_numbers(0.1)


def test_too_few_examples_fail_and_name_the_rare_situation() -> None:
    with pytest.raises(AssertionError, match=r"too rare among \d+ examples: \{'an even number': 0\.\d+\}"):
        of_numbers(0.99)


def test_an_example_says_of_each_situation_whether_it_has_it() -> None:
    with pytest.raises(AssertionError):
        Situations({"one": 0.5, "two": 0.5}).example({"one": True})


def test_new_examples_each_time_are_not_judged() -> None:
    settings.register_profile("new each time", derandomize=False)
    settings.load_profile("new each time")
    of_numbers(0.99)


def test_examples_of_an_earlier_run_do_not_count() -> None:
    meets = Situations({"it is so": 0.5})
    given = [True, True, False, False, False, False, False]

    @meets.required
    def check() -> None:
        meets.example({"it is so": given.pop(0)})

    check()
    check()
    with pytest.raises(AssertionError, match="too rare among 5 examples"):
        check()


def test_more_examples_are_judged_if_a_share_is_too_small() -> None:
    meets = Situations({"it is so": 0.5})
    given = [False, True, False]

    @meets.required
    def check() -> None:
        meets.example({"it is so": given.pop(0)})

    check()
    assert given == [False], "as many as it takes"


@settings(max_examples=30, derandomize=True, database=None)
@given(st.data())
def test_cuts_lie_next_to_rows_or_far_away(data: st.DataObject) -> None:
    cuts = data.draw(cuts_among([3, 8]))
    assert {cut for cut, _ in cuts} <= {3, 4, 8, 9, -(10**6), 10**6}
    assert len({cut for cut, _ in cuts}) == len(cuts)
