"""Each schedule in ``tests/regressions`` still shows the mistake for which it was kept.

``tests/simulation/test_regressions.py`` shows that it holds without the mistake.
"""

from __future__ import annotations

import pytest

from replicas.cli.campaigns.cases import read_case
from tests.mutants.catalogue import MUTANTS
from tests.mutants.find import is_killed
from tests.mutants.mended import PAIRS
from tests.support.regressions import FOLDER, REGRESSIONS

pytestmark = pytest.mark.long


@pytest.mark.parametrize("schedule", PAIRS)
def test_a_regression_shows_its_mistake(schedule: str) -> None:
    assert is_killed(MUTANTS[PAIRS[schedule]], read_case(FOLDER / f"{schedule}.json"))


def test_each_regression_has_its_mistake() -> None:
    assert PAIRS.keys() == {path.stem for path in REGRESSIONS}
    assert MUTANTS.keys() >= set(PAIRS.values())
