"""Mistakes in the checkpoint log and in what is rewritten (rules G1, G5, G7)."""

from __future__ import annotations

from consistency.dpc.instance import Instance
from consistency.dpc.log_work import LogWork
from consistency.dpc.manager import DpcManager
from consistency.dpc.recovering import Recovering
from consistency.dpc.stabilization import Stabilization
from operators.aggregate.count_windows import CountAggregate
from operators.fragment_log import FragmentLog
from replicas.checkpoint import extent, log, log_records, targets
from replicas.checkpoint.extent import Choices, Extent, Pacing
from replicas.checkpoint.log import CheckpointLog, _Copy
from replicas.checkpoint.log_reader import LogReader
from replicas.checkpoint.log_records import Copies
from replicas.checkpoint.log_taker import LogTaker
from replicas.checkpoint.pauses import Pauses
from replicas.checkpoint.state_log import StateLog, _Found
from replicas.node import log_task, recovery
from replicas.node.log_side import LogSide
from replicas.node.recovery import ReplicaRecovery
from replicas.placement.standby import Standby
from tests.mutants.patching import Edit, edited

# --- the log ---

edited(
    "damaged-record-is-taken-as-it-is",
    "a record of which a bit has flipped is read (G5)",
    Edit(
        log_records,
        "record_end",
        "return end if crc == crc32(data[body_at - _SEQUENCE.size : end]) else 0",
        "return end",
    ),
)
edited(
    "void-records-are-read",
    "records of a slice without a commit are read (G1)",
    Edit(LogReader, "_portions", "if first <= r.sequence <= last", "if first <= r.sequence"),
    Edit(LogReader, "_last_of", "else self.last_sequence", "else 2**63"),
)
edited(
    "loss-in-both-is-taken-for-a-torn-tail",
    "a record that was acknowledged and is damaged in both is dropped without a word (G5)",
    Edit(LogReader, "_scan", "if self.last_sequence < known:", "if False:"),
)
edited(
    "needed-segment-is-not-missed",
    "a log is read whose newest commit needs what has gone (G5)",
    Edit(LogReader, "_scan", "if self.commits and (needs", "if False and (needs"),
)
edited(
    "copies-are-not-compared",
    "a copy that is damaged stays so (G5)",
    Edit(Copies, "holds", "return self._bytes[index] == data", "return True"),
)
edited(
    "tail-is-not-made-anew",
    "what a refused sync left in memory counts as synced after a restart (G5)",
    Edit(CheckpointLog, "_make_whole", " and not unsynced", ""),
)
edited(
    "one-copy-is-enough",
    "an acknowledgement counts what only one copy has synced (G5)",
    Edit(CheckpointLog, "held_by_both", "synced = min(", "synced = max("),
)
edited(
    "what-comes-during-a-sync-counts",
    "what was written after a sync began counts as synced (G5)",
    Edit(CheckpointLog, "_sync_copies", "copy.synced = target", "copy.synced = self.last_sequence"),
)
edited(
    "refused-sync-is-tried-again",
    "a copy whose sync was refused is written on: the next sync of the same file succeeds, and says nothing (G5)",
    Edit(CheckpointLog, "_sync_copies", "copy.fails(error)", "pass"),
)
edited(
    "part-of-a-slice-stays",
    "what the disk took of a slice that it refused is not taken back (G1)",
    Edit(_Copy, "append", "write_whole(file, data)", "file.append(data)"),
    Edit(_Copy, "append", "if file.size() != size:", "if False:"),
)
edited(
    "copy-without-room-is-written-on",
    "a copy that refused a slice which the other one took is written on with the next (G5)",
    Edit(CheckpointLog, "_write", "copy.fails(reason)", "pass"),
)
edited(
    "written-while-a-copy-is-made-whole",
    "a copy that is being restored lacks what comes meanwhile (G5)",
    Edit(CheckpointLog, "restore", "self._restoring = True", "pass"),
)
edited(
    "segment-left-without-a-mark",
    "a restore leaves a segment whose mark had no room (G5)",
    Edit(CheckpointLog, "restore", "if not self.is_synced:", "if False:"),
)
edited(
    "cut-by-a-commit-that-is-not-synced",
    "segments go that only a commit which one crash may take does not need (G5)",
    Edit(CheckpointLog, "cut", "held = self.held_by_both", "held = self.commits[-1] if self.commits else None"),
)
edited(
    "what-is-read-is-cut-off",
    "a segment goes while somebody reads it (G5)",
    Edit(CheckpointLog, "cut", "min(held.needs, *self._readings) if self._readings else held.needs", "held.needs"),
)

edited(
    "what-the-commit-has-is-acknowledged",
    "upstream forgets what is replayed from T on (G5)",
    Edit(StateLog, "_synced", "self._positions[0][1]", "self._positions[-1][1]"),
)
edited(
    "slice-after-a-refused-one-is-taken",
    "a slice follows one that the log lacks (G2)",
    Edit(StateLog, "write", "if self.lacks and not logged.made.complete:", "if False:"),
)

edited(
    "more-of-a-slice-replaces-it",
    "what was written of a slice before more was is cut off, or not read (G5)",
    Edit(StateLog, "_first_of", "bisect_left(commits, needs,", "bisect_left(commits, needs + 1,"),
)

edited(
    "what-comes-while-a-state-is-read-is-in-it",
    "a slice counts that was written behind the newest commit (G1)",
    Edit(_Found, "take", "if record.sequence > self._newest.last:", "if False:"),
)
edited(
    "replay-acknowledges-nothing",
    "a full producer and a replica that replays wait for each other (G5)",
    Edit(log_task._Writer, "_acknowledge", "self._kept.is_safe", "False"),
)
edited(
    "refused-log-goes-too-early",
    "what was refused goes before both copies of the next log hold a state (G5)",
    Edit(log_task._Writer, "_look_after", " and log.held_by_both is not None:", ":"),
)

edited(
    "refused-log-is-acknowledged",
    "what was synced of a log while it was refused is acknowledged (G5)",
    Edit(log_task._Writer, "_look_after", "if stored.state is state:", "if True:"),
)

# --- what to rewrite ---

edited(
    "final-footprints-hold-replay-back",
    "input is replayed for pieces that nothing can change any more (G2)",
    Edit(Extent, "replace", "self._open -= not_final", "pass"),
)
edited(
    "log-cut-at-t",
    "a live footprint from before T is cut off (G5)",
    Edit(Extent, "needs", "min(self._replay_index(), self._first(self._live, 0))", "self._replay_index()"),
)
edited(
    "kept-rows-hold-nothing",
    "replay begins behind rows that a join still needs (G2)",
    Edit(Extent, "_held_index", "if self.held is None:", "if True:"),
)
edited(
    "slice-before-the-kept-row",
    "replay begins a slice too early where a slice ends with the oldest row that is needed (G7)",
    Edit(Extent, "_held_index", 'side="right"', 'side="left"'),
)
edited(
    "nothing-is-too-long",
    "what is to be read and replayed grows beyond the time to recover (G7)",
    Edit(targets, "to_rewrite", "fits = (seconds <= log.recovery_us * 1e-6) & short", "fits = seconds >= 0"),
)
edited(
    "slices-cost-nothing",
    "a log grows for ever where little comes, and takes long to read (G7)",
    Edit(Extent, "choices", " + SLICE_RECORDS * read", ""),
)
edited(
    "rewriting-adds-no-record",
    "what is rewritten is not among the records to read (G7)",
    Edit(Extent, "choices", "before[oldest_live] + cells", "before[oldest_live]"),
)
edited(
    "rewriting-frees-nothing",
    "rows are replayed from the oldest footprint though it would be rewritten (G7)",
    Edit(Extent, "choices", "self._next(self._open)", "self._next(self._open)[:1]"),
)
edited(
    "what-cannot-be-reached-is-not-tried",
    "where no rewriting suffices, none is done (G7)",
    Edit(extent, "threshold", "int(np.argmin(cost))", "0"),
)
edited(
    "share-is-kept-for-ever",
    "what was not used of the share is used at once after a quiet hour (G7)",
    Edit(Pacing, "allowed_us", "min(self._left_us + gained, self._most_us)", "self._left_us + gained"),
)
edited(
    "debts-are-forgotten",
    "whoever has rewritten for too long begins again with the next share (G7)",
    Edit(Pacing, "spent", "self._left_us -= us", "self._left_us = max(self._left_us - us, 0.0)"),
)

edited(
    "time-for-rewriting-is-ignored",
    "all that should be rewritten is, whatever the share is (G7)",
    Edit(Choices, "within", "if self.cells[chosen] <= most:", "if True:"),
)

# --- when ---

edited(
    "nothing-new-is-never-written",
    "T does not go on while no rows come, and nothing is acknowledged (G7)",
    Edit(Pauses, "is_over", "else self._latest_us", "else END_OF_TIME"),
)
edited(
    "a-full-producer-waits-for-more-rows",
    "a slice that a producer waits for comes as late as any other (A2, G7)",
    Edit(Pauses, "is_over", "if hurries:", "if False:"),
)
edited(
    "rewriting-waits-for-more-rows",
    "what there was no time to rewrite waits as long as if nothing were to be rewritten (G7)",
    Edit(Pauses, "wrote", "min(longest_us, _LATEST_US)", "_LATEST_US"),
)
edited(
    "kept-rows-put-slices-off",
    "slices come seldom because a join keeps many rows (G7)",
    Edit(Extent, "behind", "self._rows[self._held_index()]", "self._rows[-1]"),
)
edited(
    "short-lived-pieces-are-kept",
    "what begins and ends between two slices takes memory without a limit (G7)",
    Edit(Pauses, "wrote", "(extent.live() + SPARE) // 2", "END_OF_TIME"),
)

# --- what can be reached ---

edited(
    "kept-rows-are-not-replayed",
    "the least time to recover leaves out the rows that joins keep (G7)",
    Edit(targets, "_rows", "max(workload.rows_per_s * age_s, workload.held_rows)", "workload.rows_per_s * age_s"),
)
edited(
    "rewriting-costs-nothing",
    "the least time to recover is promised whatever the share (G7)",
    Edit(targets, "_share", "speeds.write_us * rewritten", "0.0 * rewritten"),
)
edited(
    "windows-without-an-end",
    "what a window's end closes is counted among what has to be rewritten (G7)",
    Edit(targets, "_rewritten", "if math.isfinite(workload.lifetime_s):", "if False:"),
)
edited(
    "slow-windows-are-forgotten",
    "records of pieces that stay open are not among those to load (G7)",
    Edit(targets, "_records", " + _rewritten(workload, age_s)", ""),
)

# --- the node ---

edited(
    "closings-of-before-a-redo-are-lost",
    "what closed between the newest slice of the log and a redo is never written as closed (G2)",
    Edit(CountAggregate, "_restoring", "if self._is_logged:", "if False:"),
)
edited(
    "state-from-before-the-log-goes-on-with-it",
    "a redo that begins before the newest slice knows nothing of what it wrote, and does not write all anew (G2)",
    Edit(FragmentLog, "continues", " or begin < other._end", ""),
)
edited(
    "output-is-not-in-the-log",
    "after the loss of all replicas nobody has results that consumers have not acknowledged (G1, A2)",
    Edit(log_task, "logged_output", "return outputs if any(outputs) else None", "return None"),
)
edited(
    "replay-lets-results-out",
    "what comes again between the commits is released again (G4)",
    Edit(Instance, "again", "yield from self.fragment.work(piece)", "yield from self.stable(piece)"),
)
edited(
    "a-full-producer-waits-for-the-log",
    "a producer that is full is not told of anything that could be forgotten (A2, G7)",
    Edit(log_task._Writer, "_upstream_waits", "return sunion.needed_from(", "return False and sunion.needed_from("),
)

# --- cut off in a replay ---

edited(
    "who-replays-waits",
    "a replica that is cut off while it replays its log gives nothing, also after X (T3)",
    Edit(Recovering, "advance", "due = run.inputs.started(now)", "due = False"),
)
edited(
    "redo-forgets-the-replay",
    "what was not replayed before tentative results is not replayed after them (G4)",
    Edit(Instance, "back", "redo._replays_on(mark.replay)", "pass"),
)
edited(
    "live-waits-for-the-rest-of-the-replay",
    "tentative slices behind the log's newest commit are taken for slices that come again (G4)",
    Edit(Instance, "tentative", "if piece.end == replay.end:", "if False:"),
)
edited(
    "redo-ends-in-the-replay",
    "a redo that ends before the replay does leaves a replica STABLE with half a state (G4)",
    Edit(Stabilization, "_finish", "run.live.replay is not None or", "False or"),
)
edited(
    "half-a-state-is-given",
    "a partner is given a state that lacks what was not replayed yet (A3, G4)",
    Edit(DpcManager, "snapshot", " or not self.is_whole", ""),
)

# --- a complete slice ---

edited(
    "complete-slice-lacks-output",
    "output that consumers have not acknowledged is only in a log that cannot be read (G1, A2)",
    Edit(LogSide, "outputs_to_log", "return firsts if waiting.slice.made.complete or all_anew else ", "return "),
)
edited(
    "complete-slice-is-not-asked-for",
    "a log that lacks a slice waits for a complete one that nobody makes (G2)",
    Edit(log_task._Writer, "_ask", "replica.handle(LogLost(), hosting.now())", "pass"),
)
edited(
    "refused-slice-of-the-end-is-lost",
    "a slice that a full disk refused is not made again where nothing follows it (G1)",
    Edit(LogWork, "_slice", "self.request = None", "self.request, self._given = None, end"),
    Edit(
        LogWork,
        "takes",
        "self.request.takes(end)",
        "self.request.takes(end) and (self.request.again or end > getattr(self, '_given', end - 1))",
    ),
)
edited(
    "mark-of-the-end-is-lost",
    "a mark that had no room is not written again where nothing follows (G5)",
    Edit(log_task._Writer, "_look_after", "self._unsynced = not log.is_synced", "self._unsynced = False"),
)
edited(
    "double-failure-is-tried-for-ever",
    "a copy that cannot be made whole from the other, damaged one is tried again and again (G5)",
    Edit(log_task._Writer, "_look_after", "await stored.refuse(str(error))", "pass"),
)

# --- another configuration ---

edited(
    "log-counts-whatever-a-checkpoint-has",
    "a log is gone on from that a checkpoint has left behind (A8)",
    Edit(
        recovery,
        "further",
        "return log if all(map(ge, log.positions, checkpoint.positions)) else checkpoint",
        "return log",
    ),
)
edited(
    "checkpoint-goes-before-the-log-has-more",
    "a checkpoint is forgotten as a log is begun (A8)",
    Edit(ReplicaRecovery, "other_is_older", "return acks != needed and all(map(ge, acks, needed))", "return True"),
)

edited(
    "log-goes-before-it-was-replayed",
    "a log that was turned off goes while the state is not whole (A8)",
    Edit(ReplicaRecovery, "_replayed_from", "or self._replay[1]()", "or True"),
)

# --- standbys ---

edited(
    "unsynced-log-is-acknowledged",
    "a standby acknowledges what a replica here has not synced (G5)",
    Edit(LogTaker, "look_on_disk", " and await self._kept.make_safe()", ""),
)

edited(
    "older-log-is-taken",
    "a standby takes a log that needs what upstream may have forgotten (G9)",
    Edit(LogTaker, "_write", "if not standby.continues(new.positions, new.origins):", "if False:"),
)
edited(
    "no-snapshot-in-place-of-a-log",
    "a standby that is given no log keeps what it holds for ever (G9, H2)",
    Edit(LogTaker, "_take", "if standby.failed(maker, self._env.clock.monotonic_us()) > 1:", "if False:"),
)
edited(
    "snapshots-outlive-the-log",
    "whole snapshots of before stay beside the log that has more (G9)",
    Edit(LogTaker, "_write", "await self._store.forget()", "pass"),
)
edited(
    "makers-by-chance",
    "a standby fetches a whole log each time that another replica is a moment ahead (G9)",
    Edit(Standby, "wish", "in_turn.insert(0, self._maker)", "in_turn.append(self._maker)"),
)
edited(
    "a-log-is-as-far-as-its-replica",
    "a standby takes what it got of a log for all that its replica had made, and asks no more (G9)",
    Edit(Standby, "follows", "self._made_from = made", "self._made_from = self._asked_at"),
)
edited(
    "redo-ends-before-the-log-has-its-state",
    "who is tainted again as a redo ends gives the log no slice, and is never acknowledged (G6)",
    Edit(Stabilization, "_end", "self.run.log.wants(self.stable) or ", ""),
)
edited(
    "tentative-state-is-logged",
    "the log gets a slice while tainted: what is not stable is in it (G6)",
    Edit(
        DpcManager,
        "_step",
        "run.log.begin(self._mode.stable)",
        "run.log.begin(self._mode.maker)",
    ),
)
edited(
    "commit-before-footprints",
    "the commit of a slice is written before its records, so a torn slice counts (G1)",
    Edit(
        log,
        "encode_slice",
        "bodies.append((_HEAD.pack(LogKind.COMMIT, time, needs), commit))",
        "bodies.insert(0, (_HEAD.pack(LogKind.COMMIT, time, needs), commit))",
    ),
)
