"""More known-bad variants, proposed by readers of the protocol who did not write its checkers.

Where no checker finds such a mistake, a checker is missing or the random scenarios lack a situation; one of both was
added for each of these.
"""

from __future__ import annotations

from typing import Any, Final

from consistency.dpc.agreement import Agreement
from consistency.dpc.manager import DpcManager
from consistency.dpc.partners import Partners
from consistency.dpc.stabilization import Stabilization
from consistency.dpc.taint import Taint
from consistency.dpc.up_failure import UpFailure
from operators.aggregate.count_windows import CountAggregate
from operators.aggregate.time_windows import WindowAggregate
from operators.soutput import SOutput
from operators.sunion.spilled_chunk import SpilledChunk
from operators.sunion.sunion import SUnion
from replicas.consumer.input import Input
from replicas.consumer.upstream import Upstream
from replicas.link.directory import DirectoryKeeper
from replicas.node.recovery import ReplicaRecovery
from replicas.node.replica import Replica
from replicas.placement.deciders.activation import Activation
from replicas.placement.epoch import FollowedEpoch
from replicas.placement.standby import Standby
from replicas.placement.store import CoordinatorStore
from replicas.producer.output_log import OutputLog
from replicas.source.writer import SourceWriter
from spe.stream.times import BEFORE_TIME
from tests.mutants.patching import Edit, edited, mutant

# --- the directory (D) ---


edited(
    "stale-directory-taken",
    "a process takes a version of the directory that is older than its own (D2)",
    Edit(DirectoryKeeper, "wants", "version > self.version and ", ""),
)


# --- correcting (R, K) ---


edited(
    "redo-beside-a-silent-input",
    "a redo starts although an input is silent (R1)",
    Edit(Taint, "is_correctable", " and run.inputs.arriving(now)", ""),
)
edited(
    "partner-serves-whatever-it-does",
    "a partner that corrects or recovers itself counts as serving (R5)",
    Edit(Stabilization, "_look_for_partner", "partners.serves(self.live.partner)", "partners.told[self.live.partner]"),
)
edited(
    "dead-partner-keeps-its-state",
    "a partner that is not heard any more is still what it was last (K5)",
    Edit(Partners, "lost", "self.told[partner] = None", "pass"),
)
edited(
    "own-request-outlives-a-grant",
    "who grants while it asks goes on asking, and takes the answer (K1)",
    Edit(Partners, "asked", "self._asked.clear()", "pass"),
)
edited(
    "request-is-never-withdrawn",
    "a request stays open though there is nothing to correct any more (R3)",
    Edit(UpFailure, "_advance_tentative", "run.partners.withdraw()", "pass"),
)
edited(
    "mark-outlives-its-redo",
    "the next failure is corrected from the checkpoint of the last one (R7, C1)",
    Edit(Taint, "__init__", "run.mark = None", "run.mark = self.mark"),
)
edited(
    "mark-outlives-an-install",
    "a replica that installs a state keeps the checkpoint that it took of the one before (A3)",
    Edit(DpcManager, "_install_snapshot", "run.mark = run.work.open = None", "run.work.open = None"),
    Edit(SUnion, "install", "Cursors(live=restart)", "replace(self.cursors, live=restart)"),
)
edited(
    "what-is-made-again-is-not-compared",
    "what a redo makes again may differ from what was released (R8, invariant 4)",
    Edit(SOutput, "_drop_released", "self._digest.value() != self._released_digest", "False"),
    Edit(SOutput, "stable", "if self._released_id:", "if False:"),
)


# --- whom to read, and what of it (F, B) ---

edited(
    "feed-promoted-without-a-cut",
    "a correcting feed becomes the main one, and what the old one brought counts again (F1, F5)",
    Edit(Input, "_promote", "self.port.main_changed()", "pass"),
)
edited(
    "undo-of-the-correcting-feed-counts",
    "an undo on CORRECTIONS takes away what MAIN brought (B4)",
    Edit(Input, "element", "case Undo() if is_main:", "case Undo():"),
)


@mutant(Replica, "shift", "a replica that was frozen takes its own silence for that of others (T1)")
def own_silence_counts(original: Any, self: Any, gap_us: int, now: int) -> None:
    pass


@mutant(Input, "caught_up", "a replica that recovers counts as caught up with the slowest of its producers (A3)")
def caught_up_with_the_slowest(original: Any, self: Any) -> bool:
    known = min((p.frontier for p in self.producers.values() if p.alive), default=BEFORE_TIME)
    return self.main is not None and self.main.opened and self.port.frontier >= known


# --- acknowledgement and truncation (A) ---

edited(
    "only-who-is-read-hears-acks",
    "acknowledgements go to the producer that is read, and not to all that buffer (A1)",
    Edit(
        Upstream,
        "_acks_for",
        "if peer in self._producers(channel)",
        "if any(i.channel == channel and i.main is not None and i.main.producer == peer for i in owner.inputs)",
    ),
)
edited(
    "never-heard-counts-for-nothing",
    "a consumer that was never heard does not hold the log (A2)",
    Edit(OutputLog, "truncation_line", "if not a.evicted)", "if not a.evicted and a.incarnation >= 0)"),
)
edited(
    "evicted-without-a-sibling",
    "at the cap a dead consumer is given up though nobody else has what it needs (A2)",
    Edit(OutputLog, "evictable", "and best.get(_partition_of(name), 0) > ack.id", "and ack.id < self.last_id"),
)


@mutant(SpilledChunk, "smallest_id", "what lies in spill files is acknowledged (A1, A9)")
def spilled_is_acknowledged(original: Any, self: Any, low: int) -> int | None:
    return None


# --- sources (S) ---


edited(
    "lease-is-not-logged",
    "an idle source promises what its log does not say (S2)",
    Edit(
        SourceWriter,
        "lease",
        "if not self._refused and self._stamper.lease(event_us):\n        self._append(None)",
        "self._stamper.lease(event_us)\n    self._synced_bound_us = self._stamper.bound_us\n    self.advance()",
    ),
)


# --- operators ---


edited(
    "arrival-starts-again",
    "an aggregate that is restored counts its rows from the beginning again (U3)",
    Edit(WindowAggregate, "_restoring", 'self._sequence = state["sequence"]', "self._sequence = 0"),
)
edited(
    "arrival-starts-again-in-count-windows",
    "the same of windows that count rows (U3)",
    Edit(CountAggregate, "_restoring", 'self._sequence = state["sequence"]', "self._sequence = 0"),
)


# --- standbys, and who tells them to run (H) ---


@mutant(
    ReplicaRecovery,
    "written",
    "a helper acknowledges what its newest checkpoint holds, and that is damaged (H3)",
)
def helper_acknowledges_its_newest(original: Any, self: Any, snapshot: Any) -> None:
    backs, self.backs = self.backs, False
    original(self, snapshot)
    self.backs = backs


@mutant(Activation, "step", "the next active replica starts while one is starting (H7)")
def actives_start_together(original: Any, self: Any, state: Any) -> Any:
    coming = sorted(self.target - self.active)
    if coming and len(self.active) < self.budget:
        self.active.add(coming[0])
        return coming[0]
    return original(self, state)


@mutant(Standby, "useful", "a standby takes a checkpoint that is older than what it holds (H1)")
def older_checkpoint_taken(original: Any, self: Any, snapshot: Any) -> bool:
    return True


@mutant(CoordinatorStore, "begin", "a coordinator that starts again begins no new epoch (H6)")
async def epoch_begins_again(original: Any, self: Any, at_least: int) -> int:
    (before,) = self._database.execute("SELECT coalesce(max(number), 0) FROM epoch").fetchone()
    return int(before) or int(await original(self, at_least))


@mutant(FollowedEpoch, "_known", "a node that starts again follows any coordinator (H6)")
def followed_epoch_forgotten(original: Any, self: Any) -> int:
    return 0


# --- digests ---


@mutant(Agreement, "compare", "replicas that make different results are not told of (invariant 4)")
def difference_not_told(original: Any, self: Any, output: int, last_id: int, marks: Any, ended: bool = False) -> Any:
    return []


#: Mutants that no scenario here shows, and why.  A unit test finds each (tests.mutants.units).
UNSEEN: Final = {
    "difference-not-told": "there is a difference only where an operator is not deterministic",
    "what-is-made-again-is-not-compared": "the same",
    "stale-directory-taken": "no random run changes the directory yet",
    "followed-epoch-forgotten": "a simulated run has one coordinator at a time, and an order dies with its connection",
    "caught-up-with-the-slowest": "it serves a moment early, and what it serves is right",
}
