"""Random clusters with checkpoint logs under random faults: what a replica makes again is the state that there was."""

from __future__ import annotations

from itertools import count, islice
from typing import Final

import pytest

from replicas.simulation.scenarios.feature_set import Feature
from replicas.simulation.scenarios.random_scenario import random_scenario
from replicas.simulation.simulate import simulate
from tests.simulation.test_swarm import SIZE_MAX, size
from tests.support.log_checks import states_checked
from tests.support.long_forms import long_but

#: Of the seeds from each of these on, so many that give small clusters; in all of these something goes on from a log.
SHORT: Final = [7_390_000]
BLOCKS: Final = [*SHORT, 7_390_040, 7_390_080, 7_390_100, 7_390_160]
MANY: Final = 4


@pytest.mark.parametrize("first", long_but(SHORT, BLOCKS))
def test_rebuilt_states_equal_the_originals(first: int) -> None:
    drawn = (random_scenario(seed, forced=frozenset({Feature.LOGS})) for seed in count(first))
    with states_checked() as checked:
        for scenario in islice((one for one in drawn if size(one) <= SIZE_MAX), MANY):
            assert not simulate(scenario).findings, f"seed {scenario.seed}"
    assert checked.states > 0
