"""How often a tentative result may live, counted at once for all that a client received, beside counting one by one."""

from __future__ import annotations

from bisect import bisect_right

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from consistency.checking.counters import Counters
from consistency.checking.rows import among, joined
from consistency.checking.switching import check_switching
from spe.stream.batch import Batch, Rows
from spe.stream.ids import Channel
from spe.stream.names import StreamId
from tests.support.histories import told
from tests.support.plans import chain, source, union_of
from tests.support.streams import PAYLOAD, parse

OUT = Channel(StreamId("s1"), 0)
PLAN = chain(
    [source(name, reader={"kind": "generator"}, schema=PAYLOAD) for name in "ab"], [("s1", union_of("a", "b"), PAYLOAD)]
).plan
VALUES = st.sampled_from("xyz")
#: Tentative tuples, all of one time; an undo; so many stable tuples; or a client that begins anew at its position.
STEPS = st.lists(st.one_of(st.lists(VALUES, min_size=1, max_size=4), st.sampled_from(["U", "anew", 1, 2])), max_size=12)


@given(values=st.text("xy", max_size=6), steps=STEPS)
def test_each_batch_with_a_result_that_lives_already_is_found(values: str, steps: list[list[str] | str | int]) -> None:
    whole = [f"S{at}/10{value}" for at, value in enumerate(values, 1)]
    position = 0
    living: list[str] = []
    lines, wanted = ["0 up client:c", "0 open client:c n1a #1 main 0"], []
    for second, step in enumerate(steps, 1):
        if isinstance(step, int):
            given_now = whole[position : position + step]
            living = [] if given_now else living
            position += len(given_now)
            lines += [f"{second} give client:c: U({position - len(given_now)}) {' '.join(given_now)}"] * bool(given_now)
        elif isinstance(step, list):
            lines.append(f"{second} give client:c: {' '.join(f'T/10{value}' for value in step)}")
            living += step
            ids = {value: [at for at, v in enumerate(values, 1) if v == value] for value in "xyz"}
            held = {v: bisect_right(ids[v], position) + living.count(v) for v in step}
            wanted += [second] * any(held[v] > len(ids[v]) for v in step if ids[v])
        else:
            living = []
            anew = f"{second} down client:c\n{second} up client:c\n{second} open client:c n1a #1 main {position}"
            lines.append(f"{second} give client:c: U({position})" if step == "U" else anew)
    batches = [one for one in parse(" ".join(whole), PAYLOAD) if isinstance(one, Batch)]
    reference = {OUT: joined(batches) if batches else (np.empty(0, np.int64), Rows.empty(PAYLOAD))}
    findings = list(check_switching(told("\n".join(lines)), PLAN, reference, Counters()))
    assert {f.rule for f in findings} <= {"no result lives twice"}
    assert [f.at_us // 1_000_000 for f in findings] == wanted


@given(st.lists(st.integers(0, 9)), st.lists(st.integers(0, 9)))
def test_what_is_among_others(ours: list[int], others: list[int]) -> None:
    found = among(np.array(ours, np.uint64), np.array(others, np.uint64))
    assert found.tolist() == [one in others for one in ours]
