"""From the heal to the last correction, for failures of up to ten minutes: a node process, real time.

The basic set-up at 10,000 tuples/s (at 100,000 for one row), one node without a partner, X = 1 s.  Two streams arrive
for D, the third one's tuples only at the heal.  Tuple times are those of the failure's length; the tuples themselves
are sent as fast as the node takes them, so a failure of ten minutes takes a few seconds.  From the heal on new tuples
of all streams come at their rate.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count
from typing import Final

import numpy as np
import trio

from benchmarks.cluster import (
    Process,
    Segment,
    at_free_addresses,
    feeder_main,
    node_main,
    numbered_buckets,
    pieces_of,
    reading,
    running,
)
from benchmarks.experiments.record import Plot, Row, experiment
from benchmarks.experiments.setup import CLIENT, FAILED, STREAMS, Setup, configuration
from benchmarks.tables import demand
from spe.config import load_data
from spe.plan.deploy import Deployed
from spe.plan.plan import Limits
from spe.runtime.production import tune_malloc
from spe.stream.batch import Batch, Boundary, Int64Array, RecDone
from spe.stream.change import Change
from spe.stream.names import Kind
from spe.stream.times import MILLISECOND, SECOND
from spe.wire.codec import ElementEncoder

BUCKET_US: Final = 100 * MILLISECOND
#: Before the failure, stable.
BEFORE_S: Final = 2
#: Seconds that anything may take.
PATIENCE_S: Final = 300


def _points(quick: bool) -> Iterator[Row]:
    for rate, failures in ((999, (2,)),) if quick else ((9_999, (5, 10, 30, 60, 120, 300, 600)), (99_999, (10,))):
        for policy in ("process", "suspend"):
            for failure_s in failures:
                yield {"rate": rate, "failure_s": failure_s, "stabilization": policy}


@experiment("healing", "beyond DPC", _points, Plot("failure_s", "rate stabilization", "last_s tuples_per_s"))
def healing(quick: bool, rate: int, failure_s: int, stabilization: str) -> Row:
    """From the heal to the last correction."""
    tune_malloc()
    return trio.run(_measured, rate, failure_s, stabilization)


def real_plan(setup: Setup) -> Deployed:
    """The set-up's plan at addresses of this machine."""
    plan, directory = load_data(configuration(setup))
    limits = replace(Limits(), input_bytes=2 << 30, output_bytes=2 << 30, suffix_bytes=2 << 30)
    return at_free_addresses(replace(plan, limits=limits), directory)


def make_segment(encoder: ElementEncoder, at: int, segment: int, each: int, failure_s: int) -> Segment:
    """Segment 0: before the failure; 1: the streams that go on; 2: the one that failed; from 3 on: new buckets."""
    stream, buckets = STREAMS[at], SECOND // BUCKET_US
    if segment in (1, 2) and (stream == FAILED) != (segment == 2):
        return []
    fails, heals = BEFORE_S * buckets, (BEFORE_S + failure_s) * buckets
    new = heals + segment - 3
    first, last = [(0, fails), (fails, heals), (fails, heals), (new, new + 1)][min(segment, 3)]
    return pieces_of(encoder, numbered_buckets(range(first, last), each * BUCKET_US // SECOND, BUCKET_US))


class _Reader:
    """Stable tuples at the client by stream, how far they are, and when the last correction ended."""

    def __init__(self) -> None:
        self.stable: list[tuple[Int64Array, Int64Array]] = []
        self.stable_until = self.until = 0
        self.tentative = 0
        self.first_correction = self.done = 0.0
        self._moved = trio.Event()

    async def wait(self, condition: Callable[[], bool]) -> None:
        while not condition():
            await self._moved.wait()

    def take(self, change: Change) -> None:
        element = change.element
        if isinstance(element, Batch):
            if element.kind is Kind.TENTATIVE:
                self.tentative += len(element)
            else:
                stream, number = (column.values for column in element.rows.columns[:2])
                self.stable.append((stream, number))
                if self.tentative and not self.first_correction:
                    self.first_correction = time.perf_counter()
        elif isinstance(element, Boundary):
            self.until = max(self.until, element.time)
            if element.kind is Kind.STABLE:
                self.stable_until = max(self.stable_until, element.time)
        elif isinstance(element, RecDone):
            self.done = time.perf_counter()
        self._moved.set()
        self._moved = trio.Event()

    def demand_all(self, least: int) -> None:
        """Raises WrongResult unless stable tuples came once and in order, and ``least`` of each stream or more."""
        streams, numbers = (np.concatenate(values) for values in zip(*self.stable, strict=True))
        for at in range(len(STREAMS)):
            mine = numbers[streams == at]
            demand(bool(np.array_equal(mine, np.arange(len(mine)))) and len(mine) >= least, f"stream {at} is not whole")


async def _measured(rate: int, failure_s: int, policy: str) -> Row:
    buckets = SECOND // BUCKET_US
    each = rate // len(STREAMS) // buckets * buckets
    setup = Setup(rate=each * len(STREAMS), x_us=SECOND, stabilization=policy, failure_us=failure_s * SECOND)
    plan, directory = real_plan(setup)
    reader, end = _Reader(), (1 + BEFORE_S + failure_s) * SECOND
    feeder = Process(feeder_main, plan, directory, make_segment, (each, failure_s))
    node = Process(node_main, plan, directory, setup.nodes(1)[0])
    with running(feeder, node):
        async with reading(plan, directory, CLIENT, reader.take) as (_, nursery):
            with trio.fail_after(PATIENCE_S):
                await feeder.send(0)
                await reader.wait(lambda: reader.stable_until >= SECOND + BEFORE_S * SECOND)
                await feeder.send(1)
                await reader.wait(lambda: reader.until >= end)
                await feeder.do("load", 2)
                begun = time.perf_counter()
                await feeder.do("go")
                nursery.start_soon(feeder.send_each, count(3), BUCKET_US)  # new tuples of all streams
                await reader.wait(lambda: reader.done > 0 and reader.stable_until >= end)
    reader.demand_all(each * (BEFORE_S + failure_s))
    redone = setup.rate * failure_s
    took = reader.done - begun
    return {
        "redone": redone,
        "first_s": reader.first_correction - begun,
        "last_s": took,
        "tuples_per_s": redone / took,
        "tentative": reader.tentative,
    }
