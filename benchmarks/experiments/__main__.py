"""``python -m benchmarks.experiments NAME [--quick] --out FOLDER``; results: docs/explanation/results.md."""

from __future__ import annotations

import argparse
import shlex
import sys
from importlib import import_module
from pathlib import Path

from benchmarks.experiments.record import EXPERIMENTS, print_table, write

for _module in (
    "failures", "reconciling", "healing", "fidelity", "recovery", "checkpointing", "topologies", "elasticity",
    "scheduling", "migration", "whole_runs", "incremental", "partitions", "predicting", "log_figures",
):  # fmt: skip
    import_module(f"benchmarks.experiments.{_module}")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.experiments", description=__doc__)
    parser.add_argument("name", metavar="NAME", choices=EXPERIMENTS, help=f"one of {', '.join(EXPERIMENTS)}")
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="where results are written")
    parser.add_argument("--quick", action="store_true", help="a few small runs, to see that it works")
    parser.add_argument("--runs", type=int, metavar="N", help="how often a point is measured; of real processes")
    chosen = parser.parse_args(arguments)
    experiment = EXPERIMENTS[chosen.name]
    if chosen.runs is not None and experiment.runs is None:
        parser.error(f"{chosen.name} measures each point once")
    rows = []
    for row in experiment.rows(chosen.quick, chosen.runs):
        rows.append(row)
        print(", ".join(f"{name} {value}" for name, value in row.items() if value not in (None, "")), flush=True)
    print(f"\n$ python -m benchmarks.experiments {shlex.join(arguments if arguments is not None else sys.argv[1:])}")
    print_table(experiment.title, rows)
    for path in write(chosen.name, rows, experiment.panels(rows), chosen.out):
        print(path)
    return 1 if any(row["findings"] for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
