"""Runs a scenario in virtual time and has it judged."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass, field, replace
from random import Random
from typing import Final

import trio

from consistency.checking.bounds import Bounds, has_room
from consistency.checking.counters import Counters
from consistency.checking.finding import Finding
from consistency.checking.logs.retained_logs import check_retained
from consistency.checking.placement.moves import allowed_us
from consistency.checking.verdict import Premise, judge
from consistency.comparison import ChannelRows
from operators.rejections import Rejection
from replicas.simulation.driver import FaultDriver
from replicas.simulation.features.balancing import RowNs, count_balancing, shift_loads
from replicas.simulation.features.joining_nodes import count_joins, order_joins
from replicas.simulation.features.ordered_moves import order_moves
from replicas.simulation.features.proved_logs import Proof
from replicas.simulation.features.pushed_sources import writers_of
from replicas.simulation.features.recorded_results import check_archive, check_kept
from replicas.simulation.features.rejecting_operators import check_rejected
from replicas.simulation.features.retention import retains
from replicas.simulation.features.settings_changes import order_settings
from replicas.simulation.features.sinks import TABLES
from replicas.simulation.scenarios.scenario import Scenario
from replicas.simulation.world.clock import JumpClock, Stuck
from replicas.simulation.world.cluster import SimCluster
from replicas.simulation.world.host import seeded_scheduling
from spe.runtime.gc_tuning import seldom
from spe.stream.history import History, host_of
from spe.stream.ids import Channel, PartitionId
from spe.stream.names import NodeState

#: Interval of checking whether all is over.
_LOOK_S: Final = 0.25
#: Time that a run goes on after a source has lost its log.
_REFUSE_S: Final = 3.0
#: Seconds of computing that one run may take.
CPU_S: Final = 120.0


@dataclass
class Outcome:
    """The result of a run.

    Attributes:
      findings: findings of the checkers; empty if everything held.
      story: events in readable form.
      skipped: faults that did not happen, because they are outside the fault model.
      finished: every client received every stream to its end, and all was quiet, within the grace.
    """

    scenario: Scenario
    history: History
    findings: list[Finding] = field(default_factory=list)
    counters: Counters = field(default_factory=Counters)
    story: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    finished: bool = False

    @property
    def holds(self) -> bool:
        return not self.findings


#: A judge in addition to the checkers, which gets the reference.
Judge = Callable[[Scenario, SimCluster, Mapping[Channel, ChannelRows]], Iterable[Finding]]


def simulate(
    scenario: Scenario,
    *,
    watch: Callable[[SimCluster], None] | None = None,
    cpu_s: float = CPU_S,
    also: Judge | None = None,
) -> Outcome:
    """Runs a scenario; the same one gives the same history, byte for byte.

    Args:
      watch: called a few times per virtual second, for progress.
      cpu_s: seconds of computing after which the run is broken off.
      also: another judge.

    Raises:
      ConfigError: invalid scenario.
      Stuck: nothing makes progress, or it takes too long.
    """
    TABLES.set({})
    with seeded_scheduling(scenario.seed), seldom():
        try:
            return trio.run(_main, scenario, watch, also, clock=JumpClock(cpu_s))
        except trio.TrioInternalError as error:  # trio raises this when the clock raises
            if isinstance(error.__cause__, Stuck):
                raise error.__cause__ from None
            raise


async def _main(scenario: Scenario, watch: Callable[[SimCluster], None] | None, also: Judge | None) -> Outcome:
    run = _SimulatedRun(scenario, watch)
    reference = None
    try:
        async with run.cluster:
            await run.begin()
            await run.play()
            await run.settle()
            reference = run.end()
    except Stuck as error:
        run.outcome.findings.append(Finding("quiet", "busy loop", run.cluster.history.end_us, "", str(error)))
    run.outcome.skipped = run.driver.skipped
    if reference is not None:
        run.judge(reference, also)
    return run.outcome


class _SimulatedRun:
    """The cluster of a scenario, its faults, and what befalls it.

    Attributes:
      unsettled: what was still unsettled at the end of the grace; "" if nothing was.
      rejected: rows that operators rejected in the run without failures.
    """

    def __init__(self, scenario: Scenario, watch: Callable[[SimCluster], None] | None) -> None:
        self.scenario = scenario
        self._watch = watch
        self.plan, self.directory = scenario.deployed()
        self._row_ns: RowNs = {}
        self.cluster = SimCluster(
            self.plan,
            self.directory,
            seed=scenario.seed,
            link=scenario.link(),
            turn_us=scenario.turn_us(),
            state_ns=scenario.state_ns(),
            row_ns=self._row_ns if scenario.row_ns() else None,
            newcomers=scenario.newcomers(),
        )
        self.outcome = Outcome(scenario, self.cluster.history, story=self.cluster.log)
        self.driver = FaultDriver(
            self.cluster,
            Random(f"{scenario.seed}/faults"),
            unlimited=bool(scenario.options.get("unlimited", False)),
            source_disks=scenario.source_disks(),
        )
        proves = scenario.proofs() is not None
        random = Random(f"{scenario.seed}/proofs")
        self._proof = Proof(self.cluster, random, self.outcome.counters) if proves else None
        self._writers = writers_of(self.cluster, scenario.pushes())
        self.unsettled = ""
        self.rejected: dict[PartitionId, list[Rejection]] = {}

    @property
    def dead(self) -> Set[str]:
        """Processes that do not return."""
        return self.driver.left | self.cluster.given_up

    async def begin(self) -> None:
        await self.cluster.start()
        for writer in self._writers:
            self.cluster.spawn(writer.run)

    async def play(self) -> None:
        """Lets faults and orders happen until all heals."""
        scenario, cluster = self.scenario, self.cluster
        async with trio.open_nursery() as nursery:
            await nursery.start(self.driver.run, scenario.faults)
            nursery.start_soon(order_moves, cluster, scenario.moves())
            nursery.start_soon(order_settings, cluster, scenario.settings())
            if scenario.row_ns():
                nursery.start_soon(shift_loads, self._row_ns, scenario.row_ns())
            if scenario.joins():  # another task would change the order of all tasks
                nursery.start_soon(order_joins, cluster, scenario.joins(), scenario.newcomer)
            if self._proof is not None:
                nursery.start_soon(self._proof.run, scenario.proofs() or ())
            while trio.current_time() < scenario.heal_us / 1e6:
                await trio.sleep(min(_LOOK_S, scenario.heal_us / 1e6 - trio.current_time()))
                self._look()
            nursery.cancel_scope.cancel()  # a fault that is due now would outlive the healing
        await self.driver.heal()
        if self._proof is not None:
            await self._proof.go_on(ends=True)

    async def settle(self) -> None:
        """Waits until all is quiet, or the grace is over."""
        cluster = self.cluster
        deadline = trio.current_time() + self.scenario.grace_us / 1e6 * (not cluster.lost_logs)
        await trio.sleep(self.plan.timing.gone_us() / 1e6)  # until all notice lost peers, a run may look over
        if cluster.lost_logs:  # the cluster will not be quiet; it needs time to refuse the new logs
            await trio.sleep(_REFUSE_S)
        moves_s, moves = allowed_us(self.plan, cluster.over_time) / 1e6, cluster.open_moves()
        if moves and not cluster.lost_logs:
            deadline = max(deadline, trio.current_time() + moves_s)
        while not (over := is_quiet(cluster, self.dead)) and trio.current_time() < deadline:
            await trio.sleep(_LOOK_S)
            if moves > (moves := cluster.open_moves()):  # the next move gets the same time
                deadline = max(deadline, trio.current_time() + moves_s)
            self._look()
        self.outcome.finished = over or bool(cluster.lost_logs)

    def _look(self) -> None:
        if self._watch is not None:
            self._watch(self.cluster)

    def end(self) -> dict[Channel, ChannelRows]:
        """Returns the results of the run without failures."""
        if not self.outcome.finished:
            self.unsettled = unsettled(self.cluster, self.dead)
        self.cluster.observe()
        return self.cluster.reference(
            rejected=lambda partition_id, some: self.rejected.setdefault(partition_id, []).extend(some)
        )

    def judge(self, reference: dict[Channel, ChannelRows], also: Judge | None) -> None:
        """Adds what the checkers find."""
        cluster, outcome, plan = self.cluster, self.outcome, self.plan
        held_up = bool(cluster.given_up) and not has_room(plan)  # unread results are kept until there is no room (A2)
        premise = self._premise(healed=not held_up)
        in_force = cluster.in_force()
        verdict = judge(
            cluster.history,
            plan,
            cluster.over_time,
            reference,
            premise=premise,
            bounds=replace(Bounds.of(plan, in_force.directory), turn_us=_turn_us(self.scenario, cluster)),
            recompute=cluster.reference,
            in_force=in_force,
        )
        outcome.findings = verdict.findings + ([] if self._proof is None else self._proof.findings)
        outcome.counters.merge(verdict.counters)
        self._judge_features(reference, premise)
        if also is not None:
            outcome.findings += also(self.scenario, cluster, reference)
        if self.unsettled and premise.healed and premise.survivors and not outcome.findings:
            outcome.findings.append(Finding("quiet", "all settles", cluster.history.end_us, "", self.unsettled))
        if any(host.startswith("source:") for host in cluster.lied_to):  # it has sent rows that it lacks (excluded)
            outcome.counters.add("runs in which the disk of a source lied")
            outcome.counters.add(
                "runs in which such a lie was noticed", bool(outcome.findings) or bool(cluster.lost_logs)
            )
            outcome.findings = []
        if held_up:
            outcome.counters.add("runs held up by a client that cannot go on")
        if cluster.longest_step_s:
            outcome.counters.add("runs in which state costs time")

    def _premise(self, *, healed: bool) -> Premise:
        dead = set(self.dead)
        if self.cluster.lost_logs:  # recordings of clients may end anywhere
            dead |= {f"client:{name}" for name in self.directory.clients}
        lost = {stream: at_us for stream, (_, at_us) in self.cluster.lost_logs.items()}
        return Premise(healed=healed, survivors=self.driver.survivors, dead=frozenset(dead), lost=lost)

    def _judge_features(self, reference: dict[Channel, ChannelRows], premise: Premise) -> None:
        cluster, outcome, plan = self.cluster, self.outcome, self.plan
        if retains(plan):
            outcome.findings += check_retained(cluster.history, plan, cluster.versions, outcome.counters)
            outcome.findings += check_archive(cluster)
        if self.directory.coordinator.balance_us is not None:
            count_balancing(cluster.history, outcome.counters)
        count_joins(cluster.history, self.scenario.newcomers(), outcome.counters)
        outcome.findings += check_kept(cluster, reference, premise, outcome.counters)
        if not cluster.lost_logs:
            outcome.findings += check_rejected(plan, reference, self.rejected, cluster.history.end_us, outcome.counters)
        for writer in self._writers if not cluster.lost_logs else ():
            outcome.findings += writer.check(outcome.finished, outcome.counters)


def _turn_us(scenario: Scenario, cluster: SimCluster) -> int:
    """Returns the longest slice of work, if each takes time regardless of the state."""
    turn_us = scenario.turn_us()
    return max(turn_us, round(cluster.longest_step_s * 1e6)) if turn_us else 0


def is_quiet(cluster: SimCluster, dead: Set[str] = frozenset()) -> bool:
    """Returns whether every client has everything, and no process holds anything of the failures any more."""
    return not unsettled(cluster, dead)


def unsettled(cluster: SimCluster, dead: Set[str] = frozenset()) -> str:
    """Returns what is still unsettled when all is over; "" if nothing is.

    Args:
      dead: nodes and clients that do not return.  Their unread results are kept forever.
    """
    for name in cluster.directory.clients:
        if f"client:{name}" in dead:
            continue
        client = cluster.clients.get(name)
        if client is None or not client.finished or any(i.main is None for i in client.inputs):
            return f"client:{name} does not read, or not to the end"
    if why := _others_run(cluster, dead) or cluster.unsettled():
        return why  # a process has not begun yet, or still helps out
    waited_for = cluster.current.read_by(cluster.plan, dead)
    for name, replica in cluster.replicas().items():
        if replica.state is not NodeState.STABLE or replica.sunion.stable_bytes:
            return f"{name} is {replica.state} and holds {replica.sunion.stable_bytes} bytes"
        if any(i.tentative for i in replica.sunion.inputs):
            return f"{name} holds tentative tuples"
        if any(i.main is None or i.corr is not None for i in replica.inputs):
            return f"{name} does not read each input once"
        # One entry may be left of acknowledged rows, if an acknowledgement ends inside it.
        stale = [log for log in replica.logs if log.channel not in waited_for]
        if any(log.stable.end - log.stable.number_after(log.acknowledged) > 1 for log in stale):
            return f"{name} keeps what all have acknowledged"
        if not all(log.suffix.untouched for log in replica.logs):
            return f"{name} keeps tentative results"
    for stream, process in cluster.sources.items():
        if why := process.too_much(dead):
            return f"source:{stream} {why}"
    return ""


def _others_run(cluster: SimCluster, dead: Set[str]) -> str:
    """Returns replicas that run and should not, or the reverse.  A standby may take over a dead node's partitions
    permanently.
    """
    running, expected = cluster.replicas().keys(), cluster.expected()
    helped = {partition_id for partition_id, _, node in (r.partition("@") for r in expected) if node in dead}
    if missing := sorted({r for r in expected if host_of(r) not in dead} - running):
        return f"{missing[0]} does not run"
    if others := sorted(r for r in running - expected if r.partition("@")[0] not in helped):
        return f"{others[0]} runs"
    left = sorted(helped - {r.partition("@")[0] for r in running})
    return f"nobody runs {left[0]}" if left else ""
