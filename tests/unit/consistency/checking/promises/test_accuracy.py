"""The checker of tentative results, on constructed histories and on runs of a simulated cluster."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest

from consistency.checking.promises.accuracy import Kept
from consistency.checking.rows import Reference
from consistency.checking.verdict import Premise, RunVerdict, judge
from replicas.reference import reference_rows, some_of
from spe.plan.deploy import Deployed
from spe.plan.directory import Directory
from spe.plan.nodes import Policy
from spe.plan.plan import Plan
from spe.query.declaration import OperatorSpec
from spe.query.operators.aggregate import AggregateCall, AggregateSpec
from spe.query.windows import CountWindow, TumblingWindow
from spe.stream.batch import Batch, Boundary, Element, Rows
from spe.stream.history import Delivered, History, Sent
from spe.stream.ids import Channel
from spe.stream.names import Kind, StreamId
from spe.stream.schema import Schema
from spe.stream.times import BEFORE_TIME, END_OF_TIME
from tests.support.histories import told
from tests.support.plans import chain, source, union_of

SCHEMA = Schema.of(x="string")
OUT = Channel(StreamId("s1"), 0)
A, B = StreamId("a"), StreamId("b")
SECOND = 1_000_000
#: Rows of each source, one each half second; b is a quarter of a second later than a.
UNTIL_S = 30
#: Source b is cut off from both replicas.
CUT_S, END_S = 5, 25
WINDOW_US = 1 * SECOND


def plan_of(spec: OperatorSpec | None = None, schema: Schema = SCHEMA, *, failure: Policy = Policy.PROCESS) -> Deployed:
    sources = [source(name, reader={"kind": "generator"}, schema=SCHEMA) for name in "ab"]
    stages = [("s1", union_of("a", "b"), SCHEMA)]
    if spec is not None:
        stages.append(("s2", spec, schema))
    plan, directory = chain(sources, stages[:1], x_us=SECOND, failure=failure, stabilization=failure)
    if spec is None:
        return Deployed(plan, directory)
    (unit,) = plan.units
    made = replace(plan.query.operators[0], name=StreamId("s2"), spec=spec, schema=schema)
    operators = (*plan.query.operators, made)
    unit = replace(unit, operators=operators, outputs=(StreamId("s2"),))
    clients = {n: replace(c, reads=(StreamId("s2"),)) for n, c in directory.clients.items()}
    query = replace(plan.query, operators=operators, outputs=(StreamId("s2"),))
    return Deployed(replace(plan, query=query, units=(unit,)), replace(directory, clients=clients))


def times(stream: StreamId) -> list[int]:
    offset = 100_000 if stream == A else 350_000
    return [offset + at * SECOND // 2 for at in range(1, 2 * UNTIL_S)]


def inputs() -> dict[StreamId, list[Element]]:
    found: dict[StreamId, list[Element]] = {}
    for stream in (A, B):
        at = times(stream)
        rows = Rows.from_tuples(SCHEMA, at, [(f"{stream}{n}",) for n in range(len(at))])
        found[stream] = [Batch(Kind.STABLE, 0, len(at), None, rows), Boundary(Kind.STABLE, 10**9, len(at))]
    return found


def results(plan: Plan, kept: Kept | None = None) -> Reference:
    return reference_rows(plan, inputs() if kept is None else some_of(inputs(), kept))


def world() -> list[str]:
    lines = [f"0 up {h}" for h in ("source:a", "source:b", "n1a", "n1b", "client:c")]
    lines += [f"0.1 state u1/0@{n} STABLE" for n in ("n1a", "n1b")]
    links = " ".join(f"source:b>{n} {n}>source:b" for n in ("n1a", "n1b"))
    return [*lines, f"{CUT_S} fault 1 cut {links}", f"{END_S} end 1"]


def history(plan: Plan, tentative: Rows, *, more: str = "") -> History:
    """b is cut off in second 5.  Until then the client gets stable rows, then ``tentative`` in time order."""
    events = [*told("\n".join(sorted([*world(), *more.splitlines()], key=lambda line: float(line.split()[0]))))]
    for stream in (A, B):
        for place, at in enumerate(times(stream), 1):
            events.append(Sent(at + 10_000, Channel(stream, 0), place, at, at - 1))
    out = Channel(plan.query.outputs[0], 0)
    events.append(Delivered(CUT_S * SECOND, "client:c", out, Boundary(Kind.STABLE, CUT_S * SECOND, 0)))
    late_us = 500_000
    place = 0
    while place < len(tentative):
        last = place + 1
        while last < len(tentative) and tentative.time[last] == tentative.time[place]:
            last += 1
        batch = Batch(Kind.TENTATIVE, 0, last - place, None, tentative.slice(place, last))
        events.append(Delivered(int(tentative.time[place]) + late_us, "client:c", out, batch))
        place = last
    return History(sorted(events, key=lambda e: e.at_us))


def judged(plan: Plan, directory: Directory, tentative: Rows, *, more: str = "") -> RunVerdict:
    return judge(
        history(plan, tentative, more=more),
        plan,
        directory,
        results(plan),
        premise=Premise(healed=False),
        recompute=lambda kept: results(plan, kept),
    )


def rules(verdict: RunVerdict) -> list[str]:
    return [f.rule for f in verdict.findings if f.property == "accuracy"]


def without_b(plan: Plan) -> Rows:
    """The right results while b is cut off: of rows before the cut, and of a."""
    kept = {A: np.ones(len(times(A)), np.bool_), B: np.array(times(B)) < CUT_S * SECOND}
    rows = results(plan, kept)[Channel(plan.query.outputs[0], 0)][1]
    first, last = np.searchsorted(rows.time, [CUT_S * SECOND, END_S * SECOND])
    return rows.slice(int(first), int(last))


def but(rows: Rows, place: int) -> Rows:
    return rows.take(np.delete(np.arange(len(rows)), place))


LACKING = "only what was unavailable is lacking"
INVENTED = "a tentative result is of rows that were sent"
COUNTS = Schema.of(window_start="timestamp!", window_end="timestamp!", n="int64!")
COUNT = AggregateSpec(StreamId("s1"), TumblingWindow(WINDOW_US), {}, {"n": AggregateCall("count")})


def test_results_from_the_remaining_source_are_accepted() -> None:
    plan, directory = plan_of()
    verdict = judged(plan, directory, without_b(plan))
    assert rules(verdict) == []
    amounts = verdict.counters.amounts
    assert amounts["accuracy rows compared"] > 20
    assert amounts["accuracy runs judged"] == amounts["accuracy runs"] == 1


@pytest.mark.parametrize("place", [12, 25])
def test_missing_row_of_available_source_is_detected(place: int) -> None:
    plan, directory = plan_of()
    rows = without_b(plan)
    (finding,) = [f for f in judged(plan, directory, but(rows, place)).findings if f.property == "accuracy"]
    assert (finding.rule, finding.consumer) == (LACKING, "client:c")
    assert f"a{place + 9}" in finding.what
    assert "a live path led from a since" in finding.what


def test_duplicate_result_does_not_replace_missing_one() -> None:
    plan, directory = plan_of()
    rows = without_b(plan)
    order = np.arange(len(rows))
    order[20] = 19
    assert LACKING in rules(judged(plan, directory, rows.take(order)))


def test_row_that_no_source_sent_is_detected() -> None:
    plan, directory = plan_of()
    rows = without_b(plan)
    wrong = Rows.from_tuples(
        SCHEMA, rows.time.tolist(), [("z",) if i == 7 else row for i, row in enumerate(rows.to_tuples())]
    )
    assert rules(judged(plan, directory, wrong)) == [INVENTED, LACKING]


@pytest.mark.parametrize(
    ("more", "wrong"),
    [
        ("", [LACKING]),
        ("5 end 1\n5 fault 2 cut source:b>n1a n1a>source:b source:a>n1b n1b>source:a", []),
        ("14 fault 2 slow=2000 source:a>n1b", []),
        ("14 fault 2 freeze n1b\n14.5 end 2", [LACKING]),
        ("5 down n1a\n14 up n1a\n14 state u1/0@n1a STABLE", [LACKING]),
        ("14 down n1a", [LACKING]),
        ("14.9 down n1a\n15 up n1a\n15 state u1/0@n1a RECOVERING\n15.2 state u1/0@n1a STABLE", [LACKING]),
        ("16 down n1a", []),
    ],
    ids=[
        "nothing else",
        "each lacks one",
        "who knows",
        "frozen before",
        "back before",
        "gone before",
        "anew",
        "just now",
    ],
)
def test_rows_that_may_have_been_unavailable_are_not_demanded(more: str, wrong: list[str]) -> None:
    """The row of second 17 is lacking."""
    plan, directory = plan_of()
    rows = without_b(plan)
    lacking = next(i for i, at in enumerate(rows.time.tolist()) if at > 17.5 * SECOND)
    assert rules(judged(plan, directory, but(rows, lacking), more=more)) == wrong


def test_windows_of_the_available_rows_are_accepted() -> None:
    plan, directory = plan_of(COUNT, COUNTS)
    right = without_b(plan)
    verdict = judged(plan, directory, right)
    assert rules(verdict) == []
    assert verdict.counters.amounts["accuracy results compared"] > 10
    changed = [(*row[:2], row[2] - (i == 12)) for i, row in enumerate(right.to_tuples())]
    assert rules(judged(plan, directory, Rows.from_tuples(COUNTS, right.time.tolist(), changed))) == [LACKING]
    assert rules(judged(plan, directory, but(right, 12))) == [LACKING]


def test_windows_with_rows_of_unavailable_source_are_detected() -> None:
    """Such rows were not available.  Windows that reach into a time of unknown input are not judged."""
    plan, directory = plan_of(COUNT, COUNTS)
    whole = results(plan)[Channel(StreamId("s2"), 0)][1]
    first, middle, last = np.searchsorted(whole.time, [CUT_S * SECOND, (CUT_S + 3) * SECOND, END_S * SECOND])
    assert rules(judged(plan, directory, whole.slice(int(first), int(middle)))) == []
    assert rules(judged(plan, directory, whole.slice(int(first), int(last)))) == [LACKING]


def test_operators_with_unbounded_memory_are_not_judged() -> None:
    spec = replace(COUNT, window=CountWindow(3))
    plan, directory = plan_of(spec, Schema.of(n="int64!"))
    rows = Rows.from_tuples(Schema.of(n="int64!"), [10 * SECOND], [(5,)])
    verdict = judged(plan, directory, rows)
    assert rules(verdict) == []
    assert verdict.counters.amounts["accuracy unknown operators that remember everything"] == 1


def test_a_unit_downstream_of_policy_delay_is_not_judged() -> None:
    sources = [source("a", reader={"kind": "generator"}, schema=SCHEMA)]
    stages = [("s1", union_of("a"), SCHEMA), ("s2", union_of("s1"), SCHEMA)]
    for policy, said in ((Policy.DELAY, False), (Policy.PROCESS, True)):
        plan, directory = chain(sources, stages, x_us=SECOND, failure=policy, stabilization=policy)
        text = "1 give client:c<s2: T/10x"
        history = History([*told(text, SCHEMA), Sent(0, Channel(A, 0), 1, 10, 9)])
        counters = judge(history, plan, directory, {}, premise=Premise(healed=False)).counters.amounts
        assert bool(counters["accuracy unknown delay before another unit"]) is not said


def unknown(plan: Plan, directory: Directory) -> Mapping[str, int]:
    amounts = judged(plan, directory, without_b(plan)).counters.amounts
    return {name: n for name, n in amounts.items() if name.startswith("accuracy unknown") and n}


def test_nothing_is_judged_where_buffers_are_small() -> None:
    plan, directory = plan_of()
    for limits in (replace(plan.limits, suffix_bytes=1_000), replace(plan.limits, input_bytes=1_000)):
        assert unknown(replace(plan, limits=limits), directory) == {"accuracy unknown little room": 1}


def test_nothing_is_judged_without_the_sources_events() -> None:
    plan, directory = plan_of()
    events = [e for e in history(plan, without_b(plan)) if not isinstance(e, Sent)]
    verdict = judge(History(events), plan, directory, results(plan), premise=Premise(healed=False))
    assert verdict.counters.amounts["accuracy unknown sources"] == 1


def test_a_row_that_left_its_source_late_is_not_demanded() -> None:
    """Its bucket may have been released before: αX has passed since the first row of that bucket."""
    plan, directory = plan_of()
    rows = without_b(plan)
    place = 12
    at = int(rows.time[place])
    events = [*history(plan, but(rows, place))]
    late = [
        replace(e, at_us=e.at_us + SECOND) if isinstance(e, Sent) and e.channel.stream == A and e.high_us == at else e
        for e in events
    ]
    early = Sent(at, Channel(B, 0), 10**6, BEFORE_TIME, at)
    verdict = judge(
        History(sorted([*late, early], key=lambda e: e.at_us)),
        plan,
        directory,
        results(plan),
        premise=Premise(healed=False),
        recompute=lambda kept: results(plan, kept),
    )
    assert rules(verdict) == []


def test_windows_that_wait_for_an_ended_source_are_not_demanded() -> None:
    """The end of an input starts no clocks (B3), so windows after it stay open while all other sources are out."""
    plan, directory = plan_of(COUNT, COUNTS)
    rows = without_b(plan)
    kept = rows.slice(0, int(np.searchsorted(rows.time, 15 * SECOND)))
    ends = [
        e
        for e in history(plan, kept)
        if not (isinstance(e, Sent) and e.channel.stream == A and e.high_us > 15 * SECOND)
    ]
    ends.append(Sent(15 * SECOND + 20_000, Channel(A, 0), 2 * UNTIL_S, BEFORE_TIME, END_OF_TIME))
    out = Channel(StreamId("s2"), 0)
    ends.append(Delivered(20 * SECOND, "client:c", out, Boundary(Kind.TENTATIVE, 20 * SECOND, 0)))
    verdict = judge(
        History(sorted(ends, key=lambda e: e.at_us)),
        plan,
        directory,
        results(plan),
        premise=Premise(healed=False),
        recompute=lambda kept: results(plan, kept),
    )
    assert rules(verdict) == []
    assert verdict.counters.amounts["accuracy results compared"] > 5
