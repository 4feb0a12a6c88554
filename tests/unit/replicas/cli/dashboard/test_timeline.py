"""The past, as the page can go back to it, within bounds."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest

from replicas.cli.dashboard import timeline
from replicas.cli.dashboard.frame import CHANNEL, COLUMNS, REPLICA
from replicas.cli.dashboard.rates import OVER_US, Rates
from replicas.cli.dashboard.timeline import Timeline

LAYOUT = {"replicas": [["main@n1", 0, 0, 0]], "channels": [["client", "out", 0, 1]]}
S = 1_000_000


def a_frame(at: int, state: str = "STABLE", output: str = "fine", **changes: Any) -> dict[str, Any]:
    replica = {**dict.fromkeys(REPLICA), "state": state, "x": 2 * S, "waiting": S // 2}
    channel = {**dict.fromkeys(CHANNEL), "state": output, "stable_rate": 8.0, "tentative_rate": 1.0}
    replica |= {key: value for key, value in changes.items() if key in replica}
    return {
        "at": at,
        "replicas": [[replica[name] for name in REPLICA]],
        "channels": [[channel[name] for name in CHANNEL]],
    }


def filled(*frames: dict[str, Any]) -> Timeline:
    found = Timeline()
    for one in frames:
        found.take(LAYOUT, COLUMNS, one)
    return found


def test_state_changes_are_stored_with_their_times() -> None:
    states = ["STABLE", "STABLE", "UP_FAILURE", "STABLE"]
    found = filled(*(a_frame(at * S, state) for at, state in enumerate(states, 1))).since(0)
    assert found["replica"] == [["main@n1", [(1 * S, "STABLE"), (3 * S, "UP_FAILURE"), (4 * S, "STABLE")]]]
    assert found["output"] == [["client out/0", [(1 * S, "fine")]]]
    assert found["points"] == [[at * S, 8.0, 1.0, 0.25, int(at == 3)] for at in range(1, 5)]


def test_client_with_past_up_to_a_time_gets_later_data() -> None:
    states = ["STABLE", "UP_FAILURE", "STABLE"]
    found = filled(*(a_frame(at * S, state) for at, state in enumerate(states, 1))).since(2 * S)
    assert found["replica"] == [["main@n1", [(2 * S, "UP_FAILURE"), (3 * S, "STABLE")]]]
    assert found["output"] == []
    assert [point[0] for point in found["points"]] == [3 * S]


def test_the_frame_of_a_time_is_the_last_one_before_it() -> None:
    found = filled(*(a_frame(at * S) for at in (1, 2, 3)))
    at = {when: json.loads(found.frame_at(when * S) or b"0")["at"] // S for when in (0, 1, 2, 9)}
    assert at == {0: 1, 1: 1, 2: 2, 9: 3}
    assert json.loads(found.frame_at(2 * S + 7) or b"0")["at"] == 2 * S
    assert Timeline().frame_at(5) is None


class TestRecoveries:
    def test_recovery_has_its_parts_and_expected_time(self) -> None:
        words = ["STABLE", "killed", "killed", "starting", "RECOVERING", "STABLE"]
        frames = [a_frame(at * S, word) for at, word in enumerate(words, 1)]
        frames[-1] = a_frame(6 * S, "STABLE", expected=4 * S)
        (one,) = filled(*frames).recoveries()
        assert one == {"replica": "main@n1", "began": 2 * S, "installing": 4 * S, "ended": 6 * S, "expected": 4 * S}

    def test_continuing_recovery_has_no_end(self) -> None:
        found = filled(a_frame(S), a_frame(2 * S, "silent")).recoveries()
        assert [(one["began"], one["installing"], one["ended"]) for one in found] == [(2 * S, None, None)]

    def test_the_start_of_a_cluster_is_none(self) -> None:
        words = ["unreachable", "starting", "RECOVERING", "STABLE"]
        assert filled(*(a_frame(at * S, word) for at, word in enumerate(words, 1))).recoveries() == []

    def test_a_failure_of_input_is_none(self) -> None:
        words = ["STABLE", "UP_FAILURE", "STABILIZATION", "STABLE"]
        assert filled(*(a_frame(at * S, word) for at, word in enumerate(words, 1))).recoveries() == []


class TestBounds:
    def test_old_changes_go_and_the_last_state_stays(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(timeline, "CHANGES_MAX", 20)
        found = filled(*(a_frame(at * S, ["STABLE", "UP_FAILURE"][at % 2]) for at in range(200))).since(0)
        (lane,) = found["replica"]
        assert len(lane[1]) <= 20
        assert lane[1][-1] == (199 * S, "UP_FAILURE")

    def test_old_points_become_sparser_and_keep_largest_value(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(timeline, "POINTS", (8, 12))
        frames = [a_frame(at * S, waiting=2 * S if at == 3 else 0) for at in range(1, 201)]
        points = filled(*frames).since(0)["points"]
        times = [point[0] // S for point in points]
        assert len(points) <= 21
        assert (times, times[-1]) == (sorted(times), 200)
        assert times[-8:] == list(range(193, 201))
        assert {b - a for a, b in pairwise(times[:-8])} == {16}
        assert max(point[3] for point in points) == 1.0, "a peak stays to be seen"
        assert {(point[1], point[2]) for point in points} == {(8.0, 1.0)}

    def test_frames_become_sparser_with_their_age(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(timeline, "FRAMES", (32, 64))
        monkeypatch.setattr(timeline, "FRAMES_BYTES", 5_000)
        found = filled(*(a_frame(at * S) for at in range(300)))
        at = [json.loads(found.frame_at(when * S) or b"0")["at"] // S for when in range(0, 300, 10)]
        assert len(set(at)) < 20
        assert at == sorted(at)
        assert json.loads(found.frame_at(299 * S) or b"0")["at"] == 299 * S

    def test_recoveries_that_are_over_are_forgotten(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(timeline, "RECOVERIES_MAX", 3)
        found = filled(*(a_frame(at * S, ["STABLE", "killed"][at % 2]) for at in range(20))).recoveries()
        assert [one["began"] // S for one in found] == [19, 17, 15, 13]


class TestRates:
    def test_a_rate_is_over_the_last_seconds(self) -> None:
        rates = Rates()
        found = [rates.of("a", 1, at * S, 0 if at < 10 else (at - 9) * 50) for at in range(20)]
        assert found[0] is None
        assert found[5] == 0
        assert found[19] == 50
        assert 0 < (found[11] or 0) < 50

    def test_another_start_of_the_process_begins_again(self) -> None:
        rates = Rates()
        assert [rates.of("a", start, at * S, n) for start, at, n in [(1, 0, 0), (1, 1, 70), (2, 2, 3), (2, 3, 9)]] == [
            None, 70.0, None, 6.0,
        ]  # fmt: skip

    def test_a_counter_that_falls_begins_again(self) -> None:
        rates = Rates()
        assert [rates.of("a", 1, at * S, n) for at, n in enumerate((50, 5, 8))] == [None, None, 3.0]

    def test_seldom_counts_are_compared_with_the_one_before(self) -> None:
        rates = Rates()
        assert [rates.of("a", 1, at * 10 * OVER_US, at * 500) for at in range(4)][1:] == [10.0] * 3

    def test_the_same_status_twice_is_one_sample(self) -> None:
        rates = Rates()
        assert [rates.of("a", 1, at, n) for at, n in [(0, 0), (S, 5), (S, 5), (S, 5)]] == [None, 5.0, 5.0, 5.0]
