"""Which share of moves a checkpoint assists, and what all moves cost in latency (CIKM 2015, figures 7 and 9).

The balancer moves groups as the load of four operators grows.  A group has one checkpoint, taken every 10 s.  Where it
lies when load begins to grow is what differs; a move leaves a checkpoint with the old owner, as in the paper.

Latency is that of the paper's model (its table 3): *direct* stops a group while its state is sent; *CPA*
while the input since the checkpoint is sent and taken in again; *CPAL* for a message.  Ours takes the state from where
it is, and both replicas run meanwhile: each move pauses a consumer for one switch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Final

import numpy as np

from benchmarks.experiments.results import Row, lines, places
from benchmarks.experiments.shifting import SAMPLE_S, ShiftingJob, four_operators
from benchmarks.experiments.usable import problem_of
from replicas.planning.balancing.actions import BalanceSettings, MovePartition, NodeRoom
from replicas.planning.balancing.balancer import Balancer
from replicas.planning.layout import Place
from replicas.planning.load import LoadHistory, LoadSample
from replicas.planning.placement import baseline, correlated, even, relocations
from replicas.planning.placement_problem import CheckpointProblem, checkpoint_problem
from replicas.planning.prediction import Speeds
from replicas.planning.shares import Running
from replicas.planning.topology import Ints
from spe.plots import Panel
from spe.stream.ids import PartitionId
from spe.stream.names import NodeId
from spe.stream.times import SECOND

TITLE = "Moves that a checkpoint assists"
GROUPS: Final = (16, 24, 32, 40, 48)
SEEDS: Final = 3
#: Of each operator, bytes; and rows per second of a whole core.
STATE: Final = 4.8e9
ROWS: Final = 100_000
SPEEDS: Final = Speeds()
#: The paper's unit, a message, and how long it waits in a queue, seconds; our switch, as ``switching`` measures it.
MESSAGE_S: Final = 0.001
QUEUE_S: Final = 0.01
SWITCH_S: Final = 0.02

#: How often a placement is compared with a new one, and by how much of its load it must be worse (rule L3).
RELOCATED_US: Final = 300 * SECOND
EPSILON: Final = 0.05
RELOCATED: Final = "correlated, relocated"

PLACEMENTS: Final[dict[str, Callable[[CheckpointProblem, np.random.Generator], Ints]]] = {
    "baseline": baseline,
    "even": even,
    "correlated": lambda problem, _: correlated(problem),
    RELOCATED: lambda problem, _: correlated(problem),
}


@dataclass
class Moves:
    """What happened: seconds that each move stopped its group, by protocol."""

    many: int = 0
    assisted: int = 0
    relocated: int = 0
    direct_s: float = 0.0
    cpa_s: float = 0.0
    cpal_s: float = 0.0
    ours_s: float = 0.0


def measure(quick: bool) -> Iterator[Row]:
    for groups in GROUPS[:1] if quick else GROUPS:
        for placement, place in PLACEMENTS.items():
            if quick and placement not in ("even", "correlated"):
                continue
            found = [
                moved(
                    job := four_operators(groups, seed),
                    place(problem_of(job), np.random.default_rng(seed)),
                    relocating=placement == RELOCATED,
                )
                for seed in range(1 if quick else SEEDS)
            ]
            yield {
                "groups": groups,
                "placement": placement,
                "moves": fmean(one.many for one in found),
                "assisted": sum(one.assisted for one in found) / max(1, sum(one.many for one in found)),
                "relocated": fmean(one.relocated for one in found),
                "direct_s": fmean(one.direct_s for one in found),
                "with_cpa_s": fmean(one.cpa_s for one in found),
                "with_cpal_s": fmean(one.cpal_s for one in found),
                "ours_s": fmean(one.ours_s for one in found),
                "findings": "",
            }


def moved(job: ShiftingJob, placed: Ints, *, relocating: bool = False) -> Moves:
    """The job with a balancer from where checkpoints are placed on.

    Args:
      relocating: checkpoints move as well, at once, where another placement has become better.
    """
    groups = job.groups
    holder = {p: job.nodes[int(n)] for p, n in zip(groups, placed, strict=True)}
    rooms = dict.fromkeys(job.nodes, NodeRoom())
    settings = BalanceSettings(cap=job.cap, idle=0.0, speeds=SPEEDS)
    fixed: Callable[[Running, PartitionId, NodeId], str | None] = lambda _, p, __: "fixed" if p in job.fixed else None  # noqa: E731
    history = LoadHistory()
    start = job.placed * SAMPLE_S * SECOND
    balancer = Balancer(history, settings, rooms, {p: (n,) for p, n in job.home.items()}, start, refused=fixed)
    for node in job.nodes:
        balancer.came(node)
    found, ends_at = Moves(), 0
    for at in range(job.samples):
        now = at * SAMPLE_S * SECOND
        for partition, loads in job.loads.items():
            state = 0.0 if partition in job.fixed else 4 * STATE / len(groups)
            cpu = float(loads[at])
            balancer.sampled(partition, LoadSample(cpu, rows=ROWS * cpu, state=state), now)
        if at < job.placed:
            continue
        if (order := balancer.order) is not None and now >= ends_at:
            balancer.moved(order, now)
            balancer.checkpointed(order.partition, order.target, None)
            holder[order.partition] = order.source
        if relocating and now > start and (now - start) % RELOCATED_US == 0:
            found.relocated += _relocate(job, history, now, balancer, holder)
        for partition, node in holder.items():
            balancer.checkpointed(partition, node, now - SAMPLE_S * SECOND // 2)
        for action in balancer.tick(now):
            if isinstance(action, MovePartition):
                ends_at = now + round(action.seconds * SECOND)
                _count(found, job, at, action, holder[action.partition] == action.target)
    return found


def _relocate(
    job: ShiftingJob, history: LoadHistory, now: int, balancer: Balancer, holder: dict[PartitionId, NodeId]
) -> int:
    """Returns how many checkpoints were moved."""
    nodes = dict.fromkeys(job.nodes, Place())
    problem = checkpoint_problem(history, now, job.groups, balancer.running, nodes)
    at = np.array([job.nodes.index(holder[p]) for p in job.groups])
    found = relocations(problem, at, EPSILON * float(problem.load.sum()))
    for move in found:
        partition = job.groups[move.checkpoint]
        balancer.checkpointed(partition, holder[partition], None)
        holder[partition] = job.nodes[move.target]
    return len(found)


def _count(found: Moves, job: ShiftingJob, at: int, order: MovePartition, assisted: bool) -> None:
    """A move, under each protocol; what no checkpoint assists is moved directly."""
    rows_s = ROWS * float(job.loads[order.partition][at])
    direct_s = 4 * STATE / len(job.groups) / SPEEDS.network + 2 * MESSAGE_S + QUEUE_S
    # β rows since the checkpoint, half of its interval on the average, at the speed of a core.
    cpa_s = MESSAGE_S + rows_s * SAMPLE_S / 2 / ROWS + QUEUE_S
    cpal_s = MESSAGE_S + QUEUE_S + rows_s * QUEUE_S / ROWS
    found.many += 1
    found.assisted += assisted
    found.direct_s += direct_s
    found.cpa_s += cpa_s if assisted else direct_s
    found.cpal_s += cpal_s if assisted else direct_s
    found.ours_s += SWITCH_S


def panels(rows: Sequence[Row]) -> list[Panel]:
    percent = [{**row, "percent": 100 * row["assisted"]} for row in rows]
    xs, across = places(rows, "groups"), "groups per operator; 24 nodes"
    one = [row for row in rows if row["placement"] == "correlated"]
    ours = lines([{**row, "placement": "ours, any placement"} for row in one], "placement", "groups", "ours_s")
    return [
        Panel("moves that a checkpoint assists, %", xs, lines(percent, "placement", "groups", "percent"), across),
        Panel(
            "seconds that groups stood still, CPAL or direct",
            xs,
            [*lines(rows, "placement", "groups", "with_cpal_s"), *ours],
            across,
        ),
    ]
