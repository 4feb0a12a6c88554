"""The comparison at the end of a run: the recording beside the reference run, and what the checkers find in it."""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from statistics import median

from benchmarks.proof_run import LARGE, SUMS, make_run
from benchmarks.tables import CHECKED, chosen, demand, show, spread, verdict
from spe.cli.verdict import judge
from spe.config import load

#: Source tuples, and what of the query is recorded.
SHAPES = [(1_000_000, LARGE), (1_000_000, SUMS)]
ROUNDS = 5
LIMIT_US = 1.0


def run(arguments: argparse.Namespace) -> None:
    table = []
    for tuples, output in chosen(SHAPES, arguments):
        with tempfile.TemporaryDirectory(prefix="spe-verdict-") as folder:
            path = Path(folder) / "run"
            made = make_run(path, tuples, output)
            deployed = load(path / "config.yaml", path)
            took = []
            for _ in range(ROUNDS):
                began = time.process_time()
                found = judge(*deployed, path, complete=True, reason="")
                took.append(time.process_time() - began)
                demand(found["equal"] is True and found["rows"] == made.stable, f"the verdict is {found}")
        by_tuple, by_result = ([1e6 * t / count for t in took] for count in (tuples, made.stable + made.tentative))
        target = verdict(median(by_result), LIMIT_US) if output == LARGE else ""
        table.append(
            [f"{tuples:,}", str(output), f"{made.stable:,}", spread(by_tuple), spread(by_result), target, CHECKED]
        )
    show(
        "the comparison at the end of a run",
        ["source tuples", "output", "results", "µs/source tuple", "µs/result", "target", "check"],
        table,
        [f"CPU, the reference run included. {ROUNDS} rounds: median (min-max). Tentative results count as well."],
    )
