"""Seeds that the simulator plays in a minute of CPU."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import trio

from benchmarks.tables import CHECKED, demand, show
from replicas.simulation.pipe import Pipe
from replicas.simulation.simulate import simulate
from replicas.simulation.swarm import random_scenario

#: The canaries of tests/simulation/test_swarm.py, and a range of the same length thrice.
SEEDS = [*range(8), *range(2_000, 2_024)]
#: Of so many seeds one is played again, to count; counting takes time.
COUNTED = 4


def options(parser: argparse.ArgumentParser) -> None:
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


def run(arguments: argparse.Namespace) -> None:
    seeds = SEEDS[: arguments.seeds]
    played = [play(seed, at % COUNTED == 0) for at, seed in enumerate(seeds)]
    cpu_s, virtual_s = (sum(p[name] for p in played) for name in ("cpu_s", "virtual_s"))
    counted = [p for p in played if "steps" in p]
    messages, steps = (
        sum(p[name] for p in counted) / sum(p["virtual_s"] for p in counted) for name in ("messages", "steps")
    )
    row = [cpu_s, 60 * len(seeds) / cpu_s, virtual_s / cpu_s, messages, steps]
    show(
        "Simulation",
        ["CPU s", "seeds/min", "virtual s/CPU s", "messages/virtual s", "task steps/virtual s", "check"],
        [[*(f"{value:.1f}" for value in row), CHECKED]],
        [f"{len(seeds)} seeds, drawn, played and judged in one process; every finding would be an error."],
    )
