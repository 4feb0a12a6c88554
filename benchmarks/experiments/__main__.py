"""``python -m benchmarks.experiments NAME [--quick] --out FOLDER``; results: docs/explanation/results.md."""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path
from typing import Any

from benchmarks.experiments import (
    arrivals,
    bound,
    chains,
    checkpoint_log,
    checkpointing,
    delaying,
    elasticity,
    fast,
    fidelity,
    healing,
    incremental,
    lifecycle,
    locations,
    log_costs,
    migration,
    million,
    partitions,
    policies,
    predicting,
    reconciling,
    recovery,
    scheduling,
    serialisation,
    switching,
    takeover,
    topologies,
    usable,
)
from benchmarks.experiments.results import print_table, write

EXPERIMENTS: dict[str, Any] = {
    "delaying": delaying,
    "policies": policies,
    "chains": chains,
    "serialisation": serialisation,
    "switching": switching,
    "reconciling": reconciling,
    "bound": bound,
    "fast": fast,
    "healing": healing,
    "fidelity": fidelity,
    "recovery": recovery,
    "checkpointing": checkpointing,
    "takeover": takeover,
    "random-topologies": topologies,
    "usable": usable,
    "elasticity": elasticity,
    "scheduling": scheduling,
    "arrivals": arrivals,
    "migration": migration,
    "million": million,
    "incremental": incremental,
    "lifecycle": lifecycle,
    "locations": locations,
    "partitions": partitions,
    "predicting": predicting,
    **checkpoint_log.EXPERIMENTS,
    "log-costs": log_costs.COSTS,
}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.experiments", description=__doc__)
    parser.add_argument("name", metavar="NAME", choices=EXPERIMENTS, help=f"one of {', '.join(EXPERIMENTS)}")
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="where results are written")
    parser.add_argument("--quick", action="store_true", help="a few small runs, to see that it works")
    parser.add_argument("--runs", type=int, metavar="N", help="how often a point is measured; of real processes")
    chosen = parser.parse_args(arguments)
    experiment = EXPERIMENTS[chosen.name]
    if chosen.runs is not None and not hasattr(experiment, "RUNS"):
        parser.error(f"{chosen.name} measures each point once")
    runs = {} if chosen.runs is None else {"runs": chosen.runs}
    rows = []
    for row in experiment.measure(chosen.quick, **runs):
        rows.append(row)
        print(", ".join(f"{name} {value}" for name, value in row.items() if value not in (None, "")), flush=True)
    print(f"\n$ python -m benchmarks.experiments {shlex.join(arguments if arguments is not None else sys.argv[1:])}")
    print_table(experiment.TITLE, rows)
    for path in write(chosen.name, rows, experiment.panels(rows), chosen.out):
        print(path)
    return 1 if any(row["findings"] for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
