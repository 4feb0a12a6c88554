"""Runs all checkers over one history."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from consistency.checking.bounds import Bounds
from consistency.checking.checked_run import CheckedRun
from consistency.checking.counters import Counters
from consistency.checking.coverage import cover
from consistency.checking.finding import Finding, with_surroundings
from consistency.checking.logs.lost_logs import check_lost_logs
from consistency.checking.logs.synced_state import check_remade
from consistency.checking.node_settings import InForce
from consistency.checking.placement.moves import check_moves
from consistency.checking.placement.orders import check_orders
from consistency.checking.placement.recovery_order import check_recovery_order
from consistency.checking.placement.restored_partitions import check_restored
from consistency.checking.promises.accuracy import Recompute, check_accuracy
from consistency.checking.promises.availability import check_availability
from consistency.checking.promises.completeness import check_completeness, check_states
from consistency.checking.promises.leftovers import check_alarms, check_quiet
from consistency.checking.promises.masked_failures import check_masked
from consistency.checking.promises.permanence import check_permanence
from consistency.checking.promises.switching import check_switching
from consistency.checking.protocol.corrections import check_corrections
from consistency.checking.protocol.directories import check_directories
from consistency.checking.protocol.feeds import check_feeds
from consistency.checking.protocol.producer_choice import check_preferred
from consistency.checking.protocol.recovery_progress import check_recovering
from consistency.checking.protocol.turns import check_turns
from consistency.checking.protocol.useless_corrections import check_steady
from consistency.checking.rows import Reference
from consistency.checking.schedule import intervals
from spe.plan.directory import Directory
from spe.plan.plan import Plan
from spe.stream.history import History
from spe.stream.names import StreamId

#: Maximum number of findings reported of one rule at one consumer; the others are only counted.
_TOLD = 3


@dataclass(frozen=True, slots=True)
class Premise:
    """Facts about a run besides its history.

    Attributes:
      healed: everything healed, and the run went on until its clients had everything.
      survivors: of each partition one replica with the stable state lived all along.
      quiet: after healing there was time for all processes to become quiet.
      dead: nodes that were killed for good, and clients that cannot continue since their disks lost synced data.
        All promises hold without them, except: their replicas are not STABLE in the end, these clients do not have
        everything, and their unread input stays in the logs of their producers.
      lost: sources that lost their logs, and when: then only P4 and S6 are checked, with the reference by those logs.
    """

    healed: bool = True
    survivors: bool = True
    quiet: bool = True
    dead: frozenset[str] = frozenset()
    lost: Mapping[StreamId, int] = field(default_factory=dict)


@dataclass(slots=True)
class RunVerdict:
    """Findings of all checkers on a run."""

    findings: list[Finding] = field(default_factory=list)
    counters: Counters = field(default_factory=Counters)

    @property
    def holds(self) -> bool:
        return not self.findings


def judge(
    history: History,
    plan: Plan,
    directory: Directory,
    reference: Reference,
    *,
    premise: Premise | None = None,
    bounds: Bounds | None = None,
    recompute: Recompute | None = None,
    in_force: InForce | None = None,
) -> RunVerdict:
    """Judges a run.

    Args:
      reference: the stable stream of each output channel in a run without failures.
      premise: the promises that hold at its end.
      bounds: allowances; None: derived from the plan.
      recompute: the same, of a part of the sources' rows; None: missing rows of tentative results are not judged.
      in_force: X and policies over time; None: those of the directory throughout.
    """
    premise = premise if premise is not None else Premise()
    in_force = in_force if in_force is not None else InForce(plan, directory, {})
    directory = in_force.directory
    bounds = bounds if bounds is not None else Bounds.of(plan, directory)
    counters = Counters()
    counters.add("runs")
    if in_force.longest.changes:
        counters.add("runs in which X or its shares changed")
    counters.add("virtual time_us", history.end_us)
    if premise.lost:
        findings = [
            *check_permanence(history, plan, counters, premise.lost),
            *check_lost_logs(history, plan, reference, premise.lost, counters),
        ]
    else:
        static = intervals(history, plan, directory, in_force)
        run = CheckedRun(history, static, plan, directory, in_force, bounds, counters)
        findings = [*_at_any_time(run, reference, recompute), *_in_the_end(run, reference, premise)]
    cover(history, plan, directory, counters)
    return RunVerdict(with_surroundings(_first_of_each(findings, counters), history), counters)


def _at_any_time(run: CheckedRun, reference: Reference, recompute: Recompute | None) -> Iterator[Finding]:
    """Yields findings of promises that hold throughout a run."""
    history, plan, directory, counters = run.history, run.plan, run.directory, run.counters
    for checked in (
        check_permanence(history, plan, counters),
        check_feeds(history, plan, counters),
        check_switching(history, plan, reference, counters),
        check_availability(run),
        check_accuracy(run, reference, recompute),
        check_preferred(run),
        check_masked(run),
        check_recovering(run),
        check_restored(run),
        check_recovery_order(run),
        check_orders(run),
        check_steady(run),
        check_turns(history, directory, counters),
        check_directories(history, counters),
        check_corrections(run),
        check_remade(history, counters),
        check_alarms(history, run.bounds.rounds_per_second, counters),
    ):
        yield from checked


def _in_the_end(run: CheckedRun, reference: Reference, premise: Premise) -> Iterator[Finding]:
    """Yields findings of promises on the end of a run, as far as its premise has them."""
    history, plan, directory, counters = run.history, run.plan, run.directory, run.counters
    if premise.healed and premise.survivors:
        yield from check_moves(run, premise.dead)
        yield from check_completeness(history, plan, directory, reference, counters, premise.dead)
        if premise.quiet:
            yield from check_states(history, directory, premise.dead)
    if premise.healed and premise.quiet:
        yield from check_quiet(history, plan, directory, counters, premise.dead)


def _first_of_each(findings: list[Finding], counters: Counters) -> list[Finding]:
    """Returns the first findings of each rule at each consumer, in order of time."""
    counts: dict[tuple[str, str, str], int] = {}
    first = []
    for finding in sorted(findings, key=lambda f: f.at_us):
        key = (finding.property, finding.rule, finding.consumer)
        counts[key] = counts.get(key, 0) + 1
        if counts[key] <= _TOLD:
            first.append(finding)
    counters.add("findings", len(findings))
    return first
