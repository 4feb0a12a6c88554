"""Fresh seeds in virtual time until the time is up, on all cores; and every mutant once more.

    make soak HOURS=8

Writes ``runs/soak-TIME/``: report.md, report.json, and the failures, made small, each with the command that plays it.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import count
from pathlib import Path

from replicas.simulation.scenario import Scenario
from replicas.simulation.swarm import random_scenario
from spe.cli.campaign import Result, Sums, play, play_all
from spe.cli.cases import read_case
from spe.cli.run_dir import made_by
from spe.cli.simulate import Progress, failure_text, write_failure
from spe.cli.sums import empty_text, sums_data, sums_text
from tests.mutants.catalogue import MUTANTS
from tests.mutants.find import REGRESSIONS, case_of, complaints
from tests.mutants.scripted import KILLS, scripted

#: Failures that are made small; the others are only told.
MOST_SHRUNK = 10


def seeds_until(deadline: float, first: int, *, standbys: bool = False) -> Iterator[int]:
    """``standbys``: only those whose configuration has some, about one in six."""
    for seed in count(first):
        if time.monotonic() >= deadline:
            return
        if not standbys or any("standby" in f for f in random_scenario(seed).config["fragments"].values()):
            yield seed


def regression(number: int) -> Scenario:
    return read_case(sorted(REGRESSIONS.glob("*.json"))[number])


def living_mutants() -> list[str]:
    """Mutants that the scenario kept for them does not kill."""
    by_hand = scripted()
    return [
        name
        for name, mutant in MUTANTS.items()
        if not complaints(mutant, by_hand[KILLS[name]] if name in KILLS else read_case(case_of(mutant)))
    ]


def soak(hours: float, first: int, folder: Path, processes: int, *, standbys: bool = False) -> Sums:
    """Plays, and writes the report again every few minutes, so that a soak that is stopped has told what it found."""
    folder.mkdir(parents=True)
    deadline = time.monotonic() + hours * 3600
    sums, progress, written = Sums(), Progress(None), time.monotonic()
    for result in play_all(random_scenario, seeds_until(deadline, first, standbys=standbys), processes=processes):
        sums.add(result)
        progress.show(sums)
        if not result.holds:
            progress.clear()
            print(failure_text(result), flush=True)
            if len(sums.failed) <= MOST_SHRUNK:
                print(
                    write_failure(
                        random_scenario(result.seed), result.findings, shrink=True, faults_only=False, folder=folder
                    )
                )
        if time.monotonic() - written > 300:
            report(folder, sums, [], [])
            written = time.monotonic()
    progress.clear()
    return sums


def report(folder: Path, sums: Sums, alive: list[str], broken: list[Result]) -> None:
    """Markdown for people, JSON for machines."""
    failures = [failure_text(r) for r in [*sums.failed, *broken]]
    lines = ["# Soak in virtual time", "", "```", sums_text(sums), "", empty_text(sums), "```"]
    lines += ["", "## Failures", "", *(f"* {text}" for text in failures)] if failures else ["", "No failure."]
    lines += ["", f"Mutants that live: {', '.join(alive)}"] if alive else []
    (folder / "report.md").write_text("\n".join(lines) + "\n")
    data = sums_data(sums) | {"living_mutants": alive, "regressions_failed": [r.seed for r in broken]}
    (folder / "report.json").write_text(json.dumps(data, indent=1) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(description="Fresh seeds in virtual time until the time is up.")
    parser.add_argument("--hours", type=float, default=1.0)
    parser.add_argument("--first", type=int, default=int(time.time()), help="first seed; the time of day if not given")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--standbys", action="store_true", help="only clusters with standbys")
    parser.add_argument("--folder", type=Path)
    given = parser.parse_args()
    folder = given.folder or Path("runs") / f"soak-{datetime.now(UTC):%Y%m%d-%H%M%S}"
    print(f"seeds from {given.first} on with {made_by()}; {given.hours:g} hours, {given.processes} processes")
    print(f"report in {folder}", flush=True)
    sums = soak(given.hours, given.first, folder, given.processes, standbys=given.standbys)
    alive = living_mutants()
    broken = [r for n in range(len(list(REGRESSIONS.glob("*.json")))) if not (r := play(regression, n)).holds]
    report(folder, sums, alive, broken)
    print((folder / "report.md").read_text())
    return 1 if sums.failed or alive or broken else 0


if __name__ == "__main__":
    sys.exit(main())
