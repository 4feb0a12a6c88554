"""What is found wrong with files of rejected rows (U15)."""

from __future__ import annotations

import json
from pathlib import PurePosixPath
from types import SimpleNamespace
from typing import Any, cast

import pytest

from consistency.checking.counters import Counters
from operators.rejections import Rejection
from replicas.simulation.cluster import SimCluster
from replicas.simulation.disk import SimDisk
from replicas.simulation.rejected import LAGGING, check_rejected, rejects
from spe.config import load_data
from spe.stream.history import FaultBegan
from spe.stream.ids import PartitionId
from spe.stream.names import StreamId, UnitId
from tests.simulation.seldom import CONFIG

ARGUMENTS = {"late": 2, "by_us": 1, "null": 3, "bad": 5}
PLAN = load_data(
    {
        **CONFIG,
        "query": {
            "some": {"map": {"from": "a", "compute": {"v": "qty"}}},
            "all": {"custom": {"from": ["some"], "class": LAGGING, "arguments": ARGUMENTS, "on_error": "skip"}},
        },
        "sources": {"a": CONFIG["sources"]["a"]},
        "outputs": ["all"],
        "fragments": {"f1": {"operators": ["some", "all"], "replicas": ["n1a", "n1b"]}},
        "clients": {"client": {"reads": ["all"]}},
    }
).plan
OF = PartitionId(UnitId("f1"), 0)
WANTED = [
    Rejection(StreamId("all"), False, n, StreamId("some"), None, None, 1_000_000 * n, {"v": 10 * n}, f"bad: {n}")
    for n in (1, 2, 3)
]
LINES = [
    {
        "operator": "all",
        "kind": "row",
        "n": n,
        "from": "some",
        "id": None,
        "time": f"1970-01-01T00:00:0{n}",
        "values": {"v": 10 * n},
        "reason": f"bad: {n}",
    }
    for n in (1, 2, 3)
]
HEADER = {"plan": PLAN.fingerprint, "origin": "o"}


def found(*faults: tuple[str, str], complete: bool = True, **files: list[Any]) -> list[str]:
    """The findings of files of some nodes; a line is data or text."""
    history = [FaultBegan(0, at, kind, (host,), (), 0.0) for at, (kind, host) in enumerate(faults)]
    disks = {}
    for host, lines in files.items():
        disks[host] = disk = SimDisk()
        text = "".join(one if isinstance(one, str) else json.dumps(one) + "\n" for one in lines)
        disk.open(PurePosixPath("nodes", host, "rejected", "f1-0.jsonl")).append(text.encode())
    told = SimpleNamespace(plan=PLAN, history=_History(history), disks=disks)
    return [f.what for f in check_rejected(cast(SimCluster, told), {OF: WANTED}, complete, Counters())]


class _History(list[FaultBegan]):
    end_us = 9


def test_two_files_that_have_all_together_are_right() -> None:
    one, two, three = LINES
    assert rejects(PLAN)
    assert found(n1a=[HEADER, one, three], n1b=[HEADER, two, three]) == []


def test_a_row_that_is_in_no_file_is_found_unless_a_disk_was_lost_or_not_all_has_ended() -> None:
    one, _, three = LINES
    files = {"n1a": [HEADER, one, three], "n1b": [HEADER, one]}
    (what,) = found(**files)
    assert what.startswith("of 3 rejected rows of f1/0 1 are in no file; the first is")
    assert found(("wipe", "n1b"), **files) == found(complete=False, **files) == []


@pytest.mark.parametrize(
    ("lines", "what"),
    [
        ([LINES[0], LINES[0]], "line 3 has number 1 of all, after 1"),
        ([LINES[1], LINES[0]], "line 3 has number 1 of all, after 2"),
        ([{**LINES[0], "reason": "another"}], "line 2 is {"),
        ([{**LINES[0], "n": 4}], "no such rejection"),
        (["{\n"], "line 2 is b'{', no JSON"),
    ],
)
def test_what_a_run_without_failures_has_not_is_found_in_any_file_of_an_honest_disk(
    lines: list[Any], what: str
) -> None:
    files = {"n1a": [HEADER, *LINES], "n1b": [HEADER, *lines]}
    (wrong,) = found(**files)
    assert what in wrong
    assert found(("flip", "n1b"), **files) == found(("lie", "n1b"), **files) == []


def test_what_a_power_failure_may_leave_is_right() -> None:
    """A torn line, an end without a newline, and what is written again behind another header."""
    files = {"n1a": [HEADER, LINES[0], "5\n", "{\n", {**HEADER, "plan": "other"}, "7\n", HEADER, *LINES, '{"ope']}
    assert found(("power", "n1a"), **files) == []
