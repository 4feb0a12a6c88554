"""Scenarios from seeds: a configuration, its faults, and the time in which all must be well again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from random import Random
from typing import Any, Final

from replicas.simulation.features import balancing
from replicas.simulation.features.checkpoint_logs import with_logs
from replicas.simulation.features.joining_nodes import random_joins
from replicas.simulation.features.ordered_moves import random_moves, with_spares
from replicas.simulation.features.proved_logs import random_proofs
from replicas.simulation.features.pushed_sources import random_pushes
from replicas.simulation.features.rejecting_operators import with_rejections
from replicas.simulation.features.retention import with_retention
from replicas.simulation.features.settings_changes import random_settings, with_coordinator
from replicas.simulation.features.shortage import with_little_room
from replicas.simulation.features.sinks import with_all_sinks
from replicas.simulation.scenarios.feature_set import NONE, Feature, Features, draw_features
from replicas.simulation.scenarios.query_options import with_options
from replicas.simulation.scenarios.random_faults import random_faults
from replicas.simulation.scenarios.scenario import Scenario
from replicas.simulation.scenarios.topologies import LONG_BUCKET_MS, SLOW, random_configuration, with_long_windows
from replicas.simulation.world.producer import random_live
from spe.config import load_data
from spe.plan.directory import Directory
from spe.plan.plan import Plan
from spe.plan.timing import depth
from spe.stream.times import MILLISECOND, SECOND

#: Time after healing in which everything must be corrected and quiet.
GRACE_US: Final = 20 * SECOND
#: Earliest time of the first fault.
_FIRST_US: Final = SECOND // 20
#: Settings for corrections that take a while, as with much to correct; otherwise they are over at once.
_SLOW_WORK: Final = (
    {"limits": {"slice_rows": 10}, "turn_us": 5_000},
    {"limits": {"slice_rows": 20}, "turn_us": 20_000},
)
_SLOW_SHARE: Final = 0.5
#: Longest time of a long correction, relative to the failure.
_LONG: Final = 1.25
#: The same if the first correction is to take long.
_LONGER: Final = 5.0
#: Cost of a step per row or group held: a hundred of them take as long as 10 million on a real node.
_STATE_NS: Final = (20_000, 100_000, 500_000)
#: A new primary may die before its first checkpoint, and then needs a log from its beginning (H8).
_WITHOUT_RETENTION: Final = frozenset((Feature.MOVES, Feature.SHORTAGE, Feature.JOINING, Feature.BALANCING))
#: Features with a complete set of faults of their own.
_OF_THEIR_OWN: Final = frozenset((Feature.LASTING_LINKS, Feature.OLD_CHECKPOINTS)) | SLOW
#: Length of a run, seconds; the longest one has room for a failure of 10 X.
_LENGTHS_S: Final = (10, 14, 20, 28)
#: Length of a run in which an input fails again and again.
_CHANGING_S: Final = 20


def random_scenario(seed: int, forced: Features = NONE) -> Scenario:
    """Returns a configuration and faults that follow from ``seed`` alone.

    Args:
      forced: features that the run has in any case.
    """
    random, features = Random(f"swarm {seed}"), _with_needed(features_of(seed), forced)
    seconds = _length_s(random, features)
    moving, balances = Random(f"moves {seed}"), Random(f"balancing {seed}")
    config, from_us = _configuration(seed, random, features, seconds, moving), None
    if Feature.BALANCING in features:
        config, from_us = balancing.with_balancing(balances, config), balancing.random_start(balances)
    scenario = faulty(config, seed, seconds * SECOND, random=random, features=features, from_us=from_us)
    options = _options(seed, features, config, seconds)
    if Feature.MOVES in features:
        options["moves"] = random_moves(moving, seconds * SECOND)
    if Feature.BALANCING in features:
        options["row_ns"] = balancing.random_loads(balances, config)
    befalls: list[dict[str, Any]] = []
    if Feature.JOINING in features:
        options["joins"], befalls = random_joins(Random(f"joins {seed}"), config, seconds * SECOND)
    if options:
        scenario = replace(scenario, options={**scenario.options, **options})
    if befalls and not features & _OF_THEIR_OWN:
        faults = (*scenario.faults, *scenario.with_faults(befalls).faults)
        scenario = replace(scenario, faults=tuple(sorted(faults, key=lambda f: f.at_us)))
    return scenario


def _with_needed(features: Features, forced: Features) -> Features:
    """Returns the features of a run, with those that others need, and without those that cannot go with them."""
    features |= forced
    if Feature.CHANGING_FEEDS in forced:
        features = forced  # a replica's choice of producers must not depend on much else
    if features & {Feature.ALL_SINKS, Feature.PROVED}:
        features |= {Feature.CLIENTS}
    return features - _WITHOUT_RETENTION if Feature.PROVED in features else features


def _length_s(random: Random, features: Features) -> int:
    seconds = random.choice(_LENGTHS_S)
    if features & {Feature.LASTING_LINKS, *SLOW}:
        seconds = max(_LENGTHS_S)
    if Feature.CHANGING_FEEDS in features:
        seconds = _CHANGING_S
    return balancing.SECONDS if Feature.BALANCING in features else seconds


def _configuration(seed: int, random: Random, features: Features, seconds: int, moving: Random) -> dict[str, Any]:
    config = random_configuration(random, seconds, features)
    if Feature.REJECTED in features:
        config = with_rejections(Random(f"rejected {seed}"), config)
    if Feature.OPTIONS in features:
        config = with_options(Random(f"options {seed}"), config)
    if Feature.ALL_SINKS in features:
        config = with_all_sinks(config)
    if Feature.MOVES in features:
        config = with_spares(moving, config)
    if features & {Feature.SETTINGS, Feature.JOINING}:
        config = with_coordinator(config)
    if Feature.SHORTAGE in features:
        config = with_little_room(Random(f"shortage {seed}"), config)
    if Feature.LOGS in features:
        config = with_logs(Random(f"logs {seed}"), config)
    if Feature.LONG_WINDOWS in features:
        config = with_long_windows(Random(f"windows {seed}"), config)
    if features & {Feature.RETENTION, Feature.PROVED} and not features & _WITHOUT_RETENTION:
        config = with_retention(Random(f"retention {seed}"), config, proved=Feature.PROVED in features)
    return config


def _options(seed: int, features: Features, config: Mapping[str, Any], seconds: int) -> dict[str, Any]:
    options: dict[str, Any] = {}
    if Feature.LIVE in features:
        options["live"] = random_live(Random(f"live {seed}"), list(config["sources"]), seconds)
    if Feature.PUSHES in features:
        options["pushes"] = random_pushes(Random(f"pushes {seed}"), list(config["sources"]))
    if Feature.SOURCE_DISKS in features:
        options["source_disks"] = True
    if Feature.PROVED in features:
        options["proofs"] = random_proofs(Random(f"proofs {seed}"), seconds * SECOND)
    if Feature.SETTINGS in features:
        options["settings"] = random_settings(Random(f"settings {seed}"), seconds * SECOND)
    return options


def features_of(seed: int) -> Features:
    """Returns the features of the random scenario of a seed."""
    return draw_features(Random(f"features {seed}"))


def faulty(
    config: Mapping[str, Any],
    seed: int,
    heal_us: int,
    *,
    random: Random | None = None,
    features: Features | None = None,
    from_us: int | None = None,
) -> Scenario:
    """Returns a configuration with random faults of ``seed``, which are over and healed ``heal_us`` after the
    beginning.

    Features that concern the configuration must be set by its author.

    Args:
      from_us: earliest time of the first fault; None: soon.
    """
    random = Random(f"faults {seed}") if random is None else random
    features = features_of(seed) if features is None else features
    plan, directory = load_data(config)
    begin_us = random.choice([_FIRST_US, SECOND])
    begin_us = begin_us if from_us is None else from_us
    faults = random_faults(random, plan, directory, from_us=begin_us, to_us=heal_us, features=features)
    options: Mapping[str, Any] = random.choice(_SLOW_WORK) if random.random() < _SLOW_SHARE else {}
    if Feature.LONG_CORRECTIONS in features:
        options = _slowest_work(plan, directory)
    if Feature.CHANGING_FEEDS in features:
        options = _slowest_work(plan, directory, _LONGER)
    if Feature.COSTLY_STATE in features:
        state_ns = random.choice(_STATE_NS)  # small steps cannot take long as well: no replica would catch up
        options = {**options, "state_ns": min(_STATE_NS) if options else state_ns}
    grace_us = GRACE_US * _in_turn(plan, directory) if "turn_us" in options else GRACE_US
    return Scenario(seed, config, options, faults, heal_us, grace_us)


def _in_turn(plan: Plan, directory: Directory) -> int:
    """Returns how many replicas correct one after the other: those of each level in turn, level by level."""
    levels = max(depth(plan, unit) for unit in plan.units)
    return levels * max(len(directory.hosts(partition)) for partition in directory.placement)


def _slowest_work(plan: Plan, directory: Directory, long: float = _LONG) -> dict[str, Any]:
    """Returns settings with which a correction takes seconds.

    Each replica in turn also corrects the rows that came during earlier corrections.  A node that is busy for a part u
    of the time corrects 1/u - 1 times as fast as rows come, so n of them in turn take (1 - u)^-n - 1 times as long as
    the failure. One or two are busy for a third of the time.
    """
    busy = 1 - (1 + long) ** (-1 / max(2, _in_turn(plan, directory)))
    return {"limits": {"slice_rows": 10}, "turn_us": round(busy * LONG_BUCKET_MS * MILLISECOND)}
