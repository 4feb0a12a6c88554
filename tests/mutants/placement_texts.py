"""Mistakes in placement, and of standbys, by name."""

from __future__ import annotations

from typing import Final

from tests.mutants.text_mutant import TextMutant

PLACEMENT: Final[dict[str, TextMutant]] = {
    "too-few-actives-are-left": TextMutant(
        "the last standby of a choice retires before its successor runs (H7)",
        "replicas/placement/deciders/activation.py",
        "serving <= min(self.budget, len(self.target))",
        "serving < min(self.budget, len(self.target))",
        tests=(
            "tests/unit/replicas/placement/test_activation.py::test_active_standby_is_kept_if_replacement_node_is_dead",
        ),
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
    "state-that-is-away-is-given-up": TextMutant(
        "all replays while a node with a state on its disk may return (H8)",
        "replicas/placement/deciders/install.py",
        "self._recovery_us * (_FOR_A_STATE if away else 1)",
        "self._recovery_us",
        tests=("tests/unit/replicas/placement/test_install.py::test_a_standby_that_is_away_may_return_with_a_state",),
    ),
    "who-refused-comes-first": TextMutant(
        "a standby that has just refused is ordered before the others (H5)",
        "replicas/placement/deciders/install.py",
        "        return sorted(able, key=lambda n: self._refused_lately(id, n, now))",
        "        return able",
        tests=(
            "tests/unit/replicas/placement/test_install.py::test_a_node_that_ignores_orders_is_skipped_for_a_while",
        ),
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
    "part-of-a-drain-stays": TextMutant(
        "of orders that are refused together some stay (M5)",
        "replicas/placement/deciders/move_orders.py",
        "            self.forget(taken)\n            raise",
        "            raise",
        tests=("tests/unit/replicas/placement/test_moves.py::test_of_orders_that_are_refused_together_none_stays",),
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
    "running-standby-without-a-disk": TextMutant(
        "a standby that runs and has no state on its disk takes over from another (M4)",
        "replicas/placement/deciders/moves.py",
        "            if not held:\n"
        '                move.why = f"{move.target} must have its state on its disk first"\n'
        "                return None\n",
        "",
        tests=("tests/unit/replicas/placement/test_moves.py::test_standby_moves_to_node_running_for_dead_nodes",),
    ),
    "chosen-standby-leaves": TextMutant(
        "a standby that runs by choice retires when its partition moves (M4, H7)",
        "replicas/placement/deciders/moves.py",
        "        stays = move.was_standby and move.source in self._chosen.get(move.partition, ())",
        "        stays = False",
        tests=(
            "tests/unit/replicas/placement/test_moves.py::test_a_partition_moves_to_the_standby_that_the_budget_keeps",
        ),
    ),
    "rate-lowers-the-expected-need": TextMutant(
        "a lower rate of a source lowers a need below the expected one (O1)",
        "replicas/placement/deciders/needs.py",
        "                loads[id] = max(self._measured[id] * times, self._expected.get(id, 0.0))",
        "                loads[id] = self._measured[id] * times",
        tests=(
            "tests/unit/replicas/placement/test_recovery_order.py::test_lower_source_rate_leaves_the_expected_need",
        ),
    ),
    "started-order-is-pending": TextMutant(
        "a partition that its node runs still counts as ordered (O6)",
        "replicas/placement/deciders/recovery_order.py",
        "if id in unserved and node in self._view.runs and id not in self._view.runs[node]",
        "if id in unserved and node in self._view.runs",
        tests=("tests/unit/replicas/placement/test_recovery_order.py::test_vain_restore_is_given_to_another_node",),
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
    "own-address-is-in-use": TextMutant(
        "a node that joins again is refused because of its own address (D4)",
        "replicas/placement/joining.py",
        "directory.addresses().items() if name != node.id}",
        "directory.addresses().items()}",
        tests=("tests/unit/replicas/placement/test_joining.py::test_rejoining_node_keeps_roles_at_new_address",),
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
    "balancer-goes-first": TextMutant(
        "the balancer moves partitions while people's orders wait (L7)",
        "replicas/placement/mover.py",
        "                return  # orders of people come first",
        "                pass  # orders of people come first",
        tests=("tests/unit/replicas/placement/test_mover.py::test_the_balancer_waits_for_orders_of_people",),
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
    "known-state-is-asked-for": TextMutant(
        "a standby asks again for a state that it has (H1)",
        "replicas/placement/standby.py",
        "        self._made_from = self._asked_at\n",
        "",
        tests=("tests/unit/replicas/placement/test_standby.py::test_standby_does_not_ask_for_a_state_that_it_has",),
    ),
    "pressure-never-ends": TextMutant(
        "a producer that has room again still makes a standby ask early (H1)",
        "replicas/placement/standby.py",
        "        (self._crowded.add if crowded else self._crowded.discard)(peer)",
        "        if crowded:\n            self._crowded.add(peer)",
        tests=("tests/unit/replicas/placement/test_standby.py::test_a_full_producer_makes_it_ask_early",),
    ),
    "failed-request-waits": TextMutant(
        "a failed request is repeated after a whole interval (H1)",
        "replicas/placement/standby.py",
        "if self._crowded or self._failures else",
        "if self._crowded else",
        tests=("tests/unit/replicas/placement/test_standby.py::test_a_failed_request_is_repeated_sooner",),
    ),
    "followed-log-is-acknowledged-late": TextMutant(
        "of a followed log the positions before are acknowledged (G9)",
        "replicas/placement/standby.py",
        "        self._acknowledged = self._newest = list(positions)",
        "        self._acknowledged, self._newest = self._newest, list(positions)",
        tests=(
            "tests/unit/replicas/placement/test_standby.py::test_a_log_that_is_behind_its_replica_is_asked_for_again",
        ),
    ),
    "failures-add-up": TextMutant(
        "failures before a checkpoint came count with those after it (H1)",
        "replicas/placement/standby.py",
        "        self._turns.came(maker)\n        self._failures = 0",
        "        self._turns.came(maker)",
        tests=("tests/unit/replicas/placement/test_standby.py::test_a_failed_request_is_repeated_sooner",),
    ),
    "larger-number-is-newer": TextMutant(
        "of two versions of the directory the larger number is the newer one, whatever the epoch (D2)",
        "replicas/placement/store.py",
        "ORDER BY epoch DESC, number DESC",
        "ORDER BY number DESC, epoch DESC",
        tests=("tests/unit/replicas/placement/test_store.py::test_newest_version_is_of_the_latest_epoch",),
    ),
    "refused-version-is-stored-later": TextMutant(
        "a version that the disk refused is written with the next change (D2)",
        "replicas/placement/store.py",
        '                execute(f"DELETE FROM {table} WHERE {where}", (plan, epoch, number))',
        "                pass",
        tests=("tests/unit/replicas/placement/test_store.py::test_each_version_is_logged_with_its_reason",),
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
    "dead-node-holds-checkpoints": TextMutant(
        "checkpoints of a node that does not answer count as there (L4)",
        "replicas/placement/view.py",
        "        self._held.pop(process, None)\n",
        "",
        tests=("tests/unit/replicas/placement/test_view.py::test_checkpoints_of_a_silent_node_are_unknown",),
    ),
}
