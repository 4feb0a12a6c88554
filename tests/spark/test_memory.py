"""A full heap of Spark gives no verdict but a helpful error; in a process of its own, which it ends."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from spe.stream.batch import Batch, Boundary, Element, Rows
from spe.stream.names import Kind, StreamId
from spe.stream.schema import Schema
from spe.stream.times import END_OF_TIME
from tests.support.runs import make_run

SCHEMA = Schema.of(ts="timestamp", word="string")
#: All of one window, which a user's aggregate gets in one piece: more than a heap of half a gigabyte holds.
LONG, MANY, AT_ONCE = 1 << 20, 250, 50
#: As for the session of the other tests: what runs once is not worth a second compilation.
QUICK = "-XX:TieredStopAtLevel=1"
CONFIG = {
    "sources": {
        "a": {
            "schema": {"ts": "timestamp", "word": "string"},
            "time": "ts",
            "from": {"jsonl": "none.jsonl"},
            "replay": {"max": True},
        }
    },
    "query": {
        "out": {
            "aggregate": {
                "from": "a",
                "window": {"tumbling": "1s"},
                "group_by": {},
                "compute": {"w": "tests.spark.test_truth:Words(word)"},
            }
        }
    },
    "outputs": ["out"],
}


@pytest.mark.long
def test_a_full_heap_is_named_and_gives_no_verdict(tmp_path: Path) -> None:
    def elements() -> Iterator[Element]:
        for first in range(0, MANY, AT_ONCE):
            rows = [(at, "x" * LONG) for at in range(first, first + AT_ONCE)]
            yield Batch(
                Kind.STABLE, first, first + AT_ONCE, None, Rows.from_tuples(SCHEMA, [at for at, _ in rows], rows)
            )
        yield Boundary(Kind.STABLE, END_OF_TIME, MANY)

    run = tmp_path / "run"
    make_run(run, CONFIG, {StreamId("a"): elements()}, {}, [{"t": 0, "event": "begin", "begun_us": 0}])
    ended = subprocess.run(
        [sys.executable, "-m", "replicas.cli", "report", str(run), "--conf", "spark.driver.memory=512m"],
        capture_output=True,
        text=True,
        env={**os.environ, "JDK_JAVA_OPTIONS": QUICK, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
        check=False,
    )
    assert ended.returncode == 2, ended.stdout + ended.stderr
    assert "Spark ran out of memory: no verdict" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert not (run / "report" / "report.json").exists()
