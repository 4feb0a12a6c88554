"""Seeds that the simulator plays in a minute of CPU; with another checkout beside it, the two in turn.

Both play the same scenarios, those of the other checkout, each in a process of its own, so that what else runs on the
machine meets both.  Each judges by its own checkers, so this counts what they have learned to look at as well.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

from benchmarks.tables import CHECKED, demand, show, spread

#: The canaries of tests/simulation/test_swarm.py, and a range of twice that length.
SEEDS: Final = (*range(8), *range(2_000, 2_016))
#: What a checkout's process does; of the project it uses only what all versions of the simulator have.
_PLAYER: Final = """
import json, sys, time
from replicas.simulation.scenarios.scenario import Scenario
from replicas.simulation.simulate import simulate
from replicas.simulation.scenarios.random_scenario import random_scenario

def play(scenario):
    begin = time.process_time()
    outcome = simulate(scenario)
    return {"cpu_s": time.process_time() - begin, "virtual_s": outcome.history.end_us / 1e6, "holds": outcome.holds}

def answer(request):
    return random_scenario(request).to_data() if isinstance(request, int) else play(Scenario.from_data(request))

channel, sys.stdout = sys.stdout, sys.stderr
play(random_scenario(7))  # what is made once
for line in sys.stdin:
    print(json.dumps(answer(json.loads(line)), default=str), file=channel, flush=True)
"""


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--against", type=Path, help="simulation: another checkout, played in turn with this one")
    parser.add_argument("--seeds", type=int, default=len(SEEDS), help="simulation: how many of the seeds")


class _Checkout:
    """A process that plays with the code of a checkout."""

    def __init__(self, root: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", _PLAYER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            cwd=root,
            env={**os.environ, "PYTHONPATH": str(root.resolve())},
        )
        self.played: list[dict[str, float]] = []

    def ask(self, what: Any) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(what) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        demand(bool(line), f"not played: {json.dumps(what):.200}")
        return json.loads(line)

    def play(self, scenario: dict[str, Any]) -> None:
        played = self.ask(scenario)
        demand(played["holds"], f"seed {scenario['seed']}: there are findings")
        self.played.append(played)

    def close(self) -> None:
        with self._process:
            assert self._process.stdin is not None
            self._process.stdin.close()

    def total(self, what: str) -> float:
        return sum(played[what] for played in self.played)

    def row(self, name: str) -> list[str]:
        cpu_s, virtual_s = self.total("cpu_s"), self.total("virtual_s")
        return [
            name,
            f"{cpu_s:.1f}",
            f"{60 * len(self.played) / cpu_s:.1f}",
            f"{1e3 * cpu_s / virtual_s:.0f}",
            CHECKED,
        ]


def run(arguments: argparse.Namespace) -> None:
    checkouts = {"this": _Checkout(Path(__file__).resolve().parent.parent)}
    if arguments.against is not None:
        checkouts["other"] = _Checkout(arguments.against)
    both = list(checkouts.values())
    try:
        for at, seed in enumerate(SEEDS[: arguments.seeds]):
            scenario = both[-1].ask(seed)
            for checkout in both if at % 2 else reversed(both):
                checkout.play(scenario)
    finally:
        for checkout in both:
            checkout.close()
    notes = [f"{len(both[0].played)} seeds, played and judged in one process; a finding would be an error."]
    if len(both) > 1:
        ratios = [b["cpu_s"] / a["cpu_s"] for a, b in zip(both[0].played, both[1].played, strict=True)]
        whole = both[1].total("cpu_s") / both[0].total("cpu_s")
        notes.append(f"Seeds per minute, this / other: {whole:.2f}; seed by seed {spread(ratios)}.")
    head = ["checkout", "CPU s", "seeds/min", "ms CPU/virtual s", "check"]
    show("Simulation", head, [checkout.row(name) for name, checkout in checkouts.items()], notes)
