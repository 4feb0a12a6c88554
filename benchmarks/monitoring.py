"""CPU that a busy node spends on being watched: scraped for its metrics, and followed by a live view."""

from __future__ import annotations

import argparse
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from statistics import median

import numpy as np
import trio

from benchmarks.cluster import Process, child, free_address, live_main, reading, running
from benchmarks.cpu import cpu_of
from benchmarks.tables import CHECKED, demand, show, spread, verdict
from replicas.local.polling import PERIOD_S, Poller
from replicas.node.process import NodeProcess
from spe.api import Environment, stdin, tumbling
from spe.metrics.pages import pages
from spe.plan.deploy import Deployed
from spe.plan.directory import Directory
from spe.plan.plan import Plan
from spe.runtime.env import Env
from spe.runtime.http_port import HttpPort
from spe.runtime.network import parse_address
from spe.runtime.process_figures import process_figures
from spe.runtime.production import production_env
from spe.stream.batch import Batch, Rows
from spe.stream.change import Change
from spe.stream.names import NodeId, StreamId
from spe.stream.schema import Schema

RATE = 500_000
STREAMS = ("a", "b", "c")
EVERY_US = 100_000
SCRAPE_S = 1.0
#: Share of a core, metrics and a live view together.
LIMIT = 0.01


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seconds-each", type=float, default=4.0, help="of a round of one kind (monitoring)")


def make_plan() -> Deployed:
    """Three live streams, merged and aggregated over a thousand groups."""
    env = Environment("bench", bucket="100ms", x="5s")
    schema = {"n": "int64!", "value": "float64!"}
    made = [env.source(s, stdin(format="jsonl"), schema, boundary="100ms", address=free_address()) for s in STREAMS]
    merged = made[0].union(*made[1:], name="merged")
    wanted = {"rows": "count(*)", "total": "sum(value)"}
    out = merged.key_by(key="n % 1000").window(tumbling("1s")).aggregate("out", **wanted)
    env.outputs(out).node("n", free_address()).fragment("f", [merged, out], replicas=1).client("bench", [out])
    return env.deployed()


def watched_main(pipe: Pipe, plan: Plan, directory: Directory, address: str) -> None:
    """A node as ``spe node --metrics`` runs it."""

    async def start(env: Env, nursery: trio.Nursery) -> None:
        node = NodeProcess(env, plan, directory, NodeId("n"))
        await nursery.start(node.run)
        assert node.server is not None
        served = pages("n", node.server.status, partial(process_figures, Path(".")))
        await nursery.start(HttpPort(served).serve, address)

    child(pipe, start)


async def scrape(address: str, seen: list[int]) -> None:
    """As Prometheus does, for ever; the sizes of what came."""
    host, port = parse_address(address)
    while True:
        stream = await trio.open_tcp_stream(host, port)
        async with stream:
            await stream.send_all(b"GET /metrics HTTP/1.1\r\nHost: n\r\nConnection: close\r\n\r\n")
            size = 0
            while data := await stream.receive_some(1 << 16):
                size += len(data)
            seen.append(size)
        await trio.sleep(SCRAPE_S)


async def follow(plan: Plan, directory: Directory, seen: list[int]) -> None:
    """As ``spe top`` does, for ever."""
    addresses = {"n": directory.nodes[NodeId("n")].address}
    await Poller(production_env(Path("."), 0), plan, addresses, "", heard=lambda _: seen.append(1)).follow("n")


def check(results: Sequence[Rows], schema: Schema) -> None:
    """Every window but the first and the last has all tuples of its second."""
    start, count = (
        np.concatenate([rows.columns[schema.index(name)].values for rows in results])
        for name in ("window_start", "rows")
    )
    windows, of_window = np.unique(start, return_inverse=True)
    sums = np.bincount(of_window, count)[1:-1]
    each = RATE * EVERY_US // (1_000_000 * len(STREAMS)) * len(STREAMS) * 1_000_000 // EVERY_US
    demand(len(windows) > 3 and bool((sums == each).all()), f"windows of {each:,} tuples have {sums}")


async def measure(seconds: float, rounds: int) -> tuple[dict[str, list[float]], float, int]:
    """CPU of the node by kind, share of a core in each round; how far its output has come, seconds; size of a page."""
    plan, directory = make_plan()
    address = free_address()
    feeder = Process(live_main, plan, directory, RATE * EVERY_US // (1_000_000 * len(STREAMS)), EVERY_US, False)
    node = Process(watched_main, plan, directory, address)
    scraped, followed = list[int](), list[int]()
    kinds: dict[str, list[Callable[[], Awaitable[None]]]] = {
        "alone": [],
        "scraped": [lambda: scrape(address, scraped)],
        "followed": [lambda: follow(plan, directory, followed)],
        "both": [lambda: scrape(address, scraped), lambda: follow(plan, directory, followed)],
    }
    found: dict[str, list[float]] = {kind: [] for kind in kinds}
    results: list[Rows] = []

    def take(change: Change) -> None:
        if isinstance(change.element, Batch):
            results.append(change.element.rows)

    with running(node, feeder):
        async with reading(plan, directory, "bench", take) as (client, _):
            await feeder.do("go")
            await trio.sleep(4.0)
            first = client.inputs[0].port.frontier
            for number in range(rounds):
                for kind in [*kinds][number % 4 :] + [*kinds][: number % 4]:
                    async with trio.open_nursery() as nursery:
                        for watcher in kinds[kind]:
                            nursery.start_soon(watcher)
                        await trio.sleep(0.3)
                        begin, at = cpu_of(node.pid), trio.current_time()
                        await trio.sleep(seconds)
                        found[kind].append((cpu_of(node.pid) - begin) / (trio.current_time() - at))
                        nursery.cancel_scope.cancel()
            passed = (client.inputs[0].port.frontier - first) / 1e6
    check(results, plan.query.schema_of(StreamId("out")))
    demand(len(scraped) >= rounds and len(followed) >= rounds, "nobody watched")
    return found, passed, max(scraped)


def run(arguments: argparse.Namespace) -> None:
    rounds = arguments.rounds
    found, passed, size = trio.run(measure, arguments.seconds_each, rounds)
    wanted = 4 * rounds * arguments.seconds_each
    demand(passed > 0.9 * wanted - 2, f"the node did not keep up: {passed:.0f} s of input in {wanted:.0f} s")
    rows = []
    for kind, shares in found.items():
        more = [a - b for a, b in zip(shares, found["alone"], strict=True)]
        rows.append(
            [
                kind,
                spread([100 * s for s in shares]),
                "-" if kind == "alone" else spread([100 * m for m in more]),
                verdict(100 * median(more), 100 * LIMIT if kind == "both" else None),
                CHECKED,
            ]
        )
    show(
        f"Node at {RATE:,} tuples/s that is watched",
        ["", "node CPU, % of a core", "more than alone, % of a core", "target", "check"],
        rows,
        [
            "Three live streams are merged and aggregated over 1,000 groups; each window has all of its tuples.",
            f"Scraped: a page ({size / 1000:.0f} kB) per second.  Followed: the status over a connection every",
            f"{PERIOD_S:g} s, as spe top and spe run ask.  CPU time of the whole process, {rounds} rounds of",
            f"{arguments.seconds_each:g} s of each kind in turn: median (min-max).",
        ],
    )
