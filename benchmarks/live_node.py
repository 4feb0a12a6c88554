"""A node that merges three live streams: age of tuples at the client, CPU while idle, and CPU for being watched."""

from __future__ import annotations

import argparse
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import product
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from statistics import median
from typing import Any, Final

import numpy as np
import trio

from benchmarks.cluster import Obey, Process, child, live_main, node_main, one_node, only_merged, reading, running
from benchmarks.cpu import cpu_of
from benchmarks.data import STREAMS
from benchmarks.tables import benchmark, demand, spread, verdict
from replicas.local.polling import Poller
from replicas.local.ports import free_addresses
from replicas.node.load_meter import LOOK_US, NodeMeter, ReplicaMeter
from replicas.node.process import NodeProcess
from spe.api import Environment, Stream, tumbling
from spe.metrics.pages import pages
from spe.plan.directory import Directory
from spe.plan.plan import Plan
from spe.runtime.env import Env
from spe.runtime.http_port import HttpPort
from spe.runtime.network import parse_address
from spe.runtime.process_figures import process_figures
from spe.runtime.production import SystemClock, production_env
from spe.stream.batch import AnyArray, Batch, Rows
from spe.stream.change import Change
from spe.stream.names import NodeId, NodeState, StreamId
from spe.stream.schema import Schema
from spe.stream.times import SECOND

SCHEMA: Final = {"n": "int64!", "value": "float64!"}

# --- delay ---

#: Tuples per second, and the share of a core that the node may use.
RATES: Final = ((50_000, None), (500_000, 0.15))
DELAY_EVERY_US: Final = 10_000
#: Connections and caches settle in the first seconds, which are checked, but not in the figures.
WARM_UP_S: Final = 2.0


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


async def measure_delay(rate: int, seconds: float, staggered: bool) -> tuple[AnyArray, float]:
    plan, directory = one_node("10ms", SCHEMA, only_merged)
    tuples = round(rate * DELAY_EVERY_US / 1e6 / len(STREAMS))
    feeder = Process(live_main, plan, directory, tuples, DELAY_EVERY_US, staggered)
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


def _seconds(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seconds", type=float, default=10.0, help="length of a measurement (delay, idle)")
    parser.add_argument("--seconds-each", type=float, default=4.0, help="of a round of one kind (monitoring)")


@benchmark(
    "delay",
    "tuples/s | streams send | tuples | p50 ms | target | p99 ms | target | max ms | node CPU | target",
    _seconds,
)
def _delay_rows(arguments: argparse.Namespace) -> Iterator[list[str]]:
    """Delay through one node.

    Three streams, a batch each every 10 ms, buckets of 10 ms; feeder, node and client are three processes on loopback.
    Age: arrival at the client minus the tuple's time, which lies in the 10 ms before its batch was sent; so half a
    batch (5 ms) of it is waiting for the batch.  Sent one after the other, a bucket is complete up to 6.7 ms after its
    end.
    """
    for (rate, most), staggered in product(RATES, (False, True)):
        ages, share = trio.run(measure_delay, rate, arguments.seconds, staggered)
        p50, p99 = (float(np.percentile(ages, p)) / 1e3 for p in (50, 99))
        how = "one after the other" if staggered else "all at a bucket's end"
        delays = [f"{p50:.2f}", verdict(p50, 12.0), f"{p99:.2f}", verdict(p99, 40.0), f"{ages.max() / 1e3:.1f}"]
        limit = verdict(100 * share, None if most is None else 100 * most)
        yield [f"{rate:,}", how, f"{len(ages):,}", *delays, f"{100 * share:.1f} %", limit]


# --- idle: a process measures the loads of its replicas (rule L1) and does not, in turns ---

REPLICAS: Final = (1, 10, 100)
#: Share of a core, of each of a hundred.
LIMIT: Final = 0.005
EVERY_US: Final = 100_000
#: Times that each turn comes.
ROUNDS: Final = 3
#: From the beginning of a turn until it counts: the first look is of the time before it.
SETTLE_S: Final = 0.5


def _nothing(*_: object) -> None:
    pass


#: The functions that measure loads, and their substitutes.
_SWITCHED: Final[Mapping[type, Mapping[str, Any]]] = {
    NodeMeter: {"due": lambda *_: False},
    ReplicaMeter: {"received": _nothing, "worked": _nothing, "sent": _nothing},
    SystemClock: {"step_ns": staticmethod(lambda: 0)},
}


def switched_main(pipe: Pipe, plan: Plan, directory: Directory, node: str) -> None:
    """A node as ``spe node`` runs it; its words are ("loads", whether it measures, whether it looked in the last turn).

    It ends where it looked though it should not have, or the other way round; None: that does not matter.
    """
    usual = {(kind, name): kind.__dict__[name] for kind, names in _SWITCHED.items() for name in names}
    look, looks = NodeMeter.look, [0]

    def counted(*arguments: Any) -> None:
        looks[0] += 1
        look(*arguments)

    async def start(env: Env, nursery: trio.Nursery) -> Obey:
        setattr(NodeMeter, look.__name__, counted)
        await nursery.start(NodeProcess(env, plan, directory, NodeId(node)).run)

        async def switch(_: str, measures: bool, looked: bool | None) -> None:
            demand(looked is None or looked == (looks[0] > 0), f"looks at the load in the last turn: {looks[0]}")
            for kind, names in _SWITCHED.items():
                for name, other in names.items():
                    setattr(kind, name, usual[kind, name] if measures else other)
            await trio.sleep(SETTLE_S)
            looks[0] = 0

        return switch

    child(pipe, start)


def _idle_fragments(replicas: int, sources: Sequence[Stream], env: Environment) -> list[Stream]:
    outputs = []
    for number in range(replicas):
        merged = sources[0].union(*sources[1:], name=f"merged_{number}")
        outputs.append(merged.key_by("n").window(tumbling("1s")).aggregate(f"out_{number}", total="sum(value)"))
        env.fragment(f"f{number}", [merged, outputs[-1]], replicas=1)
    return outputs


async def measure_idle(replicas: int, seconds: float) -> Mapping[bool, list[float]]:
    """Share of one CPU in each turn, with the measurement of loads and without."""
    plan, directory = one_node("100ms", SCHEMA, partial(_idle_fragments, replicas))
    feeder = Process(live_main, plan, directory, 0, EVERY_US, False)
    node = Process(switched_main, plan, directory, "n")
    shares: Mapping[bool, list[float]] = {True: [], False: []}
    turns = [measures for at in range(ROUNDS) for measures in ((True, False) if at % 2 == 0 else (False, True))]
    with running(node, feeder):
        async with reading(plan, directory, "bench", lambda _: None) as (client, _):
            await feeder.do("go")
            await trio.sleep(3.0)
            first, looked = [i.port.frontier for i in client.inputs], None
            for measures in turns:
                await node.do("loads", measures, looked)
                begin, at = cpu_of(node.pid), trio.current_time()
                await trio.sleep(seconds)
                shares[measures].append((cpu_of(node.pid) - begin) / (trio.current_time() - at))
                looked = measures if not measures or seconds * SECOND > LOOK_US else None
            await node.do("loads", True, looked)
            moved = [i.port.frontier - f for i, f in zip(client.inputs, first, strict=True)]
            states = {p.state for i in client.inputs for p in i.producers.values()}
    demand(min(moved) > (seconds * len(turns) - 1) * 1e6, "boundaries did not come through")
    demand(states == {NodeState.STABLE}, f"replicas are not stable: {states}")
    return shares


@benchmark(
    "idle", "replicas | loads | node CPU, % of a core | per replica, % | more than not measured, % of a core | target"
)
def _idle_rows(arguments: argparse.Namespace) -> Iterator[list[object]]:
    """Idle node.

    Each replica reads three silent streams (a boundary every 100 ms), merges and aggregates; ticks of 10 ms, heartbeats
    of 100 ms to each of the three sources; one client reads every replica's output.  CPU time of one process that
    measures the loads of its replicas and does not in turns: median (min-max).
    """
    for replicas in REPLICAS:
        both = trio.run(measure_idle, replicas, arguments.seconds)
        more = [a - b for a, b in zip(both[True], both[False], strict=True)]
        for measures, shares in both.items():
            each = 100 * median(shares) / replicas
            limit = verdict(each, 100 * LIMIT if measures and replicas == max(REPLICAS) else None)
            loads, added = ("measured", spread(more, scale=100)) if measures else ("not measured", "-")
            yield [replicas, loads, spread(shares, scale=100), f"{each:.2f}", added, limit]


# --- monitoring: a busy node is scraped for its metrics, and followed by a live view ---

BUSY_RATE: Final = 500_000
SCRAPE_S: Final = 1.0
#: Share of a core, metrics and a live view together.
WATCHED_LIMIT: Final = 0.01


def _watched_fragments(sources: Sequence[Stream], env: Environment) -> list[Stream]:
    merged = sources[0].union(*sources[1:], name="merged")
    wanted = {"rows": "count(*)", "total": "sum(value)"}
    out = merged.key_by(key="n % 1000").window(tumbling("1s")).aggregate("out", **wanted)
    env.fragment("f", [merged, out], replicas=1)
    return [out]


def watched_main(pipe: Pipe, plan: Plan, directory: Directory, address: str) -> None:
    """A node as ``spe node --metrics`` runs it."""

    async def start(env: Env, nursery: trio.Nursery) -> None:
        node = NodeProcess(env, plan, directory, NodeId("n"))
        await nursery.start(node.run)
        assert node.server is not None
        served = pages("n", node.server.status, partial(process_figures, Path(".")))
        await nursery.start(HttpPort(served).serve, address)

    child(pipe, start)


async def scrape(address: str, sizes: list[int]) -> None:
    """Scrapes as Prometheus does, for ever; notes the sizes of the pages."""
    host, port = parse_address(address)
    while True:
        stream = await trio.open_tcp_stream(host, port)
        async with stream:
            await stream.send_all(b"GET /metrics HTTP/1.1\r\nHost: n\r\nConnection: close\r\n\r\n")
            size = 0
            while data := await stream.receive_some(1 << 16):
                size += len(data)
            sizes.append(size)
        await trio.sleep(SCRAPE_S)


async def follow(plan: Plan, directory: Directory, statuses: list[int]) -> None:
    """Asks as ``spe top`` does, for ever."""
    addresses = {"n": directory.nodes[NodeId("n")].address}
    await Poller(production_env(Path("."), 0), plan, addresses, "", heard=lambda _: statuses.append(1)).follow("n")


def check(results: Sequence[Rows], schema: Schema) -> None:
    """Every window but the first and the last has all tuples of its second."""
    start, count = (
        np.concatenate([rows.columns[schema.index(name)].values for rows in results])
        for name in ("window_start", "rows")
    )
    windows, of_window = np.unique(start, return_inverse=True)
    sums = np.bincount(of_window, count)[1:-1]
    each = BUSY_RATE * EVERY_US // (SECOND * len(STREAMS)) * len(STREAMS) * SECOND // EVERY_US
    demand(len(windows) > 3 and bool((sums == each).all()), f"windows of {each:,} tuples have {sums}")


async def measure_watched(seconds: float, rounds: int) -> tuple[dict[str, list[float]], float, int]:
    """CPU of the node by kind, share of a core in each round; seconds that its output moved on; size of a page."""
    plan, directory = one_node("100ms", SCHEMA, _watched_fragments)
    (address,) = free_addresses(1)
    feeder = Process(live_main, plan, directory, BUSY_RATE * EVERY_US // (SECOND * len(STREAMS)), EVERY_US, False)
    node = Process(watched_main, plan, directory, address)
    scraped, followed = list[int](), list[int]()
    watchers: list[Callable[[], Awaitable[None]]] = [
        partial(scrape, address, scraped), partial(follow, plan, directory, followed),
    ]  # fmt: skip
    kinds = {"alone": [], "scraped": watchers[:1], "followed": watchers[1:], "both": watchers}
    shares: dict[str, list[float]] = {kind: [] for kind in kinds}
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
                        shares[kind].append((cpu_of(node.pid) - begin) / (trio.current_time() - at))
                        nursery.cancel_scope.cancel()
            passed = (client.inputs[0].port.frontier - first) / 1e6
    check(results, plan.query.schema_of(StreamId("out")))
    demand(len(scraped) >= rounds and len(followed) >= rounds, "nobody watched")
    return shares, passed, max(scraped)


@benchmark("monitoring", "watched | node CPU, % of a core | more than alone, % of a core | target")
def _monitoring_rows(arguments: argparse.Namespace) -> Iterator[list[str] | str]:
    """Node at 500,000 tuples/s that is watched.

    Three live streams are merged and aggregated over 1,000 groups; each window has all of its tuples.  Scraped: a page
    per second.  Followed: the status over a connection, as spe top and spe run ask.  CPU time of the whole process,
    rounds of each kind in turn: median (min-max).
    """
    rounds = arguments.rounds
    by_kind, passed, size = trio.run(measure_watched, arguments.seconds_each, rounds)
    wanted = 4 * rounds * arguments.seconds_each
    demand(passed > 0.9 * wanted - 2, f"the node did not keep up: {passed:.0f} s of input in {wanted:.0f} s")
    for kind, shares in by_kind.items():
        more = [a - b for a, b in zip(shares, by_kind["alone"], strict=True)]
        added = "-" if kind == "alone" else spread(more, scale=100)
        yield [
            kind, spread(shares, scale=100), added,
            verdict(100 * median(more), 100 * WATCHED_LIMIT if kind == "both" else None),
        ]  # fmt: skip
    yield f"A page has {size / 1000:.0f} kB."
