"""Queries that come back one after the other while nodes arrive (Su and Zhou, DEBS 2021, figure 11).

Fifteen operators of one partition make six outputs; the paper's figure 8 does not say who reads whom, so the streams
are of our choice.  All nodes that run them are killed for good, and with them those that hold their checkpoints; these
come back one by one, each with room for four.

* at once: all of them come back with the last one;
* operators: each has the checkpoints of the next four operators in topological order;
* complete queries, fidelity: each has all checkpoints, and the coordinator orders by ``recovery.value``;
* standbys everywhere: they were never away.

A query is available at a moment when the client's stable results lag at most a second more than before the failure.
It is recovered where five seconds begin in which they lag less than 1.2 times as much in the mean (rule O2).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from benchmarks.experiments.measures import CPU_S
from benchmarks.experiments.played_run import played
from benchmarks.experiments.record import Row, experiment, sweep
from replicas.faults.model import Fault
from replicas.planning.cluster_topology import partitions_of, topology_of
from replicas.planning.recovery.goals import OutputFidelity
from replicas.simulation.scenarios.scenario import Scenario
from replicas.simulation.simulate import simulate
from replicas.simulation.world.clock import EPOCH_US
from spe.plan.directory import Directory
from spe.plan.plan import Plan
from spe.plots import Line, Panel
from spe.stream.batch import Boundary, Int64Array
from spe.stream.history import Delivered, History, ProcessDown, StateChanged
from spe.stream.names import Kind, NodeState
from spe.stream.times import MILLISECOND, SECOND

#: The operators that each operator reads; one without any reads the source.
READS: Final = ((), (), (), (0,), (0,), (1,), (1,), (2,), (2,), (3,), (3, 4), (4, 5), (5, 6), (7,), (7, 8))
#: Operators whose outputs clients read.
QUERIES: Final = (9, 10, 11, 12, 13, 14)
#: Partitions that a node has room for.
EACH: Final = 4
FAILS_S: Final = 10
CHECKPOINT_S: Final = 2
#: How long a node is away that only begins anew.
AWAY: Final = "0.5s"
#: What a query may lag more than before the failure.
LAG_US: Final = SECOND
STEP_US: Final = 100 * MILLISECOND
#: Rule O2: how often the mean lag before, and over how long; sources go on for so much longer.
RELATIVE_LAG: Final = 1.2
OVER_S: Final = 5
ORDERS: Final = ("at once", "operators", "complete queries", "fidelity", "standbys everywhere")
#: Orders in which the coordinator decides, and what it goes by.
VALUES: Final[Mapping[str, str]] = {"complete queries": "complete", "fidelity": "fidelity"}
#: A slice of work has as many rows as come in this time.
SLICE_US: Final = 100 * MILLISECOND
#: Real processes, simulation: tuples per second.
RATES: Final = (1_000, 40)


@dataclass(frozen=True, slots=True)
class Case:
    """One run; seconds.

    Attributes:
      order: in which partitions come back.
      each: partitions of a node, and so many it has room for.
      lost: nodes that are killed for good, by number from 1, and when after ``FAILS_S``.
      arrive: when after that each of those comes that hold checkpoints; 0: it was never away.
      lasts: how long after that it is measured which queries are available.
      turn_us: what a slice of work takes, in simulation.
      replays: with each loss all nodes begin anew, and replay all from the sources' logs (Storm's way).
    """

    order: str
    lost: Mapping[int, float]
    arrive: Sequence[float]
    lasts: float
    turn_us: int = 0
    replays: bool = False

    @property
    def ends(self) -> float:
        """When sources end."""
        return FAILS_S + self.lasts + OVER_S

    def hosts(self, operator: int) -> list[str]:
        """The nodes that hold the checkpoints of an operator."""
        if self.order in VALUES:
            return [f"b{at}" for at in range(1, len(self.arrive) + 1)]
        return [f"b{min(operator // EACH, len(self.arrive) - 1) + 1}"]

    def faults(self) -> list[dict[str, Any]]:
        """As a file of faults has them."""
        if self.replays:
            nodes = [f"{kind}{n}" for kind in "nb" for n in range(1, len(self.arrive) + 1)]
            times = [f"{FAILS_S + at:g}s" for at in self.lost.values()]
            return [{"at": at, "kind": "kill", "target": n, "for": AWAY} for at in times for n in nodes]
        dead = [(f"n{n}", FAILS_S + at, self.ends - FAILS_S - at) for n, at in self.lost.items()]
        away = [(f"b{n}", float(FAILS_S), at) for n, at in enumerate(self.arrive, 1) if at]
        return [{"at": f"{at:g}s", "kind": "kill", "target": n, "for": f"{long:g}s"} for n, at, long in dead + away]


def arrivals(order: str, apart: float, after: float) -> Case:
    """All four nodes are lost, and four come; the sources go on for some time behind the last one."""
    arrive = [apart * at for at in range(1, 5)]
    if order == "at once":
        arrive = [arrive[-1]] * 4
    elif order == "standbys everywhere":
        arrive = [0.0] * 4
    return Case(order, dict.fromkeys(range(1, 5), 0.0), arrive, apart * 4 + after)


@experiment(
    "incremental",
    "DEBS 2021, figure 11",
    lambda quick: sweep(order=ORDERS),
    panels=lambda rows: availability(rows, "order"),
    runs=5,
)
def incremental(quick: bool, order: str) -> Row:
    """Six queries of fifteen partitions that come back as nodes arrive."""
    case = arrivals(order, *((2, 5) if quick else (6, 8)))
    measured = simulated(case) if quick else _real(case)
    columns = ("queries", "fidelity", "first_s", "all_s", "recovered_s", "curve", "findings")
    return {name: measured[name] for name in columns}


def _real(case: Case) -> Row:
    """The same with real processes."""
    with played(configuration(case, RATES[0]), case.faults()) as run:
        findings = run.play()
        figures = measured(case, *run.deployed, run.history(), run.first_us())
        return {**figures, "findings": findings}


def simulated(case: Case) -> Row:
    """The same in virtual time."""
    faults = tuple(Fault("kill", (f["target"],), for_us=_us(f["for"]), at_us=_us(f["at"])) for f in case.faults())
    rows = RATES[1] * SLICE_US // SECOND
    options = {"turn_us": case.turn_us, "limits": {"slice_rows": rows}} if case.turn_us else {}
    scenario = Scenario(1, configuration(case, RATES[1]), options, faults, round(case.ends * SECOND))
    plan, directory = scenario.deployed()
    outcome = simulate(scenario, cpu_s=CPU_S)
    findings = [f for f in outcome.findings if not (case.replays and f.rule == "outputs are truncated")]
    return {**measured(case, plan, directory, outcome.history, EPOCH_US), "findings": findings}


def _us(duration: str) -> int:
    return round(float(duration.removesuffix("s")) * SECOND)


def measured(case: Case, plan: Plan, directory: Directory, history: History, zero_us: int) -> Row:
    """The figures of a run whose times count from ``zero_us`` of wall time, which is tuple time.

    * ``failed``: how many queries depend on what was lost;
    * ``queries``, ``fidelity``: how many queries were available in the mean for ``lasts``, and OF of those
      partitions that were served;
    * ``first_s``, ``all_s``: since the failure, when a query was available again after all of those that failed were
      not, and when all were; 0: that did not happen; None: they never were;
    * ``recovered_s``: since the failure, when all were recovered after the last loss; None: not all were;
    * ``normal_lag_s``: longest lag of queries that do not depend on what was lost; None: there are none;
    * ``lag_s``, ``lag_before_s``: longest lag of all, and before the failure;
    * ``curve``: available queries, each second.
    """
    fails_us = min(e.at_us for e in history if isinstance(e, ProcessDown))
    watched = np.arange(fails_us, fails_us + round((case.lasts + OVER_S) * SECOND), STEP_US) + STEP_US // 2
    grid = watched[: round(case.lasts * SECOND) // STEP_US]
    before = np.arange(fails_us - OVER_S * SECOND, fails_us, STEP_US) - STEP_US // 2
    all_lags, ordinary = (_lags(history, at, zero_us) for at in (watched, before))
    lags = all_lags[:, : len(grid)]
    last_s = max(case.lost.values())
    since_last = all_lags[:, round(last_s * SECOND) // STEP_US :]
    recovered = [recovered_s(*query) for query in zip(since_last, ordinary.mean(axis=1), strict=True)]
    available = lags <= ordinary.max(axis=1, keepdims=True) + LAG_US
    failed = _depending(case)
    back = available[failed]
    normal = [query for query in range(len(QUERIES)) if query not in failed]
    served = _served(plan, directory, history, grid)
    return {
        "failed": len(failed),
        "queries": float(available.sum(axis=0).mean()),
        "fidelity": float(OutputFidelity.of(topology_of(plan, directory, {})).values(served).mean()),
        "first_s": _since(back.any(axis=0), ~back.any(axis=0)),
        "all_s": _since(back.all(axis=0), ~back.all(axis=0)),
        "recovered_s": None if None in recovered else last_s + max(s for s in recovered if s is not None),
        "lag_before_s": float(ordinary.max()) / SECOND,
        "lag_s": float(lags.max()) / SECOND,
        "normal_lag_s": float(lags[normal].max()) / SECOND if normal else None,
        "curve": " ".join(f"{count:g}" for count in available.sum(axis=0)[:: SECOND // STEP_US].tolist()),
    }


def recovered_s(lags_us: Int64Array, before_us: float) -> float | None:
    """Seconds until a query is recovered; None: it is not within what was measured (rule O2).

    Args:
      lags_us: how far its results lag, at each step since a loss.
      before_us: the mean of that before.
    """
    steps = OVER_S * SECOND // STEP_US
    if len(lags_us) < steps:
        return None
    means = np.lib.stride_tricks.sliding_window_view(lags_us, steps).mean(axis=1)
    good = np.flatnonzero(means < RELATIVE_LAG * before_us)
    return float(good[0]) * STEP_US / SECOND if len(good) else None


def _since(good: np.ndarray[Any, np.dtype[np.bool_]], lost: np.ndarray[Any, np.dtype[np.bool_]]) -> float | None:
    """Seconds until ``good``, once something has been lost; 0: nothing ever was."""
    if not lost.any():
        return 0.0
    first = int(lost.argmax())
    later = np.flatnonzero(good[first:])
    return float((first + later[0]) * STEP_US / SECOND) if len(later) else None


def _depending(case: Case) -> list[int]:
    """Queries that depend on something that was lost, by their places in ``QUERIES``."""
    lost: set[int] = set()
    for at, reads in enumerate(READS):
        if at // EACH + 1 in case.lost or lost.intersection(reads):
            lost.add(at)
    return [query for query, at in enumerate(QUERIES) if at in lost]


def _lags(history: History, grid: Int64Array, zero_us: int) -> Int64Array:
    """[queries, times]; how far the stable results that the client has lag, microseconds."""
    frontiers: dict[str, list[tuple[int, int]]] = {f"o{at}": [(0, zero_us)] for at in QUERIES}
    for event in history:
        if not isinstance(event, Delivered) or not isinstance(event.element, Boundary):
            continue
        if event.element.kind is Kind.STABLE:
            frontiers[event.channel.stream].append((event.at_us, event.element.time))
    lags = np.zeros((len(QUERIES), len(grid)), np.int64)
    for query, stable in enumerate(frontiers.values()):
        at, frontier = np.array(stable).T
        lags[query] = grid + zero_us - frontier[at.searchsorted(grid, side="right") - 1]
    return lags


def _served(
    plan: Plan, directory: Directory, history: History, grid: Int64Array
) -> np.ndarray[tuple[int, int], np.dtype[np.bool_]]:
    """[times, tasks of the topology]; a replica that has its state runs it."""
    tasks = partitions_of(plan, topology_of(plan, directory, {}))
    serving: dict[str, bool] = {}
    rows, at = np.ones((len(grid), len(tasks)), np.bool_), 0

    def note(upto: int) -> None:
        nonlocal at
        running = {replica.partition("@")[0] for replica, yes in serving.items() if yes}
        while at < len(grid) and grid[at] < upto:
            rows[at] = [task is None or str(task) in running for task in tasks]
            at += 1

    for event in history:
        if isinstance(event, StateChanged):
            note(event.at_us)
            serving[event.replica] = event.runs and event.state is not NodeState.RECOVERING
        elif isinstance(event, ProcessDown):
            note(event.at_us)
            serving |= {replica: False for replica in serving if replica.endswith(f"@{event.host}")}
    note(int(grid[-1]) + 1)
    return rows


def configuration(case: Case, rate: int) -> dict[str, Any]:
    """Each operator in a fragment of its own; the first node runs the first four of them, and so on."""
    total = {"compute": {"total": "sum(total)"}, "group_by": "k", "window": {"tumbling": "500ms"}}
    query: dict[str, Any] = {}
    fragments: dict[str, Any] = {}
    for at, reads in enumerate(READS):
        name, operators = f"o{at}", []
        if not reads:
            query[name] = {"map": {"from": "s", "compute": {"k": "n % 20", "total": "value"}}}
        else:
            above = [f"o{upstream}" for upstream in reads]
            if len(above) > 1:
                operators.append(f"in{at}")
                query[f"in{at}"] = {"union": above}
            query[name] = {"aggregate": {"from": [*above, *operators][-1]} | total}
        fragments[name] = {
            "operators": [*operators, name],
            "replicas": [f"n{at // EACH + 1}"],
            "standby": case.hosts(at),
            "checkpoint": "1h" if case.replays else f"{CHECKPOINT_S}s",
        }
    outputs = [f"o{at}" for at in QUERIES]
    nodes = [f"n{n}" for n in range(1, (len(READS) - 1) // EACH + 2)]
    generator = {"name": "sequence", "rate": rate, "duration": f"{case.ends:g}s"}
    made: dict[str, Any] = {
        "cluster": "queries",
        "bucket": "100ms",
        "defaults": {"x": "4s", "alpha": 0.9, "policy": "process"},
        "nodes": [*nodes, *(f"b{at}" for at in range(1, len(case.arrive) + 1))],
        "sources": {"s": {"from": {"generator": generator}, "boundary": "100ms"}},
        "query": query,
        "outputs": outputs,
        "fragments": fragments,
        "coordinator": {"cap": 0.8},
        "clients": {"client": {"reads": outputs}},
    }
    if case.order in VALUES:
        loads = dict.fromkeys(fragments, 0.8 / EACH)
        made["recovery"] = {"value": VALUES[case.order], "loads": loads}
    return made


def availability(rows: Sequence[Row], by: str) -> list[Panel]:
    """Queries that are available, over time."""
    curves = {row[by]: [float(count) for count in row["curve"].split()] for row in rows}
    longest = max(map(len, curves.values()))
    drawn = [Line([*curve, *[None] * (longest - len(curve))], name) for name, curve in curves.items()]
    return [
        Panel(
            f"available queries of {len(QUERIES)}",
            [float(s) for s in range(longest)],
            drawn,
            "seconds after the failure",
        )
    ]


# --- the effect of failures on queries that they do not reach, by place and number of nodes; in simulation ---
#
# * downstream, upstream: the node with the last three operators is lost, or the one with the first three and one that
#   reads them; the node with its checkpoints comes 3 s later.
# * one, two, three in sequence: nodes of four are lost 5 s apart; the holders of their checkpoints stay.  Beside
#   each the baseline of figure 9: with each loss all that runs begins anew from the sources' logs.  A node works four
#   times as fast as rows come.

APART_S = 3.0
#: Duration of a slice of work where that counts.
TURN_US = SLICE_US // 4


def cases(quick: bool) -> Iterator[tuple[str, Case]]:
    """(what happens, how)."""
    away = [0.0, 0.0, 0.0, 0.0]
    yield "downstream", Case("operators", {4: 0.0}, [*away[:3], APART_S], 15)
    yield "upstream", Case("operators", {1: 0.0}, [APART_S, *away[:3]], 15)
    if quick:
        return
    for many in (1, 2, 3):
        lost = {n: 5.0 * (n - 1) for n in range(1, many + 1)}
        for name, replays in (("in sequence", False), ("in sequence, all replay", True)):
            yield f"{many} {name}", Case("operators", lost, away, 35, TURN_US, replays)


@experiment(
    "locations",
    "DEBS 2021, figures 9 and 12 to 14",
    lambda quick: [{"fails": name} for name, _ in cases(quick)],
    panels=lambda rows: availability(rows, "fails"),
)
def locations(quick: bool, fails: str) -> Row:
    """Queries that failed, and those that did not."""
    measured = simulated(dict(cases(quick))[fails])
    columns = (
        "failed", "first_s", "all_s", "recovered_s", "lag_before_s", "lag_s", "normal_lag_s", "curve", "findings",
    )  # fmt: skip
    return {name: measured[name] for name in columns}
