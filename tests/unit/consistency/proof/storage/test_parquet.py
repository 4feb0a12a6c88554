"""Parquet files that a task writes itself."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from consistency.proof.storage.parquet import write_file
from spe.errors import SpeError

SCHEMA = pa.schema([("n", pa.int64())])


def batch(*numbers: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"n": numbers}, SCHEMA)


def test_a_file_is_there_as_a_whole_and_the_later_attempt_counts(tmp_path: Path) -> None:
    file = tmp_path / "part-0.parquet"
    assert write_file(file, 1, SCHEMA, [batch(1), batch(), batch(2, 3)]) == 3
    assert write_file(file, 2, SCHEMA, [batch(4)]) == 1
    assert parquet.read_table(file)["n"].to_pylist() == [4]
    assert [one.name for one in tmp_path.iterdir()] == [file.name]


def test_without_rows_there_is_no_file(tmp_path: Path) -> None:
    assert write_file(tmp_path / "part-0.parquet", 1, SCHEMA, [batch()]) == 0
    assert list(tmp_path.iterdir()) == []


def test_large_files_have_several_groups_of_rows(tmp_path: Path) -> None:
    many = batch(*range(1 << 18))
    assert write_file(tmp_path / "a", 1, SCHEMA, [many] * 5) == 5 << 18
    assert parquet.ParquetFile(tmp_path / "a").metadata.num_row_groups == 3


def test_unwritable_file_is_named_and_nothing_is_left(tmp_path: Path) -> None:
    def breaks_off() -> Iterator[pa.RecordBatch]:
        yield from [batch(*range(1 << 19))]
        raise OSError(28, "No space left on device")

    with pytest.raises(SpeError, match=r"part-0\.parquet cannot be written: No space left on device"):
        write_file(tmp_path / "part-0.parquet", 1, SCHEMA, breaks_off())
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(SpeError, match="cannot be written: No such file or directory"):
        write_file(tmp_path / "none" / "part-0.parquet", 1, SCHEMA, [batch(1)])


def test_failed_write_leaves_nothing(tmp_path: Path) -> None:
    def breaks_off() -> Iterator[pa.RecordBatch]:
        yield from [batch(*range(1 << 19))]
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        write_file(tmp_path / "part-0.parquet", 1, SCHEMA, breaks_off())
    assert list(tmp_path.iterdir()) == []
