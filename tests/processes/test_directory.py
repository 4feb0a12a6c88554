"""Files that appear on a disk and in S3, while the sources are killed and the server is away: each row once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from threading import Thread

import pytest

pytest.importorskip("pyarrow", reason="S3 is not tested: pyarrow is not installed")

from tests.support.file_formats import jsonl, parquet
from tests.support.file_formats import rows as made
from tests.support.s3_server import S3Server, running_s3

pytestmark = [pytest.mark.long, pytest.mark.processes, pytest.mark.servers]

FILES, EACH = 60, 40
CONFIG = """
cluster: files
bucket: 50ms
defaults: {x: 1s, alpha: 0.9, policy: process}
sources:
  disk: &file
    schema: {ts: timestamp!, n: int64!, name: string}
    time: ts
    from: {directory: {path: incoming, until: _SUCCESS, every: 50ms}, format: jsonl, timestamps: us}
  store:
    <<: *file
    from:
      directory: {path: "s3://bucket/in", until: _SUCCESS, every: 50ms, endpoint: "ENDPOINT", region: us-east-1}
      format: parquet
query:
  both: {union: [disk, store]}
  sums: {aggregate: {from: both, window: 10s, compute: {rows: count(*), total: sum(n)}}}
outputs: [sums]
fragments: {f: {operators: [both, sums], replicas: 2}}
nodes: [n1, n2]
clients: {shop: {reads: [sums], sinks: [{jsonl: final}]}}
faults:
  - {at: 2s, kind: kill, target: "source:disk", for: 500ms}
  - {at: 3s, kind: kill, target: "source:store", for: 500ms}
"""


def feed(server: S3Server, folder: Path) -> None:
    """Both get the same rows; the server is away for a while."""
    client = server.client()
    for n in range(FILES):
        rows = made(n * EACH, EACH)
        (folder / ".part").write_bytes(jsonl(rows))
        (folder / ".part").rename(folder / f"{n:03}")
        client.put_object(Bucket="bucket", Key=f"in/{n:03}", Body=parquet(rows))
        if n == FILES // 2:
            server.stop()
            time.sleep(1)
            server.start()
        time.sleep(0.15)
    (folder / "_SUCCESS").touch()
    client.put_object(Bucket="bucket", Key="in/_SUCCESS", Body=b"")


def test_each_row_of_each_file_is_there_once(tmp_path: Path) -> None:
    run_dir, folder = tmp_path / "run", tmp_path / "incoming"
    folder.mkdir()
    with running_s3() as server:
        server.client().create_bucket(Bucket="bucket")
        (tmp_path / "c.yaml").write_text(CONFIG.replace("ENDPOINT", server.endpoint))
        feeding = Thread(target=feed, args=(server, folder))
        feeding.start()
        options = ["--run-dir", run_dir, "--no-view", "--dashboard", "off"]
        command = [sys.executable, "-m", "replicas.cli", "run", tmp_path / "c.yaml", *options]
        found = subprocess.run(
            command, env=os.environ | server.environment, capture_output=True, text=True, timeout=180
        )
        feeding.join()
    told = found.stdout + found.stderr
    assert found.returncode == 0, told
    assert "stable stream equals the reference run, tuple for tuple (240 tuples)" in told, told
    for name in ("disk", "store"):
        assert f"source:{name} is started again" in told
    sources = json.loads((run_dir / "summary.json").read_text())["sources"]
    assert [source["tuples"] for source in sources] == [FILES * EACH] * 2, told
    final = [json.loads(line) for line in (run_dir / "output" / "final" / "sums.0.jsonl").read_text().splitlines()]
    count = FILES * EACH
    assert sum(row["rows"] for row in final) == 2 * count
    assert sum(row["total"] for row in final) == count * (count - 1)
    for file in run_dir.rglob("*"):
        if file.is_file():
            assert server.environment["AWS_SECRET_ACCESS_KEY"].encode() not in file.read_bytes(), file
