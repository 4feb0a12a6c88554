"""Each checker, with histories that hold, and for each rule a minimal history that breaks it."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from consistency.checking.bounds import Bounds
from consistency.checking.counters import Counters
from consistency.checking.logs.lost_logs import check_lost_logs
from consistency.checking.node_settings import InForce
from consistency.checking.promises.masked_failures import is_masked
from consistency.checking.promises.permanence import check_permanence
from consistency.checking.rows import Reference
from consistency.checking.schedule import FaultInterval, World
from consistency.checking.verdict import Premise, RunVerdict, judge
from spe.plan.deploy import Deployed
from spe.plan.directory import CoordinatorSettings, ExpectedLoad, RecoverySettings, Role, Standbys
from spe.plan.log_targets import Continuous
from spe.plan.nodes import Checkpoints, Policy
from spe.query.operators.aggregate import AggregateCall, AggregateSpec
from spe.query.operators.topk import TopKSpec
from spe.query.windows import TumblingWindow
from spe.stream.batch import Batch, Rows
from spe.stream.history import Delivered, History, Opened, Received
from spe.stream.ids import Channel
from spe.stream.names import Kind, NodeId, StreamId
from spe.stream.schema import Schema
from spe.stream.times import END_OF_TIME, SECOND
from tests.support.histories import told
from tests.support.plans import chain, placed, source, union_of
from tests.support.streams import PAYLOAD, parse

OUT = Channel(StreamId("s1"), 0)
LENGTH = 20
X_US = 1_000_000


def make_plan(*, failure: Policy = Policy.PROCESS) -> Deployed:
    """Sources a and b, their union s1 on n1a and n1b, read by client c."""
    sources = [source(name, reader={"kind": "generator"}, schema=PAYLOAD) for name in "ab"]
    return chain(sources, [("s1", union_of("a", "b"), PAYLOAD)], x_us=X_US, failure=failure)


def reference_of(text: str, schema: Schema = PAYLOAD) -> Reference:
    (batch,) = parse(text, schema)
    assert isinstance(batch, Batch)
    return {OUT: (batch.row_ids(), batch.rows)}


REFERENCE = reference_of(" ".join(f"S{i}/{10 * i}x" for i in range(1, LENGTH + 1)))
WHOLE = " ".join(f"S{i}/{10 * i}x" for i in range(1, LENGTH + 1))


def stable(first: int, last: int) -> str:
    return " ".join(f"S{i}/{10 * i}x" for i in range(first, last + 1))


def verdict(
    text: str, *, premise: Premise | None = None, deployed: Deployed | None = None, in_force: InForce | None = None
) -> RunVerdict:
    """The verdict without the accuracy checker, because tentative tuples are invented here; see test_accuracy.py."""
    premise = premise or Premise(healed=False)
    judged = judge(told(text), *(deployed or make_plan()), REFERENCE, premise=premise, in_force=in_force)
    judged.findings = [f for f in judged.findings if f.property != "accuracy"]
    return judged


def found(text: str, *, premise: Premise | None = None, deployed: Deployed | None = None) -> set[tuple[str, str]]:
    return {(f.property, f.rule) for f in verdict(text, premise=premise, deployed=deployed).findings}


# --- P2 and P4 at a subscription ---

FEED = "1 open client:c n1a #1 main 0\n"

GOOD_FEEDS = {
    "a rec_done that arrives when its producer fails again": "0 state u1/0@n1a UP_FAILURE\n"
    + FEED
    + "2 recv client:c n1a #1 main: S1/10x T/20x\n3 state u1/0@n1a STABILIZATION\n"
    "4 recv client:c n1a #1 main: U(1) S2/20x\n4 state u1/0@n1a STABLE\n5 state u1/0@n1a UP_FAILURE\n"
    "5 recv client:c n1a #1 main: R+",
    "what a replica sent before it died": "0 state u1/0@n1a STABLE\n"
    + FEED
    + "2 state u1/0@n1a RECOVERING\n2 recv client:c n1a #1 main: S1/10x",
    "stable only": FEED + f"2 recv client:c n1a #1 main: {stable(1, 3)} B40(3) {stable(4, 6)}",
    "tentative, undo, corrections": FEED
    + f"2 recv client:c n1a #1 main: {stable(1, 3)} T/40x b50 U(3) {stable(4, 6)} R+",
    "a rec_done before what is tentative again": FEED
    + "2 recv client:c n1a #1 main: S1/10x T/20x U(1) S2/20x R- T/30x b40",
    "a switch goes on at the position": FEED
    + f"2 recv client:c n1a #1 main: {stable(1, 3)}\n3 close client:c #1\n3 open client:c n1b #2 main 3\n"
    f"4 recv client:c n1b #2 main: {stable(4, 5)}",
    "a boundary may carry the position": FEED
    + "2 recv client:c n1a #1 main: S1/10x B90(7)\n3 close client:c #1\n3 open client:c n1b #2 main 7\n",
    "a tentative switch goes on by t_max": FEED
    + "2 recv client:c n1a #1 main: S1/10x T/20x T/30x\n3 close client:c #1\n3 open client:c n1b #2 main 1 30\n"
    "4 recv client:c n1b #2 main: T/40x\n5 recv client:c n1b #2 main: U(1) S2/20x R- T/25x",
    "corrections beside a fresh feed": FEED
    + "2 recv client:c n1a #1 main: S1/10x T/20x\n3 open client:c n1b #2 corrections 1\n"
    "4 recv client:c n1b #2 corrections: U(1) S2/20x S3/30x R+\n4 close client:c #1\n4 promote client:c #2\n"
    "5 recv client:c n1b #2 main: S4/40x",
    "elements of closed subscriptions are dropped": FEED
    + "2 close client:c #1\n3 recv client:c n1a #1 closed: S5/50x S9/90x",
    "a substream leaves out ids": "1 open u1/0@n1a<a source:a #1 main 0\n"
    "2 recv u1/0@n1a<a source:a #1 main: S(0,1] S2/20x\n"
    "2 recv u1/0@n1a<a source:a #1 main: S(2,5] S6/60x",
    "a consumer that begins anew says where": FEED
    + f"2 recv client:c n1a #1 main: {stable(1, 3)}\n3 down client:c\n4 up client:c\n4 open client:c n1a #1 main 0\n"
    f"5 recv client:c n1a #1 main: {stable(1, 4)}",
    "a replica that installs says where": "1 open u1/0@n1a<a source:a #1 main 0\n"
    "2 recv u1/0@n1a<a source:a #1 main: S1/10x\n"
    "3 state u1/0@n1a RECOVERING\n4 open u1/0@n1a<a source:a #1 main 9\n5 recv u1/0@n1a<a source:a #1 main: S10/100x",
    "the last breath of what was killed": FEED
    + "2 recv client:c n1a #1 main: S1/10x\n3 down client:c\n3 recv client:c n1a #1 main: S9/90x",
}

BAD_FEEDS = {
    ("P2", "stable ids follow each other"): FEED
    + "2 recv client:c n1a #1 main: S1/10x\n2 recv client:c n1a #1 main: S3/30x",
    ("P2", "a subscription goes on where the consumer stands"): FEED
    + f"2 recv client:c n1a #1 main: {stable(1, 3)}\n3 close client:c #1\n3 open client:c n1b #2 main 2",
    ("P2", "generations grow"): FEED + "2 close client:c #1\n3 open client:c n1a #1 main 0",
    ("P2", "one subscription of each mode"): FEED + "2 open client:c n1b #2 main 0",
    ("P2", "elements of closed subscriptions are dropped"): FEED
    + "2 close client:c #1\n3 recv client:c n1a #1 main: S1/10x",
    ("P2", "a batch holds the ids that it covers"): "",
    ("P2", "no tuple behind its boundary"): FEED + "2 recv client:c n1a #1 main: S1/10x B30 S2/20x",
    ("P2", "boundaries do not go back"): FEED + "2 recv client:c n1a #1 main: S1/10x B30 B20",
    ("P2", "an undo stands between tentative and stable"): FEED + "2 recv client:c n1a #1 main: S1/10x T/20x S2/20x",
    ("P2", "a rec_done stands between corrections and tentative"): FEED
    + "2 recv client:c n1a #1 main: S1/10x T/20x U(1) S2/20x T/30x",
    ("P2", "a recovering replica serves nobody"): "0 state u1/0@n1a RECOVERING\n"
    + FEED
    + "2 recv client:c n1a #1 main: S1/10x",
    ("P2", "a rec_done comes when the correction is complete"): "0 state u1/0@n1a UP_FAILURE\n"
    + FEED
    + "2 recv client:c n1a #1 main: S1/10x T/20x\n3 state u1/0@n1a STABILIZATION\n"
    "4 recv client:c n1a #1 main: U(1) S2/20x R+",
    ("P2", "tentative tuples go on by t_max after a switch"): FEED
    + "2 recv client:c n1a #1 main: T/20x T/30x\n3 close client:c #1\n3 open client:c n1b #2 main 0 30\n"
    "4 recv client:c n1b #2 main: T/30x",
    ("P2", "corrections are stable"): FEED
    + "2 open client:c n1b #2 corrections 0\n3 recv client:c n1b #2 corrections: T/20x",
    ("P4", "an undo takes nothing stable"): FEED + f"2 recv client:c n1a #1 main: {stable(1, 3)} T/40x U(2)",
    ("P4", "a stable id has one content"): FEED
    + "2 recv client:c n1a #1 main: S1/10x\n3 open u2/0@n2a<s1 n1b #1 main 0\n4 recv u2/0@n2a<s1 n1b #1 main: S1/10y",
    ("P4", "replicas make the same tuples"): "1 buffers u1/0@n1a 0 no 0 7:1\n1 buffers u1/0@n1b 0 no 0 7:2",
}


@pytest.mark.parametrize("text", GOOD_FEEDS.values(), ids=GOOD_FEEDS.keys())
def test_a_correct_subscription_has_no_findings(text: str) -> None:
    assert verdict(text).findings == []


#: What a replica reads of a source before its log is lost, and of the log in its place.
READS_A, ANEW = "u1/0@n1a<a source:a", "u1/0@n1b<a source:a"
#: The log of source a is lost at 2.5 s; n1b has just started, and has read nothing before.
RENEWED = (
    f"1 open {READS_A} #1 main 0\n1 recv {READS_A} #1 main: S1/10a\n2 up n1b\n"
    f"3 open {ANEW} #1 main 0\n3 recv {ANEW} #1 main: S1/10b\n"
)
LOST = {StreamId("a"): 2_500_000}


def of_lost_logs(text: str) -> list[str]:
    plan, _ = make_plan()
    history, counters = told(RENEWED + text), Counters()
    found = [
        *check_permanence(history, plan, counters, LOST),
        *check_lost_logs(history, plan, REFERENCE, LOST, counters),
    ]
    return sorted(f.rule for f in found if f.rule != "a replaced log is reported")


def test_the_log_in_place_of_a_lost_one_has_other_tuples() -> None:
    """Who has nothing of the lost one may read it, and so may whoever reads that process alone."""
    before = "1 open client:c n1a #1 main 0\n2 recv client:c n1a #1 main: S1/10x\n"
    behind = "3 open u2/0@n2a<s1 n1b #1 main 0\n4 recv u2/0@n2a<s1 n1b #1 main: S1/10y\n"
    digests = "5 buffers u1/0@n1a 0 no 0 7:1\n5 buffers u1/0@n1b 0 no 0 7:2"
    assert of_lost_logs(before + behind + digests) == []
    assert [f.rule for f in check_permanence(told(RENEWED + digests), make_plan()[0], Counters(), {})] == [
        "a stable id has one content",
        "replicas make the same tuples",
    ]


@pytest.mark.parametrize(
    ("put_away", "rules"),
    [("", ["another log is not read"]), ("2 down n1a\n2 up n1a\n", []), ("2 state u1/0@n1a RECOVERING gone\n", [])],
    ids=["runs on", "killed", "retired"],
)
def test_reader_of_lost_log_does_not_read_the_other(put_away: str, rules: list[str]) -> None:
    assert of_lost_logs(f"{put_away}3 open {READS_A} #2 main 0\n4 recv {READS_A} #2 main: S1/10b") == rules


def test_output_continues_lost_log_or_begins_with_other() -> None:
    deliver = "4 open client:c n1b #1 main 0\n5 recv client:c n1b #1 main: S1/10y\n5 give client:c: S1/10y"
    assert of_lost_logs(deliver) == []
    held = "1 open client:c n1a #1 main 0\n2 recv client:c n1a #1 main: S1/10x\n2 give client:c: S1/10x\n"
    other = "4 open client:c n1b #2 main 1\n5 recv client:c n1b #2 main: S2/20y\n5 give client:c: S2/20y"
    assert of_lost_logs(held + other) == ["stable rows are those of the lost log"]


def test_rec_done_between_undo_and_correction_is_detected() -> None:
    text = FEED + "2 recv client:c n1a #1 main: S1/10x T/20x U(1) R+ S2/20x"
    assert found(text) == {("P2", "a rec_done comes when the correction is complete")}


@pytest.mark.parametrize(("rule", "text"), BAD_FEEDS.items(), ids=[f"{p} {r}" for p, r in BAD_FEEDS])
def test_each_broken_rule_of_a_subscription_is_detected(rule: tuple[str, str], text: str) -> None:
    if not text:
        history = told(FEED)
        rows = Rows.from_tuples(PAYLOAD, [10, 20], [("x",), ("x",)])
        batch = Batch(Kind.STABLE, 0, 2, np.array([1, 3], np.int64), rows)
        history(Received(2_000_000, "client:c", OUT, "n1a", 1, "main", batch))
        findings = judge(history, *make_plan(), REFERENCE, premise=Premise(healed=False)).findings
        assert {(f.property, f.rule) for f in findings} == {rule}
    else:
        assert found(text) == {rule}


# --- P2 at the client ---

GOOD_DELIVERIES = {
    "a prefix": f"1 give client:c: {stable(1, 9)}",
    "tentative, undone, corrected": f"1 give client:c: {stable(1, 3)} T/40x T/50y U(3) {stable(4, 5)}",
    "tentative results that are wrong may be anything": "1 give client:c: S1/10x T/20y T/20y T/20z",
    "a result may come back after its undo": "1 give client:c: S1/10x T/20x U(1) T/20x U(1) S2/20x",
    "begun anew from nothing": FEED + "1 up client:c\n1 open client:c n1a #1 main 0\n2 give client:c: S1/10x S2/20x\n"
    "3 down client:c\n4 up client:c\n4 open client:c n1a #1 main 0\n5 give client:c: S1/10x",
    "begun anew from what was recorded": "1 up client:c\n1 open client:c n1a #1 main 0\n2 give client:c: S1/10x T/20x\n"
    "3 down client:c\n4 up client:c\n4 open client:c n1a #1 main 1\n5 give client:c: S2/20x",
}

BAD_DELIVERIES = {
    "a gap": ("stable ids are consecutive", "1 give client:c: S1/10x\n2 give client:c: S3/30x"),
    "a repeated id": ("stable ids are consecutive", f"1 give client:c: {stable(1, 3)}\n2 give client:c: S3/30x"),
    "other content": ("stable tuples are a prefix of the reference", "1 give client:c: S1/10x S2/20y"),
    "another time": ("stable tuples are a prefix of the reference", "1 give client:c: S1/10x S2/21x"),
    "another t_max": ("stable tuples are a prefix of the reference", "1 give client:c: S1/10x S2/20^25x"),
    "more than there is": ("stable tuples are a prefix of the reference", f"1 give client:c: {stable(1, LENGTH + 1)}"),
    "corrections without an undo": ("an undo comes before corrections", "1 give client:c: S1/10x T/30x S2/20x"),
    "a tentative result twice": ("no result lives twice", "1 give client:c: S1/10x T/20x\n2 give client:c: T/20x"),
    "a tentative copy of a stable one": ("no result lives twice", "1 give client:c: S1/10x S2/20x T/20x"),
}


@pytest.mark.parametrize("text", GOOD_DELIVERIES.values(), ids=GOOD_DELIVERIES.keys())
def test_a_correct_client_has_no_findings(text: str) -> None:
    text = text.removeprefix(FEED)
    assert verdict(text).findings == []


@pytest.mark.parametrize(("rule", "text"), BAD_DELIVERIES.values(), ids=BAD_DELIVERIES.keys())
def test_each_fault_at_a_client_is_detected(rule: str, text: str) -> None:
    assert found(text) == {("P2", rule)}


WINDOWS = Schema.of(key="string", window_start="timestamp", window_end="timestamp", n="int64")


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("1 give client:c: S1/9:k,0,10,3 T/19:k,10,20,2 U(1) S2/19:k,10,20,3", True),
        ("1 give client:c: S1/9:k,0,10,3 T/19:k,10,20,2 T/29:k,20,30,2 T/19:l,10,20,2", True),
        ("1 give client:c: S1/9:k,0,10,3 T/19:k,10,20,2\n2 give client:c: T/19:k,10,20,1", False),
        ("1 give client:c: S1/9:k,0,10,3\n2 give client:c: T/9:k,0,10,2", False),
    ],
    ids=["corrected", "other groups and windows", "two versions of a window", "a version of a stable window"],
)
def test_second_tentative_result_of_a_window_is_detected(text: str, holds: bool) -> None:
    plan, directory = make_plan()
    window = TumblingWindow(10)
    spec = AggregateSpec(StreamId("a"), window, {"key": "x"}, {"n": AggregateCall("count")})
    operator = replace(plan.query.operators[0], spec=spec, schema=WINDOWS)
    plan = replace(plan, query=replace(plan.query, operators=(operator,)))
    reference = reference_of("S1/9:k,0,10,3 S2/19:k,10,20,3", WINDOWS)
    findings = judge(told(text, WINDOWS), plan, directory, reference, premise=Premise(healed=False)).findings
    assert [f.rule for f in findings] == ([] if holds else ["no result lives twice"])


def test_a_tentative_top_k_may_equal_a_stable_result() -> None:
    """How often a correct result may occur can be counted only where more input merely adds results."""
    plan, directory = make_plan()
    operator = replace(plan.query.operators[0], spec=TopKSpec(StreamId("a"), 1, (("x", False),)))
    topk = replace(plan, query=replace(plan.query, operators=(operator,)))
    text = "1 give client:c: S1/10x S2/20x T/20x"
    assert verdict(text, deployed=Deployed(topk, directory)).findings == []
    assert verdict(text).findings != []


# --- P3 and the quiet at the end ---

REPLICAS = ("u1/0@n1a", "u1/0@n1b")
HOSTS = ("source:a", "source:b", "n1a", "n1b", "client:c")


def calm(*, without: str = "", instead: str = "") -> str:
    """A run that ends correctly; optionally with one line removed or replaced."""
    lines = [f"0 up {h}" for h in HOSTS] + [f"1 state {r} {s}" for r in REPLICAS for s in ("RECOVERING", "STABLE")]
    lines += [f"1 open {r}<{s} source:{s} #1 main 0" for r in REPLICAS for s in "ab"]
    lines += ["1 open client:c n1a #1 main 0", "2 sent a 9 90 4611686018427387904", "2 sent b 9 90 4611686018427387904"]
    lines += [f"3 give client:c: {WHOLE} Binf", *(f"4 buffers {r} 0 no 1 20:5" for r in REPLICAS), "5 rounds 90"]
    changed = [instead if line == without else line for line in lines]
    assert without == "" or without in lines
    return "\n".join(line for line in changed if line)


ENDINGS = {
    "tuples are missing": (
        "P3",
        "all stable tuples arrive",
        f"3 give client:c: {WHOLE} Binf",
        f"3 give client:c: {stable(1, 19)}",
    ),
    "nothing came": ("P3", "all stable tuples arrive", f"3 give client:c: {WHOLE} Binf", ""),
    "no end": ("P3", "a stream ends", f"3 give client:c: {WHOLE} Binf", f"3 give client:c: {WHOLE}"),
    "tentative is left": ("P3", "nothing tentative is left", "5 rounds 90", "5 give client:c: T/900y"),
    "UP_FAILURE": ("P3", "all replicas are STABLE", "5 rounds 90", "5 state u1/0@n1a UP_FAILURE"),
    "held tuples": ("quiet", "SUnions are empty", "4 buffers u1/0@n1a 0 no 1 20:5", "4 buffers u1/0@n1a 8 no 1 20:5"),
    "tentative kept": (
        "quiet",
        "nothing tentative is kept",
        "4 buffers u1/0@n1a 0 no 1 20:5",
        "4 buffers u1/0@n1a 0 yes 1 20:5",
    ),
    "long logs": ("quiet", "outputs are truncated", "4 buffers u1/0@n1a 0 no 1 20:5", "4 buffers u1/0@n1a 0 no 2 20:5"),
    "nothing read": ("quiet", "every input is read", "5 rounds 90", "5 close client:c #1"),
    "two feeds": ("quiet", "every input is read", "5 rounds 90", "5 open u1/0@n1a<a source:a #2 corrections 0"),
    "a process is gone": ("quiet", "every process runs", "0 up source:b", ""),
    "a process twice": ("quiet", "a process runs once", "5 rounds 90", "5 up source:b"),
    "a busy loop": ("quiet", "nothing spins", "5 rounds 90", "5 rounds 900000"),
    "a quarantine": ("quiet", "quarantine", "5 rounds 90", "5 note n1a quarantine producer=n2"),
    "a bad peer": ("quiet", "bad_peer", "5 rounds 90", "5 note n1a bad_peer why=x"),
    "a stopped replica": ("quiet", "replica_stopped", "5 rounds 90", "5 note n1a replica_stopped why=x"),
}


def test_an_end_where_everything_is_cleaned_up_holds() -> None:
    judged = verdict(calm(), premise=Premise())
    assert judged.findings == []
    assert judged.counters.amounts["tuples of the reference"] == LENGTH


@pytest.mark.parametrize(("property", "rule", "without", "instead"), ENDINGS.values(), ids=ENDINGS.keys())
def test_remains_of_failures_at_the_end_are_detected(property: str, rule: str, without: str, instead: str) -> None:
    assert found(calm(without=without, instead=instead), premise=Premise()) == {(property, rule)}


def test_the_end_is_not_judged_without_its_premises() -> None:
    text = calm(without=f"3 give client:c: {WHOLE} Binf")
    assert verdict(text, premise=Premise(healed=True, survivors=False)).findings == []
    assert verdict(text + "\n9 close client:c #1", premise=Premise(healed=False)).findings == []


# --- P1 ---

SETTLED = (
    "\n".join(f"0 up {h}" for h in HOSTS)
    + "\n"
    + "\n".join(f"0.1 state {r} {s}" for r in REPLICAS for s in ("RECOVERING", "STABLE"))
    + "\n"
    + "\n".join(f"0.1 open {r}<{s} source:{s} #1 main 0" for r in REPLICAS for s in "ab")
    + "\n0.1 open client:c n1a #1 main 0\n"
)


def running(
    until: int, *, kind: str = "B", given: tuple[int, int] = (0, 10**9), fault: str = "", begun: int = 30
) -> str:
    """A tuple a second enters both replicas.  In seconds ``given``, a boundary covers it at the client 0.5 s later.

    The fault happens at second ``begun``.
    """
    lines = []
    for second in range(1, until):
        if second == begun and fault:
            lines.append(f"{second} {fault}")
        lines += [f"{second} recv {r}<a source:a #1 main: S{second}/{second}x" for r in REPLICAS]
        if given[0] <= second < given[1]:
            lines.append(f"{second}.5 give client:c: {kind}{second + 1}({0})")
    return SETTLED + "\n".join(lines)


CUT_B = "fault 1 cut source:b>n1a n1a>source:b source:b>n1b n1b>source:b"
CUT_ALL = "fault 1 cut n1a>client:c n1b>client:c"
CLIENT_FROZEN = "fault 1 freeze client:c"


def test_results_within_kx_hold_and_are_counted() -> None:
    judged = verdict(running(30))
    assert judged.findings == []
    assert judged.counters.amounts["p1 stable_us"] > 1_000_000
    assert judged.counters.amounts["p1 tuples due"] >= 2 * 15


def test_twelve_seconds_without_results_are_detected() -> None:
    """A client without any results must not pass as one without late results."""
    (finding,) = verdict(running(30, given=(0, 17))).findings
    assert (finding.property, finding.rule, finding.consumer) == ("P1", "results come within kX", "client:c")
    assert 17e6 < finding.at_us < 20e6
    assert "covered up to 17" in finding.what


def test_client_without_any_result_is_detected() -> None:
    assert found(running(30, given=(0, 0))) == {("P1", "results come within kX")}


def test_silence_while_a_source_is_cut_off_is_detected() -> None:
    judged = verdict(running(60, given=(0, 30), fault=CUT_B))
    assert [f.rule for f in judged.findings] == ["results come within kX"]
    assert "tentative paths since 30.000 s" in judged.findings[0].what


def test_tentative_boundaries_count_while_source_is_cut_off() -> None:
    judged = verdict(running(60, kind="b", fault=CUT_B))
    assert judged.findings == []
    assert judged.counters.amounts["p1 tentative_us"] > 1_000_000


@pytest.mark.parametrize("fault", [CUT_ALL, CLIENT_FROZEN, "fault 1 slow=20000 n1a>client:c", "fault 1 clock n1a"])
def test_p1_claims_nothing_without_path_or_under_unknown_faults(fault: str) -> None:
    judged = verdict(running(60, given=(0, 30), fault=fault))
    assert judged.findings == []


ISOLATED = "fault 1 cut source:a>n1a n1a>source:a source:b>n1a n1a>source:b source:b>n1b n1b>source:b"


def test_silence_is_detected_while_one_replica_has_some_inputs() -> None:
    assert found(running(60, given=(0, 30), fault=ISOLATED)) == {("P1", "results come within kX")}
    assert verdict(running(60, kind="b", fault=ISOLATED)).findings == []


@pytest.mark.parametrize(("node", "wrong"), [("n1a", True), ("n1b", True), ("both", False)])
def test_single_suspended_replica_excuses_no_silence(node: str, wrong: bool) -> None:
    """The other one has results."""
    plan, directory = make_plan()
    nodes = {
        n: replace(one, during_failure=Policy.SUSPEND) if node in (n, "both") else one
        for n, one in directory.nodes.items()
    }
    assert (
        bool(
            verdict(
                running(60, given=(0, 30), fault=CUT_B), deployed=Deployed(plan, replace(directory, nodes=nodes))
            ).findings
        )
        is wrong
    )


@pytest.mark.parametrize(
    ("fault", "late_s", "holds"),
    [
        ("fault 1 delay=500000 n1a>client:c", 0.9, True),
        ("fault 1 delay=500000 n1a>client:c", 2.1, False),
        ("fault 1 busy=2 n1a", 1.5, True),
        ("fault 1 busy=2 n1a", 2.9, False),
        ("fault 1 skew=300000 source:a", 0.9, True),
        ("fault 1 skew=300000 source:a", 2.1, False),
        ("fault 1 skew=3600000000 n1a", 0.5, True),
        ("fault 1 skew=3600000000 n1a", 1.4, False),
        ("fault 1 full n1a", 0.5, True),
        ("fault 1 full n1a", 1.4, False),
        ("fault 1 refuse n1a>client:c", 1.4, False),
    ],
)
def test_faults_of_known_delay_widen_the_bound(fault: str, late_s: float, holds: bool) -> None:
    """All results arrive late; X is 1 s and P is 0.2 s."""
    lines = [f"{29.9} {fault}"]
    for second in range(1, 60):
        lines += [f"{second} recv {r}<a source:a #1 main: S{second}/{second}x" for r in REPLICAS]
        lines.append(f"{second + (late_s if second >= 30 else 0.5)} give client:c: B{second}(0)")
    text = SETTLED + "\n".join(sorted(lines, key=lambda line: float(line.split()[0])))
    judged = verdict(text)
    assert (judged.findings == []) is holds
    widened = any(kind in fault for kind in ("delay", "busy", "source:"))
    assert bool(judged.counters.amounts["p1 widened_us"]) is widened


def healed(second: int, *, silent: tuple[int, int]) -> str:
    """Source b is cut off from second 20 on, from n1a for ever; nothing comes in the seconds ``silent``."""
    lines = running(60, fault="fault 1 cut source:b>n1a n1a>source:b", begun=20).splitlines()
    lines += ["20 fault 2 cut source:b>n1b n1b>source:b", f"{second} end 2"]
    quiet = [f"{s}.5 give" for s in range(*silent)]
    lines = [line for line in lines if not line.startswith(tuple(quiet))]
    return "\n".join(sorted(lines, key=lambda line: float(line.split()[0])))


@pytest.mark.parametrize(("silent", "holds"), [((40, 41), True), ((40, 44), False)])
def test_silence_while_a_failure_is_corrected_is_detected(silent: tuple[int, int], holds: bool) -> None:
    """K6: an improvement removes no path, so it excuses one switch of producers and no more."""
    judged = verdict(healed(40, silent=silent))
    assert [f.rule for f in judged.findings] == ([] if holds else ["results come within kX"])
    assert all(40e6 < f.at_us < 44e6 for f in judged.findings)


def test_excused_periods_are_counted() -> None:
    amounts = verdict(running(60, fault="fault 1 slow=2000 n1a>client:c")).counters.amounts
    assert amounts["p1 excused slow_us"] > 29e6
    assert verdict(running(60, fault=CUT_ALL)).counters.amounts["p1 excused no path_us"] > 29e6
    assert verdict(running(60, fault="down client:c")).counters.amounts["p1 excused down_us"] > 29e6


@pytest.mark.parametrize(("disk", "sinks"), [(True, False), (False, True), (False, False)])
def test_small_buffers_are_an_excuse_where_acks_wait_for_disks(disk: bool, sinks: bool) -> None:
    plan, directory = make_plan()
    client = replace(directory.clients["c"], sinks=({"kind": "jsonl", "path": "p", "mode": "stable"},) if sinks else ())
    checkpoints = Checkpoints(1_000_000, disk=disk)
    nodes = {n: replace(one, checkpoints=checkpoints) for n, one in directory.nodes.items()}
    tight = Deployed(
        replace(plan, limits=replace(plan.limits, input_bytes=1_000)),
        replace(directory, nodes=nodes, clients={"c": client}),
    )
    judged = verdict(running(60, given=(0, 30), fault=CUT_B), deployed=tight)
    assert bool(judged.findings) is not (disk or sinks)
    assert bool(judged.counters.amounts["p1 excused little room_us"]) is (disk or sinks)


@pytest.mark.parametrize("moved", [True, False])
def test_small_buffers_are_an_excuse_once_a_partition_has_moved(moved: bool) -> None:
    """Who takes a role over acknowledges what is in a checkpoint on its disk (M3)."""
    plan, directory = make_plan()
    (of,) = directory.roles
    before = replace(directory, roles={of: {NodeId("n1a"): Role.ACTIVE}}) if moved else directory
    tight = Deployed(replace(plan, limits=replace(plan.limits, input_bytes=1_000)), directory)
    step = {(of, NodeId("n1b")): [(31_000_000, directory.nodes[NodeId("n1b")])]}
    in_force = InForce(tight.plan, directory, step, before)
    judged = verdict(running(60, given=(0, 30)), deployed=tight, in_force=in_force)
    late = [f.at_us for f in judged.findings if f.rule == "results come within kX"]
    assert bool(late) is not moved
    assert bool(judged.counters.amounts["p1 excused little room_us"]) is moved


@pytest.mark.parametrize("together", [True, False])
def test_small_buffers_are_an_excuse_once_a_partition_was_down(together: bool) -> None:
    """What is kept for them cannot be given up, and who is full blocks (A2)."""
    plan, directory = make_plan()
    tight = Deployed(replace(plan, limits=replace(plan.limits, input_bytes=1_000)), directory)
    died = {30: ["down n1a"], 31: ["down n1b"] if together else []}
    returned = {33: ["up n1a", "state u1/0@n1a STABLE"] + (["up n1b", "state u1/0@n1b STABLE"] if together else [])}
    lines = [f"{at} {what}" for at, all_ in (died | returned).items() for what in all_]
    text = sorted([*running(60, given=(0, 30)).splitlines(), *lines], key=lambda line: float(line.split()[0]))
    judged = verdict("\n".join(text), deployed=tight)
    assert bool([f for f in judged.findings if f.rule == "results come within kX"]) is not together
    assert bool(judged.counters.amounts["p1 excused little room_us"]) is together


@pytest.mark.parametrize("capacity", [0.5, 1.0])
def test_standby_counts_if_it_has_room_for_all_its_partitions(capacity: float) -> None:
    """Whose only other standby has no cores for it comes back without a state, and who feeds it blocks (A2, O1)."""
    plan, directory = make_plan()
    (of,) = directory.roles
    directory = replace(
        directory,
        roles={of: {NodeId("n1a"): Role.ACTIVE, NodeId("n1b"): Role.STANDBY}},
        nodes={n: replace(one, capacity=capacity) for n, one in directory.nodes.items()},
        recovery=RecoverySettings(loads={of.unit: ExpectedLoad((0.5,))}),
    )
    tight = Deployed(replace(plan, limits=replace(plan.limits, input_bytes=1_000)), directory)
    died = ["30 down n1a", "33 up n1a", "33 state u1/0@n1a STABLE"]
    text = sorted([*running(60, given=(0, 30)).splitlines(), *died], key=lambda line: float(line.split()[0]))
    judged = verdict("\n".join(text), deployed=tight)
    full = capacity * directory.coordinator.cap < 0.5
    assert bool([f for f in judged.findings if f.rule == "results come within kX"]) is not full
    assert bool(judged.counters.amounts["p1 excused little room_us"]) is full


def test_policy_suspend_owes_no_tentative_results() -> None:
    suspends = make_plan(failure=Policy.SUSPEND)
    assert verdict(running(60, given=(0, 30), fault=CUT_B), deployed=suspends).findings == []
    assert found(running(60, given=(0, 30)), deployed=suspends) == {("P1", "results come within kX")}


def test_a_lost_replica_leaves_the_path_through_its_partner() -> None:
    assert found(running(60, given=(0, 30), fault="down n1b")) == {("P1", "results come within kX")}
    assert verdict(running(60, fault="down n1b")).findings == []


def standing_by(budget: int = 0) -> Deployed:
    """n1a runs the union, n1b stands by."""
    plan, directory = make_plan()
    placement = {of: nodes[:1] for of, nodes in directory.placement.items()}
    standbys = {of: Standbys(nodes[1:], 1_000_000) for of, nodes in directory.placement.items()}
    coordinator = CoordinatorSettings(budget=budget)
    return Deployed(plan, replace(placed(directory, placement, standbys), coordinator=coordinator))


def lost_at(second: int, *, given: int) -> str:
    """n1b waits; n1a goes down; sources go on for a minute, and results come until second ``given``."""
    lines = running(60, given=(0, given), fault="down n1a", begun=second).splitlines()
    return "\n".join(line for line in lines if line != "0.1 state u1/0@n1b STABLE")


def test_a_standby_is_no_path_until_it_runs() -> None:
    restored = lost_at(30, given=30).replace("\n33 recv", "\n33 state u1/0@n1b STABLE\n33 recv", 1)
    judged = verdict(restored, deployed=standing_by())
    assert {f.rule for f in judged.findings} == {"results come within kX"}
    assert judged.findings[0].at_us > 34_000_000
    assert judged.counters.amounts["partitions restored"] > 0


def test_partition_lost_for_long_is_detected() -> None:
    judged = verdict(lost_at(30, given=30), deployed=standing_by())
    assert [f.rule for f in judged.findings] == ["a lost partition is restored"]
    assert 34e6 < judged.findings[0].at_us < 45e6
    assert verdict(lost_at(57, given=57), deployed=standing_by()).findings == []
    beside_a_cut = lost_at(30, given=30).replace("30 down n1a", f"30 down n1a\n30 {CUT_B}")
    assert verdict(beside_a_cut, deployed=standing_by()).findings == []


def test_partition_with_possibly_damaged_checkpoints_is_excused() -> None:
    """The checkpoints may be damaged, and a process that starts or stops may have been the next one to serve."""
    damaged = lost_at(30, given=30).replace("30 down n1a", "29 fault 7 flip n1b\n29 end 7\n30 down n1a")
    assert verdict(damaged, deployed=standing_by()).findings == []
    lost = "0 state u1/0@n1a STABLE\n0 state u1/0@n1b RECOVERING\n10 down n1a\n{0}60 rounds 1"
    (first,) = verdict(lost.format(""), deployed=standing_by()).findings
    (again,) = verdict(lost.format("13 fault 1 restart n1b\n13 end 1\n"), deployed=standing_by()).findings
    assert again.at_us == first.at_us + 3_000_000


def order(at: float, verb: str, *, epoch: int = 1, node: str = "n1b") -> str:
    return f"{at} note {node} order verb={verb} replica=u1/0@{node} epoch={epoch} refused=\n"


SERVED = "0 state u1/0@n1a STABLE\n0 state u1/0@n1b RECOVERING\n4 state u1/0@n1b STABLE\n"
RETIRES = "9 state u1/0@n1b RECOVERING\n" + order(9, "retire")
FLIP = "{0} fault {0} flip n1b\n{0} end {0}\n"
GOOD_ORDERS = {
    "another one serves": SERVED + RETIRES,
    "another one served a moment ago": SERVED + "8.5 down n1a\n" + RETIRES,
    "the order was on its way for long": SERVED + "5 down n1a\n6 fault 1 cut coordinator>n1b\n8.9 end 1\n" + RETIRES,
    "two files are damaged": SERVED + FLIP.format(5) + FLIP.format(6) + order(9, "replay"),
    "a place was given up": SERVED + "5 note n1a evicted consumers=x\n" + order(9, "replay"),
    "a standby is away": SERVED + "4.1 fault 1 cut coordinator>n1b\n" + order(9, "replay") + "9.5 end 1\n",
    "a later coordinator": order(1, "install") + order(2, "retire", epoch=2) + SERVED,
    "it forgot, for its disk was full": order(1, "install", epoch=2) + "2 down n1b\n2 up n1b\n" + order(3, "install"),
    "fewer are chosen than may run": SERVED
    + "2 note coordinator actives_chosen active=['u1/0'] of=1\n6 note coordinator actives_chosen active=[] of=1\n"
    + RETIRES,
    "an older one is refused": order(1, "install", epoch=2) + order(2, "install").strip() + "over\n",
}
BAD_ORDERS = {
    "a served partition is not given up": SERVED + "5 down n1a\n" + RETIRES,
    "replay is the last resort": SERVED + FLIP.format(5) + order(19, "replay"),
    "a node follows the latest coordinator": order(1, "install", epoch=2) + order(2, "install"),
    "each coordinator begins a later epoch": "".join(
        f"{at} note coordinator coordinator_began epoch=5\n" for at in (1, 2)
    ),
    "one active begins at a time": SERVED.partition("4 ")[0]
    + "0 state u1/0@n1c RECOVERING\n"
    + order(1, "install")
    + order(2, "install", node="n1c"),
    "first a new one runs": SERVED
    + "2 note coordinator actives_chosen active=['u1/0'] of=1\n6 note coordinator actives_chosen active=['u2/0'] of=1\n"
    + RETIRES,
}


@pytest.mark.parametrize("text", GOOD_ORDERS.values(), ids=GOOD_ORDERS.keys())
def test_correct_orders_have_no_findings(text: str) -> None:
    assert verdict(text, deployed=standing_by(budget=1)).findings == []


def test_a_standby_that_just_restarted_need_not_read_yet() -> None:
    """It ran before its process died, and the run ends at the moment of the restart."""
    again = "\n5 down n1b\n5 up coordinator\n5 up n1b"
    assert found(calm() + again, premise=Premise()) == {("quiet", "every input is read")}
    assert found(calm() + again, premise=Premise(), deployed=standing_by()) == set()


@pytest.mark.parametrize(("rule", "text"), BAD_ORDERS.items(), ids=BAD_ORDERS.keys())
def test_each_wrong_order_is_detected(rule: str, text: str) -> None:
    assert [f.rule for f in verdict(text, deployed=standing_by(budget=1)).findings] == [rule]


def test_retire_before_others_catch_up_is_detected() -> None:
    helper = "4.1 open u1/0@n1b<a source:a #1 main 0\n5 recv u1/0@n1b<a source:a #1 main: B10(5)\n"
    as_far = "8 open u1/0@n1a<a source:a #1 main 5\n"
    behind = {("H5", "a helper leaves when others are as far")}
    assert behind <= found(SERVED + helper + RETIRES, deployed=standing_by())
    assert not behind & found(SERVED + helper + as_far + RETIRES, deployed=standing_by())


def test_replay_while_standby_is_briefly_away_is_detected() -> None:
    text = SERVED + "8.9 fault 1 cut coordinator>n1b\n" + order(9, "replay") + "9.5 end 1\n"
    assert found(text, deployed=standing_by()) == {("H8", "replay is the last resort")}


def test_tentative_results_while_all_inputs_work_are_detected() -> None:
    assert found(running(30) + "\n29.7 give client:c: T/31y") == {("P1", "stable where a tree is whole")}
    late = running(60, kind="b", fault=CUT_B) + "\n59.7 give client:c: T/61y"
    assert verdict(late).findings == []


@pytest.mark.parametrize(("turn_us", "rules"), [(5_000, ["stable where a tree is whole"]), (50_000, [])])
def test_replicas_correcting_in_turn_get_a_turn_per_bucket(turn_us: int, rules: list[str]) -> None:
    """Forty seconds of input, in buckets of 20 ms."""
    heals = [*running(80, kind="b", fault=CUT_B).splitlines(), "40 end 1", "78.7 give client:c: T/80y"]
    plan, directory = make_plan()
    bounds = replace(Bounds.of(plan, directory), turn_us=turn_us)
    text = "\n".join(sorted(heals, key=lambda line: float(line.split()[0])))
    judged = judge(told(text), plan, directory, REFERENCE, premise=Premise(healed=False), bounds=bounds)
    assert [f.rule for f in judged.findings if f.property == "P1"] == rules


@pytest.mark.parametrize(("more", "rules"), [("", set()), ("29.9 give client:c: S1/20x", {"results come within kX"})])
def test_bucket_closed_by_end_is_covered_if_it_has_results(more: str, rules: set[str]) -> None:
    """The end of an input starts no clock (B3)."""
    boundaries = [f"16.8 recv {r}<a source:a #1 main: B16(16)" for r in REPLICAS]
    lines = [*running(30, given=(0, 17)).splitlines(), *boundaries, more]
    text = "\n".join(sorted(filter(None, lines), key=lambda line: float(line.split()[0])))
    assert {f.rule for f in verdict(text).findings if f.property == "P1"} == rules


@pytest.mark.parametrize(
    "seconds", [0, 0.2, 3], ids=["no window", "a window with room in αX", "a window longer than αX"]
)
def test_tentative_results_at_source_end_are_reported(seconds: float) -> None:
    plan, directory = make_plan()
    if seconds:
        window = TumblingWindow(round(seconds * 1e6))
        spec = TopKSpec(StreamId("a"), 1, (("x", False),), window=window)
        operator = replace(plan.query.operators[0], spec=spec)
        plan = replace(plan, query=replace(plan.query, operators=(operator,)))
    lines = [*running(30).splitlines(), f"29.6 sent b 30 30 {END_OF_TIME}", "29.7 give client:c: T/31y"]
    text = "\n".join(sorted(lines, key=lambda line: float(line.split()[0])))
    rules = {f.rule for f in verdict(text, deployed=Deployed(plan, directory)).findings}
    assert "stable where a tree is whole" in rules


def test_the_delay_of_a_chain_is_the_sum_of_its_thresholds() -> None:
    sources = [source("a", reader={"kind": "generator"}, schema=PAYLOAD)]
    stages = [("s1", union_of("a"), PAYLOAD), ("s2", union_of("s1"), PAYLOAD)]
    shares = InForce(*chain(sources, stages, x_us=X_US), {}).longest
    assert shares.bound_us(Channel(StreamId("s2"), 0)) == 2 * X_US


# --- stable preferred ---

FAILING = SETTLED + "1 state u1/0@n1a UP_FAILURE\n"


def test_consumer_that_stays_with_failing_replica_is_detected() -> None:
    assert found(FAILING + "9 state u1/0@n1b STABLE") == {("preferred", "a STABLE producer is taken")}


def test_correcting_producer_kept_over_full_stable_one() -> None:
    """That one has nothing more than has been read, until somebody acknowledges."""
    plan, directory = make_plan()
    tight = Deployed(replace(plan, limits=replace(plan.limits, output_bytes=1_000)), directory)
    stays = {("preferred", "a STABLE producer is taken")}
    corrects, better = "1.5 state u1/0@n1a STABILIZATION\n", "9 state u1/0@n1b STABLE"

    def properties(text: str, deployed: Deployed) -> set[tuple[str, str]]:
        return {(f.property, f.rule) for f in verdict(text, deployed=deployed).findings if f.property == "preferred"}

    assert properties(FAILING + better, tight) == stays
    assert properties(FAILING + corrects + better, make_plan()) == stays
    assert properties(FAILING + corrects + better, tight) == set()


def test_consumer_without_producer_is_detected() -> None:
    assert found(SETTLED + "1 close client:c #1\n9 rounds 1\n9 state u1/0@n1a STABLE") == {
        ("preferred", "a STABLE producer is taken")
    }


@pytest.mark.parametrize(
    "text",
    [
        "1.5 close client:c #1\n1.5 open client:c n1b #2 main 0\n9 state u1/0@n1a STABLE",
        "2 state u1/0@n1b UP_FAILURE\n9 state u1/0@n1a UP_FAILURE",
        "1.1 fault 1 cut client:c>n1b\n9 end 1\n9.5 state u1/0@n1a STABLE",
        "1.1 down client:c\n9 up client:c",
        "1.1 note n1b evicted replica=u1/0@n1b consumers=['client:c']\n9 state u1/0@n1a STABLE",
    ],
    ids=["switched", "the other fails too", "out of reach", "not there", "evicted"],
)
def test_a_consumer_without_a_better_producer_has_no_findings(text: str) -> None:
    assert verdict(FAILING + text).findings == []


@pytest.mark.parametrize(
    ("fault", "holds"),
    [
        ("delay=100000 client:c>n1b n1b>client:c", False),
        ("delay=200000 client:c>n1b n1b>client:c", True),
        ("busy=2 n1b", False),
        ("slow=2000 client:c>n1b n1b>client:c", True),
    ],
    ids=["late", "too late for heartbeats", "a busy producer", "unknown"],
)
def test_a_stable_producer_over_a_slow_link_is_preferred_too(fault: str, holds: bool) -> None:
    text = f"1.1 fault 1 {fault}\n12 state u1/0@n1b STABLE"
    assert found(FAILING + text) == (set() if holds else {("preferred", "a STABLE producer is taken")})


@pytest.mark.parametrize(
    ("fault", "lasts_s", "holds"),
    [("busy=1 n1b", 3.4, False), ("busy=2 n1b", 3.4, True), ("busy=2 n1b", 5, False)],
)
def test_slow_links_widen_the_time_to_switch(fault: str, lasts_s: float, holds: bool) -> None:
    text = f"1.1 fault 1 {fault}\n{1.1 + lasts_s} state u1/0@n1b UP_FAILURE"
    assert (found(FAILING + text) == set()) is holds


def test_an_eviction_by_another_partition_excuses_no_consumer() -> None:
    """By another partition on the same node."""
    text = "1.1 note n1b evicted replica=u1/1@n1b consumers=['client:c']\n9 state u1/0@n1b STABLE"
    assert found(FAILING + text) == {("preferred", "a STABLE producer is taken")}


def test_an_evicted_consumer_that_resubscribed_is_judged_again() -> None:
    text = (
        "1.1 note n1b evicted replica=u1/0@n1b consumers=['client:c']\n"
        "1.5 close client:c #1\n1.5 open client:c n1b #2 main 0\n"
        "2 close client:c #2\n2 open client:c n1a #3 main 0\n9 state u1/0@n1b STABLE"
    )
    assert found(FAILING + text) == {("preferred", "a STABLE producer is taken")}


# --- masked ---


def masked(deployed: Deployed, lasted: float, *, tentative: bool) -> RunVerdict:
    lines = [*running(40).splitlines(), f"20.2 {CUT_B}", f"{20.2 + lasted} end 1"]
    if tentative:
        lines.append("20.9 give client:c: T/21y U(0)")
    lines.sort(key=lambda line: float(line.split()[0]))
    return verdict("\n".join(lines), deployed=deployed)


def test_a_short_failure_makes_nothing_tentative() -> None:
    deployed = make_plan()
    judged = masked(deployed, 0.3, tentative=False)
    assert judged.findings == []
    assert judged.counters.amounts["masked runs"] == 1
    assert [f.property for f in masked(deployed, 0.3, tentative=True).findings] == ["masked"]


def test_a_long_failure_may_make_something_tentative() -> None:
    judged = masked(make_plan(), 5, tentative=True)
    assert judged.findings == []
    assert judged.counters.amounts["masked runs"] == 0


def test_failure_before_all_was_well_is_not_judged() -> None:
    deployed = make_plan()
    well, cut = World(), World(cut=frozenset({("source:b", "n1a")}))
    starting = World(recovering=frozenset({"u1/0@n1a"}))
    then = [FaultInterval(30 * SECOND, 30 * SECOND + 1, cut), FaultInterval(30 * SECOND + 1, 60 * SECOND, well)]

    def claimed(first: World) -> bool:
        static = [FaultInterval(0, 10 * SECOND, first), FaultInterval(10 * SECOND, 30 * SECOND, well), *then]
        bounds = Bounds.of(deployed.plan, deployed.directory)
        return is_masked(static, deployed.plan, deployed.directory, 2 * SECOND, bounds)

    assert claimed(starting)
    assert not claimed(replace(starting, cut=cut.cut))


def test_short_failure_may_show_during_half_open_connection() -> None:
    text = running(40, fault="fault 2 half-open source:a>n1a n1a>source:a", begun=15)
    lines = [*text.splitlines(), f"20.2 {CUT_B}", "20.5 end 1", "20.9 give client:c: T/21y U(0)"]
    judged = verdict("\n".join(sorted(lines, key=lambda line: float(line.split()[0]))))
    assert judged.findings == []
    assert judged.counters.amounts["masked runs"] == 0


# --- steady ---

REPLICA = "u1/0@n1a"
BUCKET_US = make_plan().plan.bucket_us
#: Both inputs are stable up to 100 when it fails at second 2.
FAILS = (
    f"0 state {REPLICA} STABLE\n"
    + "\n".join(
        f"0.1 open {REPLICA}<{s} source:{s} #1 main 0\n1 recv {REPLICA}<{s} source:{s} #1 main: B100(0)" for s in "ab"
    )
    + f"\n2 state {REPLICA} UP_FAILURE\n"
)


def corrects(at: float, until: float, *, end: str = "UP_FAILURE", bucket: int = 0, feed: int = 1) -> str:
    """A redo beside live results; BUCKET buckets are stable by then (0: nothing new is)."""
    promises = [f"{at} recv {REPLICA}<{s} source:{s} #{feed} main: B{bucket * BUCKET_US}(0)\n" for s in "ab" if bucket]
    return f"{''.join(promises)}{at} state {REPLICA} STABILIZATION fresh\n{until} state {REPLICA} {end}\n"


FLAPS = {("steady", "forced rec_dones come X apart")}
IN_VAIN = {("steady", "a redo has something to redo")}


def test_forced_rec_dones_that_come_x_apart_hold_and_are_counted() -> None:
    judged = verdict(
        FAILS + corrects(3, 4, bucket=1) + corrects(4.5, 5.1, bucket=2) + corrects(6, 6.5, bucket=3, end="STABLE")
    )
    assert judged.findings == []
    assert judged.counters.amounts["forced rec_dones compared"] == 1
    assert judged.counters.amounts["redos checked"] == 3


def test_forced_rec_dones_in_quick_succession_are_detected() -> None:
    text = FAILS + corrects(3, 4, bucket=1) + corrects(4.1, 4.5, bucket=2)
    (finding,) = verdict(text).findings
    assert {(finding.property, finding.rule)} == FLAPS
    assert finding.consumer == REPLICA
    assert "0.500 s after the last one; X is 1.000 s" in finding.what
    between = corrects(4.05, 4.1, bucket=2, end="STABLE") + f"4.2 state {REPLICA} UP_FAILURE\n"
    assert found(FAILS + corrects(3, 4, bucket=1) + between + corrects(4.3, 4.5, bucket=3)) == FLAPS


def test_without_room_for_fresh_results_a_redo_may_end_at_once() -> None:
    first, second = corrects(3, 4, bucket=1), corrects(4.1, 4.5, bucket=2)
    stands_back = f"4.2 state {REPLICA} STABILIZATION\n"
    begins, ends = second.splitlines(keepends=True)[:-1], second.splitlines(keepends=True)[-1:]
    assert verdict(FAILS + first + "".join([*begins, stands_back, *ends])).findings == []


def test_a_restart_is_no_end_of_a_redo() -> None:
    anew = f"4.05 state {REPLICA} RECOVERING\n" + "".join(
        f"4.05 close {REPLICA}<{s} #1\n4.06 open {REPLICA}<{s} source:{s} #2 main 0\n" for s in "ab"
    )
    text = FAILS + corrects(3, 4, bucket=1) + anew + f"4.07 state {REPLICA} UP_FAILURE\n"
    assert verdict(text + corrects(4.1, 4.5, bucket=2, feed=2)).findings == []


def test_policy_suspend_during_a_correction_is_not_judged() -> None:
    plan, directory = make_plan()
    nodes = {n: replace(o, during_stabilization=Policy.SUSPEND) for n, o in directory.nodes.items()}
    text = FAILS + (corrects(3, 4, bucket=1) + corrects(4.1, 4.5, bucket=2)).replace(" fresh", "")
    assert verdict(text, deployed=Deployed(plan, replace(directory, nodes=nodes))).findings == []
    assert found(text) == FLAPS


def test_empty_redo_is_detected() -> None:
    assert found(FAILS + corrects(3, 4)) == IN_VAIN
    one_input = f"3 recv {REPLICA}<a source:a #1 main: B{BUCKET_US}(0)\n"
    assert found(FAILS + one_input + corrects(3, 4)) == IN_VAIN
    assert found(FAILS + corrects(3, 4, bucket=1) + corrects(6, 7)) == IN_VAIN


def test_inputs_without_events_in_the_history_are_not_judged() -> None:
    states = "\n".join(line for line in (FAILS + corrects(3, 4) + corrects(4.1, 4.2)).splitlines() if " state " in line)
    judged = verdict(states)
    assert judged.findings == []
    assert judged.counters.amounts["redos checked"] == 0


# --- turns ---

OTHER = "u1/0@n1b"
BOTH = (
    "".join(f"0 state {r} STABLE\n" for r in (REPLICA, OTHER))
    + "".join(f"0.1 open {r}<{s} source:{s} #1 main 0\n" for r in (REPLICA, OTHER) for s in "ab")
    + "".join(f"2 state {r} UP_FAILURE\n" for r in (REPLICA, OTHER))
    + "".join(f"3 recv {r}<{s} source:{s} #1 main: B{BUCKET_US}(0)\n" for r in (REPLICA, OTHER) for s in "ab")
)
TOGETHER = {("turns", "one replica has fresh results")}


def test_replicas_that_correct_in_turn_hold_and_are_counted() -> None:
    text = BOTH + f"3 state {REPLICA} STABILIZATION\n4 state {REPLICA} STABLE\n"
    judged = verdict(text + f"4.1 state {OTHER} STABILIZATION\n5 state {OTHER} STABLE\n")
    assert judged.findings == []
    assert judged.counters.amounts["turns checked"] == 2


@pytest.mark.parametrize(
    ("first", "second", "wrong"),
    [
        ("", "", TOGETHER),
        (" fresh", "", set()),
        ("", " fresh", set()),
        (f"\n3.2 state {REPLICA} STABILIZATION fresh", "", set()),
        (f" fresh\n3.2 state {REPLICA} STABILIZATION", "", set()),  # it has no room for fresh results
    ],
)
def test_two_corrections_without_fresh_results_are_detected(
    first: str, second: str, wrong: set[tuple[str, str]]
) -> None:
    text = BOTH + f"3 state {REPLICA} STABILIZATION{first}\n3.5 state {OTHER} STABILIZATION{second}\n"
    assert found(text) == wrong


def test_a_grant_by_a_replica_that_died_since_is_not_judged() -> None:
    died = f"2.5 down n1b\n2.6 up n1b\n2.7 state {OTHER} STABLE\n2.8 state {OTHER} UP_FAILURE\n"
    lines = (BOTH + died).splitlines()
    begun = "".join(f"{line}\n" for line in sorted(lines, key=lambda line: float(line.split()[0])))
    text = begun + f"3 state {OTHER} STABILIZATION\n3.5 state {REPLICA} STABILIZATION\n"
    judged = verdict(text)
    assert TOGETHER.isdisjoint({(f.property, f.rule) for f in judged.findings})
    assert judged.counters.amounts["turns checked"] == 1


# --- all of it ---


def test_a_finding_shows_the_events_around_it() -> None:
    text = (
        FEED + f"2 recv client:c n1a #1 main: {stable(1, 3)}\n3 recv client:c n1a #1 main: S5/50x\n4 note n1a far away"
    )
    (finding,) = verdict(text).findings
    assert str(finding) == (
        "P2 (stable ids follow each other) at 3.000 s, client:c: s1/0: a batch of ids (4, 5] when the subscription "
        "stands at 3"
    )
    assert any("subscribes to s1/0 at n1a #1 main" in line for line in finding.around)
    assert any("(4,5] S5/1970-01-01T00:00:00.000050 (1 rows)" in line for line in finding.around)
    assert not any("far away" in line for line in finding.around)


def test_only_the_first_findings_of_a_rule_are_reported() -> None:
    text = FEED + "2 recv client:c n1a #1 main: " + " B10(1) B5(0)" * 50
    judged = verdict(text)
    assert 0 < len(judged.findings) <= 6
    assert judged.counters.amounts["findings"] >= 50


def test_a_hundred_thousand_received_tuples_take_about_a_second() -> None:
    """The limit is twice that, for other work on the machine.  A loop over tuples would take ten times as long."""
    count, size = 100_000, 10
    history = History([Opened(0, "client:c", OUT, "n1a", 1, "main", 0, 0, False, 0)])
    times = np.arange(1, count + 1, dtype=np.int64) * 10
    rows = Rows.from_tuples(PAYLOAD, times, [("x",)] * count)
    for first in range(0, count, size):
        batch = Batch(Kind.STABLE, first, first + size, None, rows.slice(first, first + size))
        history(Received(first, "client:c", OUT, "n1a", 1, "main", batch))
        history(Delivered(first, "client:c", OUT, batch))
    reference = {OUT: (np.arange(1, count + 1, dtype=np.int64), rows)}
    began = time.process_time()
    judged = judge(history, *make_plan(), reference, premise=Premise(healed=False))
    assert judged.findings == []
    assert judged.counters.amounts["stable tuples received"] == count
    assert time.process_time() - began < 2


def test_bounds_grow_with_the_depth() -> None:
    sources = [source("a", reader={"kind": "generator"}, schema=PAYLOAD)]
    one = chain(sources, [("s1", union_of("a"), PAYLOAD)])
    two = chain(sources, [("s1", union_of("a"), PAYLOAD), ("s2", union_of("s1"), PAYLOAD)])
    assert Bounds.of(*two).correct_us > Bounds.of(*one).correct_us
    assert Bounds.of(*one, noise_us=7).settle_us == Bounds.of(*one).settle_us + 7


# --- recovering ---


def recovering(
    *, until: int = 40, opened: bool = True, lag_s: int = 0, serves_at: float | None = None, more: str = ""
) -> str:
    """n1a restarts in second 11, subscribes or not, and has received what the sources sent ``lag_s`` seconds ago."""
    lines = [
        *SETTLED.splitlines(),
        *more.splitlines(),
        "10 down n1a",
        "11 up n1a",
        f"11 state {REPLICA} RECOVERING",
        f"{until} rounds 1",
    ]
    if opened:
        lines += [f"11.5 open {REPLICA}<{s} source:{s} #1 main 0" for s in "ab"]
    for second in range(1, until):
        lines += [f"{second} sent {s} {second} {second} {second}000000" for s in "ab"]
        if opened and second > 12:
            frontier = f"B{second - lag_s}000000(0)"
            lines += [f"{second}.1 recv {REPLICA}<{s} source:{s} #1 main: {frontier}" for s in "ab"]
    if serves_at is not None:
        lines.append(f"{serves_at} state {REPLICA} STABLE")
    return "\n".join(sorted(lines, key=lambda line: float(line.split()[0])))


def recovered(text: str, *, deployed: Deployed | None = None) -> list[str]:
    return [f.rule for f in verdict(text, deployed=deployed).findings if f.property == "recovering"]


NO_STATE, CAUGHT_UP, IN_THE_END = (
    "a recovering replica finds a state",
    "a caught-up replica serves",
    "a recovering replica serves in the end",
)


@pytest.mark.parametrize("opened", [True, False])
def test_a_replica_that_recovers_in_time_holds(opened: bool) -> None:
    judged = verdict(recovering(opened=opened, serves_at=14))
    assert [f for f in judged.findings if f.property == "recovering"] == []
    assert judged.counters.amounts["recoveries followed"] == 1
    assert judged.counters.amounts["recovering followed_us"] == 3_000_000


def test_replica_that_gets_no_state_is_detected() -> None:
    (finding,) = [f for f in verdict(recovering(opened=False, until=24)).findings if f.property == "recovering"]
    assert (finding.rule, finding.consumer) == (NO_STATE, REPLICA)
    assert 15e6 < finding.at_us < 20e6
    assert "since 11.000 s" in finding.what


def test_caught_up_replica_that_does_not_serve_is_detected() -> None:
    assert recovered(recovering(until=24)) == [CAUGHT_UP]


@pytest.mark.parametrize(("turn_us", "rules"), [(100_000, []), (10_000, [CAUGHT_UP])])
def test_caught_up_replica_gets_a_turn_per_bucket(turn_us: int, rules: list[str]) -> None:
    """Eleven seconds of input come at once, in buckets of a tenth."""
    plan, directory = make_plan()
    bounds = replace(Bounds.of(plan, directory), turn_us=turn_us)
    premise = Premise(healed=False)
    judged = judge(told(recovering(until=24)), plan, directory, REFERENCE, premise=premise, bounds=bounds)
    assert [f.rule for f in judged.findings if f.property == "recovering"] == rules


@pytest.mark.parametrize(("serves_at", "rules"), [(14, []), (24, [CAUGHT_UP])])
def test_a_caught_up_replica_must_serve_without_any_partner(serves_at: float, rules: list[str]) -> None:
    """All replicas of a unit restart; their input comes from another unit."""
    sources = [source("a", reader={"kind": "generator"}, schema=PAYLOAD)]
    stages = [("s0", union_of("a"), PAYLOAD), ("s1", union_of("s0"), PAYLOAD)]
    lines = []
    for node in ("n2a", "n2b"):
        name = f"u2/0@{node}"
        lines += [f"10 down {node}", f"11 up {node}", f"11 state {name} RECOVERING"]
        lines += [f"11.5 open {name}<s0 n1a #1 main 0", f"{serves_at} state {name} STABLE"]
        lines += [f"{at}.1 recv {name}<s0 n1a #1 main: B{at}000000(0)" for at in range(13, 25)]
    lines += [f"{at} sent a {at} {at} {at}000000" for at in range(1, 25)]
    text = "\n".join(sorted(lines, key=lambda line: float(line.split()[0])))
    assert recovered(text, deployed=chain(sources, stages, x_us=X_US)) == 2 * rules


def test_replica_that_never_catches_up_is_detected_in_the_end() -> None:
    assert recovered(recovering(until=26, lag_s=5)) == []
    assert recovered(recovering(until=40, lag_s=5)) == [IN_THE_END]


@pytest.mark.parametrize(
    ("more", "rules"),
    [
        ("9 down n1b", [NO_STATE]),
        ("9 state u1/0@n1b RECOVERING", [NO_STATE, NO_STATE]),
        (f"9 down n1b\n{CUT_B.replace('fault', '9 fault')}", []),
        (CUT_B.replace("fault", "9 fault"), [NO_STATE]),
        ("9 fault 1 cut n1a>n1b n1b>n1a\n" + CUT_B.replace("fault 1", "9 fault 2"), []),
        ("9 fault 1 cut source:a>n1a n1a>source:a source:b>n1a n1a>source:b", []),
        ("9 fault 1 slow=2000 n1a>source:a", []),
        ("15 fault 1 freeze n1a\n20 end 1", []),
    ],
    ids=[
        "from the sources",
        "beside a partner that recovers",
        "a source is missing",
        "from the partner",
        "neither",
        "no input",
        "disturbed",
        "frozen",
    ],
)
def test_reachable_state_must_be_located_in_time(more: str, rules: list[str]) -> None:
    assert recovered(recovering(opened=False, until=24, more=more)) == rules


def test_subscriptions_before_a_restart_do_not_count() -> None:
    before = "\n".join(f"9 open {REPLICA}<{s} source:{s} #1 main 0" for s in "ab")
    assert recovered(recovering(opened=False, until=24, more=before)) == [NO_STATE]


def test_recovery_is_not_judged_where_buffers_are_small() -> None:
    plan, directory = make_plan()
    tight = Deployed(replace(plan, limits=replace(plan.limits, output_bytes=1_000)), directory)
    judged = verdict(recovering(opened=False, until=24), deployed=tight)
    assert [f for f in judged.findings if f.property == "recovering"] == []
    assert judged.counters.amounts["recovering excused little room_us"] > 10e6


#: Its partner is dead, and source b out of reach, as it begins anew.
CUT_OFF = f"9 down n1b\n9 {CUT_B}"


def test_cut_off_replica_gives_results_after_new_input() -> None:
    (finding,) = [f for f in verdict(recovering(until=24, more=CUT_OFF)).findings if f.property == "recovering"]
    assert (finding.rule, finding.consumer) == ("a subscribed replica gives results", REPLICA)
    assert 14.1e6 < finding.at_us < 19e6
    judged = verdict(recovering(serves_at=15, more=CUT_OFF))
    assert [f for f in judged.findings if f.property == "recovering"] == []
    assert judged.counters.amounts["recoveries while cut off"] == 1


@pytest.mark.parametrize(
    ("how", "failure"),
    [
        ({"opened": False}, Policy.PROCESS),
        ({"lag_s": 9}, Policy.PROCESS),
        ({}, Policy.SUSPEND),
        ({"more": "9 down n1b\n9 fault 1 cut source:a>n1a n1a>source:a source:b>n1a n1a>source:b"}, Policy.PROCESS),
    ],
    ids=["it has no state", "nothing new came", "suspended", "cut off from all"],
)
def test_a_replica_that_is_cut_off_has_nothing_to_give(how: dict[str, Any], failure: Policy) -> None:
    text = recovering(**{"until": 24, "more": CUT_OFF, **how})
    assert recovered(text, deployed=make_plan(failure=failure)) == []


@pytest.mark.parametrize(("logs", "rules"), [(False, [NO_STATE]), (True, [])])
def test_a_partner_that_replays_its_log_has_no_state_to_give(logs: bool, rules: list[str]) -> None:
    plan, directory = make_plan()
    of = next(iter(directory.placement))
    deployed = Deployed(plan, replace(directory, logs={of: Continuous(1)} if logs else {}))
    begins = "9 state u1/0@n1b RECOVERING\n9.5 state u1/0@n1b UP_FAILURE\n9 " + CUT_B
    assert recovered(recovering(opened=False, until=24, more=begins), deployed=deployed) == rules


# --- corrections ---

SILENT = {("steady", "nothing is silent as a redo begins")}
LEFT_ALONE = {("turns", "a replica that corrects by leave has a serving partner")}
NOT_CORRECTED = {("steady", "healed failures are corrected")}
#: Both replicas of the partition fail at second 2, and everything arrives again from second 3 on.
BEFORE = (1.2, 1.4, 1.6, 1.8)
ASKS = f"3 note n1a ask_partner replica={REPLICA} partner=n1b number=1\n"


def arriving(*seconds: float, inputs: str = "ab", bucket: int = 1) -> str:
    """Something comes of these inputs, at REPLICA and at OTHER."""
    return "".join(
        f"{at} recv {r}<{s} source:{s} #1 main: B{bucket * BUCKET_US}(0)\n"
        for at in seconds
        for r in (REPLICA, OTHER)
        for s in inputs
    )


def in_order(text: str) -> str:
    return "\n".join(sorted(text.splitlines(), key=lambda line: float(line.split()[0]))) + "\n"


def test_redo_with_a_silent_input_is_detected() -> None:
    begins = f"5 state {REPLICA} STABILIZATION fresh\n5.1 state {REPLICA} STABLE\n"
    assert found(in_order(BOTH + arriving(*BEFORE, bucket=0) + arriving(4.9) + begins)) == set()
    judged = verdict(in_order(BOTH + arriving(*BEFORE, bucket=0) + arriving(4.9, inputs="a") + begins))
    assert {(f.property, f.rule) for f in judged.findings} == SILENT
    assert judged.counters.amounts["redos checked for silent inputs"] == 1


def test_correction_whose_granter_does_not_serve_is_detected() -> None:
    begins = BOTH + arriving(3.1) + ASKS + f"3.2 state {REPLICA} STABILIZATION\n"
    ends = f"6 state {REPLICA} STABLE\n"
    for gone in (f"3.5 state {OTHER} STABILIZATION\n", "3.5 down n1b\n", f"3.5 state {OTHER} RECOVERING\n"):
        assert found(in_order(begins + gone + ends)) >= LEFT_ALONE
        assert not LEFT_ALONE & found(in_order(begins + gone + f"3.7 state {REPLICA} STABILIZATION fresh\n" + ends))
    assert not LEFT_ALONE & found(in_order(begins + ends))


def test_healed_failure_without_correction_is_detected() -> None:
    text = BOTH + arriving(*BEFORE, bucket=0) + "3 down n1b\n"
    assert found(in_order(text + arriving(3.1, 20))) == NOT_CORRECTED
    assert found(in_order(text + arriving(3.1, 4, 20) + f"4.1 state {REPLICA} STABILIZATION fresh\n")) == set()
    cut = "2.5 fault 1 cut source:a>n1a\n"
    assert found(in_order(text + cut + arriving(20))) == set(), "an input is out"


@pytest.mark.parametrize(("turn_us", "rules"), [(100_000, set()), (10_000, NOT_CORRECTED)])
def test_a_correction_has_a_turn_for_each_bucket_that_came(turn_us: int, rules: set[tuple[str, str]]) -> None:
    """Seventeen seconds of input, in buckets of a tenth, wait in a replica that suspends."""
    text = BOTH + arriving(*BEFORE, bucket=0) + "3 down n1b\n" + arriving(3.1) + arriving(3.2, bucket=170)
    plan, directory = make_plan()
    bounds = replace(Bounds.of(plan, directory), turn_us=turn_us)
    judged = judge(
        told(in_order(text + arriving(20, bucket=171))),
        plan,
        directory,
        REFERENCE,
        premise=Premise(healed=False),
        bounds=bounds,
    )
    assert {(f.property, f.rule) for f in judged.findings} == rules
