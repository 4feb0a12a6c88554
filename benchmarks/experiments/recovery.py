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

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any, Final

from benchmarks.experiments.results import CPU_S, Row
from consistency.checking.finding import Finding
from replicas.faults.model import Fault, FaultKind
from replicas.planning.cluster_topology import partitions_of, topology_of
from replicas.planning.search import PlanningProblem
from replicas.planning.structure import structure_aware
from replicas.simulation.scenarios.scenario import Scenario
from replicas.simulation.simulate import simulate
from replicas.simulation.world.clock import EPOCH_US
from spe.config import load_data
from spe.plots import Line, Panel
from spe.stream.batch import Batch, Boundary
from spe.stream.history import Delivered, History
from spe.stream.names import Kind
from spe.stream.times import MILLISECOND, SECOND

TITLE = "Recovery of a tree of tasks"
SOURCES: Final = 2
#: Source tasks of the paper that each of them stands for.
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
#: A client has caught up when it lags so little behind what it had before.
CAUGHT_UP_US: Final = SECOND
REPLAY: Final = "1h"
#: After the end of the sources, for what is corrected late; where outputs are kept all of it passes.
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
        """How long who died is away: longer than recovery takes without him, level by level."""
        missed_us = self.fails_us if self.checkpoint == REPLAY else self.every_us // 2
        faster = SPEED / (SOURCES * self.rate) - 1
        return ceil(missed_us / SECOND / faster * (1 if self.single else len(LEVELS)) + 10) * SECOND


ALL: Final = frozenset((level, p) for level in LEVELS for p in range(level))
NONE: Final[frozenset[tuple[int, int]]] = frozenset()


def half() -> frozenset[tuple[int, int]]:
    """What structure-aware planning chooses for seven."""
    plan, directory = load_data(_configuration(Case(1000, 4, "2s", NONE, single=False), SECOND))
    topology = topology_of(plan, directory, {})
    tasks = partitions_of(plan, topology)
    levels = {u.id: int(u.fragment.removeprefix("f")) for u in plan.units}
    chosen = [tasks[at] for at in structure_aware(PlanningProblem(topology, HALF)).tasks]
    return frozenset((levels[one.unit], one.partition) for one in chosen if one is not None)


def cases(quick: bool) -> Iterator[tuple[str, Case]]:
    """(how, case)."""
    if quick:
        yield "active", Case(1000, 2, "4s", ALL, single=False)
        yield "checkpoint 4s", Case(1000, 2, "4s", NONE, single=False)
        yield "half active", Case(1000, 2, "4s", half(), single=False)
        return
    for rate, window, single, intervals, others in SWEEPS:
        if others:
            yield "active", Case(rate, window, "15s", ALL, single)
            yield "replay", Case(rate, window, REPLAY, NONE, single)
        for seconds in intervals:
            yield f"checkpoint {seconds}s", Case(rate, window, f"{seconds}s", NONE, single)
        if not single:
            yield "half active", Case(rate, window, "15s", half(), single)


def measure(quick: bool) -> Iterator[Row]:
    for how, case in cases(quick):
        outcome = simulate(_scenario(case), cpu_s=CPU_S)
        tentative_us, passed_us, caught_up_us = _times(case, outcome.history)
        yield {
            "how": how,
            "dies": "one" if case.single else "all",
            "rate": case.rate,
            "window_s": case.window,
            "tentative_s": None if tentative_us is None else tentative_us / SECOND,
            "recovered_s": None if passed_us is None else passed_us / SECOND,
            "caught_up_s": None if caught_up_us is None else caught_up_us / SECOND,
            "times": None if not tentative_us or passed_us is None else passed_us / tentative_us,
            "findings": "; ".join(str(f) for f in outcome.findings if not _kept_on_purpose(case, f)),
        }


def _kept_on_purpose(case: Case, finding: Finding) -> bool:
    """A standby acknowledges what two checkpoints hold, so after long intervals upstream keeps much, or all of it."""
    late = case.checkpoint == REPLAY or 2 * case.every_us > GRACE_US
    return late and finding.rule == "outputs are truncated"


def _times(case: Case, history: History) -> tuple[int | None, int | None, int | None]:
    """From the failure until the client gets something tentative, all that had come by then, and lags no more."""
    tentative = passed = caught_up = None
    ordinary = 0
    for event in history:
        if not isinstance(event, Delivered) or event.at_us >= case.fails_us + case.dead_us:
            continue
        element, since = event.element, event.at_us - case.fails_us
        if isinstance(element, Batch) and element.kind is Kind.TENTATIVE and since > 0 and tentative is None:
            tentative = since
        if isinstance(element, Boundary) and element.kind is Kind.STABLE:
            lag = event.at_us + EPOCH_US - element.time
            if since < 0:
                ordinary = max(ordinary, lag) if event.at_us > case.fails_us - 5 * SECOND else 0
            elif passed is None and element.time >= EPOCH_US + case.fails_us:
                passed = since
            if since > 0 and passed is not None and caught_up is None and lag <= ordinary + CAUGHT_UP_US:
                caught_up = since
    return tentative, passed, caught_up


def _scenario(case: Case) -> Scenario:
    each = case.rate // SCALE
    lasts_us = case.fails_us + case.dead_us
    in_bucket = 2 * each * BUCKET_US // SECOND
    options = {
        "limits": {"slice_rows": 3 * in_bucket // 4},  # of one input: a bucket is half of that, and two do not fit
        "turn_us": in_bucket * SECOND // (SPEED // SCALE),
    }
    victims = ["n8_0"] if case.single else [f"n{level}_{p}" for level in LEVELS for p in range(level)]
    faults = tuple(Fault(FaultKind.KILL, (node,), for_us=case.dead_us, at_us=case.fails_us) for node in victims)
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


def panels(rows: Sequence[Row]) -> list[Panel]:
    """Recovery by interval of checkpoints; dashed: source replay."""
    found = []
    for dies in ("one", "all"):
        mine = [row for row in rows if row["dies"] == dies and row["how"].startswith("checkpoint")]
        intervals = sorted({_seconds(row) for row in mine})
        lines = []
        for rate, window in dict.fromkeys((row["rate"], row["window_s"]) for row in mine):
            of = [r for r in rows if (r["dies"], r["rate"], r["window_s"]) == (dies, rate, window)]
            by = {_seconds(r): r["recovered_s"] for r in of if r["how"].startswith("checkpoint")}
            lines.append(Line([by.get(i) for i in intervals], f"{rate}/s, window {window} s"))
            replay = next((r["recovered_s"] for r in of if r["how"] == "replay"), None)
            lines.append(Line([replay] * len(intervals), dashed=True))
        if intervals:
            found.append(Panel(f"{dies} of 15 die: recovered, seconds", intervals, lines, "checkpoint interval, s"))
    return found


def _seconds(row: Row) -> float:
    return float(str(row["how"]).removeprefix("checkpoint ").removesuffix("s"))
