"""Mistakes in a replica's protocol, its consumers and its producers, each against one clause of a rule, by name."""

from __future__ import annotations

from typing import Final

from tests.mutants.text_mutant import TextMutant

RULES: Final[dict[str, TextMutant]] = {
    "redo-stays-though-live-pauses": TextMutant(
        "between two forced rec_dones a redo stays though live pauses, so that nobody has results (R2)",
        "consistency/dpc/stabilization.py",
        "            and self.live is not LiveState.PAUSES\n",
        "",
        tests=(
            "tests/unit/consistency/dpc/test_manager.py::TestCorrecting::test_redo_of_paused_live_ends_within_x_of_the_last",
        ),
    ),
    "resumed-live-does-not-replay": TextMutant(
        "live that resumes takes over the state of a redo, but not its replay (R5, G4)",
        "consistency/dpc/instance.py",
        "        self._replays_on(other.replay)\n",
        "",
        tests=("tests/unit/consistency/dpc/test_replays.py::test_state_that_is_taken_over_replays_on",),
    ),
    "replay-leaves-old-buffers": TextMutant(
        "after a replay the input buffers of operators are those from before it (R9)",
        "consistency/dpc/undo.py",
        "        self._buffers = self._new_buffers(end, self.fragment.snapshot())\n",
        "",
        tests=("tests/unit/consistency/dpc/test_replays.py::test_state_after_replay_is_corrected_like_any_other",),
    ),
    "later-name-goes-first": TextMutant(
        "of two replicas that both want to correct the later name goes first (K2)",
        "consistency/dpc/partners.py",
        "            if asker < self._own:",
        "            if asker > self._own:",
        tests=("tests/unit/consistency/dpc/test_partners.py::test_only_the_earlier_name_is_refused_while_both_ask",),
    ),
    "grant-of-who-has-left": TextMutant(
        "the grant of a partner that has left counts (K1, D3)",
        "consistency/dpc/partners.py",
        "        self._asked = {number: name for number, name in self._asked.items() if name in self.told}\n",
        "",
        tests=("tests/unit/consistency/dpc/test_partners.py::test_grant_of_a_partner_that_has_left_does_not_count",),
    ),
    "standby-is-a-partner": TextMutant(
        "a standby counts as a replica that may come back and serve (H3, R4)",
        "consistency/dpc/partners.py",
        "        return self._idle.issuperset(self._partners)",
        "        return not self._partners",
        tests=("tests/unit/consistency/dpc/test_partners.py::test_a_standby_is_no_partner_until_it_runs",),
    ),
    "live-resumes-though-suspended": TextMutant(
        "without a partner live resumes although the policy is to suspend (R5)",
        "consistency/dpc/stabilization.py",
        "        if self._policy is not Policy.SUSPEND:\n            if run.sunion.resume_live():",
        "        if True:\n            if run.sunion.resume_live():",
        tests=(
            "tests/unit/consistency/dpc/test_manager.py::TestCorrecting::test_suspended_live_stays_paused_without_a_partner",
        ),
    ),
    "full-redo-waits-for-its-partner": TextMutant(
        "a redo with a full output waits though its partner is read (A2)",
        "consistency/dpc/stabilization.py",
        "        elif isinstance(self.live, PartnerServes):\n            # Consumers",
        "        elif False:\n            # Consumers",
        tests=(
            "tests/unit/consistency/dpc/test_manager.py::TestCorrecting::test_redo_with_full_output_ends_while_partner_serves",
        ),
    ),
    "redo-ends-once-past-live": TextMutant(
        "the redo of a replica with partners ends when it has passed live (R7)",
        "consistency/dpc/stabilization.py",
        "        return self.live_runs and run.partners.nobody and run.sunion.redo_is_ahead",
        "        return self.live_runs and run.sunion.redo_is_ahead",
        tests=(
            "tests/unit/consistency/dpc/test_manager.py::TestCorrecting::test_the_redo_of_one_of_two_continues_past_live",
        ),
    ),
    "redo-ends-before-the-log-has-it": TextMutant(
        "a redo ends before the log has got the slice that it asks for (G6)",
        "consistency/dpc/stabilization.py",
        "        return self.run.log.wants(self.stable) or self._finish(now)",
        "        return self._finish(now)",
        tests=("tests/unit/consistency/dpc/test_logging.py::test_empty_redo_advances_log_when_upstream_is_full",),
    ),
    "earlier-wait-for-a-correction-counts": TextMutant(
        "the wait for an earlier correction counts for the next one (T9)",
        "consistency/dpc/up_failure.py",
        "            taint.forget_correction()\n",
        "            pass\n",
        tests=(
            "tests/unit/consistency/dpc/test_manager.py::TestHoldingForACorrection::test_each_wait_for_a_correction_has_its_own_limit",
        ),
    ),
    "snapshot-positions-at-n-star": TextMutant(
        "the snapshot of a tainted replica begins at its checkpoint, its positions at n* (A3, R8)",
        "consistency/dpc/up_failure.py",
        "        return self.taint.snapshot.take(), self.run.sunion.acknowledged()",
        "        return self.taint.snapshot.take(), self.run.sunion.needed_from(self.run.sunion.cursors.released)",
        tests=(
            "tests/unit/consistency/dpc/test_manager.py::TestPeriodicCheckpoints::test_snapshot_has_state_and_later_releases",
        ),
    ),
    "recovered-before-it-caught-up": TextMutant(
        "recovery ends though an input is behind its MAIN (A3)",
        "consistency/dpc/recovering.py",
        "        if run.inputs.caught_up():\n",
        "        if True:\n",
        tests=(
            "tests/unit/consistency/dpc/test_manager.py::TestRecovering::test_recovery_lasts_until_all_inputs_caught_up",
        ),
    ),
    "periodic-mark-is-used-twice": TextMutant(
        "the periodic checkpoint of one failure is that of the next one (C1, R7)",
        "consistency/dpc/taint.py",
        "        run.mark = None\n",
        "",
        tests=(
            "tests/unit/consistency/dpc/test_manager.py::TestPeriodicCheckpoints::test_each_failure_begins_at_a_checkpoint_of_its_own",
        ),
    ),
    "redo-repeats-what-was-released": TextMutant(
        "a redo from a periodic checkpoint releases again what was released since (R8)",
        "consistency/dpc/instance.py",
        "            theirs.restore(state, ours.released())",
        "            theirs.restore(state)",
        tests=(
            "tests/unit/consistency/dpc/test_manager.py::TestPeriodicCheckpoints::test_redo_starts_at_the_checkpoint_and_drops_repetitions",
        ),
    ),
    "waits-while-a-partner-served-count": TextMutant(
        "the time in which a partner served counts as a wait (T8)",
        "consistency/dpc/waits.py",
        "        if not self._serves():\n            self._serves_since = now\n",
        "        pass\n",
        tests=(
            "tests/unit/consistency/dpc/test_manager.py::TestLongestWait::test_buckets_while_a_partner_serves_are_no_wait",
        ),
    ),
    "installed-operators-have-empty-buffers": TextMutant(
        "after an install the input buffers are those of the state before it (R9)",
        "consistency/dpc/undo.py",
        "        self._buffers = self._new_buffers(checkpoint.restart, checkpoint.fragment)\n",
        "",
        tests=(
            "tests/unit/consistency/dpc/test_manager.py::TestRecovering::test_installed_state_is_corrected_like_any_other",
        ),
    ),
    "episode-ends-at-the-threshold": TextMutant(
        "an input that lags about as long as allowed is reported again and again (S5)",
        "consistency/dpc/skew.py",
        "            if age <= self.alpha_x_us // 2:",
        "            if age <= self.alpha_x_us:",
        tests=("tests/unit/consistency/dpc/test_skew.py::test_an_episode_lasts_until_the_lag_is_half_of_alpha_x",),
    ),
    "recovering-producer-is-read": TextMutant(
        "a producer that recovers is read (A3, F4)",
        "replicas/consumer/selection.py",
        "        if not producer.alive or producer.state is NodeState.RECOVERING:",
        "        if not producer.alive:",
        tests=(
            "tests/unit/replicas/consumer/test_input.py::TestChoice::test_recovering_and_truncated_producers_are_never_read",
        ),
    ),
    "suspended-is-as-good-as-live": TextMutant(
        "a producer that suspends is preferred to one that corrects beside live results (F4)",
        "replicas/consumer/selection.py",
        "            return 3 if producer.stands_in else 1, is_main, 0",
        "            return 3, is_main, 0",
        tests=(
            "tests/unit/replicas/consumer/test_input.py::TestChoice::test_live_results_are_preferred_to_suspended_ones",
        ),
    ),
    "patience-never-doubles": TextMutant(
        "producers that were all tried in vain get no more time (F4)",
        "replicas/consumer/selection.py",
        "        return now - main.behind_since > self.stall_us << doubled",
        "        return now - main.behind_since > self.stall_us",
        tests=(
            "tests/unit/replicas/consumer/test_input.py::TestChoice::test_producers_that_are_slow_to_answer_get_the_time",
        ),
    ),
    "promises-of-another-kind-count": TextMutant(
        "corrections of a producer with live results count as live results (F4)",
        "replicas/consumer/feed.py",
        "            return self.tentative_at\n        return self.stable_at",
        "            return max(self.stable_at, self.tentative_at)\n        return self.stable_at",
        tests=(
            "tests/unit/replicas/consumer/test_input.py::TestUsefulness::test_progress_of_a_redo_is_no_new_live_result",
        ),
    ),
    "corrections-beside-any-main": TextMutant(
        "CORRECTIONS is opened to whoever corrects, also beside a MAIN that corrects without live results (F4)",
        "replicas/consumer/selection.py",
        "        return main.producer if is_fresh else None",
        "        return main.producer",
        tests=("tests/unit/replicas/consumer/test_input.py::TestChoice::test_the_only_stable_producer_is_read",),
    ),
    "a-refused-second-feed-is-tried-at-once": TextMutant(
        "a refused CORRECTIONS is tried again at each news (F3)",
        "replicas/consumer/input.py",
        "        if wanted is not None and self.corr is None and self.producers[wanted].retry_at <= now:",
        "        if wanted is not None and self.corr is None:",
        tests=(
            "tests/unit/replicas/consumer/test_input.py::TestCorrections::test_a_refused_second_connection_is_retried_later",
        ),
    ),
    "older-news-of-another-feed": TextMutant(
        "an older change of state, in band, replaces a newer one (F2)",
        "replicas/consumer/selection.py",
        "        if (incarnation, sequence) > (producer.incarnation, producer.sequence):",
        "        if incarnation >= producer.incarnation:",
        tests=(
            "tests/unit/replicas/consumer/test_input.py::TestNewestState::test_an_old_state_in_band_does_not_replace_a_newer_heartbeat",
        ),
    ),
    "correcting-producer-is-not-fresh": TextMutant(
        "an input whose producer corrects beside live results is not fresh (T2)",
        "replicas/consumer/input.py",
        "            producer.state is NodeState.STABILIZATION and producer.fresh\n        )\n        return sends",
        "            False\n        )\n        return sends",
        tests=(
            "tests/unit/replicas/consumer/test_input.py::TestLiveResultsBesideACorrection::test_its_input_is_fresh",
        ),
    ),
    "tentative-boundary-of-corrections-counts": TextMutant(
        "a tentative boundary on CORRECTIONS counts (V4, B4)",
        "replicas/consumer/input.py",
        "                if is_main or kind is Kind.STABLE:",
        "                if True:",
        tests=(
            "tests/unit/replicas/consumer/test_input.py::TestLiveResultsBesideACorrection::test_tentative_boundaries_of_corrections_do_not_count",
        ),
    ),
    "promoted-feed-keeps-the-old-cut": TextMutant(
        "tentative tuples of the MAIN before count beside those of the promoted feed (B4, F5)",
        "replicas/consumer/input.py",
        "        self.port.main_changed()\n        corr.mode = MAIN",
        "        corr.mode = MAIN",
        tests=(
            "tests/unit/replicas/consumer/test_input.py::TestCorrections::test_tuples_of_the_old_main_do_not_count_twice",
        ),
    ),
    "half-open-where-live-results-stop": TextMutant(
        "a feed whose tentative data have all come counts as half open beside a correction (V4, F4)",
        "replicas/consumer/selection.py",
        "        if feed is self._reading.main and fresh:\n            return False",
        "        if False:\n            return False",
        tests=(
            "tests/unit/replicas/consumer/test_input.py::TestLiveResultsBesideACorrection::test_main_is_not_half_open_for_want_of_corrections",
        ),
    ),
    "corrections-feed-gets-live-results": TextMutant(
        "CORRECTIONS of a producer that corrects beside live results carries tentative elements (V4)",
        "replicas/producer/subscription.py",
        "        if main and output.state is NodeState.STABILIZATION and output.fresh:",
        "        if output.state is NodeState.STABILIZATION and output.fresh:",
        tests=(
            "tests/unit/replicas/producer/test_output_log.py::test_a_corrections_feed_never_gets_tentative_elements",
        ),
    ),
    "rec-done-before-the-undo": TextMutant(
        "a rec_done comes although the consumer still holds what was undone (V1)",
        "replicas/producer/subscription.py",
        "        if self._owes and not self._tentative and state in",
        "        if self._owes and state in",
        tests=(
            "tests/unit/replicas/producer/test_output_log.py::test_a_new_run_continues_the_old_one_for_a_consumer_ahead",
        ),
    ),
    "installed-log-keeps-its-feeds": TextMutant(
        "subscriptions outlive the install of another log (A3)",
        "replicas/producer/output_log.py",
        "        self.stable = log\n        self.installs += 1",
        "        self.stable = log",
        tests=("tests/unit/replicas/producer/test_output_log.py::test_a_subscription_ends_when_the_log_is_replaced",),
    ),
    "acknowledgement-of-before-counts": TextMutant(
        "the acknowledgement of an earlier process of a consumer counts (A2b)",
        "replicas/producer/output_log.py",
        "        if incarnation < ack.incarnation or (ack.evicted and id < self.first - 1):",
        "        if ack.evicted and id < self.first - 1:",
        tests=(
            "tests/unit/replicas/producer/test_output_log.py::test_acknowledgements_fall_only_with_a_new_incarnation",
        ),
    ),
    "now-begins-at-what-is-acknowledged": TextMutant(
        "a reader that begins now gets what is stored (F8)",
        "replicas/producer/output_log.py",
        '        if start == "now":\n            return self.last_id\n',
        "",
        tests=(
            "tests/unit/replicas/producer/test_output_log.py::test_a_consumer_that_holds_nothing_begins_where_it_asks",
        ),
    ),
    "gone-run-goes-on": TextMutant(
        "a cursor into the suffix of a run that was corrected goes on in the next one (V3)",
        "replicas/producer/subscription.py",
        "        if cursor is None or self._run != output.run:",
        "        if cursor is None:",
        tests=(
            "tests/unit/replicas/producer/test_output_log.py::test_a_new_run_continues_the_old_one_for_a_consumer_ahead",
        ),
    ),
    "dropped-suffix-is-read": TextMutant(
        "a feed goes on where the oldest part of the suffix was dropped (V6)",
        "replicas/producer/subscription.py",
        "        cursor.number = max(cursor.number, output.suffix.start)  # the oldest part may have",
        "        #",
        tests=("tests/unit/replicas/producer/test_output_log.py::test_a_suffix_beyond_its_cap_loses_its_oldest_part",),
    ),
}
