"""How long moves take, and were expected to take: in virtual time, and of real processes.

Each simulated cluster has aggregates of different sizes, links of one speed, which the coordinator is not told, and its
own heartbeats.  Partitions move one after the other to random nodes, for as long as the sources last.  The same on real
processes, with larger states: the moves of all runs, and the CPU of all processes of one, the median.
"""

from __future__ import annotations

import contextlib
import io
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from random import Random
from statistics import median
from typing import Any, Final, NamedTuple

import numpy as np
import trio
import yaml

from benchmarks.cpu import cores_of_ended
from benchmarks.experiments.results import Row
from replicas.cli.move import OVER, move
from replicas.placement.moves import MovePhase
from replicas.simulation.scenarios.scenario import Scenario
from replicas.simulation.world.clock import JumpClock
from replicas.simulation.world.cluster import SimCluster
from replicas.simulation.world.host import seeded_scheduling
from replicas.simulation.world.link import LinkState
from spe.plan.directory import COORDINATOR, Role
from spe.plots import Line, Panel
from spe.stream.ids import PartitionId
from spe.stream.names import NodeId, UnitId
from spe.wire.messages import MoveOrder

TITLE = "Predicted and measured time of moves"
CLUSTERS: Final = 20
MOVES: Final = 12
#: What counts as right: so far from what was expected, as a share of that; and what share of the moves must be.
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
#: The same of real processes.
RUNS: Final = 5
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


def measure(quick: bool, runs: int = RUNS) -> Iterator[Row]:
    found: dict[int, list[_Moved]] = {}
    for seed in range(4 if quick else CLUSTERS):
        speed = SPEEDS[seed % len(SPEEDS)]
        found.setdefault(speed, []).extend(moves_of(seed, speed, 4 if quick else MOVES))
    every = [one for moves in found.values() for one in moves]
    for which, moves in (
        *((f"{speed / 1e6:g} MB/s", moves) for speed, moves in found.items()),
        ("first moves", [one for one in every if one.number == 1]),
        ("all", every),
    ):
        row = _row(which, moves)
        if row["near"] < SHARE:
            row["findings"] = f"{row['near']:.0%} of the moves took what was expected, give or take {NEAR:.0%}"
        yield row
    real = [real_moves_of(seed, 2 if quick else MOVES) for seed in range(1 if quick else runs)]
    yield _row("real processes", [one for moves, _ in real for one in moves], [cores for _, cores in real])


def _row(which: str, moves: Sequence[_Moved], cores: Sequence[float] = ()) -> dict[str, Any]:
    """Args: cores: that all processes of each run used in the mean; empty: they were simulated."""
    ratios = [one.took / one.expected for one in moves]
    return {
        "moves": len(moves),
        "which": which,
        "near": sum(one.near for one in moves) / len(moves),
        "expected_s": median(one.expected for one in moves),
        "took_s": median(one.took for one in moves),
        "longest_s": max(one.took for one in moves),
        "least_ratio": min(ratios),
        "p10_ratio": float(np.percentile(ratios, 10)),
        "p90_ratio": float(np.percentile(ratios, 90)),
        "most_ratio": max(ratios),
        "cores": median(cores) if cores else None,
        "findings": "",
    }


def moves_of(seed: int, speed: int, many: int) -> list[_Moved]:
    """The moves of one cluster whose links have this speed."""
    found: list[_Moved] = []

    async def main() -> None:
        random = Random(f"predicting {seed}")
        plan, directory = Scenario(seed, _configuration(_timing(random), GROUPS, _RATE, _END_S)).deployed()
        async with SimCluster(plan, directory, seed=seed, link=LinkState(bytes_per_s=speed)) as cluster:
            await cluster.start()
            await trio.sleep(_BEGIN_S)
            assert cluster.coordinator is not None
            mover = cluster.coordinator.mover
            while len(found) < many and trio.current_time() < _END_S:
                partition = PartitionId(UnitId(f"f{random.randrange(len(GROUPS))}"), 0)
                roles = cluster.current.roles[partition]
                source = next(node for node, role in roles.items() if role is Role.ACTIVE)
                target = random.choice([n for n in NODES if NodeId(n) not in roles])
                answer = await mover.order(MoveOrder("move", str(partition), source, target, 0))
                assert not answer.error, answer.error
                while mover.moves.open() and trio.current_time() < _END_S:  # noqa: ASYNC110 - it has no event
                    await trio.sleep(0.1)
                moved = mover.moves.all()[-1]
                if moved.phase is MovePhase.DONE and moved.predicted_us is not None:
                    found.append(_Moved(len(found) + 1, moved.predicted_us / 1e6, moved.took_us / 1e6))
                await trio.sleep(random.uniform(0.5, 3.0))

    with seeded_scheduling(seed):
        trio.run(main, clock=JumpClock(_COMPUTING_S))
    return found


def real_moves_of(seed: int, many: int) -> tuple[list[_Moved], float]:
    """The same of real processes, which run until all moves are made; and the cores that they used in the mean."""
    random = Random(f"predicting {seed}")
    with tempfile.TemporaryDirectory() as made:
        config, run = Path(made) / "predicting.yaml", Path(made) / "run"
        end_s = _BEGIN_S + 4 * many + 10 if many < MOVES else _REAL_END_S
        config.write_text(yaml.safe_dump(_configuration({}, REAL_GROUPS, _REAL_RATE, end_s)))
        command = [sys.executable, "-m", "replicas.cli", "run", config, "--run-dir", run, "--no-view"]
        cores_used = cores_of_ended()
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as running:
            begun = time.monotonic()
            while _told(run, "coordinator_began") == [] and running.poll() is None:
                time.sleep(0.1)
            time.sleep(_BEGIN_S)
            hosts = {f"f{at}": NODES[at % 2] for at in range(len(REAL_GROUPS))}
            for number in range(1, many + 1):
                unit = random.choice(sorted(hosts))
                target = random.choice([n for n in NODES if n != hosts[unit]])
                with contextlib.redirect_stdout(io.StringIO()):
                    move(run, f"{unit}/0", hosts[unit], target, wait=False)
                hosts[unit] = target
                while _phase_of(run, number) not in OVER and time.monotonic() - begun < end_s:
                    time.sleep(0.1)
            running.terminate()
        return _real_moves(run), cores_used()


def _real_moves(run: Path) -> list[_Moved]:
    """By what the coordinator wrote."""
    expected = {line["number"]: line["predicted_us"] for line in _told(run, "move_ordered")}
    began: dict[int, int] = {}
    found: list[_Moved] = []
    for line in _told(run, "move"):
        began.setdefault(line["number"], int(line["t"]))
        if line["phase"] == "done" and (predicted_us := expected[line["number"]]) is not None:
            took_us = int(line["t"]) - began[line["number"]]
            found.append(_Moved(len(found) + 1, predicted_us / 1e6, took_us / 1e6))
    return found


def _phase_of(run: Path, number: int) -> str:
    return next((str(line["phase"]) for line in reversed(_told(run, "move")) if line["number"] == number), "")


def _told(run: Path, event: str) -> list[dict[str, Any]]:
    """Lines of the coordinator's trace about an event, as far as it is written."""
    file = run / "trace" / f"{COORDINATOR}.jsonl"
    lines = file.read_text().split("\n")[:-1] if file.exists() else []
    return [line for line in map(json.loads, lines) if line["event"] == event]


def _configuration(timing: Mapping[str, str], groups: Sequence[int], rate: int, end_s: float) -> dict[str, Any]:
    generator = {"name": "sequence", "rate": rate, "duration": f"{end_s:g}s", "seed": 1}
    names = [f"f{at}" for at in range(len(groups))]
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
        "fragments": {name: {"operators": [f"q{at}"], "replicas": [NODES[at % 2]]} for at, name in enumerate(names)},
        "nodes": {n: {"spare": True} if n in NODES[2:] else {} for n in NODES},
        "coordinator": {},
    }


def _timing(random: Random) -> dict[str, str]:
    return {"heartbeat": random.choice(["50ms", "100ms", "200ms"])}


def panels(rows: Sequence[Row]) -> list[Panel]:
    """Median of what was expected, and of what it took, by the speed of the links."""
    speeds = [row for row in rows if str(row["which"]).endswith("MB/s")]
    xs = [float(np.log10(float(str(row["which"]).split(" ")[0]))) for row in speeds]
    lines = [Line([row[column] for row in speeds], label) for column, label in _COLUMNS]
    return [Panel("median of moves, s", xs, lines, "links, MB/s, powers of ten")]


_COLUMNS: Final = (("expected_s", "expected"), ("took_s", "measured"))
