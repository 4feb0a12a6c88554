"""From POST requests through a query to webhooks; sender, receiver, source and client are killed."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("h11", reason="HTTP is not tested: h11 is not installed")

from tests.support.http_programs import EACH, read

pytestmark = pytest.mark.processes

REQUESTS = 120
ROWS = REQUESTS * EACH
#: Of these, rows in windows that have ended: all but the last one, which has ten.
FINAL = ROWS - 10
CONFIG = """
cluster: http
bucket: 50ms
defaults: {{x: 1s, alpha: 0.9, policy: process}}
sources:
  orders:
    schema: {{ts: timestamp!, n: int64!}}
    time: ts
    boundary: 50ms
    idle: never
    from: {{http: {{listen: "127.0.0.1:{source}", token: {{env: TOKEN}}}}, timestamps: us}}
query:
  sums: {{aggregate: {{from: orders, window: 100ms, compute: {{rows: count(*), n: sum(n)}}}}}}
fragments: {{f: {{operators: [sums], replicas: 2}}}}
nodes: [n1, n2]
clients:
  board:
    sinks:
      - {{jsonl: final}}
      - {{http: "http://127.0.0.1:{receiver}/sums"}}
      - {{http: {{url: "http://127.0.0.1:{receiver}/newest", id: newest}}, mode: current}}
faults:
  - {{at: 2s, kind: kill, target: "client:board", for: 500ms}}
  - {{at: 3500ms, kind: kill, target: "source:orders", for: 500ms}}
"""


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@contextmanager
def program(*words: Any) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "tests.support.http_programs", *map(str, words)]
    with subprocess.Popen(command, env=os.environ | {"TOKEN": "s3cret"}, cwd=Path(__file__).parents[2]) as running:
        try:
            yield running
        finally:
            running.kill()


def wait_until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + 180
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.1)


def answers(port: int) -> bool:
    with socket.socket() as one:
        return one.connect_ex(("127.0.0.1", port)) == 0


def final_rows(kept: Path, sink: str) -> int:
    """Rows of the input in all windows that a sink has sent as final ones."""
    lines = [json.loads(line) for key, body in read(kept) if key.startswith(sink) for line in body.splitlines()]
    return sum(row["rows"] for row in lines if "rows" in row and not row.get("_tentative"))


def test_receiver_gets_each_result_once_despite_kills(tmp_path: Path) -> None:
    source, receiver, kept, run_dir = free_port(), free_port(), tmp_path / "received", tmp_path / "run"
    (tmp_path / "c.yaml").write_text(CONFIG.format(source=source, receiver=receiver))
    options = ["--run-dir", run_dir, "--no-view", "--dashboard", "off"]

    def is_back(name: str) -> bool:
        return f"{name} is started again" in (tmp_path / "told").read_text()

    command = [sys.executable, "-m", "replicas.cli", "run", tmp_path / "c.yaml", *options]
    with (
        (tmp_path / "told").open("wb") as out,
        subprocess.Popen(command, stdout=out, stderr=out, env=os.environ | {"TOKEN": "s3cret"}) as running,
    ):
        try:
            # Where the run begins late, all rows would be of the past, and come in a few requests before the faults.
            wait_until(lambda: answers(source))
            sending = ("send", f"127.0.0.1:{source}", int(time.time() * 10) * 100_000, REQUESTS)
            with program("receive", receiver, kept), program(*sending):
                wait_until(lambda: final_rows(kept, "spe") > FINAL // 3 and is_back("client:board"))
            with program(*sending) as sender:
                time.sleep(0.5)
                with program("receive", receiver, kept):
                    assert sender.wait(180) == 0
                    wait_until(lambda: is_back("source:orders"))
                    wait_until(lambda: all(final_rows(kept, sink) == FINAL for sink in ("spe", "newest")))
        finally:
            running.send_signal(signal.SIGINT)
        running.wait(120)
    told = (tmp_path / "told").read_text()
    assert "agree with the reference" in " ".join(told.split())
    assert json.loads((run_dir / "summary.json").read_text())["sources"][0]["tuples"] == ROWS, told
    final = [json.loads(line) for line in (run_dir / "output" / "final" / "sums.0.jsonl").read_text().splitlines()]
    assert [row["_id"] for row in final] == list(range(1, len(final) + 1)), told
    assert sum(row["rows"] for row in final) == FINAL, told
    assert sum(row["n"] for row in final) == FINAL * (FINAL - 1) // 2, told
    got = read(kept)
    assert len({key for key, _ in got}) == len(got)
    newest: list[dict[str, Any]] = []
    stable: list[dict[str, Any]] = []
    for key, body in got:
        for row in map(json.loads, body.splitlines()):
            if key.startswith("spe-"):
                stable.append(row)
            elif row["_kind"] == "undo":
                newest = [r for r in newest if r["_id"] <= row["_id"]]
            else:
                newest.append(row)
    plain = [{name: row[name] for name in final[0]} for row in stable]
    assert plain == final, told
    assert [{name: row[name] for name in final[0]} for row in newest if not row["_tentative"]] == final, told
    for file in [tmp_path / "told", *run_dir.rglob("*")]:
        if file.is_file():
            assert b"s3cret" not in file.read_bytes(), file
