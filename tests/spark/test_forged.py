"""Runs that were tampered with, or lost something: a whole report each, by the command's own way."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from consistency.proof.report.model import Report
from spe.cli.report import INCONSISTENT, UNKNOWN, report
from spe.stream.batch import Batch, Boundary, Element, Rows
from spe.stream.change import Change
from spe.stream.ids import Channel
from spe.stream.names import Kind, StreamId
from spe.stream.schema import Schema
from spe.stream.times import END_OF_TIME
from tests.support.runs import make_run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

A = StreamId("a")
OUT = Channel(StreamId("out"), 0)
SCHEMA = Schema.of(ts="timestamp", n="int64")
CONFIG: dict[str, Any] = {
    "bucket": "10us",
    "sources": {"a": {"schema": {one.name: str(one.type) for one in SCHEMA}, "time": "ts",
                      "from": {"jsonl": "none.jsonl"}, "replay": {"max": True}}},
    "query": {"out": {"filter": {"from": "a", "where": "n % 10 <> 3"}}},
    "outputs": ["out"],
}  # fmt: skip
COUNT = 40


@pytest.fixture(autouse=True)
def _of_tests(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("consistency.proof.spark.session", lambda *args, **more: spark)
    monkeypatch.setattr(spark, "stop", lambda: None)


def batch(first: int, numbers: list[int]) -> Batch:
    """Consecutive ids; tuple n has time 10 n."""
    tuples = [(n * 10, n) for n in numbers]
    return Batch(
        Kind.STABLE, first - 1, first - 1 + len(numbers), None, Rows.from_tuples(SCHEMA, [t[0] for t in tuples], tuples)
    )


def logged() -> list[Element]:
    """A tuple and a boundary at a time."""
    found: list[Element] = []
    for n in range(1, COUNT + 1):
        found += [batch(n, [n]), Boundary(Kind.STABLE, (n + 1) * 10, n)]
    return [*found, Boundary(Kind.STABLE, END_OF_TIME, COUNT)]


def received(upto: int = COUNT) -> list[Change]:
    """The output of the tuples up to number ``upto``, and that it is final."""
    kept = [n for n in range(1, upto + 1) if n % 10 != 3]
    end = END_OF_TIME if upto == COUNT else (upto + 1) * 10
    elements: Iterator[Element] = iter([batch(1, kept), Boundary(Kind.STABLE, end, len(kept))])
    return [Change(OUT, element, 1_000) for element in elements]


def judged(path: Path) -> tuple[int, Report]:
    status = report([path], master=None, conf={}, out=None)
    return status, Report.model_validate(json.loads((path / "report" / "report.json").read_text()))


def test_a_log_that_is_merely_unfinished_leaves_the_verdict_open(tmp_path: Path) -> None:
    make_run(tmp_path / "run", CONFIG, {A: logged()[:20]}, {"client": received(10)})
    status, found = judged(tmp_path / "run")
    assert status == UNKNOWN
    assert any("log incomplete" in reason for reason in found.reasons)


@pytest.mark.parametrize("upto", [11, 13, COUNT], ids=["a tuple more", "and a boundary", "all"])
def test_a_log_that_lost_its_end_is_inconsistent_with_what_was_received(tmp_path: Path, upto: int) -> None:
    make_run(tmp_path / "run", CONFIG, {A: logged()[:20]}, {"client": received(upto)})
    status, found = judged(tmp_path / "run")
    assert status == INCONSISTENT
    assert found.reasons[-1].endswith("a log has lost its end")
