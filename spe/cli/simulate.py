"""``spe simulate``: a cluster in virtual time under random or given faults, and what was tried and held."""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from replicas.simulation.simulate import Outcome, simulate

from replicas.faults import Fault, load_faults
from replicas.simulation.scenario import Scenario
from replicas.simulation.swarm import faulty, random_scenario
from spe.cli.campaign import MakeScenario, Result, Sums, play_all, shrink_failure
from spe.cli.cases import read_case, write_case
from spe.cli.simulated import configuration_to_simulate
from spe.cli.sums import sums_text
from spe.config import load_plan_data
from spe.errors import SpeError
from spe.times import SECOND

#: Seeds where none are given, and how long a run of a user's own configuration is.
DEFAULT_SEEDS: Final = "20"
DEFAULT_LENGTH_US: Final = 30 * SECOND
#: Where failures are written.
CASES: Final = Path("runs/simulation")
#: Runs that shrinking one failure may take.
BUDGET: Final = 150
#: No more failures than these are shrunk: many have one cause.
_SHRUNK: Final = 3
#: Lines of a failing run's story that are shown.
_STORY: Final = 60
_HOUR_US: Final = 3600 * SECOND


def run_simulate(
    config: Path | None,
    *,
    data: Path | None = None,
    seeds: str | None = None,
    faults: Path | None = None,
    length_us: int | None = None,
    shrink: bool = True,
    processes: int | None = None,
) -> int:
    """Plays the seeds of a configuration, or of random ones; 0 where all of them hold."""
    make = _scenarios(config, data, faults, length_us or DEFAULT_LENGTH_US)
    sums = Sums()
    wanted = read_seeds(seeds or ("1" if faults is not None else DEFAULT_SEEDS))
    progress = Progress(len(wanted))
    for result in play_all(make, wanted, processes=processes):
        sums.add(result)
        progress.show(sums)
        if not result.holds:
            progress.clear()
            print(failure_text(result), flush=True)
    progress.clear()
    print(sums_text(sums))
    for result in sums.failed[:_SHRUNK]:
        print(write_failure(make(result.seed), result, shrink=shrink, faults_only=config is not None, folder=CASES))
    return 1 if sums.failed else 0


def replay(path: Path, *, shrink: bool = False) -> int:
    """Plays a scenario that was written before; tells its story where it fails."""
    scenario = read_case(path)
    outcome = simulate(scenario)
    if not outcome.findings:
        print(f"{path}: holds ({len(scenario.faults)} faults, {outcome.history.end_us / SECOND:.1f} simulated seconds)")
        return 0
    print(outcome_text(outcome))
    if shrink:
        result = Result(scenario.seed, findings=tuple(map(str, outcome.findings)))
        print(write_failure(scenario, result, shrink=True, faults_only=False, folder=path.parent))
    return 1


def _scenarios(config: Path | None, data: Path | None, faults: Path | None, length_us: int) -> MakeScenario:
    if config is None:
        if faults is not None:
            raise SpeError("--faults needs a configuration whose processes they can happen to")
        return random_scenario
    changed, said = configuration_to_simulate(config, data, length_us)
    for line in said:
        print(line)
    if faults is None:
        return partial(_with_random_faults, changed, length_us)
    return partial(_with_faults, changed, length_us, tuple(load_faults(faults, load_plan_data(changed))))


def _with_random_faults(config: dict[str, Any], length_us: int, seed: int) -> Scenario:
    # Files last as long as they last: a run ends when all is quiet, not when the time is up.
    return replace(faulty(config, seed, length_us), grace_us=_HOUR_US)


def _with_faults(config: dict[str, Any], length_us: int, faults: tuple[Fault, ...], seed: int) -> Scenario:
    last_us = max((f.at_us + (f.for_us or 0) for f in faults), default=0)
    return Scenario(seed=seed, config=config, faults=faults, heal_us=max(length_us, last_us), grace_us=_HOUR_US)


def read_seeds(text: str) -> range:
    """``20`` is 0 … 19, ``100:200`` is 100 … 199.  Raises SpeError."""
    first, colon, last = text.partition(":")
    try:
        found = range(int(first), int(last)) if colon else range(int(first))
    except ValueError:
        found = range(0)
    if not found:
        raise SpeError(f"--seeds: expected a number of runs, or the first and the end as in 100:200, got {text!r}")
    return found


def failure_text(result: Result) -> str:
    """What failed in a run, a few lines."""
    lines = [f"seed {result.seed}: FAILED{f': {result.error}' if result.error else ''}"]
    return "\n  ".join([*lines, *result.findings[:3]])


def outcome_text(outcome: Outcome) -> str:
    """All findings of a run with the events around the first, and the end of its story before it."""
    first = outcome.findings[0]
    return "\n".join([*outcome.story[-_STORY:], "", *map(str, outcome.findings), "", *first.around])


def write_failure(scenario: Scenario, result: Result, *, shrink: bool, faults_only: bool, folder: Path) -> str:
    """Writes a failing scenario, made small where that is wanted; returns what to say of it."""
    path, found = folder / f"seed-{scenario.seed}.json", list(result.findings) or [result.error]
    about = f"seed {scenario.seed}"
    if shrink and not result.error:
        shrunk, outcome = shrink_failure(scenario, budget=BUDGET, faults_only=faults_only)
        about = f"seed {scenario.seed}, {len(scenario.faults)} faults before shrinking ({shrunk.runs} runs)"
        scenario, found = shrunk.scenario, list(map(str, outcome.findings))
    write_case(path, scenario, found, about=about)
    faults = "\n".join(f"    at {fault.at_us / SECOND:g}s {fault}" for fault in scenario.faults)
    return f"{about}: {found[0]}\n{faults}\n  again: spe simulate --replay {path}"


class Progress:
    """A line on a terminal that is written again and again; nothing where there is none."""

    def __init__(self, total: int | None) -> None:
        self._total = total
        self._begun = time.monotonic()
        self._shown = sys.stderr.isatty()

    def show(self, sums: Sums) -> None:
        if self._shown:
            of = "" if self._total is None else f"/{self._total:,}"
            took = time.monotonic() - self._begun
            text = f"{len(sums.seeds):,}{of} runs, {len(sums.failed):,} failed, {sums.virtual_s / 3600:.2f} h simulated"
            print(f"\r{text} in {took:,.0f} s", end="", file=sys.stderr, flush=True)

    def clear(self) -> None:
        if self._shown:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
