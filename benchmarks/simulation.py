"""Seeds that the simulator plays in a minute of CPU; with another checkout beside it, the two in turn.

Both play the same seeds, one after the other, each in a process of its own, so that what else runs on the machine meets
both.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import trio

from benchmarks.tables import CHECKED, demand, show, spread
from replicas.simulation.pipe import Pipe
from replicas.simulation.simulate import simulate
from replicas.simulation.swarm import random_scenario

#: The canaries of tests/simulation/test_swarm.py, and a range of the same length thrice.
SEEDS = [*range(8), *range(2_000, 2_024)]
#: Of so many seeds one is played again, to count; counting takes time.
COUNTED = 4


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--against", type=Path, help="simulation: another checkout, played in turn with this one")
    parser.add_argument("--seeds", type=int, default=len(SEEDS), help="simulation: how many of the seeds")


class _Steps(trio.abc.Instrument):
    def __init__(self) -> None:
        self.count = 0

    def before_task_step(self, task: object) -> None:
        self.count += 1


@contextmanager
def _counted() -> Iterator[dict[str, Callable[[], int]]]:
    """Counts what is sent, and the steps of trio's tasks."""
    steps, sent, run, send = _Steps(), [0], trio.run, Pipe.send

    def send_counted(self: Pipe, *arguments: Any) -> None:
        sent[0] += 1
        send(self, *arguments)

    def run_counted(*arguments: Any, **options: Any) -> Any:
        return run(*arguments, instruments=[steps], **options)

    trio.run, Pipe.send = run_counted, send_counted  # type: ignore[method-assign]
    try:
        yield {"messages": lambda: sent[0], "steps": lambda: steps.count}
    finally:
        trio.run, Pipe.send = run, send  # type: ignore[method-assign]


def play(seed: int, count: bool) -> dict[str, float]:
    """CPU seconds of one seed, drawn, played and judged; then, with ``count``, what there was of what."""
    begin = time.process_time()
    scenario = random_scenario(seed)
    outcome = simulate(scenario)
    found = {"cpu_s": time.process_time() - begin, "virtual_s": outcome.history.end_us / 1e6}
    demand(outcome.holds, f"seed {seed}: {outcome.findings}")
    if count:
        with _counted() as counters:
            simulate(scenario)
        found |= {name: value() for name, value in counters.items()}
    return found


def serve() -> None:
    """Plays the seeds that are asked for, one per line."""
    for line in sys.stdin:
        seed, count = json.loads(line)
        print(json.dumps(play(seed, count)), flush=True)


class _Tree:
    """A checkout, with a process that plays its seeds; the benchmark itself is always this one."""

    def __init__(self, root: Path) -> None:
        ours = Path(__file__).resolve().parent.parent
        code = (
            "import importlib.util, sys; sys.path.insert(0, sys.argv[1])\n"
            "import benchmarks\n"
            "spec = importlib.util.spec_from_file_location('benchmarks.simulation', sys.argv[2])\n"
            "module = importlib.util.module_from_spec(spec); spec.loader.exec_module(module); module.serve()"
        )
        self._process = subprocess.Popen(
            [sys.executable, "-c", code, str(root.resolve()), str(ours / "benchmarks/simulation.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(root.resolve())},
        )
        self.played: list[dict[str, float]] = []

    def play(self, seed: int, count: bool) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([seed, count]) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        demand(bool(answer), f"seed {seed} was not played")
        self.played.append(json.loads(answer))

    def close(self) -> None:
        with self._process:
            assert self._process.stdin is not None
            self._process.stdin.close()

    def row(self, name: str, seeds: Sequence[int]) -> list[str]:
        cpu_s, virtual_s = (sum(p[key] for p in self.played) for key in ("cpu_s", "virtual_s"))
        counted = [p for p in self.played if "steps" in p]
        messages, steps = (
            sum(p[key] for p in counted) / sum(p["virtual_s"] for p in counted) for key in ("messages", "steps")
        )
        return [
            name,
            f"{cpu_s:.1f}",
            f"{60 * len(seeds) / cpu_s:.1f}",
            f"{virtual_s / cpu_s:.1f}",
            f"{messages:.0f}",
            f"{steps:.0f}",
            CHECKED,
        ]


def run(arguments: argparse.Namespace) -> None:
    seeds = SEEDS[: arguments.seeds]
    trees = {"this": _Tree(Path(__file__).parent.parent)}
    if arguments.against is not None:
        trees["other"] = _Tree(arguments.against)
    try:
        for at, seed in enumerate(seeds):
            turn = list(trees.values())
            for tree in turn if at % 2 else reversed(turn):
                tree.play(seed, at % COUNTED == 0)
    finally:
        for tree in trees.values():
            tree.close()
    notes = [f"{len(seeds)} seeds, drawn, played and judged in one process; every finding would be an error."]
    if len(trees) > 1:
        ratios = [
            other["cpu_s"] / this["cpu_s"]
            for this, other in zip(trees["this"].played, trees["other"].played, strict=True)
        ]
        whole = sum(p["cpu_s"] for p in trees["other"].played) / sum(p["cpu_s"] for p in trees["this"].played)
        notes.append(f"Seeds per minute, this / other: {whole:.2f}; seed by seed {spread(ratios)}.")
    show(
        "Simulation",
        ["tree", "CPU s", "seeds/min", "virtual s/CPU s", "messages/virtual s", "task steps/virtual s", "check"],
        [tree.row(name, seeds) for name, tree in trees.items()],
        notes,
    )
