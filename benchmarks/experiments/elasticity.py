"""Which share of moves a checkpoint assists, and what all moves cost in latency (CIKM 2015, figures 7 and 9).

The balancer moves groups as the load of four operators grows.  A group has one checkpoint, taken every 10 s.  Where it
lies when load begins to grow is what differs; a move leaves a checkpoint with the old owner, as in the paper.

Latency is that of the paper's model (its table 3): *direct* stops a group while its state is sent; *CPAL*, where a
checkpoint assists, for a message.  Ours takes the state from where
it is, and both replicas run meanwhile: each move pauses a consumer for one switch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from statistics import fmean
from typing import Any, Final

import numpy as np

from benchmarks.experiments.baselines import baseline, best, even
from benchmarks.experiments.record import Plot, Row, experiment, sweep
from benchmarks.experiments.shifting import SAMPLE_S, ShiftingJob, four_operators, pair
from replicas.planning.balancing.actions import BalanceSettings, MovePartition, NodeRoom
from replicas.planning.balancing.balancer import Balancer
from replicas.planning.layout import Place
from replicas.planning.load import LoadHistory, LoadSample
from replicas.planning.placement import correlated, relocations
from replicas.planning.placement_problem import CheckpointProblem, checkpoint_problem
from replicas.planning.prediction import Speeds
from replicas.planning.shares import Running
from replicas.planning.topology import Ints
from spe.stream.ids import PartitionId
from spe.stream.names import NodeId
from spe.stream.times import SECOND

GROUPS: Final = (16, 24, 32, 40, 48)
SEEDS: Final = 3
#: Bytes of each operator; and rows per second of a whole core.
STATE: Final = 4.8e9
ROWS: Final = 100_000
SPEEDS: Final = Speeds()
#: The paper's unit, a message, and how long it waits in a queue, seconds; our switch, as ``switching`` measures it.
MESSAGE_S: Final = 0.001
QUEUE_S: Final = 0.01
SWITCH_S: Final = 0.02

#: How often a placement is compared with a new one, and by how much of its load it must be worse (rule L2).
RELOCATED_US: Final = 300 * SECOND
EPSILON: Final = 0.05
RELOCATED: Final = "correlated, relocated"

PLACEMENTS: Final[dict[str, Callable[[CheckpointProblem, np.random.Generator], Ints]]] = {
    "baseline": baseline,
    "even": even,
    "correlated": lambda problem, _: correlated(problem),
    RELOCATED: lambda problem, _: correlated(problem),
}


#: Totals of a job: moves, the assisted ones, relocated checkpoints, and seconds that groups stood still by protocol.
_TOTALS: Final = ("moves", "assisted", "relocated", "direct_s", "with_cpal_s", "ours_s")


@experiment(
    "elasticity",
    "CIKM 2015, figures 7 and 9",
    lambda quick: sweep(
        groups=GROUPS[: 1 if quick else None], placement=("even", "correlated") if quick else PLACEMENTS
    ),
    Plot("groups", "placement", "assisted with_cpal_s ours_s"),
)
def elasticity(quick: bool, groups: int, placement: str) -> Row:
    """Moves that a checkpoint assists."""
    totals = []
    for seed in range(1 if quick else SEEDS):
        job = four_operators(groups, seed)
        placed = PLACEMENTS[placement](problem_of(job), np.random.default_rng(seed))
        totals.append(moved(job, placed, relocating=placement == RELOCATED))
    assisted = sum(total["assisted"] for total in totals) / max(1, sum(total["moves"] for total in totals))
    return {name: fmean(total[name] for total in totals) for name in _TOTALS} | {"assisted": assisted}


def moved(job: ShiftingJob, placed: Ints, *, relocating: bool = False) -> Counter[str]:
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
    totals, ends_at = Counter[str](), 0
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
            totals["relocated"] += _relocate(job, history, now, balancer, holder)
        for partition, node in holder.items():
            balancer.checkpointed(partition, node, now - SAMPLE_S * SECOND // 2)
        for action in balancer.tick(now):
            if isinstance(action, MovePartition):
                ends_at = now + round(action.seconds * SECOND)
                totals.update(_cost(job, at, action, holder[action.partition] == action.target))
    return totals


def _relocate(
    job: ShiftingJob, history: LoadHistory, now: int, balancer: Balancer, holder: dict[PartitionId, NodeId]
) -> int:
    """Returns how many checkpoints were moved."""
    nodes = dict.fromkeys(job.nodes, Place())
    problem = checkpoint_problem(history, now, job.groups, balancer.running, nodes)
    at = np.array([job.nodes.index(holder[p]) for p in job.groups])
    moves = relocations(problem, at, EPSILON * float(problem.load.sum()))
    for move in moves:
        partition = job.groups[move.checkpoint]
        balancer.checkpointed(partition, holder[partition], None)
        holder[partition] = job.nodes[move.target]
    return len(moves)


def _cost(job: ShiftingJob, at: int, order: MovePartition, assisted: bool) -> dict[str, float]:
    """A move under each protocol; without an assisting checkpoint it is a direct one."""
    rows_s = ROWS * float(job.loads[order.partition][at])
    direct_s = 4 * STATE / len(job.groups) / SPEEDS.network + 2 * MESSAGE_S + QUEUE_S
    cpal_s = MESSAGE_S + QUEUE_S + rows_s * QUEUE_S / ROWS
    return {
        "moves": 1,
        "assisted": int(assisted),
        "direct_s": direct_s,
        "with_cpal_s": cpal_s if assisted else direct_s,
        "ours_s": SWITCH_S,
    }


# --- how many checkpoints lie where they are of use ---
#
# Share of the groups on a node beyond its cap that the node with their checkpoint could take within its own cap: the
# mean over all later samples.  Then the cost of the placement (rule L2), and that of the best one.

USABLE_SEEDS: Final = 10
#: Bounds of a node's checkpoint load beyond the mean, of the mean; the paper has none.
DELTAS: Final = (np.inf, 1.0)
#: Seconds of the solver for each placement, and up to how many groups per operator it is asked.
PROOF_S: Final = 10.0
PROVED: Final = 24


def _usable_points(quick: bool) -> Iterator[Row]:
    yield {"job": "pair", "groups": 10}
    yield from ({"job": "four operators", "groups": groups} for groups in GROUPS[: 1 if quick else None])


@experiment(
    "usable", "CIKM 2015, figure 8", _usable_points, Plot("groups", "placement", "usable", ("job", "four operators"))
)
def usable_checkpoints(quick: bool, job: str, groups: int) -> Iterator[Row]:
    """Usable checkpoints.

    A row for each placement.  The last bounds checkpoint loads as *even* does, so that these two compare alike.
    """
    if job == "pair":
        jobs = [pair()] * USABLE_SEEDS
    else:
        jobs = [four_operators(groups, seed) for seed in range(1 if quick else USABLE_SEEDS)]
    for placement, draw in (("baseline", baseline), ("even", even)):
        drawn = [_worth(job, np.inf, partial(draw, random=np.random.default_rng(s))) for s, job in enumerate(jobs)]
        yield {"placement": placement, **_means(drawn)}
    for delta in DELTAS[: 1 if quick or job == "pair" else None]:
        label = "correlated" if np.isinf(delta) else f"correlated, δ = {delta:g} of the mean"
        yield {"placement": label, **_means([_worth(j, delta, correlated, prove=groups <= PROVED) for j in jobs])}
    spreads = [spread_of(problem_of(job), even, seed) for seed, job in enumerate(jobs)]
    alike = [_worth(job, spread, correlated) for job, spread in zip(jobs, spreads, strict=True)]
    yield {"placement": "correlated, δ as even has it", **_means(alike)}


def _worth(
    job: ShiftingJob, delta: float, place: Callable[[CheckpointProblem], Ints], *, prove: bool = False
) -> dict[str, Any]:
    """Figures of a placement: its cost is of the load of all checkpoints, ``fullest`` against the mean of the nodes."""
    problem = problem_of(job, delta)
    placed, total = place(problem), problem.load.sum()
    optimum = best(problem, PROOF_S) if prove else None
    return {
        "usable": usable(job, placed),
        "score": problem.score(placed) / total,
        "best_score": None if optimum is None else problem.score(optimum) / total,
        "fullest": float(problem.loads(placed).max() / total * len(job.nodes)),
    }


def _means(jobs: Sequence[Row]) -> dict[str, Any]:
    columns = {name: [job[name] for job in jobs] for name in jobs[0]}
    means = {name: None if None in values else fmean(values) for name, values in columns.items()}
    return {"usable": means["usable"], "least": min(columns["usable"]), **means}


def problem_of(job: ShiftingJob, delta: float = np.inf) -> CheckpointProblem:
    """One checkpoint of each group, under the loads up to where they are placed; ``delta`` against the mean."""
    history, now = LoadHistory(), 0
    for at in range(job.placed):
        now = at * SAMPLE_S * SECOND
        for partition, loads in job.loads.items():
            history.sample(partition, LoadSample(float(loads[at])), now)
    running = {p: (n,) for p, n in job.home.items()}
    return checkpoint_problem(history, now, job.groups, running, dict.fromkeys(job.nodes, Place())).bounded(delta)


def spread_of(problem: CheckpointProblem, draw: Callable[..., Ints], seed: int) -> float:
    """The load of the fullest node of a drawn placement above the mean, as share of it."""
    loads = problem.loads(draw(problem, random=np.random.default_rng(seed)))
    return float(loads.max() / loads.mean() - 1)


def usable(job: ShiftingJob, placed: Ints) -> float:
    """Share of the groups of full nodes whose checkpoint is of use; no group moves."""
    at = {node: n for n, node in enumerate(job.nodes)}
    of_nodes = np.zeros((len(job.nodes), job.samples))
    for partition, node in job.home.items():
        of_nodes[at[node]] += job.loads[partition]
    homes = np.array([at[job.home[p]] for p in job.groups])
    loads = np.array([job.loads[p] for p in job.groups])
    full = of_nodes[homes] > job.cap + 1e-9
    fits = of_nodes[placed] + loads <= job.cap + 1e-9
    later = np.arange(job.samples) >= job.placed
    return float((full & fits)[:, later].sum() / full[:, later].sum())
