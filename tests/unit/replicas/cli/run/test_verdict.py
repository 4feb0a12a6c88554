"""A run whose logs or recordings were cut is not compared, and its summary says so."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

import pytest

from replicas.cli.run.summary import verdict_text
from replicas.cli.run.verdict import judge
from spe.config import load_text
from spe.log.log_start import KeptLog, write_kept
from spe.runtime.storage import DiskStorage

CONFIG = """
sources: {a: {from: {generator: {name: orders, rate: 10, duration: 1s}}}}
query: {large: {filter: {from: a, where: qty >= 1}}}
outputs: [large]
nodes: [n1]
clients: {board: {reads: [large]}}
"""


@pytest.mark.parametrize("folder", ["sources/a", "clients/board/large.0"])
@pytest.mark.parametrize(
    ("archive", "how"),
    [("", "spe report --follow proves what is left"), ("s3://b/x", "spe restore brings it back")],
)
async def test_deleted_rows_are_not_judged(tmp_path: Path, folder: str, archive: str, how: str) -> None:
    kept = KeptLog(first=5, last_id=40, until_us=0, segments=1, bytes=100, archive=archive)
    (tmp_path / folder).mkdir(parents=True)
    await write_kept(DiskStorage(tmp_path), PurePosixPath(folder), kept)
    found = judge(*load_text(CONFIG), tmp_path, complete=True, reason="")
    assert (found["equal"], found["rows"]) == (None, 0)
    told = verdict_text(found).plain
    assert told.startswith(f"not compared with the reference: {folder}: the log begins behind id 40")
    assert told.endswith(how)
