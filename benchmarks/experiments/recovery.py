"""Recovery of a tree of 8, 4, 2 and 1 tasks (PPA section VI-A): active, passive, source replay.

Each task runs on a node of its own, and the backups of a level share another.  One node dies, or all fifteen.
Active: the backup runs the task as well.  Checkpoint: it holds the newest checkpoint, half an interval old, and takes
over from there.  Replay: it holds none, and takes over from nothing, that is from the sources' logs (Storm's way), from
the beginning of the run, which is its window and two seconds ago.  Full, half or no active replication, half being what
structure-aware planning chooses for seven.  What a replica computes takes virtual time of its own, so that sharing a
node costs it nothing.

The paper's sixteen source tasks are two sources of eight times the rate, so each task has two inputs.  Rates are a
tenth of the paper's, and so is the speed at which a task works its way through what was missed: eight times its input
at 1,000 tuples/s and source task, four times at 2,000.  All times depend on that ratio only.  A task's state is the
input of its window, twice.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any, Final

from benchmarks.experiments.measures import CPU_S
from benchmarks.experiments.played_run import PlayedRun, played
from benchmarks.experiments.record import Plot, Row, experiment
from consistency.checking.finding import Finding
from replicas.faults.model import Fault
from replicas.planning.cluster_topology import partitions_of, topology_of
from replicas.planning.search import PlanningProblem
from replicas.planning.structure import structure_aware
from replicas.simulation.scenarios.scenario import Scenario
from replicas.simulation.simulate import simulate
from replicas.simulation.world.clock import EPOCH_US
from spe.config import load_data
from spe.plan.delays import source_epoch
from spe.stream.batch import Batch, Boundary
from spe.stream.history import Delivered, History
from spe.stream.names import Kind
from spe.stream.times import END_OF_TIME, MILLISECOND, SECOND

SOURCES: Final = 2
#: Source tasks of the paper for each of ours.
TASKS: Final = 8
LEVELS: Final = (8, 4, 2, 1)
BUCKET_US: Final = 500 * MILLISECOND
#: Rates and speeds against the paper's.
SCALE: Final = 10
#: Tuples per second that a task can do, before scaling.
SPEED: Final = 16_000
X_US: Final = 1500 * MILLISECOND
#: Rate, window, whether only one dies, intervals of checkpoints, and whether active replicas and replay are run too.
SWEEPS: Final = (
    (1000, 30, True, (5, 30), True),
    (1000, 30, False, (1, 5, 15, 30), True),
    (1000, 10, False, (15,), True),
    (2000, 30, False, (15,), False),  # replay takes most of a minute there, and says nothing new
)
#: Active replicas where half of the fifteen have one.
HALF: Final = 7
REPLAY: Final = "1h"
#: After the end of the sources, for late corrections; where outputs are kept all of it passes.
GRACE_US: Final = 15 * SECOND


@dataclass(frozen=True, slots=True)
class Case:
    """One run.

    Attributes:
      rate: tuples per second and source task, before scaling.
      window: seconds.
      checkpoint: interval of the backups' checkpoints.
      active: tasks that have an active replica, as (parallelism of the level, partition).
      single: one task of the first level dies; else all.
    """

    rate: int
    window: int
    checkpoint: str
    active: frozenset[tuple[int, int]]
    single: bool

    @property
    def every_us(self) -> int:
        """The interval, as far as it matters for when to fail."""
        return SECOND if self.checkpoint == REPLAY else int(self.checkpoint.removesuffix("s")) * SECOND

    @property
    def fails_us(self) -> int:
        """When every window is full, and the newest checkpoints are half an interval old; in the middle of a bucket."""
        full_us, every_us = (self.window + 2) * SECOND, self.every_us
        return -(-(full_us - every_us // 2) // every_us) * every_us + every_us // 2 + BUCKET_US // 2

    @property
    def dead_us(self) -> int:
        """How long the dead nodes are away: longer than recovery takes without them, level by level."""
        missed_us = self.fails_us if self.checkpoint == REPLAY else self.every_us // 2
        faster = SPEED / (SOURCES * self.rate) - 1
        return ceil(missed_us / SECOND / faster * (1 if self.single else len(LEVELS)) + 10) * SECOND


ALL: Final = frozenset((level, p) for level in LEVELS for p in range(level))
NONE: Final[frozenset[tuple[int, int]]] = frozenset()


def half() -> frozenset[tuple[int, int]]:
    """The seven tasks that structure-aware planning chooses."""
    plan, directory = load_data(_configuration(Case(1000, 4, "2s", NONE, single=False), SECOND))
    topology = topology_of(plan, directory, {})
    tasks = partitions_of(plan, topology)
    levels = {u.id: int(u.fragment.removeprefix("f")) for u in plan.units}
    chosen = [tasks[at] for at in structure_aware(PlanningProblem(topology, HALF)).tasks]
    return frozenset((levels[task.unit], task.partition) for task in chosen if task is not None)


def _points(quick: bool) -> Iterator[Row]:
    if quick:
        yield from (_point(how, 1000, 2, False, "4s") for how in ("active", "checkpoint 4s", "half active"))
        return
    for rate, window, single, intervals, others in SWEEPS:
        if others:
            yield _point("active", rate, window, single)
            yield _point("replay", rate, window, single, REPLAY)
        for seconds in intervals:
            yield _point(f"checkpoint {seconds}s", rate, window, single, f"{seconds}s")
        if not single:
            yield _point("half active", rate, window, single)


def _point(how: str, rate: int, window: int, single: bool, checkpoint: str = "15s") -> Row:
    dies = "one" if single else "all"
    return {"how": how, "dies": dies, "rate": rate, "window_s": window, "checkpoint": checkpoint}


@experiment("recovery", "PPA, section VI-A", _points, Plot("checkpoint_s", "dies rate window_s", "recovered_s"))
def recovery(_: bool, how: str, dies: str, rate: int, window_s: int, checkpoint: str) -> Row:
    """Recovery of a tree of tasks."""
    active = ALL if how == "active" else half() if how == "half active" else NONE
    case = Case(rate, window_s, checkpoint, active, dies == "one")
    outcome = simulate(_scenario(case), cpu_s=CPU_S)
    return {
        "checkpoint_s": float(checkpoint.removesuffix("s")) if how.startswith("checkpoint") else None,
        **_times(outcome.history, case.fails_us, case.dead_us, lambda time_us: time_us - EPOCH_US),
        "findings": [f for f in outcome.findings if not _kept_on_purpose(case, f)],
    }


def _kept_on_purpose(case: Case, finding: Finding) -> bool:
    """A standby acknowledges the older of two checkpoints, so with long intervals upstream keeps much, or all."""
    late = case.checkpoint == REPLAY or 2 * case.every_us > GRACE_US
    return late and finding.rule == "outputs are truncated"


def _times(history: History, failed_us: int, dead_us: int, made: Callable[[int], int]) -> Row:
    """Seconds from the failure until the client has tentative tuples, and all earlier input, stable.

    Args:
      dead_us: how long after the failure the history counts.
      made: gives the time in the history at which tuples of a tuple time were made.
    """
    tentative = passed = None
    for event in history:
        if not isinstance(event, Delivered) or not 0 < (since_us := event.at_us - failed_us) < dead_us:
            continue
        element, since = event.element, since_us / SECOND
        if tentative is None and isinstance(element, Batch) and element.kind is Kind.TENTATIVE:
            tentative = since
        elif passed is None and isinstance(element, Boundary) and element.kind is Kind.STABLE:
            passed = since if made(element.time) >= failed_us else None
    times = None if tentative is None or passed is None else passed / tentative
    return {"tentative_s": tentative, "recovered_s": passed, "times": times}


def _scenario(case: Case) -> Scenario:
    each = case.rate // SCALE
    lasts_us = case.fails_us + case.dead_us
    in_bucket = 2 * each * BUCKET_US // SECOND
    options = {
        "limits": {"slice_rows": 3 * in_bucket // 4},  # of one input: a bucket is half of that, and two do not fit
        "turn_us": in_bucket * SECOND // (SPEED // SCALE),
    }
    victims = ["n8_0"] if case.single else [f"n{level}_{p}" for level in LEVELS for p in range(level)]
    faults = tuple(Fault("kill", (node,), for_us=case.dead_us, at_us=case.fails_us) for node in victims)
    return Scenario(1, _configuration(case, lasts_us), options, faults, lasts_us, GRACE_US)


def _configuration(case: Case, lasts_us: int) -> dict[str, Any]:
    generator = {
        "name": "sequence",
        "rate": TASKS * case.rate // SCALE,
        "burst": "500ms",  # fewer, larger batches, for the simulator's sake
        "duration": f"{lasts_us // SECOND}s",
    }
    sources = {
        f"s{i}": {"from": {"generator": generator | {"seed": i}}, "boundary": "500ms"} for i in range(1, SOURCES + 1)
    }
    timing = {"bucket": "500ms", "defaults": {"x": f"{X_US // MILLISECOND}ms", "alpha": 0.9, "policy": "process"}}
    return timing | tree(sources, LEVELS, case.window, case.checkpoint, case.active)


def tree(
    sources: dict[str, Any], levels: Sequence[int], window: int, checkpoint: str, active: Collection[tuple[int, int]]
) -> dict[str, Any]:
    """A configuration but for its times: levels of tasks, each task on a node of its own, its backup on the level's.

    Args:
      window: seconds.
      checkpoint: interval of the backups' checkpoints.
      active: tasks that have an active replica, as (parallelism of the level, partition).
    """
    query: dict[str, Any] = {
        f"of_{name}": {"map": {"from": name, "compute": {"n": "n", "key": f"n * {SOURCES} + {at}"}}}
        for at, name in enumerate(sources)
    }
    query["merged"] = {"union": list(query)}
    fragments: dict[str, Any] = {}
    before, operators = "merged", list(query)
    for at, level in enumerate(levels):
        task = _task(before, level, window, f"n % {2 << at} < {1 << at}")
        query |= task
        name, operators = list(task)[-1], [*operators, *task]
        primary = [[f"n{level}_{p}"] for p in range(level)]
        backup = [[f"b{level}"] for _ in range(level)]
        both = [(level, p) in active for p in range(level)]
        fragments[f"f{level}"] = {
            "operators": operators,
            "key": "n",
            "partitions": level,
            "replicas": [n + (b if a else []) for n, b, a in zip(primary, backup, both, strict=True)],
        }
        if not all(both):
            standbys = [[] if a else b for b, a in zip(backup, both, strict=True)]
            fragments[f"f{level}"] |= {"standby": standbys, "checkpoint": checkpoint}
        before, operators = name, []
    return {
        "cluster": "recovery",
        "nodes": [*(f"n{level}_{p}" for level in levels for p in range(level)), *(f"b{level}" for level in levels)],
        "sources": sources,
        "query": query,
        "outputs": [before],
        "fragments": fragments,
        "clients": {"client": {"reads": [before]}},
    }


def _task(stream: str, level: int, window: int, half: str) -> dict[str, Any]:
    """Each tuple meets itself only, so the state is the input of the window; half of the tuples go on."""
    join = {"left": stream, "right": stream, "on": "key", "within": [f"-{window}s", "0s"]}
    back = {"n": "l_n", "key": "l_key"}
    return {
        f"joined_{level}": {"join": join},
        f"back_{level}": {"map": {"from": f"joined_{level}", "compute": back}},
        f"half_{level}": {"filter": {"from": f"back_{level}", "where": half}},
    }


# --- the same tree of 4, 2 and 1 tasks by the wall clock: seven nodes, three for backups, each a process ---
#
# A node is killed, or all seven, for good.  Active: backups run as well; checkpoint: they hold the newest one; replay:
# they hold none, and read the sources' logs from the beginning.

REAL_LEVELS: Final = (4, 2, 1)
#: Tuples per second of each of the two sources.
REAL_RATE: Final = 10_000
WINDOW_S: Final = 10
#: When nodes are killed, counted from the begin of the sources; how long the sources go on.
FAILS_S: Final = 18
LASTS_S: Final = 32
#: Interval of checkpoints of each way to recover; with ``active`` all backups run as well.
WAYS: Final = {
    "active": "5s", "checkpoint 1s": "1s", "checkpoint 5s": "5s", "checkpoint 15s": "15s", "replay": REPLAY,
}  # fmt: skip


def _real_points(quick: bool) -> Iterator[Row]:
    for dies in ("all",) if quick else ("one", "all"):
        yield from ({"how": how, "dies": dies} for how in list(WAYS)[: 2 if quick else None])


@experiment("takeover", "PPA, section VI-A", _real_points, Plot("how", "dies", "recovered_s"))
def takeover(_: bool, how: str, dies: str) -> Row:
    """Recovery of a tree of real processes."""
    dead = ["n4_0"] if dies == "one" else [f"n{level}_{p}" for level in REAL_LEVELS for p in range(level)]
    away = f"{LASTS_S - FAILS_S + 5}s"
    faults = [{"at": f"{FAILS_S}s", "kind": "kill", "target": node, "for": away} for node in dead]
    with played(_real_configuration(WAYS[how], how == "active"), faults) as run:
        findings = run.play()
        return {**_real_times(run), "findings": findings}


def _real_times(run: PlayedRun) -> dict[str, Any]:
    first_us, killed_us = run.first_us(), min(int(line["t"]) for line in run.events("process_killed"))
    epoch = source_epoch(next(iter(run.deployed.plan.sources.values())), int(run.events("begin")[0]["begun_us"]))
    assert epoch is not None
    history, made = run.history(), lambda time_us: epoch.created_us(time_us) - first_us
    return {
        "checkpoints_old_s": _oldest(run, killed_us),
        **_times(history, killed_us - first_us, END_OF_TIME, made),
    }


def _oldest(run: PlayedRun, killed_us: int) -> float | None:
    """Age of the newest checkpoint of the task for which it is oldest; None: there are none."""
    taken = [line for level in REAL_LEVELS for line in run.events("checkpoint_taken", f"b{level}")]
    newest = {line["replica"]: int(line["t"]) for line in taken if int(line["t"]) < killed_us}
    return (killed_us - min(newest.values())) / SECOND if newest else None


def _real_configuration(checkpoint: str, active: bool) -> dict[str, Any]:
    generator = {"name": "sequence", "rate": REAL_RATE, "duration": f"{LASTS_S}s"}
    sources = {f"s{i}": {"from": {"generator": generator | {"seed": i}}, "boundary": "100ms"} for i in (1, 2)}
    everybody = frozenset((level, p) for level in REAL_LEVELS for p in range(level))
    timing = {"bucket": "100ms", "defaults": {"x": "1500ms", "alpha": 0.9, "policy": "process"}}
    return timing | tree(sources, REAL_LEVELS, WINDOW_S, checkpoint, everybody if active else ())
