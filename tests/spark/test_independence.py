"""Mistakes of the engine that the proof could share: the verdict is INCONSISTENT each time.

The mutant runs, logs, records, and reads the configuration once more when it is judged, as the engine of a user's run
would.  The truth must stay right all the same.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import trio

from consistency.proof.judge import judge_run
from consistency.proof.recorded.run import Run
from consistency.proof.report.model import Flaw, Report, Verdict
from replicas.cli.run.summary import figures
from replicas.connectors import RowChunk
from replicas.local.history import EventList
from replicas.reference import run_reference
from replicas.source.admission import Admission
from replicas.source.proxy import SourceProxy
from replicas.source.stamping import Stamper
from spe.config import load_data
from spe.expressions import compile_expression
from spe.expressions.functions import FUNCTIONS
from spe.log.source_log import read_source_log, source_folder
from spe.query.windows import TumblingWindow
from spe.runtime.storage import DiskStorage
from spe.status import SourceStatus
from spe.stream.change import Change
from tests.support.long_forms import long_but
from tests.support.runs import make_run
from tests.support.source_env import source_env

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

START = "2026-01-01T00:00:00"
CONFIG: dict[str, Any] = {
    "bucket": "100ms",
    "sources": {
        "a": {
            "from": {"generator": {"name": "orders", "rate": 100, "keys": 4, "seed": 1, "count": 500,
                                   "disorder": "200ms", "start": START}},
            "disorder": "200ms",
            "replay": {"max": True},
        },
        "b": {
            "schema": {"ts": "timestamp!", "key": "int64!", "price": "float64!", "qty": "int64!"},
            "time": "ts",
            "from": {"csv": "b.csv"},
            "disorder": "20ms",
            "replay": {"max": True},
        },
    },
    "query": {
        "both": {"union": ["a", "b"]},
        "halved": {"map": {"from": "both", "compute": {"ts": "ts", "key": "key", "half": "qty / 2"}}},
        "totals": {
            "aggregate": {
                "from": "halved",
                "window": {"tumbling": "1s", "offset": "300ms"},
                "group_by": "key",
                "compute": {"n": "count(*)", "half": "sum(half)"},
            }
        },
    },
    "nodes": ["n1", "n2"],
}  # fmt: skip


def events() -> list[dict[str, Any]]:
    """Of a run that ends now."""
    now_us = time.time_ns() // 1000
    return [
        {"t": now_us - 10, "event": "begin", "begun_us": now_us - 10},
        {"t": now_us - 5, "event": "fault_began", "at": "0s", "kind": "kill", "target": ["n1"], "errors": []},
        {"t": now_us, "event": "process_ended", "process": "n1", "status": 0},
    ]


def ran(path: Path) -> Path:
    """The directory of a run whose sources took in by their proxies, and whose client got what the engine computes."""
    path.mkdir()
    rows = [f"2026-01-01T00:00:0{n // 100}.{n % 100:02d}0,{n % 5},{n / 10},{n % 7}" for n in range(500)]
    (path / "b.csv").write_text("\n".join(["ts,key,price,qty", *rows[:250], "what,is,this,?", *rows[250:]]) + "\n")
    (plan, directory), storage = load_data(CONFIG, folder=path), DiskStorage(path)
    history = EventList()

    async def take_in() -> None:
        for stream, source in plan.sources.items():
            proxy = await SourceProxy.open(replace(source_env(), storage=storage), source)
            await proxy.run()
            assert proxy.ended, proxy.fault
            history.heard(SourceStatus(name=f"source:{stream}", incarnation=1, log=proxy.status()))
            proxy.close()

    trio.run(take_in)
    inputs = {s: list(read_source_log(storage, source_folder(s), one.schema)) for s, one in plan.sources.items()}
    received = [Change(channel, element, at) for at, (channel, element) in enumerate(run_reference(plan, inputs))]
    run = path / "run"
    summary = {"sources": figures(plan, directory, history, (), 0, 0)["sources"]}
    make_run(run, CONFIG, {}, {"client": received}, events(), data=path, summary=summary)
    for folder in ("sources", "malformed"):
        shutil.copytree(path / folder, run / folder)
    return run


def judged(spark: SparkSession, path: Path) -> Report:
    return judge_run(spark, Run.open(ran(path)), lambda step: None, {})


def test_the_engine_as_it_is_is_consistent(spark: SparkSession, tmp_path: Path) -> None:
    found = judged(spark, tmp_path / "run")
    assert (found.verdict, found.reasons) == (Verdict.CONSISTENT, [])
    assert found.outputs[0].truth == found.outputs[0].stable > 20


@pytest.mark.long
def test_integer_division_instead_of_division_is_detected(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine takes ``/`` for ``div``, in its values and in its types."""
    monkeypatch.setitem(FUNCTIONS, "/", FUNCTIONS["div"])
    compile_expression.cache_clear()
    try:
        found = judged(spark, tmp_path / "run")
    finally:
        compile_expression.cache_clear()
    assert found.verdict is Verdict.INCONSISTENT
    assert found.reasons[0] == (
        "client · totals: attribute 'half' was received as int64, and by the configuration is double"
    )
    assert [f.flaw for f in found.outputs[0].findings] == [Flaw.ALTERED]


@pytest.mark.long
def test_window_with_lost_offset_is_detected(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: Callable[..., None] = TumblingWindow.__init__
    monkeypatch.setattr(
        TumblingWindow, "__init__", lambda self, size_us, offset_us=0, on=None: made(self, size_us, 0, on)
    )
    found = judged(spark, tmp_path / "run")
    assert found.verdict is Verdict.INCONSISTENT
    assert {f.flaw for f in found.outputs[0].findings} >= {Flaw.ALTERED, Flaw.MISSING}


@pytest.mark.long
def test_source_that_ignores_its_disorder_is_detected(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Stamper.__init__
    monkeypatch.setattr(Stamper, "__init__", lambda self, **given: made(self, **{**given, "disorder_us": 0}))
    found = judged(spark, tmp_path / "run")
    assert found.verdict is Verdict.INCONSISTENT
    (reason,) = found.reasons
    assert reason.startswith("source a: tuple ")
    assert "by its event time, those before it and the disorder it is" in reason
    assert [bool(s.flaws) for s in found.sources] == [True, False]


@pytest.mark.parametrize("counted", long_but([False], [True, False]))
def test_source_that_silently_drops_rows_is_detected(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, counted: bool
) -> None:
    """Whether or not it counts them as read."""
    check = Admission.check

    def dropping(self: Admission, chunk: RowChunk, now_us: int, ahead_us: int | None) -> RowChunk:
        chunk = check(self, chunk, now_us, ahead_us)
        kept = np.arange(len(chunk)) % 10 != 3
        chosen = chunk.select(kept)
        if not counted:
            chosen.places, chosen.taken = None, len(chosen)
        return chosen

    monkeypatch.setattr(Admission, "check", dropping)
    found = judged(spark, tmp_path / "run")
    assert found.verdict is Verdict.INCONSISTENT
    assert found.reasons == [
        "source a: 50 rows of its input are missing in its log: 500 rows, 450 tuples, 0 malformed, 0 refused",
        "source b: 50 rows of its input are missing in its log: 501 rows, 450 tuples, 1 malformed, 0 refused",
        "source b: its log lacks the contents of 50 well-formed rows of its input: row 4",
    ]
