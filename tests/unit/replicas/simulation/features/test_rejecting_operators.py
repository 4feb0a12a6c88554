"""A stream of rejections that is not what operators reject is found (U15)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from consistency.checking.counters import Counters
from operators.rejected import RejectedStream
from operators.rejections import Rejection
from operators.steps import finished
from replicas.simulation.features.rejecting_operators import LAGGING, check_rejected
from spe.config import load_data
from spe.query.operators.rejected import REJECTIONS
from spe.stream.batch import concat_rows
from spe.stream.ids import Channel, PartitionId
from spe.stream.names import StreamId, UnitId
from tests.simulation.seldom import CONFIG

ARGUMENTS = {"late": 2, "by_us": 1, "null": 3, "bad": 5}
PLAN = load_data(
    {
        **CONFIG,
        "query": {
            "some": {"map": {"from": "a", "compute": {"v": "qty"}}},
            "all": {"custom": {"from": ["some"], "class": LAGGING, "arguments": ARGUMENTS, "on_error": "skip"}},
            "left": {"rejected": {"from": "all"}},
        },
        "sources": {"a": CONFIG["sources"]["a"]},
        "outputs": ["all", "left"],
        "fragments": {"f1": {"operators": ["some", "all", "left"], "replicas": ["n1a", "n1b"]}},
        "clients": {"client": {"reads": ["all", "left"]}},
    }
).plan
OF = PartitionId(UnitId("f1"), 0)
WANTED = [Rejection(StreamId("all"), False, n, "some", None, n, {"v": 10 * n}, f"bad: {n}") for n in (1, 2, 3)]


def found(came: list[Rejection], wanted: list[Rejection] = WANTED) -> list[Any]:
    rows = concat_rows(finished(RejectedStream(REJECTIONS).made(came)))
    reference = {Channel(StreamId("left"), 0): (np.arange(len(rows)), rows)}
    return [f.what for f in check_rejected(PLAN, reference, {OF: wanted}, 0, Counters())]


def test_the_same_rows_are_right() -> None:
    assert found(WANTED) == []


@pytest.mark.parametrize(
    "came",
    [
        WANTED[:2],
        [*WANTED, WANTED[0]],
        [*WANTED[:2], replace(WANTED[2], reason="worse")],
        [*WANTED[:2], replace(WANTED[2], time=4)],
        [*WANTED[:2], replace(WANTED[2], result=True)],
    ],
)
def test_other_rows_are_detected(came: list[Rejection]) -> None:
    assert len(found(came)) == 1
