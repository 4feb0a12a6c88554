"""The scenario that kills each mutant: a case of its own, or one made by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from replicas.simulation.scenario import Scenario
from spe.cli.cases import read_case
from tests.mutants.scripted import KILLS, scripted

CASES: Final = Path(__file__).parent / "cases"
#: Scenarios that take several seconds each: ``make soak`` plays them, and ``MUTANTS=all pytest tests/mutants``.
COSTLY: Final = frozenset(
    {
        "a long failure of one input",
        "a slow correction is taken over",
        "a standby reads everything again, and slowly",
        "all that a standby holds is damaged",
        "an order comes from the past",
        "divided by one key",
        "failures beside periodic checkpoints",
        "kills beside a failure",
        "kills where a source is unsorted",
        "late",
        "late, and the consumer freezes",
        "neighbours that run alone die",
        "one replica fails, then the other",
        "rates are others than was thought",
    }
)


def kept() -> dict[str, Scenario]:
    """What kills mutants, by name: cases are named after theirs."""
    made = scripted()
    cases = {path.stem: read_case(path) for path in sorted(CASES.glob("*.json"))}
    return {**cases, **{name: made[name] for name in sorted(set(KILLS.values()))}}


def killer(mutant: str) -> str:
    """The name of the scenario that is kept for a mutant."""
    return KILLS.get(mutant, mutant)


def costly(mutant: str) -> bool:
    return killer(mutant) in COSTLY
