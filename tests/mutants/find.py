"""Finds for each mutant the smallest scenario that kills it, and keeps it in ``cases/``.

    python -m tests.mutants.find [NAME …] [--seeds 0:60] [--with FEATURES] [--again]

Mutants that a hand-made scenario kills (:data:`tests.mutants.scenarios.KILLS`) need no case.

Scenarios that kill other mutants are tried first, because they are small, then those of
:mod:`tests.mutants.scenarios`, then seeds; the scenario found is shrunk.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from consistency.checking.promises.accuracy import Kept
from replicas.cli.campaigns.campaign import run
from replicas.cli.campaigns.cases import read_case, write_case
from replicas.cli.campaigns.simulate import read_seeds
from replicas.reference import ChannelRows, Rejected
from replicas.simulation.scenarios.feature_set import NONE, Features, read_features
from replicas.simulation.scenarios.random_scenario import random_scenario
from replicas.simulation.scenarios.scenario import Scenario
from replicas.simulation.scenarios.shrink import shrink
from replicas.simulation.world.cluster import SimCluster
from spe.stream.ids import Channel
from tests.mutants.catalogue import MUTANTS
from tests.mutants.kept import CASES
from tests.mutants.patching import Mutant, aside
from tests.mutants.scenarios import KILLS, scenarios
from tests.support.regressions import REGRESSIONS

#: Seeds to try a scenario with; they determine the order of tasks, jitter and losses.
SEEDS = 8
#: Runs that shrinking may take.
BUDGET = 30


def case_of(mutant: Mutant) -> Path:
    return CASES / f"{mutant.name}.json"


def complaints(mutant: Mutant, scenario: Scenario) -> list[str]:
    """Findings in a run with the mutant; empty where it survives.  Raises Unfit."""
    reference = SimCluster.reference

    def truth(
        self: SimCluster, kept: Kept | None = None, rejected: Rejected | None = None
    ) -> dict[Channel, ChannelRows]:
        with aside():
            return reference(self, kept, rejected)

    with mutant.on(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(SimCluster, "reference", truth)
        found = [str(finding) for finding in run(scenario)[0]]
    return [one for one in found if not one.startswith("run (Stuck)")]  # a busy machine must not kill a mutant


def is_killed(mutant: Mutant, scenario: Scenario) -> bool:
    """Some mistakes show only in some orders of tasks, which any change of the engine alters.

    A separate test shows that the scenario holds without the mutant; here it must hold with another seed.
    """
    if complaints(mutant, scenario):
        return True
    others = (replace(scenario, seed=seed) for seed in range(SEEDS) if seed != scenario.seed)
    return any(complaints(mutant, one) and not run(one)[0] for one in others)


def find(
    mutant: Mutant, seeds: range, features: Features = NONE, *, tell: Callable[[str], None] = print
) -> Path | None:
    """Writes the case of a mutant; None where it survives everything."""
    for name, scenario in candidates(mutant, seeds, features):
        if not complaints(mutant, scenario):
            continue
        small = shrink(scenario, lambda one: bool(complaints(mutant, one)), budget=BUDGET).scenario
        if run(small)[0]:  # without the mutant
            tell(f"{mutant.name}: {name} fails without the mutant")
            continue
        found = complaints(mutant, small)
        write_case(case_of(mutant), small, found[:3], about=f"{mutant.mistake}; from {name}")
        tell(f"{mutant.name}: killed by {name}, {len(small.faults)} faults: {found[0][:160]}")
        return case_of(mutant)
    tell(f"{mutant.name}: LIVES ({mutant.mistake})")
    return None


def candidates(mutant: Mutant, seeds: range, features: Features) -> Iterator[tuple[str, Scenario]]:
    known = [case_of(mutant), *sorted(CASES.glob("*.json")), *REGRESSIONS]
    for path in dict.fromkeys(known):
        if path.exists():
            yield path.stem, read_case(path)
    yield from scenarios().items()
    for seed in seeds:
        yield f"seed {seed}", random_scenario(seed, features)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("names", nargs="*", help="all of them where none is given")
    parser.add_argument("--seeds", type=read_seeds, default=range(60))
    parser.add_argument("--with", dest="features", metavar="FEATURES", type=read_features, default=NONE)
    parser.add_argument("--again", action="store_true", help="also those that are killed already")
    given = parser.parse_args()
    unknown = set(given.names) - set(MUTANTS)
    if unknown:
        parser.error(f"no mutant {', '.join(sorted(unknown))}; there are {', '.join(MUTANTS)}")
    alive = 0
    for name in given.names or MUTANTS:
        mutant = MUTANTS[name]
        if given.again or not (case_of(mutant).exists() or name in KILLS):
            alive += find(mutant, given.seeds, given.features, tell=lambda text: print(text, flush=True)) is None
    return 1 if alive else 0


if __name__ == "__main__":
    sys.exit(main())
