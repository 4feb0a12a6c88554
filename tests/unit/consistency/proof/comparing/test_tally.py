"""What is counted of tentative tuples, by window, against going through them one by one."""

from __future__ import annotations

import math
import random
from collections import Counter
from typing import Any

import pyarrow as pa
import pytest

from consistency.proof.comparing.tally import WindowTally

TUPLE = pa.struct([("x", pa.float64()), ("n", pa.int64())])
SCHEMA = pa.schema(
    [
        *[(name, pa.int64()) for name in ("episode", "window_us", "arrived_us", "undone_at_us")],
        ("tentative", TUPLE),
        ("true", TUPLE),
        ("right", pa.bool_()),
    ]
)


def drawn(rng: random.Random, count: int) -> list[dict[str, Any]]:
    found = []
    for _ in range(count):
        given, stood = rng.choice([(True, True), (True, True), (True, False), (False, True)])
        xs, ns = [None, 0.0, -0.0, 2.0, math.inf], [None, 0, 3, 2**60 + 1]
        one, other = ({"x": rng.choice(xs), "n": rng.choice(ns)} for _ in "ab")
        found.append(
            {
                "episode": rng.randrange(2),
                "window_us": 10 * rng.randrange(3),
                "arrived_us": rng.randrange(50) if given else None,
                "undone_at_us": rng.choice([None, 60, 70]) if given else None,
                "tentative": one if given else None,
                "true": other if stood else None,
                "right": given and stood and rng.random() < 0.5,
            }
        )
    return found


def error(row: dict[str, Any], name: str) -> float | None:
    if row["tentative"] is None or row["true"] is None:
        return None
    one, other = row["tentative"][name], row["true"][name]
    if one is None or other is None:
        return None
    if other == 0:
        return 0.0 if one == other else 1.0
    return abs(one - other) / abs(other)


@pytest.mark.parametrize("seed", range(4))
def test_windows_are_counted(seed: int) -> None:
    rows = drawn(random.Random(seed), 200)
    tally = WindowTally(("x", "n"))
    made = pa.Table.from_batches(tally(pa.Table.from_pylist(rows, SCHEMA).to_batches(30)), tally.made).to_pylist()
    for episode in range(2):
        for window in (0, 10, 20):
            mine = [r for r in rows if (r["episode"], r["window_us"]) == (episode, window)]
            ours = [r for r in made if (r["episode"], r["window_us"]) == (episode, window)]
            given, stood = ([r[side] is not None for r in mine] for side in ("tentative", "true"))
            expected = {
                "tentative": sum(given),
                "truth": sum(stood),
                "both": sum(a and b for a, b in zip(given, stood)),
                "right": sum(r["right"] for r in mine),
            }
            assert {name: sum(r[name] for r in ours) for name in expected} == expected
            came = [r["arrived_us"] for r in mine if r["arrived_us"] is not None]
            assert min(r["at_us"] for r in ours if r["at_us"] is not None) == min(came)
            for name in ("x", "n"):
                errors = [e for r in mine if (e := error(r, name)) is not None]
                assert sum(r[f"count {name}"] for r in ours) == len(errors)
                assert sum(r[f"sum {name}"] for r in ours) == pytest.approx(sum(errors), nan_ok=True)
    wrong = [r for r in rows if r["tentative"] is not None and not r["right"] and r["undone_at_us"] is not None]
    stood_us: Counter[int] = Counter()
    for r in made:
        if r["episode"] is None:
            stood_us[r["stood_us"]] += r["stood"]
    assert stood_us == Counter(r["undone_at_us"] - r["arrived_us"] for r in wrong)


@pytest.mark.parametrize("type_", [pa.string(), pa.bool_(), pa.timestamp("us", "UTC")], ids=str)
def test_value_received_as_another_type_has_no_error(type_: pa.DataType) -> None:
    values = pa.array([1]).cast(pa.timestamp("us", "UTC")) if pa.types.is_timestamp(type_) else pa.array([True])
    tuples = pa.StructArray.from_arrays([values.cast(type_)], names=["x"])
    longs = [pa.array([n]) for n in (0, 0, 5, 9)]
    columns = [*longs, tuples, tuples, pa.array([False])]
    (window, stood) = WindowTally(("x",))([pa.RecordBatch.from_arrays(columns, names=SCHEMA.names)])
    assert window.select(["both", "sum x", "count x"]).to_pylist() == [{"both": 1, "sum x": 0.0, "count x": 0}]
    assert stood.select(["stood_us", "stood"]).to_pylist() == [{"stood_us": 4, "stood": 1}]


def test_nothing_is_made_of_nothing() -> None:
    tally = WindowTally(())
    assert list(tally([pa.RecordBatch.from_pylist([], SCHEMA)])) == []
