"""Situations that the examples of a property test must have, and how often: stated beside the test, checked after it.

A property over random examples says nothing of a case that the examples never have.  So each test names the cases that
it is about, with the least share of its examples that must have them:

    MEETS = Situations({"two rows of one time": 0.3, "a restore in the middle": 0.5})

    @MEETS.required
    @given(...)
    def test_...(...) -> None:
        MEETS.example({"two rows of one time": ..., "a restore in the middle": ...})

Shares are judged where Hypothesis derandomizes, as it does where ``CI`` is set.  Even there they differ, with the
version of Hypothesis and with the modules that are loaded.  So where a share is too small, other examples are played as
well, and all together are judged.  ``pytest --hypothesis-show-statistics`` shows how often each was met.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import WRAPPER_ASSIGNMENTS, wraps
from typing import Final

from hypothesis import event, seed, settings
from hypothesis import strategies as st
from hypothesis.errors import InvalidArgument

#: Runs of a test with other examples, where it has too little of something.
_MORE: Final = 4

#: Lengths of lists: a third each of few, some and many, since lists are short by default.
FEW_OR_MANY = st.sampled_from([0, 4, 14])


def cuts_among(times: Iterable[int]) -> st.SearchStrategy[list[tuple[int, bool]]]:
    """Ends of slices beside and between rows of these times, and now and then far from all of them; for each, whether
    strings come in a new dictionary from there on."""
    near = sorted({t + d for t in times for d in (0, 1)} | {-(10**6), 10**6})
    return st.lists(st.tuples(st.sampled_from(near), st.booleans()), max_size=7, unique_by=lambda cut: cut[0])


class Situations:
    """See the module.

    Args:
      least: name of a situation -> share of the examples, 0 to 1, that must have it.
    """

    def __init__(self, least: Mapping[str, float]) -> None:
        self._least = dict(least)
        self._examples = 0
        self._met: Counter[str] = Counter()

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._least)

    def example(self, met: Mapping[str, object]) -> None:
        """One example, with what is true of it; every situation must be named."""
        assert met.keys() == self._least.keys()
        self._examples += 1
        for name, is_so in met.items():
            if is_so:
                self._met[name] += 1
                with suppress(InvalidArgument):  # a test may draw by itself
                    event(name)

    def required(self, test: Callable[[], None]) -> Callable[[], None]:
        """The test, which fails as well where its examples are the same each time and have too little of something."""

        @wraps(test, assigned=[a for a in WRAPPER_ASSIGNMENTS if a != "__annotations__"], updated=())
        def run() -> None:
            self._examples = 0
            self._met.clear()
            test()
            if settings().derandomize:
                for number in range(_MORE):
                    if self._rare():
                        seed(number)(test)()
                self.check()

        del run.__wrapped__  # type: ignore[attr-defined]  # pytest would take its arguments for fixtures
        run.__dict__.update({k: v for k, v in vars(test).items() if k == "pytestmark"})
        return run

    def check(self) -> None:
        """Raises AssertionError if too few examples so far had a situation."""
        assert self._examples
        assert not (rare := self._rare()), f"too rare among {self._examples} examples: {rare}; all: {self._shares()}"

    def _rare(self) -> dict[str, float]:
        return {name: share for name, share in self._shares().items() if share < self._least[name]}

    def _shares(self) -> dict[str, float]:
        return {name: self._met[name] / max(self._examples, 1) for name in self._least}
