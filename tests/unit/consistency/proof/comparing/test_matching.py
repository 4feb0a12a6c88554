"""How tuples of both sides are distributed among the tasks that match them."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("pyspark", reason="needs the extra spark")
from consistency.proof.comparing import matching
from consistency.proof.comparing.accuracy import _hulls
from consistency.proof.comparing.matching import PACKAGES, Packer
from consistency.proof.recorded.records import TENTATIVE_ROWS
from consistency.proof.storage.files import TRUE_ROWS

TEXTS = [
    None,
    "",
    "a",
    "\0",
    "eight by",
    "nine byte",
    "ninebytes",
    "é" * 4,
    "é" * 9,
    "x" * 40,
    "x" * 41,
    "y" + "x" * 40,
]
TUPLE = pa.struct(
    [("n", pa.int64()), ("x", pa.float64()), ("s", pa.string()), ("b", pa.bool_()), ("t", pa.timestamp("us", "UTC"))]
)
KEY = ("n", "x", "s", "b", "t")


def some_rows(rng: random.Random, count: int, *, true: bool) -> list[dict[str, Any]]:
    found = []
    for at in range(count):
        values = {
            "n": rng.choice([None, -1, 2**63 - 1]),
            "x": rng.choice([None, 1.0, 1.0 + 1e-12]),
            "s": rng.choice(TEXTS),
            "b": rng.choice([None, True, False]),
            "t": rng.choice([None, 0, 5]),
        }
        row = {"partition": rng.randrange(2), "time_us": rng.randrange(-2, 30), "tuple": values}
        found.append(row | ({"place": at} if true else {"sequence": at, "row": at % 3, "arrived_us": at * 7}))
    return found


def batches(rows: list[dict[str, Any]], *, true: bool) -> list[pa.RecordBatch]:
    types = dict.fromkeys(TENTATIVE_ROWS, pa.int64()) | {"partition": pa.int32(), "row": pa.int32(), "tuple": TUPLE}
    schema = pa.schema([(name, types.get(name, pa.int64())) for name in (TRUE_ROWS if true else TENTATIVE_ROWS)])
    return pa.Table.from_pylist(rows, schema).to_batches(7)


def unpacked(packages: list[pa.RecordBatch]) -> list[tuple[int, dict[str, Any]]]:
    found = []
    for one in packages:
        assert one.schema == PACKAGES
        for task, package in zip(one.column("task").to_pylist(), one.column("package")):
            rows = pa.ipc.read_record_batch(package.as_buffer(), matching._packed(TUPLE)).to_pylist()
            found += [(task, row) for row in rows]
    return found


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("tasks", [1, 5, 100_000])
def test_rows_that_may_match_go_to_one_task(monkeypatch: pytest.MonkeyPatch, seed: int, tasks: int) -> None:
    monkeypatch.setattr(matching, "_PACKED", 50)
    rng = random.Random(seed)
    given, stood = some_rows(rng, 300, true=False), some_rows(rng, 400, true=True)
    packed = unpacked(list(Packer(TUPLE, KEY, tasks)(batches(given, true=False))))
    packed += unpacked(list(Packer(TUPLE, KEY, tasks)(batches(stood, true=True))))
    assert {task for task, _ in packed} <= set(range(tasks))
    of_key: dict[Any, set[int]] = defaultdict(set)
    for task, row in packed:
        exact = [str(row["tuple"][name]) for name in KEY if name != "x"]
        of_key[row["partition"], row["time_us"], *exact].add(task)
    assert all(len(some) == 1 for some in of_key.values())
    assert len({task for task, _ in packed}) >= min(tasks, 100)  # and they are spread
    ours = [row["major"] for _, row in packed if row["arrived_us"] is not None]
    theirs = [row["major"] for _, row in packed if row["arrived_us"] is None]
    assert sorted(ours) == list(range(300))
    assert sorted(theirs) == list(range(400))


@pytest.mark.parametrize(
    "text", ["c{:08d}", "customer-{:08d}@example.com", "urn:" + "x" * 50 + "{:08d}" + "y" * 90, "é" * 99 + "{:08d}"]
)
def test_texts_of_one_time_are_spread(text: str) -> None:
    """Also where they begin and end alike, and have one length."""
    nothing: dict[str, Any] = dict.fromkeys(KEY)
    row = {"partition": 0, "time_us": 7}
    rows = [row | {"place": n, "tuple": nothing | {"s": text.format(n)}} for n in range(2_000)]
    tasks = Counter(task for task, _ in unpacked(list(Packer(TUPLE, ("s",), 8)(batches(rows, true=True)))))
    assert len(tasks) == 8
    assert max(tasks.values()) < 2 * min(tasks.values())


def test_rows_outside_the_spans_are_left_out() -> None:
    stood = some_rows(random.Random(1), 200, true=True)
    spans = [(-1, 3), (5, 5), (9, 20)]
    packed = unpacked(list(Packer(TUPLE, KEY, 3, spans)(batches(stood, true=True))))
    inside = [row["place"] for row in stood if any(a <= row["time_us"] <= b for a, b in spans)]
    assert sorted(row["major"] for _, row in packed) == inside
    assert list(Packer(TUPLE, KEY, 3, [])(batches(stood, true=True))) == []


def test_spans_are_covered_by_fewer_ones() -> None:
    spans = [(0, 1), (5, 6), (8, 9), (30, 40), (41, 50)]
    assert _hulls(spans, 5) == spans
    assert _hulls(spans, 4) == [(0, 1), (5, 6), (8, 9), (30, 50)]
    assert _hulls(spans, 2) == [(0, 9), (30, 50)]
    assert _hulls(spans, 1) == [(0, 50)]
    assert _hulls([], 1) == []
