"""Mistakes as changes of source text, for code that no patch of a running engine reaches.

``MUTANT=NAME pytest -p tests.mutants.changed TESTS`` plays one, ``make mutants`` all.
This module imports nothing of the engine: the text changes as the engine is imported.
"""

from __future__ import annotations

from typing import Final

from tests.mutants.checkpoint_texts import CHECKPOINT
from tests.mutants.core_texts import CORE
from tests.mutants.feed_texts import FEEDS
from tests.mutants.placement_texts import PLACEMENT
from tests.mutants.rule_texts import RULES
from tests.mutants.text_mutant import ROOT, TextMutant

__all__ = ["ROOT", "TEXTS", "TextMutant"]

#: By name; those of each dictionary sorted by the file that each changes.
TEXTS: Final[dict[str, TextMutant]] = {
    **CORE,
    **PLACEMENT,
    **CHECKPOINT,
    **FEEDS,
    **RULES,
    "unwritten-log-is-continued": TextMutant(
        "a state brought back before any slice was written continues a log that has nothing of it (G9)",
        "operators/fragment_log.py",
        "self._forgets = other._forgets or other._is_complete or begin < other._end",
        "self._forgets = other._forgets or begin < other._end",
        tests=(
            "tests/unit/operators/test_fragment_log.py::test_a_state_brought_back_before_any_slice_is_written_whole",
        ),
    ),
    "footprints-are-not-counted-anew": TextMutant(
        "after a redo footprints count that are no longer of any cell (G7)",
        "operators/fragment_log.py",
        "        self._is_complete, self._recounts = False, True",
        "        self._is_complete, self._recounts = False, False",
        tests=("tests/unit/operators/test_fragment_log.py::test_a_restored_state_is_behind_the_newest_log_slice",),
    ),
    "only-the-first-forgetting-counts": TextMutant(
        "a join keeps a state that has forgotten rows since the mark (R9)",
        "operators/join/join.py",
        "            if len(side) < before:\n                self._forgot = boundary",
        "            if len(side) < before and not self._forgot > 0:\n                self._forgot = boundary",
        tests=("tests/unit/operators/test_input_buffer.py::test_an_operator_that_only_saw_time_pass_is_reset",),
    ),
    "rows-due-after-their-span-go": TextMutant(
        "an outer row that came after its span is dropped before it is due (U5)",
        "operators/join/runs.py",
        "        latest = np.maximum(run.spans.until[start:stop], run.rows.time[start:stop])",
        "        latest = run.spans.until[start:stop]",
        equivalent="a row has a time before the end of its step, which is `now`, so only `until` can be as late",
    ),
    "damaged-copy-counts-as-synced": TextMutant(
        "a damaged copy that cannot be mended counts as synced (G5)",
        "replicas/checkpoint/log.py",
        "synced = 0 if mark is None or damaged else min(mark.sequence, self.last_sequence)",
        "synced = 0 if mark is None else min(mark.sequence, self.last_sequence)",
        tests=("tests/unit/replicas/checkpoint/test_log.py::test_a_damaged_copy_that_cannot_be_mended_does_not_count",),
    ),
    "gap-in-a-log-is-followed": TextMutant(
        "a standby follows a log over a gap in its records (G9)",
        "replicas/checkpoint/log_taker.py",
        "        if identity == self._log and first == self._since + 1:",
        "        if identity == self._log and first >= self._since + 1:",
        tests=("tests/unit/replicas/checkpoint/test_log_taker.py::test_after_a_gap_the_log_is_replaced",),
    ),
    "half-a-write-counts-as-none": TextMutant(
        "after a write that failed half way a standby asks as if nothing had been written (G9)",
        "replicas/checkpoint/log_taker.py",
        "self._log = ANY  # until it is written: a part of it may be there afterwards",
        "pass",
        tests=(
            "tests/unit/replicas/checkpoint/test_log_taker.py::test_after_a_write_that_failed_all_is_asked_for_again",
        ),
    ),
    "needs-one-record-too-few": TextMutant(
        "the first record that a slice needs may be cut off (G9)",
        "replicas/checkpoint/replica_log.py",
        "            needs = log.last_sequence + 1 + min(0, sent.needs - sent.first)",
        "            needs = log.last_sequence + 1 + min(0, sent.needs - sent.first + 1)",
        tests=(
            "tests/unit/replicas/checkpoint/test_log_taker.py::test_a_slice_needs_the_same_records_as_in_the_makers_log",
        ),
    ),
    "damaged-checkpoint-is-kept": TextMutant(
        "a damaged checkpoint is one of the two that are kept (A8)",
        "replicas/checkpoint/store.py",
        "newest = [file for file in [*names, name] if file not in self._refused][-KEPT:]",
        "newest = [*names, name][-KEPT:]",
        tests=("tests/unit/replicas/checkpoint/test_store.py::test_damaged_checkpoint_is_not_one_of_the_two_stored",),
    ),
    "checkpoint-counts-before-it-is-written": TextMutant(
        "a checkpoint is acknowledged before it is on disk (H2)",
        "replicas/checkpoint/taker.py",
        "                size = await self._store.write(data)\n                standby.holds(snapshot)",
        "                standby.holds(snapshot)\n                size = await self._store.write(data)",
        tests=("tests/unit/replicas/checkpoint/test_taker.py::test_a_checkpoint_without_room_is_not_acknowledged",),
    ),
    "who-recovered-is-not-asked-again": TextMutant(
        "a replica that recovered gets acknowledgements without being asked what it continues (S6)",
        "replicas/client/positions.py",
        "                if before is None or not _serves(before) or output.last_id < before.last_id:",
        "                if before is None or output.last_id < before.last_id:",
        tests=("tests/unit/replicas/client/test_positions.py::test_a_replica_that_recovered_is_asked_again",),
    ),
    "answer-of-the-dead-counts": TextMutant(
        "the answer of a process that died counts for its successor (S6)",
        "replicas/client/positions.py",
        "if self._lives.get(peer, 0) != begun:",
        "if False:",
        tests=(
            "tests/unit/replicas/client/test_positions.py::test_the_answer_of_a_process_that_died_counts_for_no_other",
        ),
    ),
    "recording-without-stable-rows-is-new": TextMutant(
        "a recording whose stable rows were all deleted begins at 0 (E2)",
        "replicas/client/recorder.py",
        "        self.position = max(self.position, self.segments.kept.last_id)\n",
        "",
        tests=(
            "tests/unit/replicas/client/test_retention.py::test_a_restart_with_only_tentative_results_has_its_position",
        ),
    ),
    "slot-is-advanced-before-the-sync": TextMutant(
        "a slot of PostgreSQL is advanced before its rows are on disk (S9)",
        "replicas/connectors/postgres/source.py",
        "        await self._until_durable()\n        if (end := SlotPosition",
        "        if (end := SlotPosition",
        tests=(
            "tests/unit/replicas/connectors/postgres/test_source.py::test_the_slot_is_not_advanced_before_rows_are_synced",
        ),
    ),
    "tentative-ids-begin-anew": TextMutant(
        "the tentative ids of a second batch are those of the first (F7)",
        "replicas/connectors/sink.py",
        "                element = element.numbered_after(max(self.position, self._tentative_id))",
        "                element = element.numbered_after(self.position)",
        tests=("tests/unit/replicas/connectors/test_sink.py::test_ids_of_tentative_batches_go_on",),
    ),
    "checkpoint-that-is-gone-is-known": TextMutant(
        "the balancer counts on a checkpoint that is gone (L4)",
        "replicas/placement/deciders/balance.py",
        "        for partition, node in held | self._held:",
        "        for partition, node in held:",
        tests=("tests/unit/replicas/placement/test_balance.py::test_a_checkpoint_that_is_gone_gives_no_state",),
    ),
    "slowest-helper-is-the-mark": TextMutant(
        "of several helpers the slowest is the mark (H5)",
        "replicas/placement/deciders/install.py",
        "            progress.mark = max(partition.frontier[n] for n in helping)",
        "            progress.mark = min(partition.frontier[n] for n in helping)",
        tests=("tests/unit/replicas/placement/test_install.py::test_replicas_catch_up_with_the_furthest_helper",),
    ),
    "mark-of-an-earlier-calm": TextMutant(
        "the mark of an earlier calm is used again (H5)",
        "replicas/placement/deciders/install.py",
        "        if not helping or not steady:\n            progress.mark = None\n            return []",
        "        if not helping or not steady:\n            return []",
        tests=("tests/unit/replicas/placement/test_install.py::test_the_mark_of_an_earlier_calm_does_not_count",),
    ),
    "first-standby-is-late-at-once": TextMutant(
        "a partition that gets its first standby counts as unserved at once (H5)",
        "replicas/placement/view.py",
        "known.get(id) or PartitionView(now + self.recovery_us)",
        "known.get(id) or PartitionView(now)",
        tests=("tests/unit/replicas/placement/test_install.py::test_partition_on_its_first_standby_is_not_lost",),
    ),
    "last-output-says-where-it-begins": TextMutant(
        "of several outputs of a replica the last one says whether it has its beginning (H8)",
        "replicas/placement/view.py",
        "            first = max(made[node].first if node in made else 0, output.first)",
        "            first = output.first",
        tests=(
            "tests/unit/replicas/placement/test_install.py::test_a_replica_has_its_beginning_if_all_its_outputs_have",
        ),
    ),
    "least-of-all-is-the-mark": TextMutant(
        "the mark of a move is that of the slowest replica (M3)",
        "replicas/placement/deciders/moves.py",
        "move.mark = max([self._view.frontier(move.partition, move.target), *others])",
        "move.mark = min([self._view.frontier(move.partition, move.target), *others])",
        tests=("tests/unit/replicas/placement/test_moves.py::test_the_mark_is_that_of_the_furthest_other_replica",),
    ),
    "an-earlier-phase-is-a-pause": TextMutant(
        "the source leaves without a heartbeat in which the target was past the mark (M)",
        "replicas/placement/deciders/moves.py",
        "                self._since = self._silent_since = self._unready_since = None",
        "                self._silent_since = self._unready_since = None",
        tests=(
            "tests/unit/replicas/placement/test_moves.py::test_the_source_leaves_once_the_target_is_past_for_a_beat",
        ),
    ),
    "one-try-too-few": TextMutant(
        "a target that falls silent is waited for twice, and given up later than its patience (M6)",
        "replicas/placement/deciders/moves.py",
        "        if move.tries > tries or now - self._silent_since >= self._patience_us:",
        "        if move.tries >= tries or now - self._silent_since > self._patience_us:",
        tests=(
            "tests/unit/replicas/placement/test_moves.py::test_a_target_that_falls_silent_is_waited_for_three_times",
            "tests/unit/replicas/placement/test_moves.py::test_target_silent_for_its_patience_is_abandoned",
        ),
    ),
    "who-left-stays-in-the-plan": TextMutant(
        "a plan of recovery counts on a node that has left (D4, O5)",
        "replicas/placement/view.py",
        "        for node in set(self.runs).difference(directory.nodes):\n            self.lost(node, now)\n",
        "",
        tests=("tests/unit/replicas/placement/test_recovery_order.py::test_a_node_that_has_left_is_not_in_the_plan",),
    ),
    "room-for-what-is-measured-only": TextMutant(
        "a measured load counts though more is expected (O1)",
        "replicas/placement/deciders/needs.py",
        "        loads = {id: max(load, self._expected.get(id, 0.0)) for id, load in loads.items()}\n",
        "",
        tests=(
            "tests/unit/replicas/placement/test_recovery_order.py::test_room_for_expected_loads_is_kept_if_less_is_measured",
        ),
    ),
    "granted-place-is-a-state": TextMutant(
        "the place that an evicted standby was given back counts as a state that it holds (H2)",
        "replicas/producer/output_log.py",
        "            id = ack.granted = self.first - 1",
        "            id = self.first - 1",
        tests=("tests/unit/replicas/producer/test_output_log.py::test_returned_position_is_not_a_state_of_a_standby",),
    ),
    "files-outlive-an-install": TextMutant(
        "the spill files of a log stay when a snapshot takes its place (A9)",
        "replicas/producer/output_log.py",
        "        self.stable.drop_through(self.last_id)\n        log = ElementLog",
        "        log = ElementLog",
        tests=(
            "tests/unit/replicas/producer/test_output_log.py::TestSpilled::test_a_snapshot_frees_the_files_of_the_log_before",
        ),
    ),
    "floor-outlives-an-undo": TextMutant(
        "what a consumer had seen before an undo is not sent again in the next failure (V3)",
        "replicas/producer/subscription.py",
        "            self._floor = self._t_max\n",
        "            self._floor = max(self._floor, self._t_max)\n",
        tests=(
            "tests/unit/replicas/producer/test_output_log.py::test_undone_tuples_are_sent_again_in_the_next_failure",
        ),
    ),
    "last-segment-goes": TextMutant(
        "the segment with the last record is let go (E1)",
        "replicas/source/retention.py",
        "        return [segment for segment in segments if segment.last < log.synced_sequence]",
        "        return [segment for segment in segments if segment.last <= log.synced_sequence]",
        tests=("tests/unit/replicas/source/test_retention.py::test_the_segment_with_the_last_record_stays",),
    ),
    "nan-is-not-the-largest": TextMutant(
        "NaN on the right is not larger than a number, as in Spark",
        "spe/expressions/numbers.py",
        "    return ~(a >= b) & (a == a)",
        "    return (a < b) & (a == a)",
        tests=("tests/unit/spe/expressions/test_expressions.py::test_value",),
    ),
    "last-partition-divides-x": TextMutant(
        "of several partitions the last one says by what X is divided (T7)",
        "spe/plan/directory.py",
        "max(\n                longest.get((partition.unit, node), 0), "
        "count + after[partition, node] - 1\n            )",
        "count + after[partition, node] - 1",
        tests=("tests/unit/spe/plan/test_directory.py::test_the_longest_way_through_a_node_divides_its_x",),
    ),
}
