"""Plays every known mutant with the tests or the scenario of its rule, and prints the share killed, by folder.

    make mutants
    python -m tests.mutants.play [NAME …] [--processes 2] [--again]

It takes long, and may be stopped: results are kept in ``build/mutants.jsonl``, and what was played with the sources and
tests of now is not played again.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import multiprocessing
import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from replicas.cli.campaigns.cases import read_case
from replicas.simulation.scenarios.scenario import Scenario
from tests.mutants.catalogue import MUTANTS
from tests.mutants.find import is_killed
from tests.mutants.kept import kept, killer
from tests.mutants.mended import PAIRS
from tests.mutants.patching import Unfit
from tests.mutants.test_units import play as play_unit
from tests.mutants.texts import ROOT, TEXTS
from tests.mutants.units import UNITS
from tests.support.regressions import FOLDER

RESULTS: Final = ROOT / "build" / "mutants.jsonl"
KILLED: Final = "killed"
EQUIVALENT: Final = "equivalent"
SURVIVES: Final = "survives"
#: Longest time for the tests of a change of text, seconds; a busy machine must not count as a test that fails.
_LONGEST_S: Final = 300
_FOLDERS: Final = ("spe", "operators", "consistency", "replicas", "tests")


class Result(NamedTuple):
    """What became of a mutant.

    Attributes:
      folder: of the module that it changes.
      outcome: KILLED, EQUIVALENT, SURVIVES, or why it could not be played.
    """

    name: str
    folder: str
    outcome: str

    @property
    def survives(self) -> bool:
        return self.outcome not in (KILLED, EQUIVALENT)


def judge(name: str) -> Result:
    """Plays one mutant."""
    if name in TEXTS:
        return Result(name, str(Path(TEXTS[name].path).parent), _judge_text(name))
    try:
        outcome = KILLED if _is_found(name) else SURVIVES
    except Unfit as error:
        outcome = f"does not fit: {error}"
    return Result(name, MUTANTS[name].folder, outcome)


def _judge_text(name: str) -> str:
    mutant = TEXTS[name]
    if mutant.equivalent:
        return EQUIVALENT
    command = [sys.executable, "-m", "pytest", "-p", "tests.mutants.changed", "-p", "no:cacheprovider", "-x"]
    environment = {**os.environ, "MUTANT": name, "CI": "true"}
    try:
        done = subprocess.run(
            [*command, *mutant.tests], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=_LONGEST_S
        )
    except subprocess.TimeoutExpired:
        return f"not played: its tests took over {_LONGEST_S} s"
    if done.returncode == pytest.ExitCode.OK and "SKIPPED" in done.stdout:
        return f"not played: {done.stdout}"
    if done.returncode not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        return f"not played: {done.stdout}{done.stderr}"
    return KILLED if done.returncode else SURVIVES


def _is_found(name: str) -> bool:
    mutant = MUTANTS[name]
    if name not in UNITS:
        return is_killed(mutant, _scenario(name))
    with mutant.on():
        try:
            play_unit(UNITS[name])
        except (Exception, pytest.fail.Exception):
            return True
    return False


def _scenario(name: str) -> Scenario:
    schedule = next((schedule for schedule, mutant in PAIRS.items() if mutant == name), None)
    return kept()[killer(name)] if schedule is None else read_case(FOLDER / f"{schedule}.json")


def play(names: Sequence[str], processes: int) -> Iterator[Result]:
    """Results as they come."""
    with ProcessPoolExecutor(processes, multiprocessing.get_context("spawn")) as pool:
        for future in as_completed([pool.submit(judge, name) for name in names]):
            yield future.result()


@cache
def sources() -> str:
    """A digest of all that a result depends on."""
    digest = hashlib.sha256()
    for path in sorted(p for folder in _FOLDERS for p in (ROOT / folder).rglob("*") if p.suffix in (".py", ".json")):
        digest.update(f"{path.relative_to(ROOT)}\0".encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def known() -> dict[str, Result]:
    """Results with the sources of now."""
    lines = map(json.loads, RESULTS.read_text().splitlines()) if RESULTS.exists() else ()
    return {line["result"][0]: Result(*line["result"]) for line in lines if line["sources"] == sources()}


def keep(result: Result) -> None:
    RESULTS.parent.mkdir(exist_ok=True)
    with RESULTS.open("a") as file:
        file.write(json.dumps({"sources": sources(), "result": result}) + "\n")


def table(results: Iterable[Result]) -> str:
    """Mutants and the share killed of each folder, then those that survive."""
    results = list(results)
    folders = defaultdict[str, list[Result]](list)
    for result in sorted(results, key=lambda result: result.folder):
        if result.outcome != EQUIVALENT:
            folders[result.folder].append(result)
            folders["all folders"].append(result)
    if "all folders" in folders:
        folders["all folders"] = folders.pop("all folders")  # at the end
    width = max(map(len, folders), default=0)
    lines = [f"{'folder':{width}}  mutants  killed"]
    for folder, own in folders.items():
        killed = sum(not result.survives for result in own)
        lines.append(f"{folder:{width}}  {len(own):7}  {100 * killed / len(own):5.0f} %")
    if equivalent := sum(result.outcome == EQUIVALENT for result in results):
        lines.append(f"{equivalent} more cannot be killed: they change nothing (tests/mutants/texts.py says why)")
    return "\n".join([*lines, *(f"{r.name} ({r.folder}) {r.outcome}" for r in results if r.survives)])


def main() -> int:
    parser = argparse.ArgumentParser(description="Plays mutants, and prints the share killed, by folder.")
    parser.add_argument("names", nargs="*", help="all of them where none is given")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--again", action="store_true", help="also those that were played with these sources")
    given = parser.parse_args()
    if unknown := set(given.names) - MUTANTS.keys() - TEXTS.keys():
        parser.error(f"no mutant {', '.join(sorted(unknown))}; there are {', '.join([*MUTANTS, *TEXTS])}")
    names = given.names or [*TEXTS, *MUTANTS]
    results = {} if given.again else {n: result for n, result in known().items() if n in names}
    left = [name for name in names if name not in results]
    print(f"{len(left)} mutants to play, {len(results)} were played before", flush=True)
    for number, result in enumerate(play(left, given.processes), 1):
        results[result.name] = result
        if result.outcome in (KILLED, EQUIVALENT, SURVIVES):
            keep(result)
        print(f"{number}/{len(left)} {result.name}: {result.outcome}", flush=True)
    print(table(results[name] for name in names))
    return 1 if any(result.survives for result in results.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
