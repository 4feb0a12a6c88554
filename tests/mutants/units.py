"""Unit tests, and the mutant that each must find without relying on chance.

These tests have no arguments, so that they can be called while the mutant is active.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

from replicas.placement.deciders.move import MovePhase
from replicas.planning.recovery.placing import PlannedInstall
from spe.plan.log_targets import Continuous
from spe.stream.names import NodeState
from tests.simulation import test_checkpoint_log as logged
from tests.simulation import test_cut_off_replay as cut_off_replay
from tests.simulation import test_joining as joining
from tests.simulation import test_log_acknowledges as acknowledges
from tests.simulation import test_moves as simulated
from tests.simulation import test_set as settings_simulated
from tests.simulation import test_standbys as standbys
from tests.simulation import test_stranded as stranded
from tests.unit.consistency.checking import test_checkers as checkers
from tests.unit.consistency.dpc import test_agreement as agreement
from tests.unit.consistency.dpc import test_logging as logging
from tests.unit.consistency.dpc import test_partners as partners
from tests.unit.consistency.dpc import test_replays as replays
from tests.unit.consistency.dpc.test_manager import (
    TestCorrecting,
    TestHoldingForACorrection,
    TestOtherSettings,
    TestPeriodicCheckpoints,
    TestRecovering,
)
from tests.unit.operators import test_fragment_log as fragment_log
from tests.unit.operators import test_keyed as keyed
from tests.unit.operators import test_late_rows as late_rows
from tests.unit.operators import test_soutput as soutput
from tests.unit.operators import test_trials as trials
from tests.unit.operators.aggregate import test_arrival as arrival
from tests.unit.replicas.checkpoint import test_extent as extent
from tests.unit.replicas.checkpoint import test_log as checkpoint_log
from tests.unit.replicas.checkpoint import test_log_taker as log_taker
from tests.unit.replicas.checkpoint import test_pauses as pauses
from tests.unit.replicas.checkpoint import test_state_log as state_log
from tests.unit.replicas.checkpoint import test_taker as taker
from tests.unit.replicas.checkpoint import test_targets as log_targets
from tests.unit.replicas.consumer.test_input import TestChoice, TestCorrections, TestUsefulness
from tests.unit.replicas.link import test_directory as directory
from tests.unit.replicas.node import test_load_meter as load_meter
from tests.unit.replicas.node import test_replica as replica
from tests.unit.replicas.node import test_ticks as ticks
from tests.unit.replicas.placement import test_activation as activation
from tests.unit.replicas.placement import test_balance as balance
from tests.unit.replicas.placement import test_epoch as epoch
from tests.unit.replicas.placement import test_install as coordination
from tests.unit.replicas.placement import test_moves as moves
from tests.unit.replicas.placement import test_recovery_order as restoring
from tests.unit.replicas.placement import test_settings_change as setting
from tests.unit.replicas.placement import test_standby as standby
from tests.unit.replicas.planning import test_balancing as balancing
from tests.unit.replicas.planning import test_load as load
from tests.unit.replicas.planning import test_placement as placement
from tests.unit.replicas.planning import test_prediction as prediction
from tests.unit.replicas.planning import test_relief as relief
from tests.unit.replicas.planning import test_shares as shares
from tests.unit.replicas.planning.recovery import test_choosing as choosing
from tests.unit.replicas.planning.recovery import test_order as recovery_order
from tests.unit.replicas.planning.recovery import test_schedule as recovery_schedule
from tests.unit.replicas.producer import test_output_log as output_log
from tests.unit.replicas.source import test_proxy as source
from tests.unit.spe.plan import test_bound_changes as in_force
from tests.unit.spe.plan import test_revision as revisions

Test = Callable[[], Awaitable[None] | None]

UNITS: Final[dict[str, Test]] = {
    "more-of-a-slice-replaces-it": state_log.test_continued_slice_needs_its_earlier_records,
    "slices-cost-nothing": partial(extent.test_slices_without_anything_are_counted, Continuous(200_000), 2_000),
    "groups-begin-anew": partial(logged.test_log_is_bounded_and_rebuilt_states_are_equal, "count"),
    "nothing-is-too-long": log_targets.test_rows_are_replayed_if_rewriting_would_miss_the_target,
    "time-for-rewriting-is-ignored": extent.test_rewriting_with_little_time_begins_with_the_oldest,
    "something-moves-to-a-node-that-is-drained": (simulated.test_opposite_orders_are_refused_until_the_first_is_done),
    "who-restores-in-vain-is-waited-for": partial(restoring.test_vain_restore_is_given_to_another_node, True),
    "lost-input-is-held-against-who-restores": restoring.test_restore_waiting_for_lost_input_is_not_vain,
    "lost-source-is-held-against-who-restores": restoring.test_restore_waiting_for_a_source_is_not_vain,
    "progress-of-who-restores-does-not-count": restoring.test_advancing_restore_is_not_vain,
    "only-standbys-restore": (restoring.test_node_without_role_takes_what_standbys_cannot),
    "x-of-who-restores-is-not-asked": partial(
        restoring.test_node_with_x_too_short_for_another_unit_is_skipped, "250ms", ""
    ),
    "memory-of-who-restores-is-not-asked": restoring.test_a_node_without_room_in_memory_is_passed_over,
    "what-no-node-has-memory-for-is-installed": (restoring.test_partition_too_large_for_any_memory_waits_with_reason),
    "lent-role-used-before-it-is-known": restoring.test_a_lent_role_is_not_used_before_all_know_of_it,
    "who-is-silent-runs-nothing": restoring.test_silent_node_keeps_lent_role_until_another_is_healthy,
    "who-was-not-heard-is-silent": restoring.test_new_coordinator_waits_for_node_with_a_lent_role,
    "lent-role-stays": restoring.test_node_without_role_takes_what_standbys_cannot,
    "the-next-coordinator-does-not-know-what-was-lent": restoring.test_next_coordinator_takes_back_lent_roles,
    "what-a-standby-holds-counts-as-new": taker.test_checkpoint_of_another_standby_is_not_newer,
    "what-is-lost-needs-what-it-needed": (restoring.test_load_of_lost_partition_follows_its_source_rate),
    "no-plan-when-a-source-changes": restoring.test_another_rate_while_something_waits_makes_a_new_plan,
    "who-is-stranded-says-nothing": stranded.test_replica_without_any_state_reports_it_once_after_x,
    "said-before-anybody-could-help": stranded.test_replica_without_any_state_reports_it_once_after_x,
    "how-long-states-took-is-not-learned": moves.test_slow_transfers_of_state_make_later_predictions_longer,
    "small-differences-count-for-large-states": moves.test_small_differences_say_nothing_of_large_states,
    "redo-beside-a-silent-input": TestCorrecting().test_no_redo_begins_while_an_input_is_silent,
    "partner-serves-whatever-it-does": partial(
        TestCorrecting().test_live_resumes_when_the_partner_does_not_serve, NodeState.STABILIZATION
    ),
    "dead-partner-keeps-its-state": replica.test_a_silent_partner_no_longer_counts,
    "a-tainted-replica-makes-no-room": (TestPeriodicCheckpoints().test_a_full_upstream_forces_a_redo_that_makes_room),
    "own-request-outlives-a-grant": partners.test_two_replicas_that_ask_each_other_agree_on_one,
    "request-is-never-withdrawn": TestCorrecting().test_a_request_without_a_reason_is_withdrawn,
    "mark-outlives-its-redo": TestCorrecting().test_a_redo_starts_from_the_checkpoint_of_its_own_failure,
    "mark-outlives-an-install": TestRecovering().test_an_install_discards_the_earlier_checkpoint,
    "what-is-made-again-is-not-compared": partial(soutput.test_repeated_results_must_be_equal, "12u 15x 24Z", 30),
    "feed-promoted-without-a-cut": TestCorrections().test_tuples_of_the_old_main_do_not_count_twice,
    "undo-of-the-correcting-feed-counts": TestCorrections().test_an_undo_on_corrections_removes_nothing,
    "one-that-suspends-is-read-all-the-same": TestChoice().test_live_results_are_preferred_to_suspended_ones,
    "useless-producer-is-kept": TestUsefulness().test_silent_stable_main_is_left_for_up_failure_with_results,
    "caught-up-with-the-slowest": TestUsefulness().test_caught_up_is_not_judged_by_the_slowest_producer,
    "caught-up-with-the-furthest": TestUsefulness().test_caught_up_means_as_far_as_main,
    "own-silence-counts": replica.test_a_freeze_of_the_node_ages_no_input,
    "arrival-starts-again": arrival.test_a_restored_time_window_continues,
    "arrival-starts-again-in-count-windows": arrival.test_a_restored_count_window_continues,
    "helper-acknowledges-its-newest": replica.test_a_helper_acknowledges_the_older_of_two_checkpoints,
    "actives-start-together": activation.test_the_next_active_begins_when_the_last_one_serves,
    "older-checkpoint-taken": standby.test_a_checkpoint_that_is_older_in_any_input_is_not_taken,
    "lease-is-not-logged": source.test_a_lease_is_logged_before_it_is_promised,
    "stale-directory-taken": directory.test_a_process_never_returns_to_an_older_version,
    "an-older-coordinator-is-not-told": standbys.test_later_of_two_coordinators_is_followed,
    "a-hello-is-no-epoch-for-orders": partial(standbys.test_processes_follow_no_older_coordinator, "n1b"),
    "followed-epoch-forgotten": epoch.test_a_restarted_node_follows_no_older_coordinator,
    "difference-not-told": agreement.test_a_partner_that_is_not_ahead_is_compared_at_once,
    "room-wakes-nobody": ticks.test_replica_is_woken_when_dead_consumers_are_evicted,
    "slice-asked-of-a-refused-log": (logged.test_standby_replaces_log_refused_after_end_of_input),
    "log-of-another-state-stays-as-it-is": partial(logged.test_late_log_is_written_after_end_of_input, True),
    "undo-behind-the-end": output_log.test_empty_correction_at_stream_end_sends_rec_done,
    "nobody-reads-who-has-no-room": (TestCorrections().test_a_client_reads_a_correcting_producer_without_room),
    "refused-feed-asked-for-again-at-once": (TestCorrections().test_a_refused_second_connection_is_retried_later),
    "corrections-wait-for-room-beside-a-partner": (
        TestCorrecting().test_redo_with_full_output_ends_while_partner_serves
    ),
    "helper-leaves-those-that-are-behind": (coordination.test_thawed_replica_catches_up_before_helper_retires),
    "correction-waited-for-without-end": (
        TestHoldingForACorrection().test_stable_buckets_wait_for_the_grant_up_to_hard
    ),
    "correction-of-a-stopped-input-waited-for": (
        TestHoldingForACorrection().test_an_input_that_stops_again_ends_the_wait
    ),
    "long-correction-waited-for": TestHoldingForACorrection().test_slices_beyond_one_are_not_waited_for,
    "all-of-one-time-are-rejected": trials.test_rows_of_one_time_are_tried_in_order,
    "trials-leave-traces": trials.test_rows_of_one_time_are_tried_in_order,
    "rejected-rows-are-counted-again": trials.test_counts_are_part_of_the_state,
    "late-rows-are-counted-from-each-piece": late_rows.test_a_join_rejects_rows_of_both_sides,
    "helper-leaves-too-early": (coordination.test_a_helper_retires_when_all_placed_replicas_are_stable),
    "snapshot-of-who-was-put-away": standbys.test_a_retired_replica_gives_no_incomplete_snapshot,
    "standby-that-began-again-is-asked": (checkers.test_a_standby_that_just_restarted_need_not_read_yet),
    "one-period-is-enough": partial(balancing.test_balancer_makes_cheapest_move_after_two_periods, True),
    "periods-need-not-follow": balancing.test_periods_beyond_the_cap_must_follow_each_other,
    "silent-node-is-empty": balancing.test_silent_node_counts_with_its_last_load,
    "silent-cluster-is-idle": balancing.test_a_cluster_that_is_silent_is_not_idle,
    "moved-partition-does-not-rest": balancing.test_a_moved_partition_rests_for_three_periods,
    "two-moves-at-a-time": balancing.test_moves_run_one_at_a_time_in_sequence,
    "memory-of-nodes-ignored": balancing.test_memory_beyond_its_cap_is_reason_enough,
    "balance-ignores-x": balancing.test_a_node_with_too_short_an_x_is_no_target_and_is_named,
    "drained-node-keeps-what-needs-nothing": balancing.test_partitions_without_load_leave_a_draining_node_too,
    "dead-spare-joins": balancing.test_spare_that_is_dead_or_useless_does_not_join,
    "failed-move-is-tried-again": balancing.test_after_a_failed_move_another_target_is_tried,
    "nobody-makes-room-first": balancing.test_node_makes_room_for_expected_partitions,
    "load-while-it-corrects": partial(
        load_meter.test_interval_not_entirely_stable_gives_no_sample, NodeState.UP_FAILURE
    ),
    "rows-in-two-samples": load_meter.test_sample_has_input_and_output_per_second,
    "sample-with-every-heartbeat": load_meter.test_a_sample_is_reported_once_unless_it_is_old,
    "time-is-load": load_meter.test_the_cpu_of_the_process_is_shared_out_by_steps,
    "silence-is-no-load": load.test_silence_is_no_sample_and_no_load_of_zero,
    "silent-partition-lessens-its-node": load.test_on_a_node_a_silent_partition_counts_with_its_mean,
    "what-does-not-vary-is-correlated": placement.test_each_checkpoint_has_a_cost_on_each_node,
    "checkpoint-beside-who-runs-it": placement.test_where_all_nodes_run_it_a_partition_has_no_checkpoint,
    "two-copies-on-a-node": placement.test_no_node_has_two_copies_or_copy_and_replica,
    "standbys-divide-x": placement.test_no_checkpoint_lies_where_its_share_of_x_is_too_short,
    "standby-ignores-x": placement.test_no_checkpoint_lies_where_its_share_of_x_is_too_short,
    "domains-do-not-matter": (placement.test_a_checkpoint_is_in_another_domain_than_its_partition),
    "full-nodes-are-not-passed-over": placement.test_with_a_delta_the_heuristic_passes_over_full_nodes,
    "what-fits-nowhere-goes-where-it-costs-least": (
        placement.test_a_checkpoint_that_fits_nowhere_goes_to_the_least_load
    ),
    "unmeasured-all-on-one-node": placement.test_before_anything_is_measured_checkpoints_are_spread,
    "worst-gain-first": placement.test_the_best_gain_moves_first_and_none_below_epsilon,
    "moves-that-never-catch-up": partial(prediction.test_a_move_that_never_catches_up_is_refused, 0.1),
    "rows-that-come-meanwhile-are-free": prediction.test_input_since_checkpoint_is_processed_with_new_input,
    "checkpoint-taken-however-old": prediction.test_the_faster_source_of_the_state_is_chosen,
    "memory-has-no-cap": partial(relief.test_memory_has_a_cap_of_its_own, True),
    "caps-hold-on-average": relief.test_each_node_counts_by_itself_not_their_mean,
    "fewest-moves": partial(relief.test_two_short_moves_are_made_before_a_long_one, True),
    "replicas-meet-on-a-node": partial(relief.test_two_replicas_of_a_partition_are_never_on_one_node, True),
    "refused-together-and-made": partial(relief.test_moves_that_are_refused_together_are_not_made_together, True),
    "share-of-x-ignored": shares.test_units_in_sequence_would_divide_x_and_are_refused,
    "intersection-for-union": choosing.test_shared_partitions_are_paid_for_once,
    "shared-cost-counted-twice": choosing.test_shared_partitions_are_paid_for_once,
    "sharing-ignored": choosing.test_query_with_shared_partitions_is_denser,
    "only-the-densest-start": choosing.test_the_densest_query_alone_is_not_the_best,
    "priority-ignored": recovery_schedule.test_each_node_takes_partitions_that_complete_most,
    "most-value-first-however-long-it-takes": recovery_order.test_value_per_second_comes_first,
    "room-averaged-over-nodes": partial(
        recovery_order.test_a_partition_goes_to_its_checkpoint_if_there_is_room, 0.6, PlannedInstall(0, "n6", "n5")
    ),
    "room-that-completes-nothing-stays-empty": recovery_schedule.test_each_node_takes_partitions_that_complete_most,
    "shadows-not-counted": recovery_schedule.test_a_shadow_takes_room_and_is_worth_nothing,
    "no-plan-on-arrival": recovery_schedule.test_an_arrival_makes_a_new_plan,
    "running-ones-ordered-again": recovery_schedule.test_an_ordered_or_running_partition_is_not_ordered_again,
    "orders-of-a-dead-node-stay": recovery_schedule.test_only_partitions_of_the_dead_node_start_again,
    "silence-is-load-0": recovery_schedule.test_a_silent_partition_keeps_its_last_load,
    "who-waits-for-input-holds-up-its-node": (
        recovery_schedule.test_node_continues_after_a_restore_that_waits_for_input
    ),
    "several-restored-at-once": (recovery_schedule.test_a_node_restores_partitions_one_after_the_other),
    "half-a-tree-first-however-soon-the-rest-comes": (
        recovery_order.test_inputs_come_first_where_results_are_sooner_with_them
    ),
    "an-old-checkpoint-fetched": recovery_schedule.test_the_newest_checkpoint_that_can_be_had_is_taken,
    "shortage-is-not-seen": restoring.test_no_node_exceeds_cap_and_waiting_partitions_are_named,
    "what-is-not-measured-now-needs-nothing": restoring.test_a_silent_partition_keeps_its_last_load,
    "the-next-coordinator-knows-no-loads": restoring.test_the_next_coordinator_knows_the_loads_of_lost_partitions,
    "second-replica-takes-the-room": restoring.test_a_second_replica_does_not_start_while_something_waits,
    "who-lacks-a-state-waits-for-room": restoring.test_a_replica_back_without_a_state_is_helped_without_room,
    "what-nobody-can-restore-spreads": restoring.test_stuck_restore_is_tried_on_two_nodes_at_most,
    "who-refuses-is-waited-for": restoring.test_a_node_that_refuses_is_passed_over,
    "installed-before-producers-know": moves.test_install_waits_until_live_producers_know_target,
    "snapshot-restores-frontiers": replica.test_installed_snapshot_leaves_input_positions_open,
    "whose-disk-it-is-does-not-matter": partial(joining.test_disk_of_another_cluster_gives_no_state_to_a_move, "logs"),
    "left-before-the-mark": moves.test_old_replica_stays_until_target_is_level_with_others,
    "left-before-consumers-know": moves.test_old_replica_stays_while_a_node_does_not_know_target,
    "begun-while-tentative": moves.test_a_move_waits_until_all_replicas_are_stable,
    "one-checkpoint-is-enough": moves.test_standby_moves_when_successor_holds_two_checkpoints,
    "who-runs-must-hold-checkpoints": partial(moves.test_standby_moves_to_node_running_for_dead_nodes, False),
    "who-is-cut-off-replays": partial(coordination.test_replica_with_its_input_replays, NodeState.UP_FAILURE),
    "two-replay": partial(coordination.test_replica_with_its_input_replays, NodeState.UP_FAILURE),
    "who-stands-still-is-waited-for": coordination.test_another_one_replays_where_the_first_one_stands_still,
    "who-waits-for-a-replay-stands-still": coordination.test_replica_waiting_for_earlier_replay_is_not_stuck,
    "replays-from-another-log": coordination.test_nothing_replays_from_silent_source_or_other_log,
    "a-dropped-target-keeps-its-role": partial(moves.test_move_with_dead_target_is_reverted, MovePhase.JOIN),
    "a-drained-node-gets-load-back": balance.test_a_drained_node_gets_no_partition_by_balancing,
    "what-people-moved-does-not-rest": balance.test_ordered_moves_come_first_and_their_partitions_rest,
    "standbys-move-while-one-stands-in": balance.test_standbys_stay_unless_configured_to_follow_loads,
    "a-joined-node-has-any-room": balance.test_joining_node_counts_by_its_room_before_it_answers,
    "a-helper-is-moved": balance.test_partition_running_on_its_standby_counts_there,
    "a-full-node-is-a-target": balance.test_a_node_without_room_is_no_target_and_says_so,
    "the-partner-is-asked-all-the-same": partial(simulated.test_the_state_comes_from_where_it_is_sooner, 1e9),
    "checkpoints-of-targets-are-not-known": partial(simulated.test_the_state_comes_from_where_it_is_sooner, 1e9),
    "share-of-x-stays": replica.test_x_and_its_shares_follow_the_directory,
    "what-was-set-does-not-count": revisions.test_changed_settings_override_configuration_of_each_node,
    "waits-for-a-longer-x-count": TestOtherSettings().test_waits_are_measured_against_the_x_they_had,
    "who-suspends-goes-on-so": TestOtherSettings().test_a_suspended_replica_goes_tentative_under_another_policy,
    "refused-and-set": setting.test_share_that_check_refuses_is_refused_with_least_x,
    "moves-to-a-node-do-not-count": setting.test_moves_under_way_count,
    "a-move-is-checked-when-ordered-only": settings_simulated.test_a_change_that_check_would_refuse_changes_nothing,
    "judged-by-the-x-of-its-beginning": in_force.test_longer_x_counts_for_rows_on_their_way,
    "moves-onto-the-chosen-standby-never-end": moves.test_a_partition_moves_to_the_standby_that_the_budget_keeps,
    "moves-of-the-chosen-standby-never-end": moves.test_a_standby_that_the_budget_keeps_running_moves,
    "who-recovers-for-ever-keeps-all-helpers": coordination.test_a_helper_that_recovers_for_ever_keeps_no_other,
    "who-replays-is-retired": coordination.test_helper_that_replays_an_unserved_partition_stays,
    "a-source-in-failure-never-leaves": partial(
        moves.test_a_source_that_is_not_stable_leaves_as_the_target_is, moves.UP_FAILURE
    ),
    "a-source-leaves-nobody": coordination.test_a_source_in_failure_leaves_a_stable_target_only,
    "a-source-that-replays-leaves": coordination.test_source_that_replays_an_unserved_partition_stays,
    "a-dead-target-is-waited-for": moves.test_target_dying_for_good_as_source_leaves_gets_no_role,
    "a-target-that-cannot-recover-is-waited-for": (moves.test_target_unable_to_recover_as_source_leaves_is_dropped),
    "cancelled-while-the-source-retires": (moves.test_move_is_cancelled_if_target_cannot_recover),
    "cancelled-as-the-target-is-ready": partial(
        moves.test_a_move_stays_where_the_source_may_leave_or_is_no_better, moves.B
    ),
    "retires-while-its-move-is-taken-back": (moves.test_move_is_cancelled_if_target_cannot_recover),
    "the-last-replica-ends-with-its-move": (moves.test_cut_off_source_runs_on_if_target_dies),
    "taken-back-from-the-last-replica": (moves.test_cut_off_target_runs_on_if_leaving_source_is_in_failure),
    "a-dead-replica-keeps-who-moves": moves.test_a_replica_leaves_though_another_one_is_dead,
    "who-stands-in-never-moves": moves.test_a_standby_that_runs_in_the_place_of_a_dead_one_moves,
    "standbys-for-a-while-are-chosen": moves.test_temporary_standby_of_a_move_is_not_chosen_to_run,
    "a-target-is-no-helper": moves.test_target_runs_before_old_replica_retires,
    "a-log-is-as-far-as-its-replica": standby.test_a_log_that_is_behind_its_replica_is_asked_for_again,
    "redo-ends-before-the-log-has-its-state": partial(
        logging.test_empty_redo_advances_log_when_upstream_is_full, logging.UndoWorld
    ),
    "tentative-state-is-logged": partial(logging.test_while_tainted_nothing_is_taken, logging.World),
    "commit-before-footprints": checkpoint_log.test_data_after_last_commit_is_void_at_any_cut,
    "row-at-the-footprint-is-left-out": fragment_log.test_a_row_at_the_time_of_a_footprint_is_not_in_it,
    "row-before-the-footprint-counts": fragment_log.test_a_torn_slice_counts_for_nothing,
    "replay-makes-cells": fragment_log.test_replay_makes_no_cell_and_counts_nothing_twice,
    "replay-is-like-the-first-time": fragment_log.test_replay_makes_no_cell_and_counts_nothing_twice,
    "closings-are-ignored": fragment_log.test_a_closed_window_is_written_as_a_closing,
    "closings-are-not-written": fragment_log.test_a_closed_window_is_written_as_a_closing,
    "oldest-footprint-counts": fragment_log.test_the_newest_footprint_counts,
    "live-array-as-footprint": fragment_log.test_footprints_are_copies,
    "final-too-early": fragment_log.test_a_footprint_before_the_end_of_its_pane_is_not_final,
    "passed-pane-is-not-written-again": fragment_log.test_cells_of_panes_that_have_passed_hold_no_replay,
    "sequence-restarts": fragment_log.test_rows_are_numbered_from_the_replayed_commit,
    "forgotten-footprints-count": fragment_log.test_everything_is_rewritten_after_forget,
    "rows-from-before-the-log-are-not-kept": fragment_log.test_rows_from_before_the_log_are_in_it_while_needed,
    "only-new-keys-are-written": keyed.test_only_keys_that_changed_are_written,
    "deleted-keys-are-not-told": keyed.test_only_keys_that_changed_are_written,
    "changes-are-forgotten-in-a-mark": keyed.test_restored_state_knows_what_changed_since_then,
    "keys-in-the-order-of-the-log": keyed.test_only_keys_that_changed_are_written,
    "keys-take-rows-again": keyed.test_rows_replayed_for_others_are_already_in_the_state,
    "keys-in-a-replay-begin-too-early": (keyed.test_state_restored_during_replay_waits_for_its_end),
    "damaged-record-is-taken-as-it-is": checkpoint_log.test_a_record_damaged_in_both_is_refused_by_number,
    "void-records-are-read": checkpoint_log.test_data_after_last_commit_is_void_at_any_cut,
    "loss-in-both-is-taken-for-a-torn-tail": checkpoint_log.test_a_record_damaged_in_both_is_refused_by_number,
    "needed-segment-is-not-missed": checkpoint_log.test_segments_lost_in_both_are_refused,
    "copies-are-not-compared": checkpoint_log.test_any_bit_flipped_in_one_copy_is_read_from_the_other,
    "tail-is-not-made-anew": checkpoint_log.test_data_left_in_memory_by_failed_sync_is_synced_at_open,
    "one-copy-is-enough": checkpoint_log.test_a_commit_in_one_copy_is_read_but_not_acknowledged,
    "what-comes-during-a-sync-counts": checkpoint_log.test_write_during_a_sync_does_not_count,
    "refused-sync-is-tried-again": checkpoint_log.test_a_commit_in_one_copy_only_does_not_count,
    "part-of-a-slice-stays": partial(checkpoint_log.test_full_disk_takes_no_part_of_slice_and_log_continues, False),
    "copy-without-room-is-written-on": partial(
        checkpoint_log.test_full_disk_takes_no_part_of_slice_and_log_continues, False
    ),
    "written-while-a-copy-is-made-whole": checkpoint_log.test_write_during_sync_of_restore_is_refused,
    "segment-left-without-a-mark": checkpoint_log.test_mark_without_room_is_ignored_and_written_later,
    "cut-by-a-commit-that-is-not-synced": checkpoint_log.test_segments_below_needs_of_both_are_cut,
    "what-is-read-is-cut-off": checkpoint_log.test_records_being_read_are_not_cut_and_do_not_grow,
    "nothing-new-is-never-written": pauses.test_where_nothing_comes_a_slice_comes_in_the_end,
    "a-full-producer-waits-for-more-rows": pauses.test_full_producer_waits_only_for_time_of_last_slice,
    "rewriting-waits-for-more-rows": pauses.test_postponed_rewriting_happens_soon,
    "kept-rows-put-slices-off": pauses.test_rows_that_operators_keep_are_none_of_these,
    "short-lived-pieces-are-kept": pauses.test_no_more_come_than_there_are_footprints,
    "what-the-commit-has-is-acknowledged": state_log.test_upstream_may_forget_state_in_both_copies,
    "closings-of-before-a-redo-are-lost": partial(
        fragment_log.test_a_restored_state_is_behind_the_newest_log_slice, fragment_log.COUNT_3, 10, 20
    ),
    "state-from-before-the-log-goes-on-with-it": (fragment_log.test_state_restored_to_older_slice_is_rewritten),
    "output-is-not-in-the-log": logged.test_results_that_a_client_has_not_read_outlive_all_replicas,
    "replay-lets-results-out": partial(logged.test_all_replicas_are_killed_at_once, "chain", "checkpoint"),
    "who-replays-waits": cut_off_replay.test_checkers_require_results_of_replays,
    "redo-forgets-the-replay": cut_off_replay.test_checkers_require_results_of_replays,
    "live-waits-for-the-rest-of-the-replay": cut_off_replay.test_checkers_require_results_of_replays,
    "redo-ends-in-the-replay": replays.test_redo_ending_before_replay_is_not_stable,
    "half-a-state-is-given": cut_off_replay.test_a_standby_that_takes_over_is_cut_off,
    "a-full-producer-waits-for-the-log": logged.test_full_producer_learns_what_it_can_forget,
    "slice-after-a-refused-one-is-taken": state_log.test_full_state_is_written_after_refused_slice,
    "complete-slice-lacks-output": logged.test_complete_slice_contains_output_clients_may_request,
    "complete-slice-is-not-asked-for": logged.test_complete_slice_contains_output_clients_may_request,
    "refused-slice-of-the-end-is-lost": logging.test_refused_last_slice_comes_again_when_asked_for,
    "mark-of-the-end-is-lost": partial(logged.test_last_slice_is_written_once_disk_has_room, "mark"),
    "double-failure-is-tried-for-ever": (logged.test_irreparable_copy_is_reported_and_log_is_restarted),
    "log-counts-whatever-a-checkpoint-has": (logged.test_log_older_than_checkpoint_is_not_resumed),
    "checkpoint-goes-before-the-log-has-more": partial(logged.test_setting_changes_back_before_first_write, "count"),
    "what-comes-while-a-state-is-read-is-in-it": (state_log.test_late_write_for_old_replica_is_not_taken_as_read),
    "replay-acknowledges-nothing": partial(
        acknowledges.test_a_full_producer_and_its_consumer_restart_together, syncs=False
    ),
    "refused-log-is-acknowledged": (acknowledges.test_log_refused_during_sync_is_not_acknowledged),
    "refused-log-goes-too-early": (acknowledges.test_refused_log_is_kept_until_both_new_copies_have_state),
    "log-goes-before-it-was-replayed": (acknowledges.test_disabled_log_is_kept_until_replay_ends),
    "unsynced-log-is-acknowledged": partial(
        log_taker.test_only_synced_log_of_retiring_replica_is_acknowledged, works=False, follows=True
    ),
    "older-log-is-taken": partial(log_taker.test_log_from_before_held_state_is_reported_and_awaited, False),
    "no-snapshot-in-place-of-a-log": log_taker.test_standby_takes_full_snapshots_while_no_log_exists,
    "snapshots-outlive-the-log": log_taker.test_standby_takes_full_snapshots_while_no_log_exists,
    "makers-by-chance": standby.test_standby_keeps_its_log_source_until_interval_behind,
    "final-footprints-hold-replay-back": partial(extent.test_choices_are_those_of_a_count_cell_by_cell, 1),
    "log-cut-at-t": extent.test_final_cells_hold_the_log_but_no_replay,
    "kept-rows-hold-nothing": extent.test_row_keepers_hold_replay_regardless_of_rewriting,
    "slice-before-the-kept-row": extent.test_row_keepers_hold_replay_regardless_of_rewriting,
    "rewriting-adds-no-record": extent.test_rewriting_as_in_trace_15,
    "rewriting-frees-nothing": extent.test_rewriting_as_in_trace_15,
    "what-cannot-be-reached-is-not-tried": extent.test_an_unreachable_target_gets_the_least_time,
    "share-is-kept-for-ever": extent.test_rewriting_takes_its_share_of_the_time,
    "debts-are-forgotten": extent.test_rewriting_takes_its_share_of_the_time,
    "kept-rows-are-not-replayed": log_targets.test_stored_rows_are_replayed_whatever_is_written,
    "rewriting-costs-nothing": log_targets.test_groups_that_never_close_are_rewritten_in_turn,
    "windows-without-an-end": log_targets.test_windows_that_can_be_replayed_need_no_rewriting,
    "slow-windows-are-forgotten": log_targets.test_only_slow_windows_of_the_paper_are_rewritten,
}
