"""Mistakes of this project that were fixed: the reverse of each fix.

Each schedule in ``tests/regressions`` shows one of them (:data:`PAIRS`); unit tests show the others
(:mod:`tests.mutants.units`).  Some were mistakes of a checker or of the simulator.
"""

from __future__ import annotations

from typing import Any, Final

from consistency.checking import schedule
from consistency.checking.finding import Finding
from consistency.checking.placement import recovery_order
from consistency.checking.placement.orders import _Checker
from consistency.checking.promises import accuracy, availability, switching
from consistency.checking.promises import leftovers as quiet
from consistency.checking.protocol import corrections
from consistency.checking.protocol.feeds import _FeedCheck
from consistency.checking.protocol.producer_choice import _Follow
from consistency.dpc.stabilization import Stabilization
from consistency.dpc.taint import Taint
from consistency.dpc.unit_run import UnitRun
from operators.sunion.clocks import ArrivalClocks
from replicas.client.lookout import Lookout
from replicas.consumer.input import Input
from replicas.consumer.selection import ProducerSelector
from replicas.consumer.upstream import Upstream
from replicas.faults.runner import FaultRunner
from replicas.node.checkpoint_task import CheckpointTask
from replicas.node.log_task import _Writer
from replicas.node.orders import OrderFollower
from replicas.node.output_side import OutputSide
from replicas.node.recovery import ReplicaRecovery
from replicas.node.snapshots import Snapshots
from replicas.node.ticks import Ticks
from replicas.node.validation import ReplicaValidation
from replicas.placement.deciders.install import InstallDecider
from replicas.placement.deciders.moves import Moves
from replicas.placement.view import ClusterView
from replicas.producer.server import Server
from replicas.producer.subscription import OutputSubscription
from replicas.simulation.driver import FaultDriver
from replicas.simulation.simulate import _SimulatedRun
from replicas.simulation.world.cluster import SimCluster
from replicas.simulation.world.disk import SimDisk
from replicas.simulation.world.hosts import SimHosts
from replicas.source.retention import SourceRetention
from spe.stream.batch import RecDone, Undo
from spe.stream.names import NodeState
from tests.mutants.patching import Edit, edited, mutant

# --- the engine ---

edited(
    "undo-behind-the-end",
    "beside a replica that corrects an ended stream its consumer waits for a rec_done for ever (V1)",
    Edit(OutputSubscription, "__init__", "held and frontier < END_OF_TIME", "held"),
)
edited(
    "slice-asked-of-a-refused-log",
    "a log that is begun anew waits for a slice behind the end of the one that was refused (G5)",
    Edit(_Writer, "_ask", " and self._asked == (state, again)", ""),
)
edited(
    "what-is-archived-is-deleted",
    "a source deletes what it has archived, whoever has begun anew meanwhile and needs it (E2)",
    Edit(SourceRetention, "look", "free = self._free()[: len(free)]", "pass"),
)
edited(
    "log-of-another-state-stays-as-it-is",
    "a log whose state a replica did not go on from gets none at the end of input, and nothing is acknowledged (G5)",
    Edit(_Writer, "_ask", "hurries or self._has_another_state(state, log)", "hurries"),
)
edited(
    "full-output-hears-no-early-acks",
    "a full output does not count what acknowledges more than was made again, and waits for ever (A1, A2)",
    Edit(OutputSide, "acknowledged", "if ack.id > made and not full:", "if ack.id > made:"),
)
edited(
    "refused-feed-asked-for-again-at-once",
    "a second connection to the producer that is read is tried without a pause where it is refused (F4)",
    Edit(Input, "_choose_corrections", " and self.producers[wanted].retry_at <= now", ""),
)
edited(
    "nobody-reads-who-has-no-room",
    "a client leaves the replica that has no room to correct until it is read (F4)",
    Edit(ProducerSelector, "_waits_for_us", "main = self._reading.main\n", "return False\n    main = None\n"),
)
edited(
    "last-read-is-not-told",
    "what comes in one read with the state that ends a feed is taken, and its owner does not hear of it (F4)",
    Edit(
        Upstream,
        "_receive",
        "owner.delivered(",
        "if input.feed(generation) is not None:\n                owner.delivered(",
    ),
)
edited(
    "a-full-output-ends-within-a-bucket",
    "an output gets full within a bucket and makes no more of it, and nobody acknowledges a part of one (A2)",
    Edit(UnitRun, "is_held", " and not self.sunion.within_bucket", ""),
)
edited(
    "no-checkpoint-while-undo-is-tainted",
    "a tainted replica under undo/redo writes no checkpoint, though a full upstream waits for it (A8, R2)",
    Edit(ReplicaRecovery, "worth_storing", " and not self._inputs.upstream_full()", ""),
)


edited(
    "older-checkpoint-takes-the-place-of-a-later-one",
    "while tainted the last checkpoint in memory is written to disk, where a later one is (A8)",
    Edit(ReplicaRecovery, "advances", " and all(map(ge, positions, self._newest))", ""),
)
edited(
    "corrections-wait-for-room-beside-a-partner",
    "a redo with a full output waits for consumers that read its partner (A2)",
    Edit(Stabilization, "_make_room", "elif isinstance(self.live, PartnerServes):", "elif False:"),
    Edit(ProducerSelector, "_waits_for_us", "main = self._reading.main\n", "return False\n    main = None\n"),
)
edited(
    "stable-at-once-after-suspend",
    "a replica that suspended is STABLE as soon as it releases, however much has come in meanwhile (T3)",
    Edit(UnitRun, "is_late", "return self", "return False and self"),
)
edited(
    "one-that-suspends-is-read-all-the-same",
    "a replica in UP_FAILURE that suspends is preferred to one that corrects with live results (F4)",
    Edit(ProducerSelector, "_rank_by_state", "3 if producer.stands_in else 1", "3"),
)
edited(
    "full-disk-ends-the-node",
    "a node whose disk is full cannot write a checkpoint, and ends (A8)",
    Edit(CheckpointTask, "run", "except (OSError, LocalProtocolError)", "except LocalProtocolError"),
)


@mutant(InstallDecider, "_retire", "a helper leaves although the others are not as far as it was (H5)")
def helper_leaves_those_that_are_behind(original: Any, self: Any, id: Any, wanted: Any) -> Any:
    seen = self._view.partitions[id]
    frontier, seen.frontier = seen.frontier, dict.fromkeys(seen.frontier, 0)
    try:
        return original(self, id, wanted)
    finally:
        seen.frontier, self._at(id).mark = frontier, None


edited(
    "an-older-coordinator-is-not-told",
    "two coordinators run on, and nobody takes the directories of the earlier one (H6)",
    Edit(Server, "_heartbeat", "(over := self._keeper.over(hello.incarnation))", "(over := None)"),
)
edited(
    "a-hello-is-no-epoch-for-orders",
    "an older coordinator is obeyed by who has heard a later one say hello (H6)",
    Edit(OrderFollower, "_follow", "over := self._keeper.over(message.epoch)", "over := None"),
)
edited(
    "state-that-is-away-is-not-waited-for",
    "all is made anew though a disk that may hold a state is only away (H8)",
    Edit(InstallDecider, "_restore", "(_FOR_A_STATE if away else 1)", "1"),
)

edited(
    "what-was-said-before-a-retire-counts",
    "a standby that was told to stand by and is wanted again seems to run, and another one leaves for it (H7)",
    Edit(InstallDecider, "helper", "state = NodeState.RECOVERING  #", "pass  #"),
)

edited(
    "no-early-checkpoint-for-a-full-upstream",
    "a full upstream waits for a checkpoint, which waits for its time, or for the failure that the wait becomes (R8)",
    Edit(UnitRun, "checkpoint_due", "self.is_crowded", "self.sunion.stable_bytes * 2 >= self._redo_bytes"),
)
edited(
    "a-tainted-replica-makes-no-room",
    "all inputs of a tainted replica stand at n*, full, and wait for a checkpoint that it takes when they go on (R2)",
    Edit(Taint, "_makes_room", "behind and waited and run.inputs.upstream_full()", "False"),
)

edited(
    "smaller-number-never-counts",
    "a process whose clock is behind and whose disk was lost is taken for an older one for ever (A2b)",
    Edit(OutputSide, "speaks", "self._is_dead(consumer, now) or ", ""),
)
# The schedule that showed it ended the whole process.  Now spilled data are lost and missing from the snapshot, which
# a run need not request, so a unit test is the regression.
edited(
    "snapshot-of-who-was-put-away",
    "a snapshot goes on though its replica is put away, and lacks what that had spilled (A3)",
    Edit(
        Snapshots,
        "of",
        "while hosting.running.get(replica.id.of) is host and host.error is None:",
        "while True:",
    ),
)

# --- the simulator ---

edited(
    "run-is-over-before-a-loss-is-noticed",
    "a run is over while a process that lost whom it reads, by the healing or just before, does not know it yet",
    Edit(_SimulatedRun, "settle", "await trio.sleep(self.plan.timing.gone_us() / 1e6)", "pass"),
)
edited(
    "recording-is-whole-though-its-disk-lied",
    "a recording is asked for what a lying disk has lost, though whoever reads it is told",
    Edit(FaultDriver, "_kill", "self._cluster.lied_to.add(host)", "pass"),
)
edited(
    "faults-go-on-beside-the-heal",
    "what is due in the moment of the heal begins behind it, and never ends",
    Edit(
        _SimulatedRun,
        "play",
        "nursery.cancel_scope.cancel()  # a fault that is due now would outlive the healing\n"
        "    await self.driver.heal()",
        "await self.driver.heal()\n        nursery.cancel_scope.cancel()",
    ),
)
edited(
    "cut-that-ends-at-the-heal-stays",
    "what ends in the moment of the heal is taken for ended, and stays",
    Edit(FaultDriver, "heal", "self._apply()", "pass"),
)
edited(
    "faults-that-meet-overtake-each-other",
    "two faults that meet at one process are done in any order",
    Edit(FaultRunner, "_do_in_order", "if last is not None:", "if False:"),
    Edit(FaultDriver, "heal", "for host in self._cluster.frozen():", "for host in ():"),
)


@mutant(SimHosts, "_begin", "what is killed in the moment of its start runs all the same")
def killed_as_it_starts_and_lives(original: Any, self: Any, host: str) -> None:
    before = self._scopes.get(host)
    original(self, host)
    begun = self._scopes[host]
    if before is not None:
        self._scopes[host] = before

        async def later() -> None:
            self._scopes[host] = begun

        self._nursery.start_soon(later)


# --- the checkers ---


@mutant(_FeedCheck, "_received", "a rec_done is judged by when it is read, not by when it was sent")
def rec_done_judged_by_its_time(original: Any, self: Any, event: Any) -> Any:
    yield from original(self, event)
    undone_us = self.__dict__.setdefault("_mutant_undone_us", {})
    feed, producer = (event.consumer, event.channel, event.generation), self._replica(event)
    state, since_us = self._states.get(producer, (NodeState.STABLE, 0))
    if isinstance(event.element, Undo):
        undone_us[feed] = event.at_us
    elif (
        isinstance(event.element, RecDone)
        and event.element.state is NodeState.STABLE
        and state is not event.element.state
    ) and since_us < undone_us.get(feed, 0):
        yield Finding("P2", "a rec_done comes when the correction is complete", event.at_us, event.consumer, "")


edited(
    "right-results-always-count",
    "a result of part of the input that equals another one counts as doubled",
    Edit(switching, "_lives_twice", "if only_adds(plan, channel.stream):", "if True:"),
)


edited(
    "small-buffers-never-fill",
    "results are asked for where small buffers fill between two checkpoints on disk",
    Edit(availability._Excuses, "why", "min(self._fills_us, self._lost_us)", "self._lost_us"),
)


@mutant(_Follow, "_evict", "a producer counts as better that has given up its consumer")
def given_up_is_no_reason(original: Any, self: Any, note: str) -> None:
    pass


edited(
    "as-many-actives-as-may",
    "as many standbys must be left as may run, not as were chosen",
    Edit(
        _Checker,
        "_retires",
        'min(self._directory.coordinator.budget, self.chosen[-1].count("\'") // 2)',
        "self._directory.coordinator.budget",
    ),
)
edited(
    "standby-that-began-again-is-asked",
    "a standby is asked what it reads though it has only begun again",
    Edit(
        quiet,
        "_subscriptions",
        "states = {replica: state for replica, state in states.items() if host_of(replica) != host}",
        "pass",
    ),
)

edited(
    "acknowledgements-of-rows-on-disk-are-exact",
    "validation demands that acknowledgements never go back, also where only a bound of them is known",
    Edit(ReplicaValidation, "step", "if not replica.sunion.store.spilled:", "if True:"),
)
edited(
    "dead-client-is-still-told",
    "what tasks of a killed client do as they end is told as if its next process did it",
    Edit(SimCluster, "_client_process", "if not scope.cancel_called:", "if True:"),
)

edited(
    "only-known-producers-are-asked",
    "a client whose producers are out of reach never hears that its partition has moved (D2)",
    Edit(Lookout, "run", "if unserved != self._unserved:", "if False:"),
)
edited(
    "a-role-never-heard-of-serves",
    "a node counts as one that serves a partition though it never heard of its role",
    Edit(schedule, "never_began", "if n not in configured.hosts(partition)", "if False"),
)
edited(
    "who-suspends-later-was-silent-before",
    "a node that was told to suspend is taken for one that never gave tentative results",
    Edit(accuracy._Judge, "__init__", "in_force.giving", "in_force.directory"),
)

edited(
    "leaves-before-the-target-is-safe",
    "the source of a move retires though only its disk has the state (M3)",
    Edit(
        Moves,
        "_follow",
        "checkpoints(move.partition, move.target) == 0",
        "checkpoints(move.partition, move.target) == -1",
    ),
    Edit(CheckpointTask, "run", " or (recovery.backs and not recovery.safe)", ""),
)

edited(
    "only-silent-sources-are-apart",
    "a source whose rows are ahead of its own clock is taken for one that has all results at once (S5)",
    Edit(schedule, "apart", "any(s.live for s", 'any(s.live and s.watermark == "data" for s'),
)

edited(
    "room-wakes-nobody",
    "a replica with a full output is not woken when dead consumers are given up for room (A2)",
    Edit(Ticks, "_look_at", "host.work.wake()  # there", "pass  # there"),
)

edited(
    "the-dead-are-waited-for",
    "a node that was dead when the coordinator was cut off may come for ever, and its standby is chosen (H7)",
    Edit(
        ClusterView,
        "is_gone",
        "(self.was_heard(node) or now - self._begun_at >= self.recovery_us)",
        "self.was_heard(node)",
    ),
)

edited(
    "what-is-ahead-starts-the-clocks-of-others",
    "the last windows of an input that has ended say when the other inputs are late (B3)",
    Edit(ArrivalClocks, "rows_came", "self.near.arrived(near, now)", "self.near.arrived(latest, now)"),
)


@mutant(SimDisk, "unlock", "a task that is cancelled while it opens a checkpoint log keeps its lock (G9)")
def lock_outlives_a_cancelled_opening(original: Any, self: Any, path: Any) -> None:
    pass


edited(
    "orders-of-the-budget-are-not-noted",
    "an order that the budget may have given leaves the partition first in the plan of a recovery",
    Edit(recovery_order._Checker, "_ordered", "|= {replica}", "|= set() if excused else {replica}"),
)

edited(
    "a-producer-that-waits-works",
    "a replica is asked to correct while its producer, with a longer X, still waits for the same source",
    Edit(corrections._Checker, "_whole", " or not self._are_whole(maker, world)", ""),
)

#: The mistake that each schedule of ``tests/regressions`` shows.
PAIRS: Final = {
    "a-source-stalls-behind-a-longer-x": "a-producer-that-waits-works",
    "a-bucket-larger-than-the-output": "a-full-output-ends-within-a-bucket",
    "a-choice-waits-for-a-node-that-died-before-a-cut": "the-dead-are-waited-for",
    "a-client-ahead-of-its-only-producer-that-is-full": "full-output-hears-no-early-acks",
    "a-client-is-restarted-and-its-dead-process-still-acts": "dead-client-is-still-told",
    "a-client-is-cut-off-from-all-whom-it-knows": "only-known-producers-are-asked",
    "a-clock-is-behind-and-the-disk-is-lost": "smaller-number-never-counts",
    "a-cut-that-ends-at-the-heal": "cut-that-ends-at-the-heal-stays",
    "a-copy-is-archived-as-its-reader-begins-anew": "what-is-archived-is-deleted",
    "a-disk-that-lied-leaves-a-hole-in-a-recording": "recording-is-whole-though-its-disk-lied",
    "a-fault-due-at-the-heal": "faults-go-on-beside-the-heal",
    "a-feed-is-lost-as-the-run-ends": "run-is-over-before-a-loss-is-noticed",
    "a-frozen-consumer-reads-an-old-rec-done-late": "rec-done-judged-by-its-time",
    "a-frozen-replica-wakes-as-what-it-was": "helper-leaves-those-that-are-behind",
    "a-heal-in-the-moment-of-a-freeze": "faults-that-meet-overtake-each-other",
    "a-later-checkpoint-is-on-disk-than-in-memory": "older-checkpoint-takes-the-place-of-a-later-one",
    "a-mark-of-before-the-install": "mark-outlives-an-install",
    "a-log-is-refused-after-the-end-of-its-input": "slice-asked-of-a-refused-log",
    "a-move-is-cancelled-before-its-target-hears-of-it": "a-role-never-heard-of-serves",
    "a-node-is-told-to-suspend-after-a-failure": "who-suspends-later-was-silent-before",
    "a-redo-has-no-room-while-its-partner-is-read": "corrections-wait-for-room-beside-a-partner",
    "a-replica-gets-another-role-as-its-log-is-opened": "lock-outlives-a-cancelled-opening",
    "a-second-connection-is-refused-while-the-first-one-works": "refused-feed-asked-for-again-at-once",
    "a-source-restarts-as-the-run-ends": "run-is-over-before-a-loss-is-noticed",
    "a-standby-is-away-while-its-partition-lacks-a-state": "state-that-is-away-is-not-waited-for",
    "a-top-k-of-part-of-the-input-equals-another-result": "right-results-always-count",
    "a-window-reaches-far-beyond-the-end-of-its-input": "what-is-ahead-starts-the-clocks-of-others",
    "a-window-that-closes-early-for-its-source-ends": "what-is-ahead-starts-the-clocks-of-others",
    "all-are-killed-as-a-move-ends": "leaves-before-the-target-is-safe",
    "all-nodes-lose-power-over-durable-checkpoints": "ids-start-again",
    "an-order-of-the-budget-is-in-the-plan": "orders-of-the-budget-are-not-noted",
    "an-active-that-just-retired-is-chosen-again": "what-was-said-before-a-retire-counts",
    "corrections-behind-the-end-of-a-stream": "undo-behind-the-end",
    "disk-full-under-durable-checkpoints": "full-disk-ends-the-node",
    "evicted-by-the-one-that-is-stable": "given-up-is-no-reason",
    "fewer-actives-chosen-than-the-budget": "as-many-actives-as-may",
    "full-correction-that-nobody-reads": "nobody-reads-who-has-no-room",
    "full-upstream-waits-for-a-checkpoint-while-undo-is-tainted": "no-checkpoint-while-undo-is-tainted",
    "killed-in-the-moment-of-its-restart": "killed-as-it-starts-and-lives",
    "rows-are-ahead-of-the-clock-that-promises": "only-silent-sources-are-apart",
    "rows-that-redo-needs-are-on-disk": "acknowledgements-of-rows-on-disk-are-exact",
    "small-buffers-between-checkpoints-on-disk": "small-buffers-never-fill",
    "stable-with-a-backlog-after-suspend": "stable-at-once-after-suspend",
    "taken-with-the-state-that-ends-the-feed": "last-read-is-not-told",
    "upstream-is-full-before-the-first-checkpoint": "no-early-checkpoint-for-a-full-upstream",
}
