"""Each change of text or of a function fits the engine, and texts name tests; ``make mutants`` plays them."""

from __future__ import annotations

import ast

import pytest

from tests.mutants.catalogue import MUTANTS
from tests.mutants.texts import ROOT, TEXTS, TextMutant


@pytest.mark.parametrize("name", TEXTS)
def test_a_change_of_text_fits_the_engine(name: str) -> None:
    mutant = TEXTS[name]
    changed = mutant.changed()
    assert ast.dump(ast.parse(changed)) != ast.dump(ast.parse((ROOT / mutant.path).read_text()))
    assert bool(mutant.tests) != bool(mutant.equivalent), "it has tests, or a reason why none can fail"


@pytest.mark.parametrize("name", MUTANTS)
def test_a_change_of_a_function_fits_the_engine(name: str) -> None:
    with MUTANTS[name].on():
        pass


@pytest.mark.parametrize("test", sorted({test for mutant in TEXTS.values() for test in mutant.tests}))
def test_the_tests_of_a_mutant_exist(test: str) -> None:
    path, *names = test.split("::")
    body = ast.parse((ROOT / path).read_text()).body
    for name in names:
        node = next((n for n in body if getattr(n, "name", "") == name), None)
        assert node is not None, name
        body = getattr(node, "body", [])


def test_a_change_of_text_that_is_gone_is_an_error() -> None:
    mutant = TextMutant("it changes what nobody has written", "spe/errors.py", "no such text", "pass")
    with pytest.raises(ValueError, match=r"spe/errors\.py has 'no such text' 0 times, expected once"):
        mutant.changed()


def test_mutants_have_names_of_their_own() -> None:
    assert not MUTANTS.keys() & TEXTS.keys()
