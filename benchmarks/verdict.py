"""The comparison at the end of a run: the recording beside the reference run, and what the checkers find in it; and
``spe reference`` of the same logs, with its results as lines of JSON."""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from statistics import median

from benchmarks.proof_run import LARGE, SUMS, Made, make_run
from benchmarks.tables import CHECKED, chosen, demand, show, spread, verdict
from replicas.cli.reference import logged_inputs, write_lines
from replicas.cli.run.verdict import judge
from replicas.reference import run_reference
from spe.config import load
from spe.plan.deploy import Deployed

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
            judged = [_judge(path, deployed, made) for _ in range(ROUNDS)]
            written = [_write(path, deployed, made) for _ in range(ROUNDS)]
        cells = []
        for took in (judged, written):
            cells += [spread(took), verdict(median(took), LIMIT_US) if output == LARGE else ""]
        table.append([f"{tuples:,}", str(output), f"{made.stable:,}", *cells, CHECKED])
    show(
        "the comparison at the end of a run, and the reference as JSON",
        ["source tuples", "output", "results", "compared, µs/result", "target", "JSON, µs/result", "target", "check"],
        table,
        [f"CPU, the reference run included. {ROUNDS} rounds: median (min-max). Tentative results count as compared."],
    )


def _judge(path: Path, deployed: Deployed, made: Made) -> float:
    began = time.process_time()
    found = judge(*deployed, path, complete=True, reason="")
    took = time.process_time() - began
    demand(found["equal"] is True and found["rows"] == made.stable, f"the verdict is {found}")
    return 1e6 * took / (made.stable + made.tentative)


def _write(path: Path, deployed: Deployed, made: Made) -> float:
    plan, lines = deployed.plan, path / "reference.jsonl"
    began = time.process_time()
    write_lines(plan, run_reference(plan, logged_inputs(plan, path)), lines)
    took = time.process_time() - began
    demand(lines.read_bytes().count(b"\n") == made.stable, "lines are missing")
    return 1e6 * took / made.stable
