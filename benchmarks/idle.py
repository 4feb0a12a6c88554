"""CPU of a node process whose replicas have nothing to do."""

from __future__ import annotations

import argparse

import trio

from benchmarks.cluster import Process, free_address, live_main, node_main, reading, running
from benchmarks.cpu import cpu_of
from benchmarks.tables import CHECKED, demand, show, verdict
from spe.api import Environment, stdin, tumbling
from spe.plan.deploy import Deployed
from spe.stream.names import NodeState

REPLICAS = (1, 10, 100)
#: Share of a core, of each of a hundred.
LIMIT = 0.005
EVERY_US = 100_000


def make_plan(replicas: int) -> Deployed:
    """Three sources, read by each of ``replicas`` units on one node."""
    env = Environment("bench", bucket="100ms", x="5s")
    schema = {"n": "int64!", "value": "float64!"}
    sources = [
        env.source(s, stdin(format="jsonl"), schema, boundary="100ms", address=free_address()) for s in ("a", "b", "c")
    ]
    outputs = []
    for number in range(replicas):
        merged = sources[0].union(*sources[1:], name=f"merged_{number}")
        outputs.append(merged.key_by("n").window(tumbling("1s")).aggregate(f"out_{number}", total="sum(value)"))
        env.fragment(f"f{number}", [merged, outputs[-1]], replicas=1)
    env.outputs(*outputs).node("n", free_address()).client("bench", outputs)
    return env.deployed()


async def measure(replicas: int, seconds: float) -> float:
    """Share of one CPU."""
    plan, directory = make_plan(replicas)
    feeder = Process(live_main, plan, directory, 0, EVERY_US, False)
    node = Process(node_main, plan, directory, "n")
    with running(node, feeder):
        async with reading(plan, directory, "bench", lambda _: None) as (client, _):
            await feeder.do("go")
            await trio.sleep(3.0)
            first = [i.port.frontier for i in client.inputs]
            begin = cpu_of(node.pid)
            await trio.sleep(seconds)
            share = (cpu_of(node.pid) - begin) / seconds
            moved = [i.port.frontier - f for i, f in zip(client.inputs, first, strict=True)]
            states = {p.state for i in client.inputs for p in i.producers.values()}
    demand(min(moved) > (seconds - 1) * 1e6, "boundaries did not come through")
    demand(states == {NodeState.STABLE}, f"replicas are not stable: {states}")
    return share


def run(arguments: argparse.Namespace) -> None:
    rows = []
    for replicas in REPLICAS:
        share = trio.run(measure, replicas, arguments.seconds)
        each = 100 * share / replicas
        limit = verdict(each, 100 * LIMIT if replicas == max(REPLICAS) else None)
        rows.append([replicas, f"{100 * share:.2f} %", f"{each:.2f} %", limit, CHECKED])
    show(
        "Idle node",
        ["replicas", "node CPU, share of one core", "per replica, %", "target", "check"],
        rows,
        [
            "Each replica reads three silent streams (a boundary every 100 ms), merges and aggregates; ticks of 10 ms,",
            "heartbeats of 100 ms to each of the three sources; one client reads every replica's output.",
        ],
    )
