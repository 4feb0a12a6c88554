"""Mistakes in producers and consumers, by name."""

from __future__ import annotations

from typing import Final

from tests.mutants.text_mutant import TextMutant

FEEDS: Final[dict[str, TextMutant]] = {
    "lost-incarnation-counts": TextMutant(
        "after a producer was lost, news of a clock that stepped back are old (F2)",
        "replicas/consumer/feed.py",
        "        known = (self.incarnation, self.sequence) if self.alive else (-1, -1)",
        "        known = self.incarnation, self.sequence",
        tests=(
            "tests/unit/replicas/consumer/test_input.py::TestNewestState::test_after_a_loss_an_older_incarnation_counts",
        ),
    ),
    "restarted-producer-is-useless": TextMutant(
        "a producer that has just started counts as one without results (F4)",
        "replicas/consumer/feed.py",
        "        self.stable_at = self.tentative_at = now\n\n    def shift",
        "\n    def shift",
        tests=(
            "tests/unit/replicas/consumer/test_input.py::TestSilence::test_producer_that_has_just_started_is_not_useless",
        ),
    ),
    "own-freeze-is-its-silence": TextMutant(
        "after a freeze of ours the feed counts as silent since before (T1)",
        "replicas/consumer/feed.py",
        "        self.last_arrival = min(self.last_arrival + gap_us, now)\n"
        "        self.ahead_since = self.behind_since = None",
        "        self.last_arrival = min(self.last_arrival + gap_us, now)",
        tests=("tests/unit/replicas/consumer/test_input.py::TestSilence::test_own_freeze_is_no_silence_of_the_feed",),
    ),
    "undo-owes-nothing": TextMutant(
        "after an undo no rec_done is waited for (V2, F5)",
        "replicas/consumer/feed.py",
        "                self.tentative, self.owes = False, True",
        "                self.tentative = False",
        tests=(
            "tests/unit/replicas/consumer/test_input.py::TestCorrectingProducer::test_after_an_undo_a_rec_done_is_awaited",
        ),
    ),
    "stable-tuples-do-not-count": TextMutant(
        "a feed that brings stable tuples counts as stalled (F4)",
        "replicas/consumer/feed.py",
        "        self.position = batch.upto_id\n        self.behind_since = None",
        "        self.position = batch.upto_id",
        tests=(
            "tests/unit/replicas/consumer/test_input.py::TestSilence::test_a_main_that_brings_stable_tuples_is_not_stalled",
        ),
    ),
    "old-failures-count": TextMutant(
        "a producer that worked since is avoided as long as after many failures (F4)",
        "replicas/consumer/input.py",
        "            feed.last_arrival = now\n            self.producers[feed.producer].retry_us = RETRY_US",
        "            feed.last_arrival = now",
        tests=(
            "tests/unit/replicas/consumer/test_input.py::TestSilence::test_a_subscription_that_succeeds_ends_the_backoff",
        ),
    ),
    "own-pause-is-its-silence": TextMutant(
        "while we do not read a feed its silence counts (F4, A7)",
        "replicas/consumer/input.py",
        "            feed.paused = paused\n            feed.ahead_since = feed.behind_since = None",
        "            feed.paused = paused",
        tests=(
            "tests/unit/replicas/consumer/test_input.py::TestSilence::test_time_in_which_we_did_not_read_does_not_count",
        ),
    ),
    "a-part-is-as-good-as-all": TextMutant(
        "a feed of which parts come is not left, though another producer has more (F4)",
        "replicas/consumer/input.py",
        "            if self.selector.all_in_vain:\n                feed.behind_since = None",
        "            feed.behind_since = None",
        tests=(
            "tests/unit/replicas/consumer/test_input.py::TestChoice::test_producer_with_more_bits_wins_after_vain_attempts",
        ),
    ),
    "full-producer-is-not-fresh": TextMutant(
        "a full producer is not fresh, so results become tentative (T2, A7)",
        "replicas/consumer/input.py",
        "sends and producer.alive and (producer.full or now - feed.last_arrival <= self._x_us)",
        "sends and producer.alive and now - feed.last_arrival <= self._x_us",
        tests=(
            "tests/unit/replicas/consumer/test_input.py::TestSilence::test_an_input_is_fresh_while_its_producer_is_full",
        ),
    ),
    "foreign-producer-is-tried-at-once": TextMutant(
        "a producer of another log is tried again as soon as any other (S6)",
        "replicas/consumer/input.py",
        "        producer.retry_at = now + FOREIGN_RETRY_US\n",
        "",
        tests=("tests/unit/replicas/consumer/test_input.py::test_a_producer_of_another_log_is_the_last_choice",),
    ),
    "correcting-producer-is-as-any": TextMutant(
        "of two STABLE producers the one that corrected for us is not preferred (F4)",
        "replicas/consumer/selection.py",
        "            return 5, 2 * is_main + is_corr, producer.frontier",
        "            return 5, 2 * is_main, producer.frontier",
        tests=(
            "tests/unit/replicas/consumer/test_input.py::TestCorrectingProducer::test_of_stable_producers_the_correcting_one_is_next",
        ),
    ),
    "full-for-others-is-useful": TextMutant(
        "MAIN is left because it is full and has nothing more for us (F4)",
        "replicas/consumer/selection.py",
        "            return producer.last_id > self._reading.port.position or (\n"
        "                main is not None and main.producer == producer.name\n"
        "            )",
        "            return producer.last_id > self._reading.port.position",
        tests=(
            "tests/unit/replicas/consumer/test_input.py::TestSilence::test_a_full_main_is_useful_without_more_for_us",
        ),
    ),
    "another-full-one-is-better": TextMutant(
        "a full MAIN is left for another full producer (F4, A7)",
        "replicas/consumer/selection.py",
        "            and not (full and p.full)\n",
        "",
        tests=(
            "tests/unit/replicas/consumer/test_input.py::TestSilence::test_a_full_main_is_not_left_for_another_full_one",
        ),
    ),
    "unread-feed-is-half-open": TextMutant(
        "a feed that we do not read counts as half open (F4, A7)",
        "replicas/consumer/selection.py",
        "        if not feed.opened or feed.paused or not self._has_more(feed, producer):",
        "        if not feed.opened or not self._has_more(feed, producer):",
        tests=(
            "tests/unit/replicas/consumer/test_input.py::TestChoice::test_feed_paused_for_lack_of_room_is_not_half_open",
        ),
    ),
    "who-is-behind-has-more": TextMutant(
        "a producer with a later boundary and fewer tuples counts as one with more (F4)",
        "replicas/consumer/selection.py",
        "        return producer.frontier > port.frontier and producer.last_id >= port.position",
        "        return producer.frontier > port.frontier",
        tests=(
            "tests/unit/replicas/consumer/test_input.py::TestSilence::test_a_boundary_of_fewer_tuples_is_nothing_more",
        ),
    ),
    "opening-correction-is-over": TextMutant(
        "CORRECTIONS is closed while it opens, as its producer has just become STABLE (F5)",
        "replicas/consumer/selection.py",
        "state is not NodeState.RECOVERING and (corr.owes or not corr.opened)",
        "state is not NodeState.RECOVERING and corr.owes",
        tests=(
            "tests/unit/replicas/consumer/test_input.py::TestCorrectingProducer::test_a_correcting_feed_is_not_closed_as_it_opens",
        ),
    ),
    "nobody-has-forgotten-all": TextMutant(
        "where nobody answers, all counts as truncated (A3, F8)",
        "replicas/consumer/selection.py",
        "all(p.lost_start == p.incarnation for p in self.serving()) and bool(self.serving())",
        "all(p.lost_start == p.incarnation for p in self.serving())",
        tests=("tests/unit/replicas/consumer/test_input.py::test_where_nobody_answers_nothing_is_truncated",),
    ),
    "foreign-producer-comes-first": TextMutant(
        "a producer of another log is chosen by its state (S6)",
        "replicas/consumer/selection.py",
        "return (continues, self._useful(producer, now), *self",
        "return (True, self._useful(producer, now), *self",
        tests=("tests/unit/replicas/consumer/test_input.py::test_a_producer_of_another_log_is_the_last_choice",),
    ),
    "new-producers-are-in-vain": TextMutant(
        "after a change of producers all count as tried in vain (F4)",
        "replicas/consumer/selection.py",
        "or Producer(name) for name in order}\n        self._in_vain = 0",
        "or Producer(name) for name in order}",
        tests=("tests/unit/replicas/consumer/test_input.py::test_other_producers_were_not_tried_in_vain",),
    ),
    "continued-log-is-still-refused": TextMutant(
        "a producer that continues our log again gets no acknowledgements (S6, A1)",
        "replicas/consumer/upstream.py",
        "        self._refused.pop((owner.name, input.channel, action.producer), None)\n",
        "",
        tests=(
            "tests/unit/replicas/consumer/test_upstream.py::test_a_producer_that_continues_our_log_is_acknowledged",
        ),
    ),
    "unnamed-output-is-alive": TextMutant(
        "a process that does not make a stream any more counts as its producer (F3)",
        "replicas/consumer/upstream.py",
        "                    input.selector.lost(peer)\n                    continue",
        "                    continue",
        tests=(
            "tests/unit/replicas/consumer/test_upstream.py::test_a_process_that_does_not_name_a_stream_does_not_make_it",
        ),
    ),
    "seat-of-the-newest-is-taken": TextMutant(
        "where a peer has no place left its newest connection is closed",
        "replicas/producer/connection_limits.py",
        "                oldest = next(iter(inside))",
        "                oldest = scope",
        tests=(
            "tests/unit/replicas/producer/test_connection_limits.py::test_beyond_its_places_a_peer_loses_its_oldest_connection",
        ),
    ),
    "boundary-of-what-is-not-made": TextMutant(
        "a consumer that is ahead gets boundaries of earlier tuples (V1)",
        "replicas/producer/element_log.py",
        "        return _join(parts), boundary if upto >= self.done else BEFORE_TIME",
        "        return _join(parts), boundary",
        tests=(
            "tests/unit/replicas/producer/test_output_log.py::test_a_new_run_continues_the_old_one_for_a_consumer_ahead",
        ),
    ),
    "last-entry-is-spilled": TextMutant(
        "the entry whose boundary still advances is spilled (A9)",
        "replicas/producer/element_log.py",
        "count < len(self._entries) - 1:  # the last",
        "count < len(self._entries):  # the last",
        tests=("tests/unit/replicas/producer/test_output_log.py::TestSpilled::test_the_last_entry_is_not_spilled",),
    ),
    "live-standby-loses-its-place": TextMutant(
        "a standby loses its place though others need the log as much (H2)",
        "replicas/producer/output_log.py",
        "(name in self._standbys and ack.id == self.truncation_line)",
        "name in self._standbys",
        tests=(
            "tests/unit/replicas/producer/test_output_log.py::test_a_live_standby_that_alone_keeps_the_log_can_be_evicted",
        ),
    ),
    "dead-sibling-has-the-input": TextMutant(
        "a dead consumer is given up because another dead one is further on (A2)",
        "replicas/producer/output_log.py",
        "            if name not in dead and not ack.evicted and ack.id > ack.granted:",
        "            if not ack.evicted and ack.id > ack.granted:",
        tests=(
            "tests/unit/replicas/producer/test_output_log.py::test_only_dead_consumers_behind_live_sibling_can_be_evicted",
        ),
    ),
    "who-left-holds-the-log": TextMutant(
        "a consumer that has left holds the log until another one acknowledges (A6)",
        "replicas/producer/output_log.py",
        "        self._acks = {name: self._acks.get(name) or _Ack() for name in consumers}\n        self._truncate()",
        "        self._acks = {name: self._acks.get(name) or _Ack() for name in consumers}",
        tests=(
            "tests/unit/replicas/producer/test_output_log.py::test_a_new_consumer_holds_the_log_before_it_is_heard",
        ),
    ),
    "installed-boundary-is-lost": TextMutant(
        "the boundary behind an installed log is lost (A3)",
        "replicas/producer/output_log.py",
        '        log.advance(int(state["frontier"]))\n',
        "",
        tests=(
            "tests/unit/replicas/producer/test_output_log.py::test_the_boundary_of_an_acknowledged_log_is_installed",
        ),
    ),
    "damaged-entries-are-given": TextMutant(
        "a snapshot has entries from before a part that is lost (A9)",
        "replicas/producer/output_log.py",
        "        entries = [e for e in ahead if e.batch.upto_id >= self.first] + rest",
        "        entries = [*ahead, *rest]",
        tests=("tests/unit/replicas/producer/test_output_log.py::TestSpilled::test_spilled_pieces_can_be_read_ahead",),
    ),
    "fresh-results-are-not-announced": TextMutant(
        "consumers do not hear that live results begin or end (V4, F2)",
        "replicas/producer/output_log.py",
        "        if (state, fresh) != (self.state, self.fresh):",
        "        if state is not self.state:",
        tests=("tests/unit/replicas/producer/test_output_log.py::test_changes_of_state_travel_in_band",),
    ),
    "standbys-of-before": TextMutant(
        "a standby that became a replica can be evicted as one (H2, A6)",
        "replicas/producer/output_log.py",
        "        self._standbys = frozenset(standbys)\n        self._acks = {name: self._acks.get",
        "        self._acks = {name: self._acks.get",
        tests=(
            "tests/unit/replicas/producer/test_output_log.py::test_a_standby_that_became_a_replica_keeps_its_place",
        ),
    ),
    "acknowledged-beyond-what-is-made": TextMutant(
        "what consumers have from others counts as made here (A2)",
        "replicas/producer/output_log.py",
        "max(gone, min(self.truncation_line, self.last_id)) if",
        "max(gone, self.truncation_line) if",
        tests=("tests/unit/replicas/producer/test_output_log.py::test_no_more_is_acknowledged_than_was_made",),
    ),
    "empty-parts-count": TextMutant(
        "a snapshot whose maker hangs is waited for without end (A3)",
        "replicas/producer/server.py",
        "        if part.data:\n            until = trio.current_time() + AT_WORK_S",
        "        until = trio.current_time() + AT_WORK_S",
        tests=(
            "tests/unit/replicas/consumer/test_upstream.py::test_partner_that_never_ends_its_snapshot_is_abandoned",
        ),
    ),
    "all-announcements-are-due-later": TextMutant(
        "announcements that did not fit wait as if all had been sent (T8)",
        "replicas/producer/server.py",
        "_SentAnnouncements(version, None if len(items) >= ANNOUNCEMENTS_MAX else now)",
        "_SentAnnouncements(version, now)",
        tests=(
            "tests/unit/replicas/producer/test_server.py::test_announcements_that_do_not_fit_follow_the_next_heartbeat",
        ),
    ),
    "loss-is-not-noted": TextMutant(
        "after damage who has left begins behind what he has not acknowledged (F8)",
        "replicas/producer/spilled_log.py",
        "                self.lost_id = piece.upto_id\n",
        "",
        tests=("tests/unit/replicas/producer/test_output_log.py::TestSpilled::test_who_left_is_told_of_damage",),
    ),
    "late-subscriber-gets-no-end": TextMutant(
        "who subscribes during a correction gets no rec_done (V2)",
        "replicas/producer/subscription.py",
        "        self._seen = output.stabilizations - (output.state is NodeState.STABILIZATION)",
        "        self._seen = output.stabilizations",
        tests=(
            "tests/unit/replicas/producer/test_output_log.py::test_first_elements_of_a_subscription_follow_the_table",
        ),
    ),
    "tuples-at-the-boundary-are-old": TextMutant(
        "tentative tuples at the last stable boundary are not sent (V3)",
        "replicas/producer/subscription.py",
        "                self._frontier = boundary\n"
        "                self._t_max = max(self._t_max, saturating_add(boundary, -1))",
        "                self._frontier = boundary\n                self._t_max = max(self._t_max, boundary)",
        tests=(
            "tests/unit/replicas/producer/test_output_log.py::test_a_pull_stays_near_its_limit_and_the_rest_follows",
        ),
    ),
    "tentative-boundary-needs-no-undo": TextMutant(
        "no undo follows where only a tentative boundary was sent (V1)",
        "replicas/producer/subscription.py",
        "                out.append(Boundary(Kind.TENTATIVE, boundary, cursor.done))\n"
        "                self._tentative = True\n",
        "                out.append(Boundary(Kind.TENTATIVE, boundary, cursor.done))\n",
        tests=("tests/unit/replicas/producer/test_output_log.py::test_a_substream_without_tuples_still_advances",),
    ),
    "each-live-result-ends-a-correction": TextMutant(
        "live results come with a rec_done each (R5, V2)",
        "replicas/producer/subscription.py",
        "        self._owes = self._correcting = False",
        "        self._owes = False",
        tests=(
            "tests/unit/replicas/producer/test_output_log.py::test_first_elements_of_a_subscription_follow_the_table",
        ),
    ),
    "boundary-of-before-is-sent-again": TextMutant(
        "a tentative boundary that a consumer has is sent again (V3)",
        "replicas/producer/subscription.py",
        "            self._tentative_frontier = saturating_add(self._t_max, 1)",
        "            self._tentative_frontier = self._t_max",
        tests=("tests/unit/replicas/producer/test_output_log.py::test_a_tentative_boundary_is_not_sent_again",),
    ),
}
