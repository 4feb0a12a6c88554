"""What a checkpoint costs, and the first write after it, by size of the state."""

from __future__ import annotations

import argparse
import time
from statistics import median

import numpy as np

from benchmarks.tables import CHECKED, demand, show
from operators.fragment import Fragment
from operators.sunion.slice import Slice
from spe.api import Environment, stdin, tumbling
from spe.stream.batch import AnyArray, Column, Rows
from spe.stream.names import Kind

KEYS = (1_000, 100_000, 1_000_000)
#: Rows that are written after a checkpoint.
WRITTEN = 1_000
ROUNDS = 15
#: A pause that nobody notices beside a tick of 10 ms.
LIMIT_US = 1_000.0


def make_fragment() -> Fragment:
    env = Environment("bench")
    rows = env.source("rows", stdin(format="jsonl"), {"key": "int64!", "value": "float64!"})
    out = (
        rows.key_by("key")
        .window(tumbling("1h"))
        .aggregate("out", n="count(*)", total="sum(value)", mean="avg(value)", low="min(value)", high="max(value)")
    )
    return Fragment(env.outputs(out).node("n").fragment("f", [out], replicas=1).plan().units[0])


def piece(at: int, key: AnyArray, value: AnyArray) -> Slice:
    stamps = np.full(len(key), at, np.int64)
    return Slice([[Rows(stamps, stamps, (Column(key), Column(value)))]], at + 1, Kind.STABLE)


def clock(function: object) -> float:
    begin = time.perf_counter()
    function()  # type: ignore[operator]
    return 1e6 * (time.perf_counter() - begin)


def measure(keys: int) -> tuple[float, float, float, float]:
    """Median microseconds: snapshot, a step without one before it, the first step after one, the next after that."""
    random = np.random.default_rng(keys)
    fragment = make_fragment()
    fragment.step(piece(1, np.arange(keys), random.normal(size=keys)))
    took: list[list[float]] = [[], [], [], []]
    total, at = keys, 1
    saved = None
    for _ in range(ROUNDS):
        steps = []
        for _ in range(3):
            at += 1
            steps.append(piece(at, random.integers(0, keys, WRITTEN), random.normal(size=WRITTEN)))
            total += WRITTEN
        took[1].append(clock(lambda steps=steps: fragment.step(steps[0])))
        counted = total - 2 * WRITTEN
        states: list[object] = []
        took[0].append(clock(lambda states=states: states.append(fragment.snapshot())))
        saved = (states[0], counted)
        took[2].append(clock(lambda steps=steps: fragment.step(steps[1])))
        took[3].append(clock(lambda steps=steps: fragment.step(steps[2])))
    assert saved is not None
    # The last snapshot has to be what it was when it was taken, whatever was written since.
    restored = make_fragment()
    restored.restore(saved[0])  # type: ignore[arg-type]
    for one, wanted in ((restored, saved[1]), (fragment, total)):
        rows = one.step(Slice([[]], 7_200_000_000, Kind.STABLE))[0]
        demand(
            rows is not None and int(rows.columns[3].values.sum()) == wanted, "a snapshot changed after it was taken"
        )
    return median(took[0]), median(took[1]), median(took[2]), median(took[3])


def run(arguments: argparse.Namespace) -> None:
    rows = []
    for keys in KEYS:
        pause, before, first, after = measure(keys)
        verdict = f"<= {LIMIT_US:g}: {'met' if pause <= LIMIT_US else 'MISSED'}"
        rows.append([f"{keys:,}", f"{pause:.1f}", f"{before:.0f}", f"{first:.0f}", f"{after:.0f}", verdict, CHECKED])
    show(
        "Checkpoint",
        [
            "keys",
            "snapshot us",
            f"step of {WRITTEN:,} rows us",
            "first step after a snapshot us",
            "next us",
            "target",
            "check",
        ],
        rows,
        [
            "A fragment with count, sum, avg, min and max per key in one open window.  A",
            "snapshot refers to the arrays; the",
            f"first write after it copies them.  Wall time, median of {ROUNDS}.  Restoring",
            "the snapshot gives what was there then.",
        ],
    )
