"""Shrunk scenarios that once found a bug, kept as files in ``tests/regressions``; each must hold."""

from __future__ import annotations

from pathlib import Path

import pytest

from replicas.simulation.simulate import simulate
from spe.cli.cases import read_case
from tests.support.regressions import REGRESSIONS


@pytest.mark.parametrize("path", REGRESSIONS, ids=lambda p: p.stem)
def test_a_scenario_that_found_a_bug_holds(path: Path) -> None:
    outcome = simulate(read_case(path))
    assert not outcome.findings, "\n".join([*outcome.story[-100:], *map(str, outcome.findings)])
