"""Mistakes in placement, standbys and checkpoints, by name."""

from __future__ import annotations

from typing import Final

from tests.mutants.text_mutant import TextMutant

PLACEMENT: Final[dict[str, TextMutant]] = {
    "extended-slice-is-final": TextMutant(
        "footprints of a slice that extends another count as final (G3)",
        "replicas/checkpoint/extent.py",
        "            self._open[-1] += not_final\n",
        "",
        tests=("tests/unit/replicas/checkpoint/test_extent.py::test_slices_without_anything_are_counted",),
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
        "        newest = [file for file in [*names, name] if file not in self._refused][-KEPT:]\n"
        "        await self._env.compute.run(partial(self._remove, [old for old in names if old not in newest]))\n",
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
    "drain-fills-one-node": TextMutant(
        "all partitions of a drained node go to the same one (M5)",
        "replicas/placement/deciders/draining.py",
        "                hosted[other] += 1\n",
        "",
        tests=("tests/unit/replicas/placement/test_draining.py::test_each_target_counts_with_its_future_partitions",),
    ),
    "replaying-helper-retires": TextMutant(
        "a helper that replays for a partition below retires (H5, H8)",
        "replicas/placement/deciders/install.py",
        "        replaying = bool(recovering) and self._is_waited_for(id)",
        "        replaying = False",
        tests=("tests/unit/replicas/placement/test_install.py::test_helper_that_replays_an_unserved_partition_stays",),
    ),
    "running-node-is-spared": TextMutant(
        "a node that runs a partition loses its lent role (O5)",
        "replicas/placement/deciders/install.py",
        "            return node not in running and any(state is not",
        "            return any(state is not",
        tests=("tests/unit/replicas/placement/test_install.py::test_a_node_that_runs_a_partition_is_not_spared",),
    ),
    "spare-does-not-wait-for-disks": TextMutant(
        "a node without a checkpoint restores while one with a checkpoint may return (O5)",
        "replicas/placement/deciders/install.py",
        "            patience_us = max(patience_us, _FOR_A_STATE * self._recovery_us)",
        "            pass",
        tests=("tests/unit/replicas/placement/test_install.py::test_node_without_role_waits_for_silent_standbys",),
    ),
    "lent-role-goes-during-a-move": TextMutant(
        "a lent role that a move relies on is taken back (O5)",
        "replicas/placement/deciders/lending.py",
        "wanted.get(replica.of) != replica.node and replica.of not in moving and spared(replica)",
        "wanted.get(replica.of) != replica.node and spared(replica)",
        tests=("tests/unit/replicas/placement/test_lending.py::test_lent_role_stays_while_its_partition_moves",),
    ),
    "order-begins-before-it-is-stored": TextMutant(
        "a move begins before its order is on the coordinator's disk (M1)",
        "replicas/placement/deciders/move_orders.py",
        "        return [move for move in self.open() if move.number not in self._unstored]",
        "        return self.open()",
        tests=("tests/unit/replicas/placement/test_moves.py::test_nothing_is_done_of_an_order_that_is_not_on_disk",),
    ),
    "unserved-partition-moves": TextMutant(
        "a move begins though no replica runs (M)",
        "replicas/placement/deciders/moves.py",
        "        if unsteady or not states:",
        "        if unsteady:",
        tests=("tests/unit/replicas/placement/test_moves.py::test_a_partition_that_nobody_runs_does_not_move",),
    ),
    "former-standby-loses-its-role": TextMutant(
        "a move that is dropped takes the role that its target had before (M6)",
        "replicas/placement/deciders/moves.py",
        "            before = Role.STANDBY if move.was_standby or self._without(move, move.target).lent else None",
        "            before = Role.STANDBY if self._without(move, move.target).lent else None",
        tests=(
            "tests/unit/replicas/placement/test_moves.py::test_target_dying_for_good_as_source_leaves_gets_no_role",
        ),
    ),
    "ordered-partition-takes-no-room": TextMutant(
        "a partition that a node was ordered to run takes no room (O1)",
        "replicas/placement/deciders/room.py",
        "        return {*self._view.runs.get(node, ()), *(id for id, where in self.pending.items() if where == node)}",
        "        return {*self._view.runs.get(node, ())}",
        tests=("tests/unit/replicas/placement/test_recovery_order.py::test_a_partition_that_was_ordered_takes_room",),
    ),
    "version-is-sent-before-it-is-stored": TextMutant(
        "a version of the directory is in force before it is on disk (D2)",
        "replicas/placement/issuing.py",
        "        await self._store.keep(self._plan.fingerprint, revision, self._env.clock.wall_us(), why)\n"
        "        self._apply(revision, directory, is_stored=True)",
        "        self._apply(revision, directory, is_stored=True)\n"
        "        await self._store.keep(self._plan.fingerprint, revision, self._env.clock.wall_us(), why)",
        tests=("tests/unit/replicas/placement/test_issuing.py::test_a_version_that_cannot_be_stored_is_not_issued",),
    ),
    "running-node-leaves": TextMutant(
        "a node leaves while its process runs (D4)",
        "replicas/placement/joining.py",
        '    if node in alive:\n        raise LeaveRefused(f"{node} cannot leave: it runs; stop its process first")\n',
        "",
        tests=("tests/unit/replicas/placement/test_joining.py::test_a_node_that_is_needed_cannot_leave",),
    ),
    "phase-is-not-stored": TextMutant(
        "a phase is acted on and not stored (M1)",
        "replicas/placement/mover.py",
        "            self._store.note_moves(self._plan.fingerprint, self.orders.all())\n        entered",
        "            pass\n        entered",
        tests=("tests/unit/replicas/placement/test_mover.py::test_a_phase_goes_to_the_store_with_its_change",),
    ),
    "refused-order-stays": TextMutant(
        "an order that the disk refused is carried out all the same (M1)",
        "replicas/placement/mover.py",
        "            self.orders.forget(moves)\n",
        "",
        tests=("tests/unit/replicas/placement/test_mover.py::test_an_order_that_cannot_be_stored_is_not_carried_out",),
    ),
    "unknown-origin-is-another": TextMutant(
        "a standby refuses a checkpoint of inputs that it has not read yet (S6)",
        "replicas/placement/standby.py",
        "        if any(a and b and a != b for a, b in zip(self._origins, origins)):",
        "        if any(a != b for a, b in zip(self._origins, origins)):",
        tests=("tests/unit/replicas/placement/test_standby.py::test_an_unknown_origin_contradicts_no_other",),
    ),
    "old-file-is-newest": TextMutant(
        "a checkpoint on the disk that is older than the log takes its place (A8)",
        "replicas/placement/standby.py",
        "            if checkpoint is not None and self.useful(checkpoint):",
        "            if checkpoint is not None:",
        tests=("tests/unit/replicas/placement/test_standby.py::test_checkpoint_on_disk_behind_the_log_is_not_taken",),
    ),
    "who-left-is-asked": TextMutant(
        "a standby asks a node that has no role any more (D3)",
        "replicas/placement/standby.py",
        "            self.lost(peer)\n        return []",
        "            pass\n        return []",
        tests=("tests/unit/replicas/placement/test_standby.py::test_a_node_without_a_role_is_not_asked",),
    ),
    "dead-producer-presses": TextMutant(
        "a producer that was full when it was lost makes a standby ask early for ever (H1)",
        "replicas/placement/standby.py",
        "        self._told.pop(peer, None)\n        self._crowded.discard(peer)",
        "        self._told.pop(peer, None)",
        tests=("tests/unit/replicas/placement/test_standby.py::test_a_lost_producer_is_no_reason_to_ask_early",),
    ),
    "oldest-share-from-the-first-id": TextMutant(
        "a standby takes itself to hold up a log by the ids that are gone (H1)",
        "replicas/placement/standby.py",
        "ack - before <= _AT_THE_LINE * (output.last_id - before)",
        "ack <= _AT_THE_LINE * output.last_id",
        tests=("tests/unit/replicas/placement/test_standby.py::test_oldest_share_of_a_log_begins_where_it_is_cut_off",),
    ),
    "who-is-behind-is-asked-again": TextMutant(
        "a maker whose state is older than ours is asked again at once (H1)",
        "replicas/placement/standby.py",
        'others are asked first."""\n        self._turns.failed(maker, now)',
        'others are asked first."""',
        tests=("tests/unit/replicas/placement/test_standby.py::test_after_a_maker_that_is_behind_another_is_asked",),
    ),
    "tainted-log-is-not-taken": TextMutant(
        "with undo a log is not taken from a tainted replica, though it needs no rebuilding (G9)",
        "replicas/placement/standby.py",
        "            self.id.of not in self._directory.logs\n            and self._directory",
        "            self._directory",
        tests=("tests/unit/replicas/placement/test_standby.py::test_a_log_is_taken_from_a_tainted_replica_with_undo",),
    ),
    "log-of-the-disk-is-twice": TextMutant(
        "a log of unknown source logs counts as two checkpoints (S6, H2)",
        "replicas/placement/standby.py",
        "COPIES_HELD if maker else 0",
        "COPIES_HELD",
        tests=("tests/unit/replicas/placement/test_standby.py::test_log_on_disk_is_one_checkpoint_and_of_a_maker_two",),
    ),
    "larger-number-is-newer": TextMutant(
        "of two versions of the directory the larger number is the newer one, whatever the epoch (D2)",
        "replicas/placement/store.py",
        "ORDER BY epoch DESC, number DESC",
        "ORDER BY number DESC, epoch DESC",
        tests=("tests/unit/replicas/placement/test_store.py::test_newest_version_is_of_the_latest_epoch",),
    ),
    "ended-output-is-remembered": TextMutant(
        "outputs that a node does not make any more count as there (H8)",
        "replicas/placement/view.py",
        "        self._forget(node)\n        self.runs[node] = runs",
        "        self.runs[node] = runs",
        tests=("tests/unit/replicas/placement/test_view.py::test_outputs_that_a_node_no_longer_makes_are_forgotten",),
    ),
    "silent-source-has-its-log": TextMutant(
        "a source that does not answer counts as one with its whole log (H8)",
        "replicas/placement/view.py",
        '            self.logs.pop(StreamId(process.removeprefix("source:")), None)',
        "            pass",
        tests=(
            "tests/unit/replicas/placement/test_view.py::test_only_an_answering_source_with_its_first_row_has_a_log",
        ),
    ),
    "cut-log-has-its-beginning": TextMutant(
        "a source log without its first rows counts as whole (H8, E5)",
        "replicas/placement/view.py",
        "        if output.first == 1:\n            self.logs",
        "        if output:\n            self.logs",
        tests=(
            "tests/unit/replicas/placement/test_view.py::test_only_an_answering_source_with_its_first_row_has_a_log",
        ),
    ),
    "own-silence-is-theirs": TextMutant(
        "a coordinator that was cut off takes all nodes for gone (H5)",
        "replicas/placement/view.py",
        "            self._heard.clear()  # we may have been disconnected: wait for all nodes again\n"
        "            self._begun_at = now",
        "            self._heard.clear()",
        tests=("tests/unit/replicas/placement/test_view.py::test_after_silence_of_all_nodes_each_gets_time_to_answer",),
    ),
    "lack-begins-at-each-beat": TextMutant(
        "the time of a lack begins anew with each heartbeat (H8)",
        "replicas/placement/view.py",
        "            partition.lacking_since.setdefault(node, now)",
        "            partition.lacking_since[node] = now",
        tests=("tests/unit/replicas/placement/test_view.py::test_a_lack_counts_since_it_was_first_heard",),
    ),
    "former-host-serves": TextMutant(
        "a node without a role any more counts as serving (H5, D3)",
        "replicas/placement/view.py",
        "            for node in set(partition.running).difference(directory.hosts(id)):\n"
        "                self._runs(partition, node, None, now)\n",
        "            pass\n",
        tests=("tests/unit/replicas/placement/test_view.py::test_a_node_whose_role_went_does_not_serve",),
    ),
}
