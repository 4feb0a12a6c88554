"""A process for tests of the supervisor: ``python -m tests.support.supervised_child MODE --supervisor-fd N``.

Modes: ``good`` says that it is ready and waits; ``stubborn`` also ignores SIGTERM; ``broken`` says why it cannot
start, and ends; ``begins`` prints the beginning that it is told; ``supervises`` starts two good ones, freezes one,
prints their process ids and waits.
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import trio

from replicas.local.cluster import open_cluster
from replicas.local.process import ProcessSpec
from replicas.local.supervised_process import Supervision, die_with_parent


async def good(descriptor: int, mode: str) -> None:
    async with trio.open_nursery() as nursery:
        supervision = Supervision.adopt(descriptor)
        nursery.start_soon(supervision.run, nursery.cancel_scope)
        await supervision.ready()
        if mode == "begins":
            print(await supervision.wait_begin(), flush=True)
        await trio.sleep_forever()


async def supervises(logs: Path) -> None:
    async with open_cluster([child("a", logs), child("b", logs)]) as cluster:
        await cluster.start_all()
        cluster.freeze("b")
        print(*(p.pid for p in cluster.processes.values()), flush=True)
        await trio.sleep_forever()


def child(name: str, logs: Path, mode: str = "good") -> ProcessSpec:
    command = [sys.executable, "-m", "tests.support.supervised_child", mode]
    return ProcessSpec(name, command, logs / f"{name}.log")


def main() -> None:
    mode = sys.argv[1]
    if mode == "supervises":
        trio.run(supervises, Path(sys.argv[2]))
        return
    if mode == "broken":
        sys.exit("no such file: orders.csv")
    die_with_parent()
    if mode == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    trio.run(good, int(sys.argv[sys.argv.index("--supervisor-fd") + 1]), mode)


if __name__ == "__main__":
    main()
