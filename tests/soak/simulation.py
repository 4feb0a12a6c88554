"""Fresh seeds in virtual time until the time is up, on all cores; and every mutant once more.

    make soak HOURS=8

Writes ``runs/soak-TIME/``: report.md, report.json, and shrunk failures, each with the command that replays it.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from functools import partial
from itertools import count
from pathlib import Path

from replicas.cli.campaigns.campaign import MakeScenario, SeedResult, Sums, play_all
from replicas.cli.campaigns.campaign_report import sums_text
from replicas.cli.campaigns.cases import read_case
from replicas.cli.campaigns.simulate import Progress, failure_text, read_seeds, replay, write_failure
from replicas.cli.campaigns.steering import Steering
from replicas.local.run_dir import made_by
from replicas.simulation.scenarios.feature_set import NONE, Features, read_features
from replicas.simulation.scenarios.scenario import Scenario
from tests.mutants.catalogue import MUTANTS
from tests.mutants.play import play
from tests.soak.ledger import append, campaign_of
from tests.support.reachable import empty_text, sums_data
from tests.support.regressions import REGRESSIONS
from tests.support.rows_compared import judge_rows

#: Plays a failure again; ``spe simulate`` has not all judges.
COMMAND = "python -m tests.soak.simulation"
#: Failures that are shrunk; the others are only reported.
MOST_SHRUNK = 10


def seeds_until(
    deadline: float, first: int, make_of: Callable[[int], MakeScenario], *, standbys: bool = False
) -> Iterator[int]:
    """``standbys``: only seeds whose configuration has standbys, about one in six."""
    for seed in count(first):
        if time.monotonic() >= deadline:
            return
        if not standbys or any("standby" in f for f in make_of(seed)(seed).config["fragments"].values()):
            yield seed


def regression(number: int) -> Scenario:
    return read_case(REGRESSIONS[number])


def soak(
    hours: float, first: int, folder: Path, processes: int, *, standbys: bool = False, features: Features = NONE
) -> Sums:
    """Plays seeds, and rewrites the report every few minutes, in case the soak is stopped."""
    folder.mkdir(parents=True)
    deadline = time.monotonic() + hours * 3600
    sums, progress, written = Sums(), Progress(None), time.monotonic()
    steering = Steering(features)
    seeds = seeds_until(deadline, first, steering.make, standbys=standbys)
    for result in map(steering.learn, play_all(steering.make, seeds, processes=processes, also=judge_rows)):
        sums.add(result)
        progress.show(sums)
        if not result.holds:
            progress.clear()
            print(failure_text(result, COMMAND), flush=True)
            if len(sums.failed) <= MOST_SHRUNK:
                scenario = steering.make(result.seed)(result.seed)
                failed = partial(write_failure, shrink=True, faults_only=False, also=judge_rows, command=COMMAND)
                print(failed(scenario, result.findings, folder=folder))
        if time.monotonic() - written > 300:
            report(folder, sums, [], [])
            written = time.monotonic()
    progress.clear()
    return sums


def play_again(seeds: range, features: str, processes: int) -> int:
    """Plays seeds with the features that a failure names."""
    steering, failures = Steering.read(features), 0
    for result in map(steering.learn, play_all(steering.make, seeds, processes=processes, also=judge_rows)):
        failures += not result.holds
        print(f"seed {result.seed}: holds" if result.holds else failure_text(result, COMMAND), flush=True)
    return 1 if failures else 0


def report(folder: Path, sums: Sums, wrong: list[str], broken: list[SeedResult]) -> None:
    """Markdown for people, JSON for machines."""
    failures = [failure_text(r, COMMAND) for r in [*sums.failed, *broken]]
    lines = ["# Soak in virtual time", "", "```", sums_text(sums), "", empty_text(sums), "```"]
    lines += ["", "## Failures", "", *(f"* {text}" for text in failures)] if failures else ["", "No failure."]
    lines += ["", f"Mutants: {', '.join(wrong)}"] if wrong else []
    (folder / "report.md").write_text("\n".join(lines) + "\n")
    data = sums_data(sums) | {"mutants": wrong, "regressions_failed": [r.seed for r in broken]}
    (folder / "report.json").write_text(json.dumps(data, indent=1) + "\n")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Fresh seeds in virtual time until the time is up.")
    parser.add_argument("--hours", type=float, default=1.0)
    parser.add_argument("--first", type=int, default=int(time.time()), help="first seed; the time of day if not given")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--standbys", action="store_true", help="only clusters with standbys")
    parser.add_argument("--with", dest="features", help="features that every run has, such as moves,shortage")
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--ledger", action="store_true", help="append an entry to tests/soak/ledger.jsonl")
    parser.add_argument("--seeds-only", action="store_true", help="without the mutants and the regressions")
    parser.add_argument("--seeds", help="play these again, such as 7:8, with exactly the features of --with")
    parser.add_argument("--replay", type=Path, help="play the scenario in this file again")
    given = parser.parse_args(arguments)
    if given.replay is not None:
        return replay(given.replay, also=judge_rows)
    if given.seeds is not None:
        return play_again(read_seeds(given.seeds), given.features or "", given.processes)
    folder = given.folder or Path("runs") / f"soak-{datetime.now(UTC):%Y%m%d-%H%M%S}"
    print(f"seeds from {given.first} on with {made_by()}; {given.hours:g} hours, {given.processes} processes")
    print(f"report in {folder}", flush=True)
    features = read_features(given.features) if given.features else NONE
    sums = soak(given.hours, given.first, folder, given.processes, standbys=given.standbys, features=features)
    report(folder, sums, [], [])
    if given.ledger:
        append(campaign_of(sums))
    if given.seeds_only:
        print((folder / "report.md").read_text())
        return 1 if sums.failed else 0
    wrong = [f"{result.name} {result.outcome}" for result in play(list(MUTANTS), given.processes) if result.survives]
    broken = [
        r for r in play_all(lambda _: regression, range(len(REGRESSIONS)), processes=given.processes) if not r.holds
    ]
    report(folder, sums, wrong, broken)
    print((folder / "report.md").read_text())
    return 1 if sums.failed or wrong or broken else 0


if __name__ == "__main__":
    sys.exit(main())
