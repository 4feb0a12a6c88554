"""CPU that checkpoints for a standby take, against their interval (PPA section VI-A): real processes.

A task of the first level of the paper's topology: two inputs, joined on a key that each tuple has of its own, so that
the state is the input of the window.  Its node sends a checkpoint to a standby on another node, every interval; beside
it, in the same seconds, the same node without a standby.  The window is full when measuring begins.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from statistics import median
from typing import Any, Final

import yaml

from benchmarks.experiments.played_run import played, sleep_until
from benchmarks.experiments.record import Plot, Row, experiment, once

#: Tuples per second and source.
RATE: Final = 1000


@experiment("checkpointing", "PPA, section VI-A", once, Plot("interval_s", "", "more_percent"))
def checkpointing(quick: bool) -> Iterator[Row]:
    """CPU share of checkpoints.

    A row for each interval of checkpoints; 0: no standby.  All are measured at the same time.
    """
    window, seconds, rounds, intervals = (4, 3, 1, (0, 1)) if quick else (30, 30, 3, (0, 1, 5, 15, 30))
    shares = [_round(window, seconds, intervals) for _ in range(rounds)]
    for at, every in enumerate(intervals):
        ratios = [each[at]["n"] / each[0]["n"] for each in shares]
        yield {
            "rate": RATE,
            "window_s": window,
            "interval_s": every,
            "node_cpu": median(each[at]["n"] for each in shares),
            "standby_cpu": median(each[at]["b"] for each in shares) if every else None,
            "against_none": median(ratios),
            "more_percent": 100 * (median(ratios) - 1),
        }


def _round(window: int, seconds: int, intervals: Sequence[int]) -> list[dict[str, float]]:
    """CPU of the nodes for each interval, at the same time, shares of a core."""
    with ExitStack() as stack:
        runs = [stack.enter_context(played(_configuration(window, every, seconds))) for every in intervals]
        for run in runs:
            stack.enter_context(run.started())
        sleep_until(max(run.begun_us() for run in runs), window + 2)
        began, before = time.monotonic(), [run.cpu() for run in runs]
        time.sleep(seconds)
        took = time.monotonic() - began
        return [
            {name: (cpu_s - earlier[name]) / took for name, cpu_s in run.cpu().items()}
            for run, earlier in zip(runs, before, strict=True)
        ]


def _configuration(window: int, every: int, seconds: int) -> dict[str, Any]:
    generator = f"{{name: sequence, rate: {RATE}, duration: {2 * window + seconds + 60}s}}"
    config: dict[str, Any] = yaml.safe_load(f"""
cluster: checkpointing
bucket: 100ms
defaults: {{x: 5s, alpha: 0.9, policy: process}}
sources:
  a: {{from: {{generator: {generator}}}, boundary: 100ms}}
  b: {{from: {{generator: {generator}}}, boundary: 100ms}}
query:
  of_a: {{map: {{from: a, compute: {{n: n, key: n * 2}}}}}}
  of_b: {{map: {{from: b, compute: {{n: n, key: n * 2 + 1}}}}}}
  merged: {{union: [of_a, of_b]}}
  joined: {{join: {{left: merged, right: merged, "on": key, within: [-{window}s, 0s]}}}}
outputs: [joined]
fragments: {{task: {{operators: [of_a, of_b, merged, joined], replicas: ["n"]}}}}
nodes: ["n"]
clients: {{client: {{reads: [joined]}}}}
""")
    if every:
        config["nodes"].append("b")
        config["fragments"]["task"] |= {"standby": ["b"], "checkpoint": f"{every}s"}
    return config
