"""Age of tuples at the client, through one node that merges three live streams."""

from __future__ import annotations

import argparse
from itertools import product

import numpy as np
import trio

from benchmarks.cluster import Process, free_address, live_main, node_main, reading, running
from benchmarks.cpu import cpu_of
from benchmarks.tables import CHECKED, demand, show, verdict
from spe.api import Environment, stdin
from spe.plan.deploy import Deployed
from spe.stream.batch import AnyArray, Batch
from spe.stream.change import Change

#: Tuples per second, and the share of a core that the node may use.
RATES = ((50_000, None), (500_000, 0.15))
EVERY_US = 10_000
STREAMS = ("a", "b", "c")
#: Connections and caches settle meanwhile; what comes in it is checked, but not in the figures.
WARM_UP_S = 2.0


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seconds", type=float, default=10.0, help="length of a measurement (delay, idle)")


def make_plan() -> Deployed:
    env = Environment("bench", bucket="10ms", x="5s")
    schema = {"n": "int64!", "value": "float64!"}
    sources = [env.source(s, stdin(format="jsonl"), schema, boundary="10ms", address=free_address()) for s in STREAMS]
    merged = sources[0].union(*sources[1:], name="merged")
    env.outputs(merged).node("n", free_address()).fragment("f", [merged], replicas=1).client("bench", [merged])
    return env.deployed()


def ages_of(changes: list[Change], tuples: int) -> AnyArray:
    """Microseconds per tuple.  Raises WrongResult unless each stream's tuples are there, once and in order."""
    batches = [(c.element, c.arrived_us) for c in changes if isinstance(c.element, Batch)]
    time = np.concatenate([b.rows.time for b, _ in batches])
    n = np.concatenate([b.rows.columns[0].values for b, _ in batches])
    arrived = np.repeat([at for _, at in batches], [len(b) for b, _ in batches])
    demand(bool((np.diff(time) >= 0).all()), "the merged stream is not sorted by time")
    counts = np.bincount(n)
    whole = counts[: len(counts) - 2 * tuples]  # the last batches of some streams may still have been on their way
    demand(bool((whole == len(STREAMS)).all()), "a tuple is missing, or came twice")
    demand(len(time) > 0, "nothing arrived")
    ages: AnyArray = (arrived - time)[time >= time[0] + int(1e6 * WARM_UP_S)]
    return ages


async def measure(rate: int, seconds: float, staggered: bool) -> tuple[AnyArray, float]:
    plan, directory = make_plan()
    tuples = round(rate * EVERY_US / 1e6 / len(STREAMS))
    feeder = Process(live_main, plan, directory, tuples, EVERY_US, staggered)
    node = Process(node_main, plan, directory, "n")
    changes: list[Change] = []
    with running(node, feeder):
        async with reading(plan, directory, "bench", changes.append):
            await trio.sleep(1.0)
            await feeder.do("go")
            await trio.sleep(WARM_UP_S)
            begin = cpu_of(node.pid)
            await trio.sleep(seconds)
            share = (cpu_of(node.pid) - begin) / seconds
    return ages_of(changes, tuples), share


def run(arguments: argparse.Namespace) -> None:
    rows = []
    for (rate, most), staggered in product(RATES, (False, True)):
        ages, share = trio.run(measure, rate, arguments.seconds, staggered)
        p50, p99 = (float(np.percentile(ages, p)) / 1e3 for p in (50, 99))
        rows.append(
            [
                f"{rate:,}",
                "one after the other" if staggered else "all at a bucket's end",
                f"{len(ages):,}",
                f"{p50:.2f}",
                verdict(p50, 12.0),
                f"{p99:.2f}",
                verdict(p99, 40.0),
                f"{ages.max() / 1e3:.1f}",
                f"{100 * share:.1f} %",
                verdict(100 * share, None if most is None else 100 * most),
                CHECKED,
            ]
        )
    show(
        "Delay through one node",
        [
            "tuples/s",
            "streams send",
            "tuples",
            "p50 ms",
            "target",
            "p99 ms",
            "target",
            "max ms",
            "node CPU",
            "target",
            "check",
        ],
        rows,
        [
            "Three streams, a batch each every 10 ms, buckets of 10 ms;",
            "feeder, node and client are three",
            "processes on loopback.  Age: arrival at the client minus the tuple's time,",
            "which lies in the 10 ms before its",
            "batch was sent; so half a batch (5 ms) of it is waiting for the batch.  Sent",
            "one after the other, a bucket is",
            "complete up to 6.7 ms after its end.",
        ],
    )
