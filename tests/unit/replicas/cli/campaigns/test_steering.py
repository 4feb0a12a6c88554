"""A campaign gives runs the features whose runs met most of what few runs did; its choices are repeatable."""

from __future__ import annotations

from functools import partial

import pytest

from consistency.checking.counters import Counters
from consistency.checking.finding import Finding
from replicas.cli.campaigns.campaign import SeedResult
from replicas.cli.campaigns.simulate import failure_text
from replicas.cli.campaigns.steering import Steering
from replicas.simulation.scenarios.feature_set import Feature, Features
from replicas.simulation.scenarios.random_scenario import features_of, random_scenario
from spe.errors import SpeError

#: What only runs with moves meet here.
_RARE = ("kill", "move follow")


def chosen_for(steering: Steering, seed: int) -> Features:
    make = steering.make(seed)
    assert isinstance(make, partial)
    return frozenset(make.keywords["forced"])


def steer(steering: Steering, seed: int) -> Features:
    """The features that are chosen for a seed, whose run is learned from."""
    chosen, met = chosen_for(steering, seed), Counters()
    met.events["STABLE", "dies"] += 1
    if Feature.MOVES in chosen | features_of(seed):
        met.faults[_RARE] += 1
    assert steering.learn(SeedResult(seed, counters=met)).features == chosen
    return chosen


def test_each_feature_is_tried_once_and_then_the_rare_one() -> None:
    steering = Steering(share=1.0)
    first = [steer(steering, seed) for seed in range(len(Feature))]
    assert frozenset().union(*first) == frozenset(Feature)
    assert all(len(chosen) == 1 for chosen in first)
    assert first[0] == {min(Feature, key=lambda feature: feature.share)}
    later = [steer(steering, seed) for seed in range(100, 110)]
    assert later == [{Feature.MOVES}] * 10


def test_frequent_situation_no_longer_steers() -> None:
    steering, met = Steering(share=1.0), Counters()
    for seed in range(len(Feature)):
        steer(steering, seed)
    met.faults[_RARE] += 1
    for seed in range(1_000, 1_200):
        chosen_for(steering, seed)
        steering.learn(SeedResult(seed, counters=met))
    met.faults["power", "standby has two"] += 1
    chosen_for(steering, 2_000)
    (last,) = steering.learn(SeedResult(2_000, counters=met)).features or ()
    assert chosen_for(steering, 2_001) & (features_of(2_000) | {last})


def test_a_choice_is_made_again_by_seed_and_features() -> None:
    steering = Steering.read("moves,seldom")
    seeds = range(40)
    made = {seed: steering.make(seed)(seed) for seed in seeds}
    chosen = {seed: chosen_for(steering, seed) for seed in seeds}
    assert all(Feature.MOVES in features for features in chosen.values())
    assert {len(features) for features in chosen.values()} == {1, 2}
    assert all(made[seed] == random_scenario(seed, chosen[seed]) for seed in list(seeds)[:5])
    finding = Finding("P3", "complete", 0, "client:c", "lacks a tuple")
    failed = steering.learn(SeedResult(3, (finding,)))
    names = ",".join(feature for feature in Feature if feature in chosen[3])
    assert failure_text(failed).endswith(f"again: spe simulate --seeds 3:4 --with '{names}'")
    assert Steering.read(names).make(3)(3) == made[3]


def test_runs_without_rare_features_have_requested_ones() -> None:
    steering = Steering.read("")
    assert steering.make(7)(7) == random_scenario(7)
    assert failure_text(steering.learn(SeedResult(7))).endswith("--seeds 7:8")
    with pytest.raises(SpeError, match=r"there is no feature 'x'; expected some of .*moves.*, seldom$"):
        Steering.read("seldom,x")
