"""How often a tentative result may live, counted at once for all that a client received, beside counting one by one."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from consistency.checking.counters import Counters
from consistency.checking.promises.switching import check_switching
from consistency.checking.rows import among, joined
from spe.plan.plan import Plan
from spe.query.operators.aggregate import AggregateCall, AggregateSpec
from spe.query.windows import TumblingWindow
from spe.stream.batch import Batch, Rows
from spe.stream.ids import Channel
from spe.stream.names import StreamId
from spe.stream.schema import Schema
from tests.support.histories import told
from tests.support.plans import chain, source, union_of
from tests.support.streams import PAYLOAD, parse

OUT = Channel(StreamId("s1"), 0)
SOURCES = [source(name, reader={"kind": "generator"}, schema=PAYLOAD) for name in "ab"]
UNION = chain(SOURCES, [("s1", union_of("a", "b"), PAYLOAD)]).plan
WINDOWS = Schema.of(key="string", window_start="timestamp", window_end="timestamp", n="int64")
COUNT = AggregateSpec(StreamId("a"), TumblingWindow(10), {"key": "x"}, {"n": AggregateCall("count")})
SUMS = chain(SOURCES, [("s1", COUNT, WINDOWS)]).plan
#: Group and count of a result; all are of one window.
VALUES = st.sampled_from(["k1", "k2", "l1", "m1"])
#: Tentative tuples; an undo; so many stable tuples; or a client that begins anew at its position.
STEPS = st.lists(st.one_of(st.lists(VALUES, min_size=1, max_size=4), st.sampled_from(["U", "anew", 1, 2])), max_size=12)


@given(plan=st.sampled_from([UNION, SUMS]), values=st.lists(st.sampled_from(["k1", "k2", "l1"])), steps=STEPS)
def test_each_batch_with_a_live_duplicate_is_detected(
    plan: Plan, values: list[str], steps: list[list[str] | str | int]
) -> None:
    def text(value: str) -> str:
        return f"10{value[0] if value[1] == '1' else 'x'}" if plan is UNION else f"9:{value[0]},0,10,{value[1]}"

    def allowed(value: str) -> float:
        """How often its equals may live; of a union, a result that is wrong may live as often as it comes."""
        return len(ids[same(value)]) or (float("inf") if plan is UNION else 1)

    def same(value: str) -> str:
        return value if plan is UNION else value[0]

    ids: dict[str, list[int]] = defaultdict(list)
    for at, value in enumerate(values, 1):
        ids[same(value)].append(at)
    whole = [f"S{at}/{text(value)}" for at, value in enumerate(values, 1)]
    position = 0
    living: list[str] = []
    lines, wanted = ["0 up client:c", "0 open client:c n1a #1 main 0"], []
    for second, step in enumerate(steps, 1):
        if isinstance(step, list):
            lines.append(f"{second} give client:c: {' '.join(f'T/{text(value)}' for value in step)}")
            living += [same(value) for value in step]
            held = {v: bisect_right(ids[same(v)], position) + living.count(same(v)) for v in step}
            wanted += [second] * any(held[v] > allowed(v) for v in step)
        elif step == "anew":
            living = []
            lines += [f"{second} down client:c", f"{second} up client:c"]
            lines.append(f"{second} open client:c n1a #1 main {position}")
        else:
            living = []
            lines.append(f"{second} give client:c: U({position})")
            stable = whole[position : position + step] if isinstance(step, int) else []
            lines[-1] += "".join(f" {one}" for one in stable)
            position += len(stable)
    schema = plan.query.schema_of(OUT.stream)
    batches = [one for one in parse(" ".join(whole), schema) if isinstance(one, Batch)]
    reference = {OUT: joined(batches) if batches else (np.empty(0, np.int64), Rows.empty(schema))}
    findings = list(check_switching(told("\n".join(lines), schema), plan, reference, Counters()))
    assert {f.rule for f in findings} <= {"no result lives twice"}
    assert [f.at_us // 1_000_000 for f in findings] == wanted


@given(st.lists(st.integers(0, 9)), st.lists(st.integers(0, 9)))
def test_membership_among_others_equals_reference(ours: list[int], others: list[int]) -> None:
    found = among(np.array(ours, np.uint64), np.array(others, np.uint64))
    assert found.tolist() == [one in others for one in ours]
