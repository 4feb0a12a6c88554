"""``python -m benchmarks [NAME ...] [options]``; without a name, all of them."""

from __future__ import annotations

import argparse
import os
import platform
import shlex
import sys

import numpy as np

from benchmarks import (
    checkpoint,
    checkpoint_log,
    codec,
    delay,
    delta,
    files,
    follow,
    idle,
    json_text,
    kafka,
    memory,
    monitoring,
    node_cpu,
    operators,
    passing,
    planning,
    postgres,
    proof,
    simulation,
    source_path,
    steps,
    sunion,
    throughput,
    verdict,
)
from benchmarks.tables import WrongResult
from spe.runtime.production import tune_gc, tune_malloc

BENCHMARKS = {
    "node-cpu": node_cpu,
    "passing": passing,
    "sunion": sunion,
    "operators": operators,
    "codec": codec,
    "checkpoint": checkpoint,
    "checkpoint-log": checkpoint_log,
    "delay": delay,
    "delta": delta,
    "files": files,
    "follow": follow,
    "throughput": throughput,
    "verdict": verdict,
    "idle": idle,
    "json-text": json_text,
    "kafka": kafka,
    "monitoring": monitoring,
    "steps": steps,
    "memory": memory,
    "proof": proof,
    "planning": planning,
    "postgres": postgres,
    "simulation": simulation,
    "source-path": source_path,
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(BENCHMARKS)}")
    for module in BENCHMARKS.values():
        if hasattr(module, "options"):
            module.options(parser)
    arguments = parser.parse_args()
    unknown = [n for n in arguments.names if n not in BENCHMARKS]
    if unknown:
        parser.error(f"there is no benchmark {unknown[0]!r}; there are: {', '.join(BENCHMARKS)}")
    print(f"$ python -m benchmarks {shlex.join(sys.argv[1:])}".rstrip())
    load = ", ".join(f"{x:.1f}" for x in os.getloadavg())
    print(
        f"Python {platform.python_version()}, NumPy {np.__version__}, {os.cpu_count()} CPUs, load before: {load}",
        flush=True,
    )
    tune_malloc()
    tune_gc()
    try:
        for name in arguments.names or BENCHMARKS:
            BENCHMARKS[name].run(arguments)
    except WrongResult as error:
        print(f"WRONG RESULT: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
