"""All hand-made scenarios, and which of them kills a mutant without its own case."""

from __future__ import annotations

from typing import Final

from replicas.simulation.scenarios.scenario import VERSION, Scenario
from tests.mutants import scripted, scripted_foreign

KILLS: Final[dict[str, str]] = {**scripted.KILLS, **scripted_foreign.KILLS}


def scenarios() -> dict[str, Scenario]:
    """All of them, by name."""
    shared = {"version": VERSION, "heal_us": 18_000_000, "grace_us": 20_000_000}
    made = scripted.scripted()
    for seed, (name, (config, options, faults)) in enumerate(scripted_foreign.SCENARIOS.items()):
        seed = scripted_foreign.SEEDS.get(name, seed)
        made[name] = Scenario.from_data(
            {**shared, "seed": seed, "config": config, "options": options, "faults": faults}
        )
    return made
