"""Known-bad variants of the protocol, as patches of the engine.  The tests must find each of them.

Each mutant is one mistake that could be made, or was made (tests.mutants.patching).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from consistency.dpc.instance import Checkpoint, Instance
from consistency.dpc.manager import DpcManager
from consistency.dpc.partners import Ask
from consistency.dpc.stabilization import Stabilization
from consistency.dpc.states import Transition
from consistency.dpc.taint import Taint
from consistency.dpc.up_failure import UpFailure
from operators.join.join import Join
from operators.join.runs import SortedRun
from operators.rejections import RejectedRow
from operators.skipping import Skipping
from operators.soutput import SOutput
from operators.sunion.chunk_store import ChunkStore
from operators.sunion.clocks import BucketClocks
from operators.sunion.input import SUnionInput
from operators.sunion.sunion import SUnion
from operators.trials import Trials
from operators.windows import LateRejections
from replicas.client.view import ClientPort
from replicas.consumer.input import Input
from replicas.consumer.selection import ProducerSelector
from replicas.consumer.upstream import Upstream
from replicas.node.orders import OrderFollower
from replicas.node.recovery import ReplicaRecovery
from replicas.node.replica import Replica
from replicas.placement.deciders.activation import Activation
from replicas.placement.deciders.install import InstallDecider
from replicas.placement.deciders.replay import Decision, ReplayDecider
from replicas.placement.standby import Standby
from replicas.placement.view import ClusterView
from replicas.producer import element_log
from replicas.producer.output_log import OutputLog
from replicas.producer.subscription import OutputSubscription
from replicas.source.writer import SourceWriter
from spe.plan.plan import InputStream
from spe.stream.batch import Batch, Boundary, RecDone, Undo
from spe.stream.ids import ReplicaId
from spe.stream.names import Kind, NodeState
from spe.stream.times import BEFORE_TIME, END_OF_TIME, floor_to, saturating_add
from tests.mutants import checkpoint_log, footprints, foreign, mended, moving, recovery, setting, useless
from tests.mutants.patching import MUTANTS, mutant

__all__ = ["MUTANTS", "checkpoint_log", "footprints", "foreign", "mended", "moving", "recovery", "setting", "useless"]


# --- what a producer sends (V) ---


@mutant(OutputLog, "subscribe", "a resumed feed begins one tuple too late (U10)")
def resend_off_by_one(original: Any, self: Any, mode: Any, position: int, *rest: Any) -> Any:
    made = original(self, mode, position, *rest)
    if isinstance(made, OutputSubscription) and position:
        made._stable.done += 1
        made.position += 1
    return made


@mutant(OutputSubscription, "_begin_correction", "corrections follow tentative tuples without an undo (V1)")
def no_undo(original: Any, self: Any, out: list[Any]) -> None:
    original(self, out)
    out[:] = [e for e in out if not isinstance(e, Undo)]


@mutant(OutputSubscription, "_begin_correction", "an undo reaches one stable tuple too far (V1, P4)")
def undo_of_a_stable_tuple(original: Any, self: Any, out: list[Any]) -> None:
    original(self, out)
    out[:] = [Undo(max(0, e.upto_id - 1)) if isinstance(e, Undo) else e for e in out]


@mutant(OutputSubscription, "_news", "a switch forgets t_max: tentative tuples come again (V3)")
def forgotten_t_max(original: Any, self: Any, entry: Any) -> Any:
    return self._share(entry)


@mutant(OutputSubscription, "__init__", "a switch forgets that the consumer holds tentative tuples (V1)")
def held_forgotten(
    original: Any, self: Any, output: Any, mode: Any, position: int, frontier: int, held: bool, *rest: Any
) -> None:
    original(self, output, mode, position, frontier, False, *rest)


@mutant(OutputSubscription, "_pull_stable", "rec_done is sent in the middle of the corrections (V1)")
def early_rec_done(original: Any, self: Any, out: list[Any], budget: int) -> Any:
    left = original(self, out, budget)
    at = next((i for i, e in enumerate(out) if isinstance(e, Undo)), None)
    if at is not None:
        out.insert(at + 1, RecDone(NodeState.STABLE))
    return left


@mutant(OutputSubscription, "_pull_stable", "a boundary overtakes the tuples that it covers (V1)")
def boundary_before_its_tuples(original: Any, self: Any, out: list[Any], budget: int) -> Any:
    left = original(self, out, budget)
    for at in range(1, len(out)):
        batch, boundary = out[at - 1], out[at]
        if isinstance(batch, Batch) and isinstance(boundary, Boundary):
            out[at - 1 : at + 1] = [Boundary(boundary.kind, boundary.time, batch.from_id), batch]
    return left


@mutant(OutputSubscription, "_rec_done", "rec_done is never sent (V1)")
def no_rec_done(original: Any, self: Any, out: list[Any]) -> None:
    self._owes = self._correcting = False


@mutant(OutputSubscription, "_pull_tentative", "tentative tuples are sent as stable ones (U8)")
def tentative_marked_stable(original: Any, self: Any, out: list[Any], budget: int) -> None:
    original(self, out, budget)
    for at, element in enumerate(out):
        if isinstance(element, Batch) and element.kind is Kind.TENTATIVE:
            out[at] = Batch(Kind.STABLE, self.position, self.position + len(element), None, element.rows)
            self.position += len(element)
            self._stable.done = self.position
    self._tentative = False


@mutant(OutputLog, "clear_suffix", "the tentative suffix outlives its correction (R7)")
def suffix_not_cleared(original: Any, self: Any) -> None:
    self.run += 1


@mutant(OutputLog, "truncation_line", "what the fastest consumer has acknowledged is forgotten for all (A2)")
def truncation_too_early(original: Any, self: Any) -> Any:
    return max((a.id for a in self._acks.values()), default=self.last_id)


@mutant(element_log.Entry, "share", "a substream gets the rows of its neighbour (U9)")
def substream_of_the_neighbour(original: Any, self: Any, substream: Any) -> Any:
    index, count, key = substream
    return original(self, ((index + 1) % count, count, key))


# --- what an SUnion takes and gives (B) ---


@mutant(SUnionInput, "add_stable", "what two feeds deliver counts twice (U10)")
def duplicates_kept(original: Any, self: Any, batch: Any, now: int) -> None:
    position = self.position
    self.position = min(position, batch.from_id)
    original(self, batch, now)
    self.position = max(position, self.position)


@mutant(SUnionInput, "add_stable", "a tuple that comes while results are tentative is lost (B6)")
def lost_late_tuple(original: Any, self: Any, batch: Any, now: int) -> None:
    rows = batch.rows
    if len(rows) > 1 and self._owner.tainted:
        mask = np.ones(len(rows), np.bool_)
        mask[0] = False
        batch = Batch(batch.kind, batch.from_id, batch.upto_id, batch.row_ids()[1:], rows.select(mask))
    original(self, batch, now)


@mutant(SUnion, "stable_end", "a bucket counts as stable when its first input is (B1)")
def frontier_of_the_fastest(original: Any, self: Any) -> Any:
    frontier = max(i.frontier for i in self.inputs)
    return frontier if frontier in (BEFORE_TIME, END_OF_TIME) else floor_to(frontier, self._bucket_us)


@mutant(ChunkStore, "take", "ties in time go by arrival, not by input (U2)")
def tie_by_arrival(original: Any, self: Any, end: int) -> Any:
    inputs = self._inputs
    self._inputs = sorted(inputs, key=lambda one: one.position)
    try:
        return original(self, end)
    finally:
        self._inputs = inputs


@mutant(BucketClocks, "arrived", "each arrival starts all clocks anew (B3)")
def clocks_start_anew(original: Any, self: Any, value: int, now: int) -> None:
    original(self, value, now)
    self._starts = [now for _ in self._starts]


@mutant(SUnion, "due", "a bucket waits for an input that does not deliver, for ever (T3, hard)")
def no_hard_limit(original: Any, self: Any, now: int, *, wait_us: int, hard_us: int, fresh: Any) -> Any:
    waiting = [max(i.tentative_frontier, i.frontier) for i in self.inputs]
    end = original(self, now, wait_us=wait_us, hard_us=1 << 50, fresh=fresh)
    return None if end is None or min(waiting) < end else end


@mutant(SUnionInput, "undo", "an undo from upstream leaves its tentative tuples (B4)")
def undo_forgotten_by_the_input(original: Any, self: Any) -> None:
    kept, size = list(self.tentative), self.tentative_bytes
    original(self)
    self.tentative, self.tentative_bytes = kept, size


@mutant(SUnionInput, "_drop_tentative", "what is stable leaves its tentative version beside it (B4)")
def tentative_beside_stable(original: Any, self: Any) -> None:
    pass


@mutant(SUnionInput, "main_changed", "another producer's tentative tuples count again after a switch (F1)")
def no_cut_at_a_switch(original: Any, self: Any) -> None:
    self.cut_time = BEFORE_TIME


@mutant(SUnionInput, "acknowledged", "what was received is acknowledged, not what was processed (A1)")
def acknowledged_on_arrival(original: Any, self: Any, restart: int) -> Any:
    return self.position


# --- checkpoint and redo (C, R) ---


@mutant(Taint, "release", "the checkpoint is taken after the first tentative slice (C1)")
def checkpoint_too_late(original: Any, self: Any, now: int, policy: Any, *, correctable: bool = False) -> Any:
    more = original(self, now, policy, correctable=correctable)
    if isinstance(self.mark, Checkpoint) and not getattr(self, "_mutant_is_late", False):
        self.mark = Checkpoint(self.mark.restart, self._run.live.fragment.snapshot(), self.mark.outputs)
        self._mutant_is_late = True
    return more


@mutant(SUnion, "begin_redo", "redo leaves out the first bucket (R6)")
def redo_skips_a_bucket(original: Any, self: Any, *, live_runs: bool) -> None:
    original(self, live_runs=live_runs)
    end = saturating_add(self.cursors.redo, self._bucket_us)
    for one in self.inputs:
        one.stable[:] = [c for c in (chunk.from_time(end) for chunk in one.stable) if c is not None]
    self.store.stable_bytes = sum(c.nbytes for i in self.inputs for c in i.stable)


@mutant(
    SUnion, "begin_redo", "redo starts where tentative data began, not at the checkpoint it was brought back to (R8)"
)
def redo_leaves_out_what_the_checkpoint_lacks(original: Any, self: Any, *, live_runs: bool) -> None:
    original(self, live_runs=live_runs)
    self.cursors = replace(self.cursors, redo=self.cursors.restart)


@mutant(Join, "rewind", "a join that only saw time pass keeps its state, though it has forgotten rows since (R9)")
def join_stays_where_it_forgot(original: Any, self: Any, boundary: int) -> bool:
    original(self, boundary)
    return True


@mutant(
    SortedRun, "oldest_needed", "a join's buffer forgets rows that are gone and have left a mark on what is there (R9)"
)
def marks_of_gone_rows_forgotten(original: Any, self: Any) -> int:
    return int(self.rows.time[0])


@mutant(Instance, "_put_back_outputs", "redo lets through again what came after a periodic checkpoint (R8)")
def released_forgotten(original: Any, self: Any, redo: Any, states: Any) -> None:
    for output, state in zip(redo.outputs, states, strict=True):
        output.restore(state, {k: state[k] for k in ("last_id", "digest", "boundary")})


@mutant(SUnion, "release_redo", "redo processes its first slice twice (R6)")
def redo_repeats_a_slice(original: Any, self: Any, max_rows: int) -> Any:
    again = getattr(self, "_mutant_again", None)
    if again is not None:
        self._mutant_again = None
        return again
    piece = original(self, max_rows)
    if piece is not None and len(piece):
        self._mutant_again = piece
    return piece


@mutant(SOutput, "restore", "ids start again after a restore (U9)")
def ids_start_again(original: Any, self: Any, state: Any, released: Any = None) -> None:
    def lower(counters: Any) -> Any:
        return {**counters, "last_id": max(0, int(counters["last_id"]) - 1)}

    original(
        self, {**lower(state), "released": lower(state["released"])}, None if released is None else lower(released)
    )


@mutant(SUnion, "release_redo", "redo takes in what is not stable yet (R6)")
def redo_runs_ahead(original: Any, self: Any, max_rows: int) -> Any:
    piece = original(self, max_rows)
    end = floor_to(min(max(i.frontier, i.tentative_frontier) for i in self.inputs), self._bucket_us)
    if piece is None and self.cursors.redo < end:
        piece = replace(self.store.gather(self.cursors.redo, end, Kind.TENTATIVE), kind=Kind.STABLE)
        self.cursors = replace(self.cursors, redo=end)
    return piece


@mutant(Taint, "is_correctable", "redo begins although nothing has healed (R1)")
def redo_too_early(original: Any, self: Any, now: int) -> bool:
    sunion = self._run.sunion
    return bool(sunion.stable_end >= sunion.cursors.restart)


@mutant(Stabilization, "_stays", "a redo ends as soon as it has caught up, however often that is (R2)")
def forced_rec_done_after_forced_rec_done(original: Any, self: Any, now: int) -> bool:
    return False


@mutant(Taint, "_awaits_correction", "a correction is waited for, however long it takes (T9)")
def correction_waited_for_without_end(original: Any, self: Any, end: int, now: int) -> bool:
    return bool(end <= self._run.sunion.stable_end)


@mutant(Taint, "release", "a correction is waited for that nothing will begin (T9)")
def correction_of_a_stopped_input_waited_for(
    original: Any, self: Any, now: int, policy: Any, *, correctable: bool = False
) -> Any:
    return original(self, now, policy, correctable=True)


@mutant(SUnion, "redo_is_short", "long corrections are waited for (T9)")
def long_correction_waited_for(original: Any, self: Any, max_rows: int) -> bool:
    return True


@mutant(Taint, "is_correctable", "a healed failure is never corrected (R1)")
def never_corrected(original: Any, self: Any, now: int) -> bool:
    return False


@mutant(UpFailure, "_advance_tentative", "nobody waits for an answer, and everybody stabilises at once (K1)")
def nobody_is_asked(original: Any, self: Any, taint: Any, now: int) -> Any:
    more = original(self, taint, now)
    for action in list(self.run.actions):
        if isinstance(action, Ask):
            self.granted(action.number, now)
    return more


# --- whom to read (F) ---


@mutant(Input, "feed", "elements of a feed that was closed still count (F1)")
def stale_generation_accepted(original: Any, self: Any, generation: int) -> Any:
    return original(self, generation) or self.main


@mutant(Upstream, "_perform", "an old subscription lives on beside the new one (F1)")
def two_live_subscriptions(original: Any, self: Any, owner: Any, index: int, action: Any) -> None:
    if type(action).__name__ != "Close":
        original(self, owner, index, action)


@mutant(ProducerSelector, "_has_more", "a connection that is half open is never noticed (F4)")
def half_open_for_ever(original: Any, self: Any, feed: Any, producer: Any) -> bool:
    return False


@mutant(ProducerSelector, "best", "a failing producer is kept although another one is stable (F4)")
def never_switches(original: Any, self: Any, now: int) -> Any:
    main = self._reading.main
    if main is not None and self.producers[main.producer].alive:
        return self.producers[main.producer]
    return original(self, now)


# --- recovery (A) ---


@mutant(ReplicaRecovery, "acks", "what is processed is acknowledged before it is on disk (A8)")
def acknowledged_before_it_is_durable(original: Any, self: Any) -> Any:
    durable, self._durable = self._durable, None
    try:
        return original(self)
    finally:
        self._durable = durable


@mutant(Replica, "snapshot", "a snapshot comes without the stable log (A3)")
def snapshot_without_log(original: Any, self: Any, *ahead: Any) -> Any:
    taken = original(self, *ahead)
    if taken is not None:
        for log in taken["logs"]:
            log["batches"] = []
            log["base_id"] = 0
    return taken


@mutant(DpcManager, "snapshot", "a snapshot's positions are one tuple too far (A1)")
def snapshot_positions_too_far(original: Any, self: Any) -> Any:
    taken = original(self)
    if taken is None:
        return None
    checkpoint, positions = taken
    return checkpoint, [p + 1 for p in positions]


@mutant(SUnion, "install", "after an install tuples that the state holds already are taken again (B7)")
def no_skip_after_an_install(original: Any, self: Any, restart: int, positions: Any) -> None:
    original(self, restart, positions)
    for one in self.inputs:
        one.skip_below = BEFORE_TIME


# --- sources (S) ---


@mutant(SourceWriter, "_append", "a source sends what its log has not synced (S3)")
def sends_before_sync(original: Any, self: Any, batch: Any) -> None:
    original(self, batch)
    group, self._pending, self._pending_bytes = self._pending, [], 0
    self._settle(group)


# --- standbys (H) ---


@mutant(Standby, "acks", "a standby acknowledges what no checkpoint of its holds (H2)")
def standby_acknowledges_what_it_lacks(original: Any, self: Any) -> Any:
    return [(channel, upto + 2_000 if upto else 0) for channel, upto in original(self)]


@mutant(InstallDecider, "decide", "nobody is told to take over (H5)")
def nobody_takes_over(original: Any, self: Any, now: int) -> Any:
    return [decision for decision in original(self, now) if decision.verb != "install"]


@mutant(ClusterView, "_judge", "a partition counts as served by one that recovers (H5)")
def recovering_counts_as_served(original: Any, self: Any, one: Any, now: int) -> None:
    if one.running:
        one.unserved_since = None
    else:
        original(self, one, now)


@mutant(Standby, "holds", "a standby acknowledges what the newest of its checkpoints holds, and that is damaged (H2)")
def standby_acknowledges_its_newest(original: Any, self: Any, snapshot: Any) -> None:
    original(self, snapshot)
    self._acknowledged = self._newest


@mutant(
    ReplicaRecovery,
    "_begins_too_late",
    "begins from nothing, whatever upstream has forgotten (H3, A3)",
)
def begins_from_nothing_in_any_case(original: Any, self: Any) -> bool:
    return False


@mutant(Replica, "advance", "a standby serves as soon as it has a checkpoint and its inputs (H3, A3)")
def helper_serves_before_it_has_caught_up(original: Any, self: Any, now: int) -> Any:
    if self.state is NodeState.RECOVERING and self.recovery.backs and self.reading.started(now):
        self.core._become(Transition.CAUGHT_UP)
    return original(self, now)


@mutant(InstallDecider, "_orders", "a helper stands by again while those that it stands in for recover (H3, H5)")
def helper_leaves_too_early(original: Any, self: Any, id: Any, now: int) -> Any:
    directory, running, wanted = self._view.directory, self._view.partitions[id].running, self._at(id).wanted
    helping = [n for n in directory.standbys[id].nodes if n in running and n not in wanted]
    if helping and any(n in running for n in directory.placement[id]):
        return [Decision("retire", ReplicaId(id.unit, id.partition, helping[-1]))]
    return original(self, id, now)


@mutant(OrderFollower, "_follow", "a node does what an older coordinator has told it (H6)")
def order_of_the_past_followed(original: Any, self: Any, peer: str, message: Any, id: Any) -> Any:
    return original(self, peer, replace(message, epoch=max(message.epoch, self._epoch.latest)), id)


@mutant(Activation, "step", "an active replica goes before the one that takes its place runs (H7)")
def old_active_goes_first(original: Any, self: Any, state: Any) -> Any:
    if leaving := sorted(self.active - self.target):
        self.active.remove(leaving[0])
        return leaving[0]
    return original(self, state)


@mutant(ReplayDecider, "replays", "what was forgotten is never made again (H8)")
def nobody_begins_anew(original: Any, self: Any, id: Any, now: int) -> Any:
    return []


# --- who reads which partition (U1) ---


@mutant(InputStream, "upstream", "a partition reads the range of its neighbour (U1)")
def range_of_the_neighbour(original: Any, self: Any, partition: int, partitions: int) -> range:
    return original(self, (partition + 1) % partitions if self.aligned else partition, partitions)  # type: ignore[no-any-return]


@mutant(InputStream, "upstream", "the last of the partitions that a merged one stands for is not read (U1)")
def last_of_a_range_left_out(original: Any, self: Any, partition: int, partitions: int) -> range:
    found = original(self, partition, partitions)
    return found[:-1] if self.aligned and len(found) > 1 else found  # type: ignore[no-any-return]


# --- rows that fail (U15) ---


@mutant(Trials, "_instant", "with one row that fails all rows of its time are left out (U15)")
def all_of_one_time_are_rejected(original: Any, self: Any, some: Any, time: int, end: int) -> Any:
    self.refusals.rows += [RejectedRow(port, int(row), "") for port, rows in enumerate(some) for row in rows]
    yield self._passed([rows[:0] for rows in some], end)


@mutant(Trials, "_instant", "a row that fails leaves its traces in the operator's state (U15)")
def trials_leave_traces(original: Any, self: Any, some: Any, time: int, end: int) -> Any:
    restore = self._host.restore
    self._host.restore = lambda state: None
    try:
        yield from original(self, some, time, end)
    finally:
        self._host.restore = restore


@mutant(Skipping, "restore", "what was rejected is counted again in a redo (U15, U7)")
def rejected_rows_are_counted_again(original: Any, self: Any, state: Any) -> None:
    counts = self._rows, self._results
    original(self, state)
    self._rows, self._results = counts


@mutant(LateRejections, "_add", "late rows are counted from each piece of a slice (U15)")
def late_rows_are_counted_from_each_piece(original: Any, self: Any, row: int, reason: Any) -> None:
    original(replace(self, at=0), row, reason)


# --- clients ---


@mutant(ClientPort, "undo", "a client keeps what was undone (F7)")
def client_ignores_undo(original: Any, self: Any) -> None:
    self.held = self._live = False
