"""The outputs whose tentative keys must all be true ones."""

from __future__ import annotations

import pytest
import yaml

from consistency.proof.comparing.measures import keys_from_logs
from consistency.proof.recorded.query_file import read
from spe.config import load_data
from spe.stream.names import StreamId

QUERY = """
sources:
  a: {from: {generator: {name: orders, rate: 10, duration: 1s}}}
query:
  dear: {filter: {from: a, where: price > 1}}
  sums: {aggregate: {from: dear, window: 1s, group_by: key, compute: {n: count(*)}}}
  rows: {aggregate: {from: dear, window: {count: 3}, group_by: key, compute: {n: count(*)}}}
  again: {aggregate: {from: sums, window: 1s, group_by: n, compute: {m: count(*)}}}
  best: {topk: {from: sums, k: 1, order_by: [n desc, key]}}
outputs: [dear, sums, rows, again, best]
"""


@pytest.mark.parametrize(
    ("accuracy", "outputs"),
    [
        ("", ["dear", "sums"]),
        ("accuracy: {sums: {key: [key]}, dear: {key: [price]}}", ["dear", "sums"]),
        ("accuracy: {sums: {key: [key, n]}}", ["dear"]),  # n of a part of the rows is another
    ],
)
def test_keys_follow_from_any_part_of_the_logs(accuracy: str, outputs: list[str]) -> None:
    text = QUERY + accuracy
    plan, _ = load_data(yaml.safe_load(text))
    reading = read(text)
    assert [o for o in plan.query.outputs if keys_from_logs(plan, reading, StreamId(o))] == outputs
