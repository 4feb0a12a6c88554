"""Mutants are killed by the scenarios that are kept for them, and the engine as it is survives all of these.

``python -m tests.mutants.find`` finds a scenario for each mutant that has none; a soak tells which still live.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from replicas.simulation.simulate import simulate
from spe.cli.cases import read_case
from tests.mutants.catalogue import MUTANTS
from tests.mutants.find import CASES, case_of, complaints

KILLED = [name for name, mutant in MUTANTS.items() if case_of(mutant).exists()]


@pytest.mark.parametrize("name", KILLED)
def test_a_mutant_is_killed(name: str) -> None:
    assert complaints(MUTANTS[name], read_case(case_of(MUTANTS[name])))


@pytest.mark.parametrize("path", sorted(CASES.glob("*.json")), ids=lambda p: p.stem)
def test_what_kills_a_mutant_holds_without_it(path: Path) -> None:
    assert simulate(read_case(path)).findings == []


def test_there_are_enough_of_them() -> None:
    assert len(KILLED) >= 23
