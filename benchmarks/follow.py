"""The proof of a run that goes on: what an hour of the stream costs, in steps of a minute, and after the run."""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from unittest.mock import patch

import numpy as np
import trio
import yaml

from benchmarks.proof import _cpu_s, _most_mib
from benchmarks.tables import CHECKED, demand, show
from replicas.client.recorder import Recorder
from replicas.reference import run_reference
from spe.config import load_data
from spe.log import SegmentedLog
from spe.log.recording import client_folder
from spe.log.source_log import SourceState, encode_source_record, source_folder
from spe.runtime.storage import DiskStorage
from spe.stream.batch import Batch, Boundary, Column, Element, Rows
from spe.stream.change import Change
from spe.stream.ids import Channel
from spe.stream.names import Kind, StreamId
from spe.stream.schema import Schema
from spe.stream.times import END_OF_TIME, MILLISECOND, SECOND

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from consistency.proof.report.follow_model import Followed

SOURCES: Final = ("a", "b")
KEYS: Final = 20
#: A source sends what is due so often, and a boundary.
_SENDS_US: Final = 25 * MILLISECOND
_BOUNDARY_US: Final = 100 * MILLISECOND
_SOURCE: Final[dict[str, Any]] = {
    "schema": {"ts": "timestamp!", "key": "int64!", "price": "float64!"},
    "time": "ts",
    "from": {"jsonl": "none.jsonl"},
    "replay": {"max": True},
}
CONFIG: Final[dict[str, Any]] = {
    "bucket": "100ms",
    "sources": dict.fromkeys(SOURCES, _SOURCE),
    "query": {
        "all": {"union": list(SOURCES)},
        "large": {"filter": {"from": "all", "where": "price >= 10"}},
        "per_second": {
            "aggregate": {
                "from": "large",
                "window": "1s",
                "group_by": "key",
                "compute": {"orders": "count(*)", "revenue": "sum(price)"},
            }
        },
        "load": {
            "aggregate": {
                "from": "large",
                "window": {"sliding": "10s", "slide": "1s"},
                "compute": {"orders": "count(*)", "mean": "avg(price)"},
            }
        },
    },
    "outputs": ["per_second", "load"],
    "nodes": ["n1", "n2"],
    "clients": {"board": {"reads": ["per_second", "load"]}},
}


def options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("follow")
    group.add_argument("--follow-hours", type=float, default=1.0, help="of the stream")
    group.add_argument("--follow-rate", type=int, default=100, help="tuples per second, of both sources together")


def run(arguments: argparse.Namespace) -> None:
    from consistency.proof.session.session import session

    spark = session("benchmark", master="local[2]")
    spark.range(1_000).selectExpr("id % 7 AS k").groupBy("k").count().collect()
    seconds = round(arguments.follow_hours * 3_600)
    try:
        with tempfile.TemporaryDirectory(prefix="spe-follow-") as folder:
            rows = [
                _measured(spark, Path(folder) / str(each), seconds, arguments.follow_rate, each)
                for each in (True, False)
            ]
    finally:
        spark.stop()
    show(
        "Proof of a run that goes on",
        ("step", "steps", "results", "s per hour", "CPU s per hour", "median step s", "state KiB", "Java MiB"),
        rows,
        [
            f"{arguments.follow_rate} tuples/s of two sources for {seconds} s, a record of each log every 25 ms;",
            "results per second and key, and a mean over 10 s every second, at one client. Without the start of Spark.",
            f"{CHECKED}: every result is that of spe reference.",
        ],
    )


def _measured(spark: SparkSession, path: Path, seconds: int, rate: int, minutes: bool) -> tuple[str, ...]:
    from consistency.proof.follow import ranges
    from consistency.proof.follow.follow_loop import Following

    made = _make(path, seconds, rate)
    java = int(spark._jvm.java.lang.ProcessHandle.current().pid())  # type: ignore[union-attr]
    cpu_s, own_s, took = _cpu_s(java), time.process_time(), []
    records = ranges.STEP_RECORDS if not minutes else 60 * len(SOURCES) * SECOND // _SENDS_US
    with patch.object(ranges, "STEP_RECORDS", records):
        proof = Following(path, 60 * SECOND)
        while not proof.state.over:
            step = proof.step(spark, lambda what: None)
            assert step is not None
            took.append(step.seconds)
            print(f"{time.strftime('%H:%M:%S')}  step {step.number}: {step.seconds} s", flush=True)
    found = proof.write()
    _check(found, made)
    hours = seconds / 3_600
    cpu_s = _cpu_s(java) - cpu_s + time.process_time() - own_s
    size = sum(p.stat().st_size for p in (path / "follow").rglob("*"))
    return (
        "a minute" if minutes else "as much as fits",
        f"{found.steps}",
        f"{made:,}",
        f"{found.seconds / hours:.1f}",
        f"{cpu_s / hours:.1f}",
        f"{sorted(took)[len(took) // 2]:.1f}",
        f"{size / 1024:.0f}",
        f"{_most_mib(java):.0f}",
    )


def _check(found: Followed, made: int) -> None:
    wrong = [o.title for o in found.outputs if o.findings]
    demand(not wrong, f"tuples are wrong of {wrong}")
    demand(sum(o.truth for o in found.outputs) == made, f"{made} results were expected")
    demand(sum(o.stable for o in found.outputs) == made, f"{made} results were received")


def _make(path: Path, seconds: int, rate: int) -> int:
    """A run that is over; gives the number of results."""
    path.mkdir()
    (path / "config.yaml").write_text(yaml.safe_dump(CONFIG, sort_keys=False))
    plan = load_data(CONFIG).plan
    (path / "cluster.json").write_text(json.dumps({"data": str(path), "fingerprint": plan.fingerprint}))
    (path / "events.jsonl").write_text(json.dumps({"t": 0, "event": "begin", "begun_us": 0}) + "\n")
    inputs = {StreamId(name): list(_sent(at, seconds, rate // len(SOURCES))) for at, name in enumerate(SOURCES)}
    for stream, elements in inputs.items():
        trio.run(_write_log, path, stream, plan.sources[stream].schema, elements)
    schemas = {Channel(s, 0): plan.query.schema_of(s) for s in plan.query.outputs}
    recorder, made = Recorder(DiskStorage(path), client_folder("board"), schemas), 0
    for at, (channel, element) in enumerate(run_reference(plan, inputs, step_rows=rate // 10)):
        recorder.write(Change(channel, element, at))
        made += len(element) if isinstance(element, Batch) else 0
    recorder.close()
    return made


async def _write_log(path: Path, stream: StreamId, schema: Schema, elements: list[Element]) -> None:
    log = await SegmentedLog.open(DiskStorage(path), source_folder(stream))
    state = SourceState(origin_us=0, begun_us=0)
    for element in elements:
        batch = element if isinstance(element, Batch) else None
        if batch is not None:
            state = state._replace(last_id=batch.upto_id, consumed=batch.upto_id)
        elif isinstance(element, Boundary):
            state = state._replace(bound_us=element.time)
        log.append(encode_source_record(state, batch, schema))
    await log.sync()
    log.close()


def _sent(source: int, seconds: int, rate: int) -> Iterator[Element]:
    """What a source sends: as much as becomes due within 25 ms in a batch, and its boundaries."""
    ids = np.arange(seconds * rate, dtype=np.int64)
    time_us = ids * SECOND // rate + source
    random = np.random.default_rng(source)
    columns = (
        Column(time_us),
        Column(random.integers(0, KEYS, len(ids))),
        Column(random.integers(0, 400, len(ids)) / 4),
    )
    rows = Rows(time_us, time_us, columns)
    ends = np.arange(_SENDS_US, seconds * SECOND + 1, _SENDS_US)
    before = 0
    for end, upto in zip(ends.tolist(), time_us.searchsorted(ends).tolist()):
        if upto > before:
            yield Batch(Kind.STABLE, before, upto, None, rows.slice(before, upto))
            before = upto
        if end % _BOUNDARY_US == 0:
            yield Boundary(Kind.STABLE, end, before)
    yield Boundary(Kind.STABLE, END_OF_TIME, before)
