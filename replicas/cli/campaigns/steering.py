"""Steers a campaign of random runs toward events that its runs have met least.

The choice consists of features, by name, so that seed and features repeat a run.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import partial
from random import Random
from typing import Final

from replicas.cli.campaigns.campaign import MakeScenario, SeedResult
from replicas.simulation.scenarios.feature_set import NONE, Feature, Features, read_features
from replicas.simulation.scenarios.random_scenario import features_of, random_scenario

#: Value of ``--with`` that selects rare events.
SELDOM: Final = "seldom"
#: Share of the runs that get a feature; the others have what their seeds draw.
_STEERED: Final = 0.7


class Steering:
    """Chooses features for each seed, and learns from the events of its run.

    Args:
      base: features of every run.
      share: share of the runs that get one more feature.
    """

    def __init__(self, base: Features = NONE, share: float = _STEERED) -> None:
        self._base = base
        self._share = share
        self._chosen: dict[int, Features] = {}
        self._tried: Counter[Feature] = Counter()
        #: Runs with a feature; how many of them met an event, and how many of all did.
        self._runs: Counter[Feature] = Counter()
        self._met: dict[Feature, Counter[str]] = {feature: Counter() for feature in Feature}
        self._all: Counter[str] = Counter()

    @classmethod
    def read(cls, text: str) -> Steering:
        """Parses feature names separated by commas; with SELDOM, most runs get one more feature.  Raises SpeError."""
        names = [name.strip() for name in text.split(",") if name.strip()]
        others = [name for name in names if name != SELDOM]
        return cls(read_features(",".join(others), SELDOM) if others else NONE, _STEERED if SELDOM in names else 0.0)

    def make(self, seed: int) -> MakeScenario:
        """Returns the scenario maker of a seed; the choice depends on the results so far."""
        if seed not in self._chosen:
            steered = Random(f"steering {seed}").random() < self._share
            self._chosen[seed] = self._base | ({self._choose()} if steered else NONE)
        return partial(random_scenario, forced=self._chosen[seed])

    def learn(self, result: SeedResult) -> SeedResult:
        """Records a result; returns it with the chosen features."""
        chosen = self._chosen.get(result.seed)
        if chosen is None:
            return result
        met = result.counters.situations()
        self._all.update(met)
        for feature in chosen | features_of(result.seed):
            self._runs[feature] += 1
            self._met[feature].update(met)
        return replace(result, features=chosen)

    def _choose(self) -> Feature:
        """Chooses an untried feature, the rarest first; then one whose runs met the most events that few runs met."""
        fresh = [feature for feature in Feature if not self._tried[feature]]
        chosen = min(fresh, key=lambda f: f.share) if fresh else max(Feature, key=self._novelty)
        self._tried[chosen] += 1
        return chosen

    def _novelty(self, feature: Feature) -> float:
        runs = max(1, self._runs[feature])
        return sum(count / runs / self._all[what] for what, count in self._met[feature].items())
