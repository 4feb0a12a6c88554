"""Results as lines of JSON, as sinks and ``spe reference`` write them, beside ``json.dumps`` of each row."""

from __future__ import annotations

import argparse
import json
import time
from statistics import median

import numpy as np

from benchmarks.tables import CHECKED, chosen, demand, show, spread, verdict
from replicas.connectors.formats.json_text import json_text
from spe.stream.batch import Batch, Column, Rows
from spe.stream.names import Kind
from spe.stream.schema import Schema
from spe.stream.strings import StringDictionary
from spe.stream.times import iso_timestamp

#: Rows of a batch, and how many have the same time.
SHAPES = [(50_000, 50), (50_000, 1)]
ROUNDS = 5
LIMIT_US = 1.0
_SECOND = 1_000_000
_SCHEMA = Schema.of(
    key="int64", window_start="timestamp", window_end="timestamp", n="int64", revenue="float64", shop="string"
)


def run(arguments: argparse.Namespace) -> None:
    table = []
    for rows, each in chosen(SHAPES, arguments):
        batch = _batch(rows, each)
        took: dict[str, list[float]] = {"dumps": [], "ours": []}
        for _ in range(ROUNDS):
            found = []
            for name, lines in (("dumps", _dumped), ("ours", lambda b: b"".join(json_text(b, _SCHEMA, False)))):
                began = time.process_time()
                found.append(lines(batch))
                took[name].append(1e6 * (time.process_time() - began) / rows)
            demand(found[0] == found[1], "the lines are others")
        ours = took["ours"]
        table.append([f"{rows:,}", each, *(spread(t) for t in took.values()), verdict(median(ours), LIMIT_US), CHECKED])
    show(
        "rows as JSON",
        ["rows", "of one time", "json.dumps, µs/row", "ours, µs/row", "target", "check"],
        table,
        [f"CPU. A window's result of six attributes. {ROUNDS} rounds: median (min-max)."],
    )


def _batch(rows: int, each: int) -> Batch:
    draw, dictionary = np.random.default_rng(1), StringDictionary()
    start = 1_767_225_600_000_000 + np.arange(rows) // each * _SECOND
    columns = (
        Column(draw.integers(0, 50, rows)),
        Column(start),
        Column(start + _SECOND),
        Column(draw.integers(1, 100, rows)),
        Column(np.round(draw.random(rows) * 1_000, 2)),
        Column(dictionary.encode([f"shop {i % 40}" for i in range(rows)]), None, dictionary),
    )
    time_us = start + _SECOND - 1
    return Batch(Kind.STABLE, 0, rows, None, Rows(time_us, time_us, columns))


def _dumped(batch: Batch) -> bytes:
    lines = []
    for id_, at, row in zip(batch.row_ids().tolist(), batch.rows.time.tolist(), batch.rows.to_tuples()):
        key, start, end, n, revenue, shop = row
        times = {name: iso_timestamp(t) + "Z" for name, t in (("_time", at), ("start", start), ("end", end))}
        members = {"_id": id_, "_time": times["_time"], "key": key, "window_start": times["start"],
                   "window_end": times["end"], "n": n, "revenue": revenue, "shop": shop}  # fmt: skip
        lines.append(json.dumps(members, ensure_ascii=False))
    return "\n".join([*lines, ""]).encode()
