"""The comparison at the end of a run, with the checkers; and ``spe reference`` of the same logs, as lines of JSON."""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from benchmarks.proof_run import LARGE, SUMS, Made, make_run
from benchmarks.tables import benchmark, chosen, demand, spread, verdict
from replicas.cli.reference import logged_inputs, write_lines
from replicas.cli.run.verdict import judge
from replicas.reference import run_reference
from spe.config import load
from spe.plan.deploy import Deployed

#: Source tuples, and the recorded output.
SHAPES = [(1_000_000, LARGE), (1_000_000, SUMS)]
ROUNDS = 5
LIMIT_US = 1.0


@benchmark("verdict", "source tuples | output | results | compared, µs/result | target | JSON, µs/result | target")
def _rows(arguments: argparse.Namespace) -> Iterator[list[str]]:
    """The comparison at the end of a run, and the reference as JSON.

    CPU, the reference run included.  Rounds: median (min-max).  Tentative results count as compared.
    """
    for tuples, output in chosen(SHAPES, arguments):
        with tempfile.TemporaryDirectory(prefix="spe-verdict-") as folder:
            path = Path(folder) / "run"
            made = make_run(path, tuples, output)
            deployed = load(path / "config.yaml", path)
            judged = [_judge(path, deployed, made) for _ in range(ROUNDS)]
            written = [_write(path, deployed, made) for _ in range(ROUNDS)]
        cells = []
        for took in (judged, written):
            cells += [spread(took), verdict(median(took), LIMIT_US if output == LARGE else None)]
        yield [f"{tuples:,}", str(output), f"{made.stable:,}", *cells]


def _judge(path: Path, deployed: Deployed, made: Made) -> float:
    began = time.process_time()
    judged = judge(*deployed, path, complete=True, reason="")
    took = time.process_time() - began
    demand(judged["equal"] is True and judged["rows"] == made.stable, f"the verdict is {judged}")
    return 1e6 * took / (made.stable + made.tentative)


def _write(path: Path, deployed: Deployed, made: Made) -> float:
    plan, lines = deployed.plan, path / "reference.jsonl"
    began = time.process_time()
    write_lines(plan, run_reference(plan, logged_inputs(plan, path)), lines)
    took = time.process_time() - began
    demand(lines.read_bytes().count(b"\n") == made.stable, "lines are missing")
    return 1e6 * took / made.stable
