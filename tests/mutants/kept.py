"""The scenario that kills each mutant: its own case, or a hand-made scenario."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from replicas.cli.campaigns.cases import read_case
from replicas.simulation.scenarios.scenario import Scenario
from tests.mutants.scenarios import KILLS, scenarios

CASES: Final = Path(__file__).parent / "cases"
#: Scenarios of several seconds each: ``make soak`` and ``MUTANTS=all pytest tests/mutants`` play them.
COSTLY: Final = frozenset(
    {
        "a coordinator begins again",
        "a helper beside a primary, and both die",
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
        "one can correct, the other only could for a moment",
        "one of two restarts while redo data are spilled",
        "one replica fails, then the other",
        "rates are others than was thought",
        "stands still as a slow correction ends",
        "the partner dies in a slow correction",
        "two actives begin",
        "two of three correct, and slowly",
        "windows over a correction",
    }
)


def kept() -> dict[str, Scenario]:
    """The killing scenarios by name; a case has the name of its mutant."""
    made = scenarios()
    cases = {path.stem: read_case(path) for path in sorted(CASES.glob("*.json"))}
    return {**cases, **{name: made[name] for name in sorted(set(KILLS.values()))}}


def killer(mutant: str) -> str:
    """The name of the scenario that is kept for a mutant."""
    return KILLS.get(mutant, mutant)


def costly(mutant: str) -> bool:
    return killer(mutant) in COSTLY
