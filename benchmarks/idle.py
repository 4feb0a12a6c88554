"""CPU of a node process whose replicas have nothing to do, and what of it measures their loads (rule L1).

One process measures loads and does not, in turns; that it can be told so is of this benchmark.  While it does not,
nothing looks at what replicas hold, no sample is taken, and their steps are neither timed nor added up.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from statistics import median
from typing import Any, Final

import trio

from benchmarks.cluster import Pipe, Process, Told, child, free_address, live_main, reading, running
from benchmarks.cpu import cpu_of
from benchmarks.tables import CHECKED, demand, show, spread, verdict
from replicas.node.load_meter import LOOK_US, NodeMeter, ReplicaMeter
from replicas.node.process import NodeProcess
from spe.api import Environment, stdin, tumbling
from spe.plan.deploy import Deployed
from spe.plan.directory import Directory
from spe.plan.plan import Plan
from spe.runtime.env import Env
from spe.runtime.production import SystemClock
from spe.stream.names import NodeId, NodeState
from spe.stream.times import SECOND

REPLICAS = (1, 10, 100)
#: Share of a core, of each of a hundred.
LIMIT = 0.005
EVERY_US = 100_000
#: Times that each turn comes.
ROUNDS = 3
#: From the beginning of a turn until it counts: the first look is of the time before it.
SETTLE_S = 0.5


def _nothing(*_: object) -> None:
    pass


#: What measures loads, and what takes its place.
_SWITCHED: Final[Mapping[type, Mapping[str, Any]]] = {
    NodeMeter: {"due": lambda *_: False},
    ReplicaMeter: {"received": _nothing, "worked": _nothing, "sent": _nothing},
    SystemClock: {"step_ns": staticmethod(lambda: 0)},
}


def switched_main(pipe: Pipe, plan: Plan, directory: Directory, node: str) -> None:
    """A node as ``spe node`` runs it, told ("loads", whether it measures them, whether it looked since the last turn).

    It ends where it looked though it should not have, or the other way round; None: that does not matter.
    """
    usual = {(kind, name): kind.__dict__[name] for kind, names in _SWITCHED.items() for name in names}
    look, looks = NodeMeter.look, [0]

    def counted(*arguments: Any) -> None:
        looks[0] += 1
        look(*arguments)

    async def start(env: Env, nursery: trio.Nursery) -> Told:
        setattr(NodeMeter, look.__name__, counted)
        await nursery.start(NodeProcess(env, plan, directory, NodeId(node)).run)

        async def told(_: str, measures: bool, looked: bool | None) -> None:
            demand(looked is None or looked == (looks[0] > 0), f"looks at the load in the last turn: {looks[0]}")
            for kind, names in _SWITCHED.items():
                for name, other in names.items():
                    setattr(kind, name, usual[kind, name] if measures else other)
            await trio.sleep(SETTLE_S)
            looks[0] = 0

        return told

    child(pipe, start)


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


async def measure(replicas: int, seconds: float) -> Mapping[bool, list[float]]:
    """Share of one CPU in each turn, with the measurement of loads and without."""
    plan, directory = make_plan(replicas)
    feeder = Process(live_main, plan, directory, 0, EVERY_US, False)
    node = Process(switched_main, plan, directory, "n")
    found: Mapping[bool, list[float]] = {True: [], False: []}
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
                found[measures].append((cpu_of(node.pid) - begin) / (trio.current_time() - at))
                looked = measures if not measures or seconds * SECOND > LOOK_US else None
            await node.do("loads", True, looked)
            moved = [i.port.frontier - f for i, f in zip(client.inputs, first, strict=True)]
            states = {p.state for i in client.inputs for p in i.producers.values()}
    demand(min(moved) > (seconds * len(turns) - 1) * 1e6, "boundaries did not come through")
    demand(states == {NodeState.STABLE}, f"replicas are not stable: {states}")
    return found


def run(arguments: argparse.Namespace) -> None:
    rows = []
    for replicas in REPLICAS:
        found = trio.run(measure, replicas, arguments.seconds)
        more = [100 * (a - b) for a, b in zip(found[True], found[False], strict=True)]
        for measures, shares in found.items():
            each = 100 * median(shares) / replicas
            limit = verdict(each, 100 * LIMIT if measures and replicas == max(REPLICAS) else None)
            loads = "measured" if measures else "not measured"
            share = spread([100 * one for one in shares])
            rows.append([replicas, loads, share, f"{each:.2f}", spread(more) if measures else "-", limit, CHECKED])
    show(
        "Idle node",
        [
            "replicas",
            "loads",
            "node CPU, % of a core",
            "per replica, %",
            "more than not measured, % of a core",
            "target",
            "check",
        ],
        rows,
        [
            "Each replica reads three silent streams (a boundary every 100 ms), merges and aggregates; ticks of 10 ms,",
            "heartbeats of 100 ms to each of the three sources; one client reads every replica's output.  CPU time of",
            f"one process that measures the loads of its replicas and does not in turns, {ROUNDS} of",
            f"{arguments.seconds:g} s each: median (min-max).",
        ],
    )
