"""Shrunk scenarios that once found a bug, kept as files in ``tests/regressions``; each must hold."""

from __future__ import annotations

from pathlib import Path

import pytest

from replicas.cli.campaigns.cases import read_case
from replicas.simulation.simulate import simulate
from tests.support.long_forms import long_but
from tests.support.regressions import REGRESSIONS

#: These take longest.
LONG = {
    "fewer-actives-chosen-than-the-budget",
    "all-are-killed-as-a-move-ends",
    "a-frozen-consumer-reads-an-old-rec-done-late",
    "stable-with-a-backlog-after-suspend",
    "a-mark-of-before-the-install",
    "small-buffers-between-checkpoints-on-disk",
    "an-active-that-just-retired-is-chosen-again",
}


@pytest.mark.parametrize(
    "path", long_but([p for p in REGRESSIONS if p.stem not in LONG], REGRESSIONS), ids=lambda p: p.stem
)
def test_scenario_that_revealed_a_bug_holds(path: Path) -> None:
    outcome = simulate(read_case(path))
    assert not outcome.findings, "\n".join([*outcome.story[-100:], *map(str, outcome.findings)])
