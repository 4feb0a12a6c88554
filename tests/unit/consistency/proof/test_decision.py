"""The verdict from the findings, and the predictions of the model.  Without Spark."""

from __future__ import annotations

import pytest

from consistency.proof.comparing.measures import measured, operator_of
from consistency.proof.decision import Circumstances, decide, overall
from consistency.proof.prediction import predict
from consistency.proof.recorded.story import fault_spans, something_failed, tracks
from consistency.proof.report.model import FaultSpan, Flaw, Span, Verdict
from spe.config import load_text
from spe.errors import ConfigError
from spe.plan.deploy import Deployed
from spe.stream.names import StreamId
from spe.stream.times import END_OF_TIME

SECOND = 1_000_000
WELL = Circumstances(known_us=END_OF_TIME, received_us=END_OF_TIME, reached_us=END_OF_TIME, failed=True)
CONFIG = """
sources:
  a: {from: {generator: {name: orders, rate: 10, duration: 10s}}}
  b: {from: {generator: {name: orders, rate: 10, duration: 10s}}}
query:
  all: {union: [a, b]}
  big: {filter: {from: all, where: price > 10}}
  totals: {aggregate: {from: all, window: 1s, group_by: key, compute: {n: count(*), total: sum(price)}}}
  best: {topk: {from: totals, k: 3, order_by: [total desc, key], rank_as: rank}}
outputs: [big, totals, best]
fragments: {main: {operators: [all, big, totals, best], replicas: [n1, n2]}}
nodes: [n1, n2]
defaults: {x: 2s, alpha: 0.9, policy: POLICY}
"""


def plan(policy: str = "process", more: str = "") -> Deployed:
    return load_text(CONFIG.replace("POLICY", policy) + more)


# --- the verdict ---


def test_healed_run_without_flaws_is_consistent() -> None:
    assert decide({}, to_come=0, now=WELL) == (Verdict.CONSISTENT, [])


def test_any_flaw_is_inconsistent_and_the_worst_comes_first() -> None:
    verdict, why = decide({Flaw.DUPLICATED: 2, Flaw.MISSING: 1}, to_come=0, now=WELL)
    assert verdict is Verdict.INCONSISTENT
    assert why == ["1 tuple missing", "2 tuples duplicated"]


def test_a_run_without_failures_is_unknown() -> None:
    verdict, why = decide({}, to_come=0, now=Circumstances(END_OF_TIME, END_OF_TIME, END_OF_TIME, failed=False))
    assert verdict is Verdict.UNKNOWN
    assert why == ["nothing failed: whether failures are put right was not tried"]


def test_tentative_end_of_broken_recording_is_unknown() -> None:
    now = Circumstances(END_OF_TIME, 5 * SECOND, 5 * SECOND, failed=True, cause="interrupted after 5 s")
    verdict, why = decide({Flaw.UNCORRECTED: 3}, to_come=4, now=now)
    assert verdict is Verdict.UNKNOWN
    assert why[0].startswith("still tentative: 3 tuples")
    assert "4 true tuples still to come" in why[1]
    assert why[2] == "the run was broken off: interrupted after 5 s"


def test_tentative_tuples_after_the_end_of_the_stream_are_wrong() -> None:
    assert decide({Flaw.UNCORRECTED: 3}, to_come=0, now=WELL)[0] is Verdict.INCONSISTENT


def test_nothing_is_proved_behind_an_incomplete_log() -> None:
    now = Circumstances(5 * SECOND, 4 * SECOND, 5 * SECOND, failed=True)
    verdict, why = decide({}, to_come=0, now=now)
    assert verdict is Verdict.UNKNOWN
    assert "log incomplete" in why[0]


@pytest.mark.parametrize("reached_us", [5 * SECOND + 1, END_OF_TIME])
def test_stable_output_beyond_logs_proves_lost_end(reached_us: int) -> None:
    """Also without tuples there: a boundary is published only after it was logged and synced (S2, S3)."""
    now = Circumstances(5 * SECOND, 4 * SECOND, reached_us, failed=True)
    verdict, why = decide({}, to_come=0, now=now)
    assert verdict is Verdict.INCONSISTENT
    assert why[0].endswith("a log has lost its end")
    verdict, why = decide({Flaw.UNFOUNDED: 2}, to_come=0, now=now)
    assert verdict is Verdict.INCONSISTENT
    assert why[0] == "2 tuples unfounded"


def test_a_flaw_outweighs_an_incomplete_log() -> None:
    now = Circumstances(5 * SECOND, 5 * SECOND, 5 * SECOND, failed=True)
    assert decide({Flaw.ALTERED: 1}, to_come=9, now=now)[0] is Verdict.INCONSISTENT


def test_the_worst_output_decides_and_shared_reasons_appear_once() -> None:
    unknown = (Verdict.UNKNOWN, ["nothing failed"])
    assert overall([(unknown[0], "c · a", unknown[1]), (unknown[0], "c · b", unknown[1])]) == unknown
    assert overall([(Verdict.CONSISTENT, "c · a", []), (Verdict.INCONSISTENT, "c · b", ["1 tuple extra"])]) == (
        Verdict.INCONSISTENT,
        ["c · b: 1 tuple extra"],
    )
    assert overall([])[0] is Verdict.UNKNOWN


# --- the model ---


def cut(length_s: float) -> FaultSpan:
    return FaultSpan(name="cut", from_us=0, until_us=round(length_s * SECOND), kind="cut", targets=["source:a", "all"])


@pytest.mark.parametrize(
    ("policy", "length_s", "tentative", "delay_s"),
    [
        ("process", 1.5, 0, 1.6),  # masked: shorter than αX = 1.8 s
        ("process", 6, 60, 1.9),
        ("delay", 6, 42, 1.9),
        ("suspend", 6, 0, 6.1),
    ],
)
def test_the_model_by_policy(policy: str, length_s: float, tentative: int, delay_s: float) -> None:
    found = predict(
        *plan(policy), StreamId("big"), [cut(length_s)], results_per_s=10, ordinary_us=100_000, ended_us=10 * SECOND
    )
    assert (found.tentative, found.delay_us) == (tentative, round(delay_s * SECOND))


def test_a_killed_replica_with_a_partner_makes_nothing_tentative() -> None:
    kill = FaultSpan(name="kill", from_us=0, until_us=9 * SECOND, kind="kill", targets=["n1"])
    found = predict(*plan(), StreamId("big"), [kill], results_per_s=10, ordinary_us=1, ended_us=10 * SECOND)
    assert found.tentative == 0


def test_the_model_predicts_nothing_for_faults_it_lacks() -> None:
    cut_off = FaultSpan(name="cut", from_us=0, until_us=9 * SECOND, kind="cut", targets=["n1", "n2"])
    found = predict(*plan(), StreamId("big"), [cut_off], results_per_s=10, ordinary_us=1, ended_us=10 * SECOND)
    assert found.tentative is None


# --- what is measured ---


def test_default_measures_follow_from_the_operator() -> None:
    one = plan().plan
    assert [operator_of(one, o) for o in one.query.outputs] == ["filter", "aggregate", "topk"]
    big, totals, best = (measured(one, o) for o in one.query.outputs)
    assert (big.key, big.names, big.window_us) == (("ts", "key", "price", "qty"), ["precision", "recall"], 100_000)
    assert (totals.key, totals.names) == (
        ("key", "window_start", "window_end"),
        ["overlap", "exact", "error n", "error total"],
    )
    assert best.key == ("key", "window_start", "window_end")  # the rank is a value, not part of the key
    assert best.names == ["topk", "exact", "error n", "error total", "error rank"]


def test_the_configuration_chooses_per_output() -> None:
    said = plan(more="accuracy: {totals: {measures: [recall], key: key, errors: [total], window: 5s}}").plan
    found = measured(said, StreamId("totals"))
    assert (found.key, found.names, found.window_us) == (("key",), ["recall", "error total"], 5 * SECOND)
    assert said.fingerprint == plan().plan.fingerprint


def test_mistakes_in_the_section_have_their_places() -> None:
    section = "accuracy: {total: {}, totals: {measures: [best], errors: [key, nn]}, best: {errors: [window_end]}}"
    with pytest.raises(ConfigError) as caught:
        plan(more=section)
    text = str(caught.value)
    assert "no output 'total' (did you mean 'totals'?)" in text
    assert "accuracy.totals.measures" in text
    with pytest.raises(ConfigError) as caught:
        plan(more="accuracy: {totals: {errors: [nn]}, best: {errors: [window_end]}}")
    text = str(caught.value)
    assert "no attribute 'nn'" in text
    assert "'window_end' is timestamp; expected a number" in text


# --- what happened ---

EVENTS = [
    {"t": 100, "event": "state", "replica": "main/0@n1", "before": "", "after": "STABLE"},
    {"t": 300, "event": "fault_began", "kind": "kill", "at": "0s", "target": ["n1"], "for": "1s", "errors": []},
    {"t": 300, "event": "process_killed", "process": "n1", "status": -9},
    {"t": 500, "event": "fault_ended", "kind": "kill", "at": "0s", "target": ["n1"], "for": "1s", "errors": []},
    {"t": 600, "event": "state", "replica": "main/0@n1", "before": "RECOVERING", "after": "STABLE"},
    {"t": 700, "event": "fault_began", "kind": "cut", "at": "0s", "from": ["source:a"], "to": ["n2"], "errors": []},
]


def test_faults_and_states_become_spans() -> None:
    kill, lasting = fault_spans(EVENTS, 200)
    assert (kill.name, kill.from_us, kill.until_us, kill.targets) == ("kill n1 for 1s", 100, 300, ["n1"])
    assert (lasting.name, lasting.until_us) == ("cut source:a ↔ n2", None)
    first, second = tracks(plan().directory, EVENTS, {}, 200, 900)
    assert first.spans == [
        Span(name="STABLE", from_us=0, until_us=100),
        Span(name="down", from_us=100, until_us=400),
        Span(name="STABLE", from_us=400, until_us=700),
    ]
    assert second.spans == []


def test_states_noted_by_the_node_take_precedence() -> None:
    own = [{"t": 250, "event": "state", "replica": "main/0@n1", "state": "STABILIZATION"}]
    first, _ = tracks(plan().directory, EVENTS[:1], {"n1": own}, 200, 900)
    assert first.spans == [Span(name="STABILIZATION", from_us=50, until_us=700)]


def test_replica_outside_configured_roles_has_a_track() -> None:
    """It moved there, or a recovery gave the role."""
    own = [{"t": 250, "event": "state", "replica": "main/0@n9", "state": "STABLE"}]
    killed = {"t": 300, "event": "process_killed", "process": "n9", "status": -9}
    *_, last = tracks(plan().directory, [EVENTS[0], killed], {"n9": own}, 200, 900)
    assert (last.name, [(span.name, span.from_us) for span in last.spans]) == (
        "main/0@n9",
        [("STABLE", 50), ("down", 100)],
    )


def test_restarting_node_is_shown_as_down() -> None:
    stopped = {"t": 300, "event": "process_stopped", "process": "n1", "status": 0}
    first, _ = tracks(plan().directory, [EVENTS[0], stopped, EVENTS[4]], {}, 200, 900)
    assert [(span.name, span.from_us, span.until_us) for span in first.spans] == [
        ("STABLE", 0, 100),
        ("down", 100, 400),
        ("STABLE", 400, 700),
    ]
    assert something_failed([stopped])


def test_starts_and_stops_of_an_ordinary_run_are_no_failures() -> None:
    assert not something_failed(EVENTS[:1])
    assert something_failed(EVENTS[:2])
