"""Moves of random scenarios in which nothing fails: no tentative tuple (M1-M6)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from replicas.simulation.scenarios.feature_set import read_features
from replicas.simulation.scenarios.random_scenario import random_scenario
from replicas.simulation.scenarios.scenario import Scenario
from replicas.simulation.simulate import simulate
from spe.stream.history import Delivered, History, Note
from tests.simulation.test_standbys import is_tentative
from tests.support.long_forms import long_but

#: Some have checkpoint logs, disks, one replica only, nodes that differ, too little room; one order or several, also to
#: drain a node or to cancel a move.
SEEDS = (25, 64, 66, 72, 74, 75, 79, 82, 95, 99, 105, 108, 112, 117, 122, 125, 134, 142, 150, 154, 160, 162, 173, 178)
SHORT = (25, 64, 74, 82, 99, 105)


def calm(seed: int) -> Scenario:
    """Only moves are left of what happens.

    Slow work, producers that pause and a shorter X may make results tentative.  So may a small output, which waits for
    acknowledgements when it is full: longer than X allows, where a move divides that (seed 241).
    """
    found = random_scenario(seed, read_features("moves"))
    config = {name: what for name, what in found.config.items() if name != "limits"}
    return replace(found, config=config, faults=(), options={"moves": found.options["moves"]})


def last_phases(history: History) -> dict[str, str]:
    """Of each move that was ordered; "" where nothing has come of it."""
    found: dict[str, str] = {}
    for event in history:
        if isinstance(event, Note) and event.name in ("move_ordered", "move"):
            fields = dict(word.partition("=")[::2] for word in event.text.split(" "))
            found[fields["number"]] = fields.get("phase", "")
    return found


@pytest.mark.parametrize("seed", long_but(SHORT, SEEDS))
def test_moves_without_failures_make_nothing_tentative(seed: int) -> None:
    outcome = simulate(calm(seed))
    assert (outcome.findings, outcome.finished) == ([], True)
    phases = last_phases(outcome.history)
    assert "done" in phases.values(), "expected a seed in which something moves; take another one"
    assert set(phases.values()) <= {"done", "dropped"}
    assert not [e for e in outcome.history if isinstance(e, Delivered) and is_tentative(e.element)]
