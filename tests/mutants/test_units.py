"""Each test in :data:`tests.mutants.units.UNITS` passes, and fails while its mutant is active."""

from __future__ import annotations

import inspect

import pytest
import trio

from tests.mutants.catalogue import MUTANTS
from tests.mutants.foreign import UNSEEN
from tests.mutants.units import UNITS, Test

pytestmark = pytest.mark.long


def play(test: Test) -> None:
    if inspect.isawaitable(made := test()):

        async def wait() -> None:
            await made

        trio.run(wait)


@pytest.mark.parametrize("name", UNITS)
def test_a_unit_test_of_a_mutant_holds_without_it(name: str) -> None:
    play(UNITS[name])


@pytest.mark.parametrize("name", UNITS)
def test_a_unit_test_finds_its_mutant(name: str) -> None:
    with MUTANTS[name].on(), pytest.raises((Exception, pytest.fail.Exception)):
        play(UNITS[name])


def test_a_mutant_that_no_run_shows_has_a_unit_test() -> None:
    assert set(UNSEEN) <= set(UNITS)
    assert set(UNITS) <= set(MUTANTS)
