"""How long moves take, and were expected to take: in virtual time, and of real processes.

Each simulated cluster has aggregates of different sizes, links of one speed, unknown to the coordinator, and its own
heartbeats.  Partitions move one after the other to random nodes, for as long as the sources last.  The same on real
processes, with larger states.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from random import Random
from statistics import median
from typing import Any, Final, NamedTuple

import trio

from benchmarks.experiments.played_run import PlayedRun, played, printed_by
from benchmarks.experiments.record import Plot, Row, experiment, once
from consistency.faults.kind import LinkFaults
from replicas.cli.move import move
from replicas.placement.deciders.move import MovePhase
from replicas.simulation.scenarios.scenario import Scenario
from replicas.simulation.world.clock import JumpClock
from replicas.simulation.world.cluster import SimCluster
from replicas.simulation.world.host import seeded_scheduling
from spe.plan.directory import COORDINATOR, Role
from spe.stream.ids import PartitionId
from spe.stream.names import NodeId, UnitId
from spe.wire.messages.commands import MoveOrder

CLUSTERS: Final = 20
MOVES: Final = 12
#: A right prediction: the measured time is so near, as a share of it; and the share of the moves that must be.
NEAR: Final = 0.3
SHARE: Final = 0.8
NODES: Final = ("n1", "n2", "n3", "n4")
GROUPS: Final = (10, 1_000, 5_000, 20_000)
#: Bytes per second.
SPEEDS: Final = (300_000, 1_000_000, 3_000_000, 100_000_000)
#: Loads and state have been measured when moves begin, seconds.
_BEGIN_S: Final = 22.0
_END_S: Final = 150.0
_RATE: Final = 1_000
_COMPUTING_S: Final = 600.0
#: The same of real processes: clusters, groups, rows per second, seconds.
_REAL_CLUSTERS: Final = 5
REAL_GROUPS: Final = (1_000, 10_000, 100_000, 1_000_000)
_REAL_RATE: Final = 20_000
_REAL_END_S: Final = 90.0


class _Moved(NamedTuple):
    """A move that was made, seconds; ``number`` counts the moves of its cluster."""

    number: int
    expected: float
    took: float

    @property
    def near(self) -> bool:
        return abs(self.took - self.expected) <= NEAR * self.expected


@experiment("predicting", "no paper", once, Plot("which", "", "took_s/expected_s"))
def predicting(quick: bool) -> Iterator[Row]:
    """Predicted and measured time of moves."""
    by_speed: dict[int, list[_Moved]] = {}
    for seed in range(4 if quick else CLUSTERS):
        speed = SPEEDS[seed % len(SPEEDS)]
        by_speed.setdefault(speed, []).extend(moves_of(seed, speed, 4 if quick else MOVES))
    every = [moved for moves in by_speed.values() for moved in moves]
    for which, moves in (
        *((f"{speed / 1e6:g} MB/s", moves) for speed, moves in by_speed.items()),
        ("first moves", [moved for moved in every if moved.number == 1]),
        ("all", every),
    ):
        row = _row(which, moves)
        if row["near"] < SHARE:
            row["findings"] = f"{row['near']:.0%} of the moves took what was expected, give or take {NEAR:.0%}"
        yield row
    real = [real_moves_of(seed, 2 if quick else MOVES) for seed in range(1 if quick else _REAL_CLUSTERS)]
    yield _row("real processes", [moved for moves in real for moved in moves])


def _row(which: str, moves: Sequence[_Moved]) -> dict[str, Any]:
    ratios = [moved.took / moved.expected for moved in moves]
    return {
        "moves": len(moves),
        "which": which,
        "near": sum(moved.near for moved in moves) / len(moves),
        "expected_s": median(moved.expected for moved in moves),
        "took_s": median(moved.took for moved in moves),
        "longest_s": max(moved.took for moved in moves),
        "least_ratio": min(ratios),
        "most_ratio": max(ratios),
        "findings": "",
    }


def moves_of(seed: int, speed: int, many: int) -> list[_Moved]:
    """The moves of one cluster whose links have this speed."""
    made: list[_Moved] = []

    async def main() -> None:
        random = Random(f"predicting {seed}")
        plan, directory = Scenario(
            seed, _configuration({"heartbeat": random.choice(["50ms", "100ms", "200ms"])}, GROUPS, _RATE, _END_S)
        ).deployed()
        async with SimCluster(plan, directory, seed=seed, link=LinkFaults(bytes_per_s=speed)) as cluster:
            await cluster.start()
            await trio.sleep(_BEGIN_S)
            assert cluster.coordinator is not None
            mover = cluster.coordinator.mover
            while len(made) < many and trio.current_time() < _END_S:
                partition = PartitionId(UnitId(f"f{random.randrange(len(GROUPS))}"), 0)
                roles = cluster.current.roles[partition]
                source = next(node for node, role in roles.items() if role is Role.ACTIVE)
                target = random.choice([n for n in NODES if NodeId(n) not in roles])
                answer = await mover.order(MoveOrder("move", str(partition), source, target, 0))
                assert not answer.error, answer.error
                while mover.orders.open() and trio.current_time() < _END_S:  # noqa: ASYNC110 - it has no event
                    await trio.sleep(0.1)
                moved = mover.orders.all()[-1]
                if moved.phase is MovePhase.DONE and moved.predicted_us is not None:
                    made.append(_Moved(len(made) + 1, moved.predicted_us / 1e6, moved.took_us / 1e6))
                await trio.sleep(random.uniform(0.5, 3.0))

    with seeded_scheduling(seed):
        trio.run(main, clock=JumpClock(_COMPUTING_S))
    return made


def real_moves_of(seed: int, many: int) -> list[_Moved]:
    """The same of real processes, which run until all moves are made."""
    random = Random(f"predicting {seed}")
    end_s = _BEGIN_S + 4 * many + 10 if many < MOVES else _REAL_END_S
    with played(_configuration({}, REAL_GROUPS, _REAL_RATE, end_s)) as run:
        begun = time.monotonic()
        with run.started():
            run.wait_for("coordinator_began", COORDINATOR)
            time.sleep(_BEGIN_S)
            hosts = {f"f{at}": NODES[at % 2] for at in range(len(REAL_GROUPS))}
            for number in range(1, many + 1):
                unit = random.choice(sorted(hosts))
                target = random.choice([n for n in NODES if n != hosts[unit]])
                printed_by(move, run.path, f"{unit}/0", hosts[unit], target, wait=False)
                hosts[unit] = target
                while _phase_of(run, number) not in ("done", "dropped") and time.monotonic() - begun < end_s:
                    time.sleep(0.1)
        return _real_moves(run)


def _real_moves(run: PlayedRun) -> list[_Moved]:
    """Moves in the trace of the coordinator."""
    expected = {line["number"]: line["predicted_us"] for line in run.events("move_ordered", COORDINATOR)}
    began: dict[int, int] = {}
    moves: list[_Moved] = []
    for line in run.events("move", COORDINATOR):
        began.setdefault(line["number"], int(line["t"]))
        if line["phase"] == "done" and (predicted_us := expected[line["number"]]) is not None:
            took_us = int(line["t"]) - began[line["number"]]
            moves.append(_Moved(len(moves) + 1, predicted_us / 1e6, took_us / 1e6))
    return moves


def _phase_of(run: PlayedRun, number: int) -> str:
    moves = reversed(run.events("move", COORDINATOR))
    return next((str(line["phase"]) for line in moves if line["number"] == number), "")


def _configuration(timing: Mapping[str, str], groups: Sequence[int], rate: int, end_s: float) -> dict[str, Any]:
    generator = {"name": "sequence", "rate": rate, "duration": f"{end_s:g}s", "seed": 1}
    return {
        "cluster": "predicting",
        "defaults": {"x": "8s"},
        "timing": dict(timing),
        "sources": {"s": {"from": {"generator": generator}}},
        "query": {
            f"q{at}": {
                "aggregate": {
                    "from": "s",
                    "window": {"tumbling": "24h"},
                    "group_by": {"group": f"n % {many}"},
                    "compute": {"total": "sum(value)"},
                }
            }
            for at, many in enumerate(groups)
        },
        "outputs": [f"q{at}" for at in range(len(groups))],
        "fragments": {f"f{at}": {"operators": [f"q{at}"], "replicas": [NODES[at % 2]]} for at in range(len(groups))},
        "nodes": {n: {"spare": True} if n in NODES[2:] else {} for n in NODES},
        "coordinator": {},
    }
