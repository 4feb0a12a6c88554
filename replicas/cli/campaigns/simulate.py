"""``spe simulate``: runs a cluster in virtual time under random or given faults, and reports broken promises."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from consistency.checking.finding import Finding
from replicas.cli.campaigns.campaign import MakeScenario, SeedResult, Sums, play_all, run, shrink_failure
from replicas.cli.campaigns.campaign_report import sums_text
from replicas.cli.campaigns.cases import read_case, write_case
from replicas.cli.campaigns.steering import Steering
from replicas.cli.checkpoint_log import refuse_logs
from replicas.faults.model import Fault, load_faults
from replicas.local.run_dir import made_by
from replicas.simulation.scenarios.configured_scenario import configuration_to_simulate, grace_us
from replicas.simulation.scenarios.feature_set import Feature
from replicas.simulation.scenarios.random_scenario import faulty
from replicas.simulation.scenarios.scenario import Scenario
from replicas.simulation.simulate import Judge
from spe.config import load_data, load_document, read_document
from spe.errors import SpeError
from spe.stream.times import SECOND

#: Default seeds, and length of a run of a user's own configuration.
DEFAULT_SEEDS: Final = "20"
DEFAULT_LENGTH_US: Final = 30 * SECOND
#: Folder for failing scenarios.
CASES: Final = Path("runs/simulation")
#: Command that replays a failure, without its arguments.
COMMAND: Final = "spe simulate"
#: Largest number of runs to shrink one failure.
BUDGET: Final = 150
#: Largest number of failures that are shrunk: many have the same cause.
_SHRUNK: Final = 3
#: Lines of a failing run's story that are shown.
_STORY: Final = 60


def run_simulate(
    config: Path | None,
    *,
    data: Path | None = None,
    seeds: str | None = None,
    faults: Path | None = None,
    length_us: int | None = None,
    shrink: bool = True,
    processes: int | None = None,
    features: str = "",
) -> int:
    """Runs the seeds of a configuration, or of random ones; returns 0 if all of them hold.

    Args:
      features: value of ``--with``.
    """
    steering = Steering.read(features)
    make_of: Callable[[int], MakeScenario] = steering.make
    if config is not None or faults is not None:
        make = _scenarios(config, data, faults, length_us or DEFAULT_LENGTH_US, features)
        make_of = lambda _: make  # noqa: E731
    sums = Sums()
    wanted = read_seeds(seeds or ("1" if faults is not None else DEFAULT_SEEDS))
    print(f"seeds {wanted.start}:{wanted.stop} with {made_by()}", flush=True)
    progress = Progress(len(wanted))
    for result in map(steering.learn, play_all(make_of, wanted, processes=processes)):
        sums.add(result)
        if len(sums.seeds) == 1 < len(wanted):
            print(cost_text(result.cpu_s, len(wanted), processes or os.cpu_count() or 1), flush=True)
        progress.show(sums)
        if not result.holds:
            progress.clear()
            print(failure_text(result), flush=True)
    progress.clear()
    print(sums_text(sums))
    for result in sums.failed[:_SHRUNK]:
        scenario = make_of(result.seed)(result.seed)
        print(write_failure(scenario, result.findings, shrink=shrink, faults_only=config is not None, folder=CASES))
    return 1 if sums.failed else 0


def replay(path: Path, *, shrink: bool = False, also: Judge | None = None) -> int:
    """Runs a stored scenario; prints its story if it fails."""
    scenario = read_case(path)
    findings, outcome = run(scenario, also)
    if outcome is not None and not findings:
        print(f"{path}: holds ({len(scenario.faults)} faults, {outcome.history.end_us / SECOND:.1f} simulated seconds)")
        return 0
    if outcome is not None:
        print("\n".join([*outcome.story[-_STORY:], ""]))
    print("\n".join([*map(str, findings), "", *findings[0].around]))
    if shrink:
        print(write_failure(scenario, findings, shrink=True, faults_only=False, folder=path.parent))
    return 1


def cost_text(run_s: float, runs: int, processes: int) -> str:
    """Estimates the time of all seeds from that of the first."""
    at_once = min(processes, runs)
    total = run_s * runs / at_once
    return f"{run_s:.1f} s of CPU for the first run; all {runs:,}, {at_once} at a time, take about {total:,.0f} s"


def _scenarios(
    config: Path | None, data: Path | None, faults: Path | None, length_us: int, features: str
) -> MakeScenario:
    if config is None:
        raise SpeError("--faults needs a configuration whose processes they can happen to")
    if features:
        raise SpeError("--with is for random configurations; expected no CONFIG")
    changed, notes = read_to_simulate(config, data, length_us)
    for line in notes:
        print(line)
    if faults is None:
        return partial(_with_random_faults, changed, length_us)
    return partial(_with_faults, changed, length_us, tuple(load_faults(faults, load_data(changed).directory)))


def read_to_simulate(config: Path, data: Path | None, length_us: int) -> tuple[dict[str, Any], list[str]]:
    """Reads a file as :func:`configuration_to_simulate`.  Raises ConfigError."""
    document = read_document(config)
    deployed = load_document(document, data)
    refuse_logs(document, *deployed)
    return configuration_to_simulate(document, deployed, length_us)


def _with_random_faults(config: dict[str, Any], length_us: int, seed: int) -> Scenario:
    return replace(faulty(config, seed, length_us), grace_us=grace_us(config))


def _with_faults(config: dict[str, Any], length_us: int, faults: tuple[Fault, ...], seed: int) -> Scenario:
    last_us = max((f.at_us + (f.for_us or 0) for f in faults), default=0)
    return Scenario(seed=seed, config=config, faults=faults, heal_us=max(length_us, last_us), grace_us=grace_us(config))


def read_seeds(text: str) -> range:
    """Parses ``20`` as 0 … 19, ``100:200`` as 100 … 199.  Raises SpeError."""
    first, colon, last = text.partition(":")
    try:
        seeds = range(int(first), int(last)) if colon else range(int(first))
    except ValueError:
        seeds = range(0)
    if not seeds:
        raise SpeError(f"--seeds: expected a number of runs, or the first and the end as in 100:200, got {text!r}")
    return seeds


def failure_text(result: SeedResult, command: str = COMMAND) -> str:
    """Describes the failure of a run in a few lines, with the command that repeats it."""
    lines = [f"seed {result.seed}: FAILED", *map(str, result.findings[:3])]
    if result.features is not None:
        features = ",".join(feature for feature in Feature if feature in result.features)
        with_ = f" --with '{features}'" if features else ""
        lines.append(f"again: {command} --seeds {result.seed}:{result.seed + 1}{with_}")
    return "\n  ".join(lines)


def write_failure(
    scenario: Scenario,
    findings: Sequence[Finding],
    *,
    shrink: bool,
    faults_only: bool,
    folder: Path,
    also: Judge | None = None,
    command: str = COMMAND,
) -> str:
    """Writes a failing scenario, shrunk if requested; returns a description."""
    path = folder / f"seed-{scenario.seed}.json"
    about = f"seed {scenario.seed}"
    if shrink:
        shrunk = shrink_failure(scenario, budget=BUDGET, faults_only=faults_only, also=also)
        about = f"seed {scenario.seed}, {len(scenario.faults)} faults before shrinking ({shrunk.runs} runs)"
        scenario = shrunk.scenario
        findings, _ = run(scenario, also)
    write_case(path, scenario, list(map(str, findings)), about=about)
    faults = "".join(f"    at {fault.at_us / SECOND:g}s {fault}\n" for fault in scenario.faults)
    return f"{about}: {findings[0]}\n{faults}  again: {command} --replay {path}"


class Progress:
    """Shows progress in one line of a terminal; writes nothing without a terminal."""

    def __init__(self, total: int | None) -> None:
        self._total = total
        self._begun = time.monotonic()
        self._shown = sys.stderr.isatty()

    def show(self, sums: Sums) -> None:
        if self._shown:
            total = "" if self._total is None else f"/{self._total:,}"
            took = time.monotonic() - self._begun
            text = (
                f"{len(sums.seeds):,}{total} runs, {len(sums.failed):,} failed, {sums.virtual_s / 3600:.2f} h simulated"
            )
            print(f"\r{text} in {took:,.0f} s", end="", file=sys.stderr, flush=True)

    def clear(self) -> None:
        if self._shown:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
