"""What the sink of Parquet files states, checked by the kit."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pyarrow.parquet as pq
import pytest

from replicas.connectors.files.parquet_sink import ParquetSink
from replicas.testing import check_sink
from replicas.testing.result_story import STREAM

#: Crashes of each kind, and plays: of files there is no server to crash.
FEW = 4
PLAYS = 2 * (1 + FEW)


class PlayedParts:
    """A folder of its own for each play, which stays when the process is killed."""

    def __init__(self, folder: Path) -> None:
        self.folder = Path(mkdtemp(dir=folder))

    def rows(self) -> list[Mapping[str, Any]]:
        """What a reader sees, who takes the parts in the order of their names."""
        parts = sorted((self.folder / STREAM).glob("[0-9]*.parquet"))
        return [row for part in parts for row in pq.read_table(part, partitioning=None).to_pylist()]


@pytest.mark.parametrize("mode", ["stable", "corrections"])
def test_parquet_parts_hold_rows_of_their_mode(tmp_path: Path, mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also with parts that a killed process has left open, which nobody completes."""
    left = list[Path]()

    def killed(sink: ParquetSink) -> None:
        for parts in sink._channels.values():
            if parts._part is not None and parts._part._file is not None:
                os.close(parts._part._file)
                left.append(parts._part._path)

    monkeypatch.setattr(ParquetSink, "close", killed)
    monkeypatch.setitem(ParquetSink.__init__.__kwdefaults__, "group_rows", 2)  # so that they are written bit by bit

    def sink(played: PlayedParts) -> dict[str, Any]:
        return {"parquet": str(played.folder), "mode": mode}

    assert check_sink(sink, lambda: PlayedParts(tmp_path), most=FEW) == PLAYS
    assert left, "no part was open in any crash"
