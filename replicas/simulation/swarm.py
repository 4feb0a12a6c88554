"""Scenarios from seeds: a configuration, what goes wrong in it, and the time in which all must be well again."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Any, Final

from replicas.simulation.patterns import random_faults
from replicas.simulation.scenario import Scenario
from replicas.simulation.topologies import random_configuration
from spe.config import load_plan_data
from spe.stream.times import SECOND

#: Time in which everything must be corrected and quiet again after healing.
GRACE_US: Final = 20 * SECOND
#: The first fault comes no sooner.
_FIRST_US: Final = SECOND // 20
#: Corrections that take a while, as they do where there is much to correct; else they are over at once.
_SLOW_WORK: Final = (
    {"limits": {"slice_rows": 10}, "turn_us": 5_000},
    {"limits": {"slice_rows": 20}, "turn_us": 20_000},
)
_SLOW_SHARE: Final = 0.5


def random_scenario(seed: int) -> Scenario:
    """A configuration and faults that follow from ``seed`` alone."""
    random = Random(f"swarm {seed}")
    seconds = random.choice([10, 14, 20, 28])
    return faulty(random_configuration(random, seconds), seed, seconds * SECOND, random=random)


def faulty(config: Mapping[str, Any], seed: int, heal_us: int, *, random: Random | None = None) -> Scenario:
    """A configuration with random faults of ``seed``, which are over and healed ``heal_us`` after the beginning."""
    random = Random(f"faults {seed}") if random is None else random
    plan = load_plan_data(config)
    faults = random_faults(random, plan, from_us=random.choice([_FIRST_US, SECOND]), to_us=heal_us)
    options = random.choice(_SLOW_WORK) if random.random() < _SLOW_SHARE else {}
    return Scenario(seed, config, options, faults, heal_us, GRACE_US)
