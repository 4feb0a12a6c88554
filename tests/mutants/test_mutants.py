"""Every mutant is killed by the scenario that is kept for it, and the engine as it is survives all of these.

``python -m tests.mutants.find`` finds a scenario for each new mutant.
"""

from __future__ import annotations

import pytest

from replicas.simulation.scenario import Scenario
from replicas.simulation.simulate import simulate
from spe.cli.cases import read_case
from tests.mutants.catalogue import MUTANTS
from tests.mutants.find import CASES, complaints
from tests.mutants.scripted import KILLS, scripted


def kept() -> dict[str, Scenario]:
    """What kills mutants, by name: cases are named after theirs."""
    made = scripted()
    cases = {path.stem: read_case(path) for path in sorted(CASES.glob("*.json"))}
    return {**cases, **{name: made[name] for name in sorted(set(KILLS.values()))}}


KEPT = kept()


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_killed(name: str) -> None:
    assert complaints(MUTANTS[name], KEPT[KILLS.get(name, name)])


@pytest.mark.parametrize("name", KEPT)
def test_what_kills_a_mutant_holds_without_it(name: str) -> None:
    assert simulate(KEPT[name]).findings == []


def test_there_are_enough_of_them_and_nothing_is_kept_in_vain() -> None:
    assert len(MUTANTS) >= 40
    assert {KILLS.get(name, name) for name in MUTANTS} == set(KEPT)
