"""Every mutant is killed by the scenario that is kept for it, and the engine as it is survives all of them.

A new mutant without a case: ``python -m tests.mutants.find NAME``.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from replicas.simulation.simulate import simulate
from spe.cli.cases import read_case
from tests.mutants.catalogue import MUTANTS
from tests.mutants.find import CASES, case_of, complaints


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_killed(name: str) -> None:
    assert complaints(MUTANTS[name], read_case(case_of(MUTANTS[name])))


@pytest.mark.parametrize("path", sorted(CASES.glob("*.json")), ids=lambda p: p.stem)
def test_what_kills_a_mutant_holds_without_it(path: Path) -> None:
    assert simulate(read_case(path)).findings == []


def test_there_are_enough_of_them() -> None:
    assert len(MUTANTS) >= 25
