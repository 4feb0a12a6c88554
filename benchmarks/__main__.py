"""``python -m benchmarks [NAME ...] [options]``; without a name, all of them."""

from __future__ import annotations

import argparse
import os
import platform
import shlex
import sys
from importlib import import_module

import numpy as np

from benchmarks.tables import BENCHMARKS, WrongResult
from spe.runtime.production import tune_gc, tune_malloc

for _module in (
    "node_cpu", "operators", "codec", "checkpoint", "live_node", "sinks", "sources", "throughput", "steps", "verdict",
    "proof", "dashboard",
):  # fmt: skip
    import_module(f"benchmarks.{_module}")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(BENCHMARKS)}")
    parser.add_argument("--rounds", type=int, default=5, help="paired rounds (node-cpu, passing, kafka, monitoring)")
    parser.add_argument("--sizes", type=int, nargs="*", help="tuples per batch, or rows, of the measured shapes")
    for benchmark in BENCHMARKS.values():
        benchmark.options(parser)
    arguments = parser.parse_args()
    unknown = [n for n in arguments.names if n not in BENCHMARKS]
    if unknown:
        parser.error(f"there is no benchmark {unknown[0]!r}; there are: {', '.join(BENCHMARKS)}")
    print(f"$ python -m benchmarks {shlex.join(sys.argv[1:])}".rstrip())
    load = ", ".join(f"{x:.1f}" for x in os.getloadavg())
    versions = f"Python {platform.python_version()}, NumPy {np.__version__}, {os.cpu_count()} CPUs"
    print(f"{versions}, load before: {load}", flush=True)
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
