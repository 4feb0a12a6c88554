"""Files in parts: together they are the whole, whatever the size of a part."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from replicas.connectors.formats.file_format import FileReplay
from replicas.connectors.formats.text_files import holds, text_parts
from replicas.connectors.reader import FilePart, Replay, RowChunk
from spe.errors import SpeError
from spe.stream.schema import Schema

SCHEMA = Schema.of(ts="timestamp", n="int64", word="string")


def rows(chunks: Iterable[RowChunk]) -> tuple[list[tuple[Any, ...]], list[str]]:
    """Good rows, and the texts of malformed ones."""
    good: list[tuple[Any, ...]] = []
    bad: list[str] = []
    for chunk in chunks:
        good += list(zip(*[c.to_list() for c in chunk.columns]))
        bad += [m.text for m in chunk.malformed]
    return good, bad


def in_parts(reader: Replay, size: int) -> tuple[list[tuple[Any, ...]], list[str], int]:
    parts = reader.parts(size)
    good, bad = rows(chunk for replay in parts for chunk in reader.part(replay))
    return good, bad, len(parts)


def opened(path: Path, data: bytes, **options: Any) -> Replay:
    path.write_bytes(data)
    return FileReplay(SCHEMA, "ts", {"kind": path.suffix[1:], "path": str(path), "timestamps": "us", **options})


LINES = [f"{n};{n * n};wörd {n}" for n in range(50)] + ["x;1;bad", "51;1"]


@pytest.mark.parametrize("size", [1, 7, 100, 10_000])
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("head", ["", "\ufeff"])
@pytest.mark.parametrize("header", [True, False])
def test_the_parts_of_a_csv_file_are_the_whole(tmp_path: Path, size: int, end: str, head: str, header: bool) -> None:
    lines = ["ts;n;word", *LINES] if header else LINES
    replay = opened(tmp_path / "a.csv", (head + end.join(lines)).encode(), delimiter=";", header=header)
    good, bad = rows(replay.chunks(0))
    assert (len(good), len(bad)) == (50, 2)
    assert in_parts(replay, size)[:2] == (good, bad)
    assert (in_parts(replay, size)[2] > 1) == (size < 1_000 and end != "\r")


def test_a_csv_file_with_quotes_is_one_part(tmp_path: Path) -> None:
    replay = opened(tmp_path / "a.csv", b"ts,n,word\n1,1,'two\nlines'\n2,2,x\n", quote="'")
    assert in_parts(replay, 1) == ([(1, 1, "two\nlines"), (2, 2, "x")], [], 1)
    other = opened(tmp_path / "a.csv", b"ts,n,word\n1,1,'two'\n2,2,x\n")
    assert in_parts(other, 1) == ([(1, 1, "'two'"), (2, 2, "x")], [], 3)


def test_the_header_is_looked_at_before_any_part_is_read(tmp_path: Path) -> None:
    with pytest.raises(SpeError, match="no column word; the header has: ts, n"):
        opened(tmp_path / "a.csv", b"ts,n\n1,1\n").parts(100)
    with pytest.raises(SpeError, match="cannot be read"):
        FileReplay(SCHEMA, "ts", {"kind": "csv", "path": str(tmp_path / "none.csv")}).parts(100)


@pytest.mark.parametrize("size", [1, 64, 10_000])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_the_parts_of_json_lines_are_the_whole(tmp_path: Path, size: int, end: str) -> None:
    objects = [{"ts": n, "n": n, "word": "\u2028é\x85\n" * (n % 3)} for n in range(40)]
    lines = [json.dumps(replay, ensure_ascii=False) for replay in objects]
    replay = opened(tmp_path / "a.jsonl", end.join(["\ufeff" + lines[0], "", *lines[1:], "{", '{"n": 1}']).encode())
    good, bad = rows(replay.chunks(0))
    assert (len(good), len(bad)) == (40, 2)
    assert in_parts(replay, size)[:2] == (good, bad)


@pytest.mark.parametrize(("size", "parts"), [(1, 5), (10**9, 1)])
def test_the_parts_of_parquet_are_its_row_groups(tmp_path: Path, size: int, parts: int) -> None:
    table = pa.table(
        {"ts": pa.array(range(50), pa.timestamp("us")), "n": range(50), "word": [str(n) for n in range(50)]}
    )
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=10)
    replay = FileReplay(SCHEMA, "ts", {"kind": "parquet", "path": str(tmp_path / "a.parquet"), "sort": "n"})
    assert in_parts(replay, size) == (*rows(replay.chunks(0)), parts)
    with pytest.raises(SpeError, match="no column other"):
        FileReplay(SCHEMA, "ts", {"kind": "parquet", "path": str(tmp_path / "a.parquet"), "sort": "other"}).parts(1)


def test_character_across_blocks_is_detected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("replicas.connectors.formats.text_files._BLOCK", 3)
    (tmp_path / "a").write_text("aaaaaa→a", encoding="utf-8")
    with (tmp_path / "a").open("rb") as file:
        assert [holds(file, c) for c in ("→", "←", "a", "b")] == [True, False, True, False]


def test_a_part_ends_with_a_line() -> None:
    file = io.BytesIO(b"1234\n1234\n12345678\n12")
    assert text_parts(file, 5) == [FilePart(0, 10), FilePart(10, 19), FilePart(19, None)]
    assert text_parts(file, 100) == [FilePart(0, None)]
    assert text_parts(io.BytesIO(), 5) == [FilePart(0, None)]
