"""Seeds of features without a share that kill a mutant, and hold without it.

Of each mutant one of its seeds is enough: any change of the engine alters the order of tasks.
"""

from __future__ import annotations

from typing import Final

import pytest

from replicas.simulation.scenarios.feature_set import Feature
from replicas.simulation.scenarios.random_scenario import random_scenario
from replicas.simulation.simulate import simulate
from tests.mutants.catalogue import MUTANTS
from tests.mutants.find import complaints

pytestmark = pytest.mark.long

SEEDS: Final[dict[str, tuple[Feature, tuple[int, ...]]]] = {
    "feed-promoted-without-a-cut": (Feature.CHANGING_FEEDS, (7_600_238,)),
    "helper-acknowledges-its-newest": (Feature.OLD_CHECKPOINTS, (7_500_055, 7_500_050, 7_500_037)),
}


@pytest.mark.parametrize("name", SEEDS)
def test_a_seed_kills_a_mutant_and_holds_without_it(name: str) -> None:
    feature, seeds = SEEDS[name]
    scenarios = (random_scenario(seed, frozenset({feature})) for seed in seeds)
    killing = next((one for one in scenarios if complaints(MUTANTS[name], one)), None)
    assert killing is not None, f"none of {seeds}"
    assert simulate(killing).findings == []
