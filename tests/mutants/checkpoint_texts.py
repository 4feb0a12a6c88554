"""Mistakes in checkpoints and checkpoint logs, by name."""

from __future__ import annotations

from typing import Final

from tests.mutants.text_mutant import TextMutant

CHECKPOINT: Final[dict[str, TextMutant]] = {
    "extended-slice-is-final": TextMutant(
        "footprints of a slice that extends another count as final (G3)",
        "replicas/checkpoint/extent.py",
        "            self._open[-1] += not_final\n",
        "",
        tests=("tests/unit/replicas/checkpoint/test_extent.py::test_slices_without_anything_are_counted",),
    ),
    "live-footprints-are-cut": TextMutant(
        "slices with live footprints are forgotten once no replay needs them (G3)",
        "replicas/checkpoint/extent.py",
        "        at = min(self._replay_index(), self._first(self._live, 0))\n        self._use",
        "        at = self._replay_index()\n        self._use",
        tests=("tests/unit/replicas/checkpoint/test_extent.py::test_final_cells_hold_the_log_but_no_replay",),
    ),
    "mark-before-the-sync": TextMutant(
        "a mark says that records are synced before they are (G5)",
        "replicas/checkpoint/log.py",
        "                    await copy.file.sync()\n"
        "                    await copy.marks.write(Mark(self._epoch, target))\n",
        "                    await copy.marks.write(Mark(self._epoch, target))\n"
        "                    await copy.file.sync()\n",
        tests=(
            "tests/unit/replicas/checkpoint/test_log.py::test_data_left_in_memory_by_failed_sync_is_synced_at_open",
        ),
    ),
    "failed-sync-is-forgotten": TextMutant(
        "records of a failed sync count as synced at the next start (A1a, G5)",
        "replicas/checkpoint/log.py",
        "                if damaged is not None and segment not in damaged and not unsynced:",
        "                if damaged is not None and segment not in damaged:",
        tests=(
            "tests/unit/replicas/checkpoint/test_log.py::test_data_left_in_memory_by_failed_sync_is_synced_at_open",
        ),
    ),
    "copy-goes-on-over-a-gap": TextMutant(
        "a copy that lacks a slice is written on (G5)",
        "replicas/checkpoint/log.py",
        "        for copy, reason in refused.items():\n            copy.fails(reason)\n",
        "",
        tests=("tests/unit/replicas/checkpoint/test_log.py::test_full_disk_takes_no_part_of_slice_and_log_continues",),
    ),
    "opening-has-the-epoch-before": TextMutant(
        "two openings of a log have one epoch (G9)",
        "replicas/checkpoint/log.py",
        "if m is not None), default=0) + 1",
        "if m is not None), default=1)",
        tests=(
            "tests/unit/replicas/checkpoint/test_log.py::test_a_restored_copy_is_not_taken_back_from_a_newer_writer",
        ),
    ),
    "segments-with-a-gap-are-read": TextMutant(
        "segments behind a lost one are read on (G5)",
        "replicas/checkpoint/log_reader.py",
        "            if segment.first != end:\n                break\n",
        "",
        tests=("tests/unit/replicas/checkpoint/test_log.py::test_segments_lost_in_both_are_refused",),
    ),
    "one-copy-is-acknowledged": TextMutant(
        "a standby acknowledges a log that only one of its copies holds (G9)",
        "replicas/checkpoint/log_taker.py",
        "        if (head := await log.head()) is None or not log.is_safe:",
        "        if (head := await log.head()) is None:",
        tests=("tests/unit/replicas/checkpoint/test_log_taker.py::test_log_that_a_copy_cannot_mark_is_reported",),
    ),
    "log-continues-behind-a-snapshot": TextMutant(
        "after a whole snapshot a standby goes on with the older log (G9, H1)",
        "replicas/checkpoint/log_taker.py",
        "        standby.holds(snapshot)\n        self._log = ANY\n",
        "        standby.holds(snapshot)\n",
        tests=("tests/unit/replicas/checkpoint/test_log_taker.py::test_after_a_whole_snapshot_the_log_is_taken_anew",),
    ),
    "checkpoints-go-before-the-log-is-safe": TextMutant(
        "a standby deletes its checkpoints before both copies hold the log (A8)",
        "replicas/checkpoint/log_taker.py",
        "        self._log, self._since = identity, last\n",
        "        self._log, self._since = identity, last\n        await self._store.forget()\n",
        tests=("tests/unit/replicas/checkpoint/test_log_taker.py::test_checkpoints_stay_until_the_log_can_be_read",),
    ),
    "unsynced-log-of-the-disk-counts": TextMutant(
        "a log on the disk counts before both copies hold it (G5)",
        "replicas/checkpoint/log_taker.py",
        "        if head is not None and await self._kept.make_safe():",
        "        if head is not None:",
        tests=(
            "tests/unit/replicas/checkpoint/test_log_taker.py::test_only_synced_log_of_retiring_replica_is_acknowledged",
        ),
    ),
    "refusals-come-as-often": TextMutant(
        "a disk that refuses is tried as often as before (G7)",
        "replicas/checkpoint/pauses.py",
        "min(max(AGAIN_US, 2 * self._least_us), AGAIN_MOST_US)",
        "min(max(AGAIN_US, self._least_us), AGAIN_MOST_US)",
        tests=(
            "tests/unit/replicas/checkpoint/test_pauses.py::test_after_a_refusal_pauses_double_and_nothing_else_counts",
        ),
    ),
    "log-counts-before-both-hold-it": TextMutant(
        "a log that replaces another is used before both copies hold it (G9)",
        "replicas/checkpoint/replica_log.py",
        "                if held is None or held != log.commits[-1]:",
        "                if not log.commits:",
        tests=("tests/unit/replicas/checkpoint/test_log_taker.py::test_a_log_in_one_copy_does_not_replace_another",),
    ),
    "unsynced-commit-is-safe": TextMutant(
        "a log whose newest commit is not synced counts as safe (G5)",
        "replicas/checkpoint/replica_log.py",
        "bool(log.commits) and log.held_by_both == log.commits[-1]",
        "bool(log.commits)",
        tests=(
            "tests/unit/replicas/checkpoint/test_log_taker.py::test_only_synced_log_of_retiring_replica_is_acknowledged",
        ),
    ),
    "half-a-slice-is-continued": TextMutant(
        "after a slice that failed the next one need not be complete (G1)",
        "replicas/checkpoint/state_log.py",
        "        self.lacks = True\n        first = self._first_of(needs)",
        "        first = self._first_of(needs)",
        tests=("tests/unit/replicas/checkpoint/test_state_log.py::test_full_state_is_written_after_refused_slice",),
    ),
    "kept-output-is-cut-off": TextMutant(
        "output that a consumer may ask for is cut off (A2, G7)",
        "replicas/checkpoint/state_log.py",
        "        needs = min(extent.needs(), logged.released_from)",
        "        needs = extent.needs()",
        tests=("tests/unit/replicas/checkpoint/test_state_log.py::test_output_that_may_be_asked_for_is_needed",),
    ),
    "records-of-a-lost-log-are-needed": TextMutant(
        "a complete slice needs records from before it (G2)",
        "replicas/checkpoint/state_log.py",
        "return max(commits[at].first, self._first) if at",
        "return commits[at].first if at",
        tests=("tests/unit/replicas/checkpoint/test_state_log.py::test_complete_slice_needs_no_earlier_records",),
    ),
    "unreadable-checkpoint-is-lost": TextMutant(
        "a checkpoint that could not be read once is never read again (A8)",
        "replicas/checkpoint/store.py",
        "            except OSError as error:  # it may be readable next time\n",
        "            except OSError as error:\n                self._refused.add(name)\n",
        tests=("tests/unit/replicas/checkpoint/test_store.py::test_an_unreadable_checkpoint_is_tried_again_later",),
    ),
    "old-checkpoint-goes-first": TextMutant(
        "a checkpoint is deleted before the new one is on disk (A8)",
        "replicas/checkpoint/store.py",
        "        await storage.write_atomic(self.folder / name, data)\n"
        '        assert name not in names, "A8: a checkpoint never replaces another"\n'
        "        newest = [file for file in [*names, name] if file not in self._refused][-KEPT:]\n"
        "        await self._env.compute.run(partial(self._remove, [old for old in names if old not in newest]))\n",
        '        assert name not in names, "A8: a checkpoint never replaces another"\n'
        "        newest = [file for file in [*names, name] if file not in self._refused][-KEPT:]\n"
        "        await self._env.compute.run(partial(self._remove, [old for old in names if old not in newest]))\n"
        "        await storage.write_atomic(self.folder / name, data)\n",
        tests=("tests/unit/replicas/checkpoint/test_store.py::test_a_full_disk_leaves_the_earlier_checkpoints",),
    ),
    "log-goes-when-one-input-is-past": TextMutant(
        "a log is deleted once the checkpoints are past it in one input (A8)",
        "replicas/checkpoint/taker.py",
        "all(map(ge, acks, self._logged))",
        "any(map(ge, acks, self._logged))",
        tests=("tests/unit/replicas/checkpoint/test_taker.py::test_a_log_stays_while_it_is_further_in_one_input",),
    ),
    "failing-partner-is-asked-first": TextMutant(
        "the partner that failed last is asked again before others (A3)",
        "replicas/checkpoint/turns.py",
        "        return min(ready, key=lambda p: self._of(p).failures, default=None)",
        "        return ready[0] if ready else None",
        tests=("tests/unit/replicas/checkpoint/test_turns.py::test_after_its_pause_a_failing_partner_comes_last",),
    ),
}
