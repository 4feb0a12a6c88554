"""A directory that grows: each file is read once, whatever happens to it and to us."""

from __future__ import annotations

import errno
import json
import os
import re
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
import trio
import yaml

from replicas.connectors import open_reader
from replicas.connectors.files.directory_source import DirectoryReader
from replicas.connectors.files.file_rows import FileRows, pieces
from replicas.connectors.files.file_store import LocalStore
from replicas.connectors.reader import CHUNK_ROWS, Malformed, RowChunk
from replicas.simulation.world.disk import SimDisk
from replicas.source.proxy import SourceProxy
from replicas.testing import check_reader
from spe.config import load_data
from spe.errors import ConfigError, SpeError
from spe.log.source_log import read_source_log, source_folder
from spe.plan.plan import Source
from spe.stream.batch import Batch, Column
from spe.stream.names import StreamId
from spe.stream.strings import StringDictionary
from tests.support.file_formats import FORMATS, SCHEMA, arrow_stream, avro, jsonl, parquet, rows
from tests.support.long_forms import long_but
from tests.support.source_env import source_env

IN = StreamId("in")
NOW_US = 1_000_000_000_000_000
_QUERY = {"query": {"q": {"filter": {"from": "in", "where": "true"}}}, "outputs": ["q"]}
Found = Sequence[tuple[Any, ...]]


def source(path: Path | str, schema: Mapping[str, str] = SCHEMA, **options: Any) -> Source:
    """Options of the format stand beside ``directory``, the others in it."""
    outside = ("format", "columns", "timestamps", "header", "null", "delimiter")
    keys = {"path": str(path), "every": "100ms", **{k: v for k, v in options.items() if k not in outside}}
    reader = {"directory": keys, "timestamps": "us", **{k: v for k, v in options.items() if k in outside}}
    if reader["timestamps"] is None:
        del reader["timestamps"]
    entry = {"schema": dict(schema), "time": "ts", "from": reader}
    return load_data({"sources": {"in": entry}, **_QUERY}, "test", ".").plan.sources[IN]


@asynccontextmanager
async def reading(one: Source, disk: SimDisk) -> AsyncIterator[SourceProxy]:
    proxy = await SourceProxy.open(source_env(disk, epoch_us=NOW_US), one)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(proxy.run)
        yield proxy
        nursery.cancel_scope.cancel()
    proxy.close()


def logged(disk: SimDisk, schema: Mapping[str, str] = SCHEMA) -> Found:
    one = source("x", schema)
    return [
        row
        for element in read_source_log(disk.restarted(), source_folder(IN), one.schema)
        if isinstance(element, Batch)
        for row in element.rows.to_tuples()
    ]


async def read_all(one: Source, disk: SimDisk, seconds: float = 10.0) -> SourceProxy:
    """Reads for a while; gives the proxy for its fault and its counts."""
    async with reading(one, disk) as proxy:
        await trio.sleep(seconds)
    return proxy


def aside(disk: SimDisk) -> list[tuple[str, str]]:
    """Place and reason of what was kept aside."""
    path = PurePosixPath("malformed", "in.jsonl")
    text = disk.read(path).decode() if disk.exists(path) else ""
    return [(row["place"], row["reason"]) for row in map(json.loads, text.splitlines())]


def put(folder: Path, name: str, data: bytes) -> None:
    """Renamed into place, as is required."""
    target = folder / name
    target.parent.mkdir(parents=True, exist_ok=True)
    (folder / ".new").write_bytes(data)
    (folder / ".new").rename(target)


# --- order, completeness, restarts ---


async def test_the_first_reading_ends_with_the_files_there(tmp_path: Path, autojump_clock: Any) -> None:
    made = open_reader(source(tmp_path, settle="1s"))
    chunks = []

    async def accept(chunk: RowChunk) -> None:
        assert made.first_reading == (len(chunks) < 2)
        chunks.append(chunk)
        await trio.sleep(1)

    for name in ("a.jsonl", "b.jsonl"):
        put(tmp_path, name, jsonl(rows(0, 3)))
    async with trio.open_nursery() as nursery:
        assert isinstance(made, DirectoryReader)
        nursery.start_soon(made.read, source_env(epoch_us=NOW_US), accept)
        await trio.sleep(10)
        put(tmp_path, "c.jsonl", jsonl(rows(3, 3)))
        await trio.sleep(10)
        assert len(chunks) == 3
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("new", [False, True])
async def test_files_that_grow_end_the_first_reading(tmp_path: Path, new: bool, autojump_clock: Any) -> None:
    """1. a and b are there  2. a grows without end, or new files come without end  3. what does not grow is read"""
    made, chunks = open_reader(source(tmp_path, settle="1s")), []

    async def accept(chunk: RowChunk) -> None:
        chunks.append((chunk.taken, made.first_reading))

    for name in ("a.jsonl", "b.jsonl"):
        put(tmp_path, name, jsonl(rows(0, 3)))
    async with trio.open_nursery() as nursery:
        assert isinstance(made, DirectoryReader)
        nursery.start_soon(made.read, source_env(epoch_us=NOW_US), accept)
        for n in range(4, 30):
            await trio.sleep(0.3)
            put(tmp_path, f"new{n}.jsonl" if new else "a.jsonl", jsonl(rows(0, n)))
        await trio.lowlevel.checkpoint()
        assert not made.first_reading
        nursery.cancel_scope.cancel()
    first = 2 if new else 1
    assert chunks[:first] == [(3, True)] * first
    assert not any(early for _, early in chunks[first:])


async def test_each_file_is_read_once_in_the_order_of_its_path(tmp_path: Path, autojump_clock: Any) -> None:
    disk, one = SimDisk(), source(tmp_path)
    for name, first in (("b.jsonl", 3), ("a/z.jsonl", 0), ("c.jsonl", 6)):
        put(tmp_path, name, jsonl(rows(first, 3)))
    async with reading(one, disk):
        await trio.sleep(5)
        assert logged(disk) == rows(0, 9)
        put(tmp_path, "a/a.jsonl", jsonl(rows(9, 2)))
        await trio.sleep(5)
    assert logged(disk) == rows(0, 11)
    put(tmp_path, "0.jsonl", jsonl(rows(11, 2)))
    await read_all(one, disk := disk.restarted())
    assert logged(disk) == rows(0, 13)


async def test_by_time_older_files_come_first(tmp_path: Path, autojump_clock: Any) -> None:
    for name, first, at in (("a", 3, 200), ("c", 0, 100), ("b", 6, 200)):
        put(tmp_path, name, jsonl(rows(first, 3)))
        os.utime(tmp_path / name, (at, at))
    await read_all(source(tmp_path, order="modified"), disk := SimDisk())
    assert logged(disk) == rows(0, 9)


async def test_hidden_files_and_other_patterns_are_left_out(tmp_path: Path, autojump_clock: Any) -> None:
    for name in (".a.jsonl", "_b.jsonl", "_temporary/c.jsonl", ".d/e.jsonl", "f.csv"):
        put(tmp_path, name, b"no row")
    os.mkfifo(tmp_path / "g.jsonl")
    put(tmp_path, "h.jsonl", jsonl(rows(0, 2)))
    proxy = await read_all(source(tmp_path, pattern="*.jsonl"), disk := SimDisk())
    assert logged(disk) == rows(0, 2)
    assert (proxy.fault, proxy.status().malformed) == (None, 0)


async def test_a_file_settles_before_it_is_read(tmp_path: Path, autojump_clock: Any) -> None:
    disk, path = SimDisk(), tmp_path / "a.jsonl"
    async with reading(source(tmp_path, settle="3s"), disk) as proxy:
        for n in range(1, 4):
            path.write_bytes(jsonl(rows(0, n)))
            await trio.sleep(2)
        assert logged(disk) == []
        await trio.sleep(4)
    assert logged(disk) == rows(0, 3)
    assert proxy.fault is None


async def test_a_marker_says_that_a_file_is_complete(tmp_path: Path, autojump_clock: Any) -> None:
    disk = SimDisk()
    put(tmp_path, "a.jsonl", jsonl(rows(0, 1)))
    async with reading(source(tmp_path, marker=".done"), disk) as proxy:
        await trio.sleep(2)
        (tmp_path / "a.jsonl").write_bytes(jsonl(rows(0, 3)))
        assert logged(disk) == []
        (tmp_path / "a.jsonl.done").touch()
        await trio.sleep(2)
    assert logged(disk) == rows(0, 3)
    assert (proxy.fault, proxy.status().malformed) == (None, 0)


@pytest.mark.parametrize("form", long_but(["jsonl", "csv", "parquet", "arrow"], FORMATS))
async def test_every_format_gives_the_same_rows(
    tmp_path: Path, form: str, autojump_clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("replicas.connectors.formats.arrow_columns.COLUMN_ROWS", CHUNK_ROWS)
    write, options = FORMATS[form]
    put(tmp_path, "a", write(rows(0, 2 * CHUNK_ROWS + 5)))
    put(tmp_path, "b", write([]))
    put(tmp_path, "c", write(rows(2 * CHUNK_ROWS + 5, 11)))
    proxy = await read_all(source(tmp_path, **{"timestamps": None, **options}, follow=False), disk := SimDisk())
    assert (proxy.fault, proxy.ended) == (None, True)
    assert logged(disk) == rows(0, 2 * CHUNK_ROWS + 16)


class _Folder:
    """For the kit: nothing serves."""


@pytest.mark.parametrize("form", long_but(["jsonl", "parquet"], FORMATS))
def test_rows_come_once_despite_crashes(tmp_path: Path, form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (
        "formats.jsonl.CHUNK_ROWS",
        "formats.csv.CHUNK_ROWS",
        "files.avro_source.CHUNK_ROWS",
        "formats.arrow_columns.COLUMN_ROWS",
    ):
        monkeypatch.setattr(f"replicas.connectors.{name}", 3)
    write, options = FORMATS[form]
    for n, name in enumerate(("a", "b", "c")):
        put(tmp_path, name, write(rows(10 * n, 10)))
    entry = {
        "schema": SCHEMA,
        "time": "ts",
        "from": {"directory": {"path": str(tmp_path), "follow": form != "csv"}, **options},
    }
    assert check_reader(entry, rows(0, 30), _Folder, order=lambda row: 0) > 100


# --- files that are not what they should be ---


@pytest.mark.parametrize("skips", [False, True])
@pytest.mark.parametrize(
    ("form", "bad", "why"),
    [
        ("parquet", parquet(rows(9, 9))[:-10], "a: cannot be read: Parquet magic bytes not found"),
        ("arrow", FORMATS["arrow"][0](rows(9, 9))[:-10], "a: cannot be read: Not an Arrow file"),
        ("arrow", arrow_stream(rows(9, 9))[:-8], "a: cannot be read: expected the end mark of an Arrow stream"),
        ("arrow", b"hello", "a: cannot be read: expected the end mark of an Arrow stream"),
        ("avro", b"hello", "a: cannot be read: it is no Avro container file"),
        ("avro", avro(rows(9, 2))[:-20], "a: cannot be read: "),
        ("csv", b"ts,m,name\n1,2,3\n", "a: no column n; the header has: ts, m, name"),
    ],
)
async def test_a_bad_file_stops_the_source_or_is_left_out(
    tmp_path: Path, form: str, bad: bytes, why: str, skips: bool, autojump_clock: Any
) -> None:
    write, options = FORMATS[form]
    put(tmp_path, "a", bad)
    put(tmp_path, "b", write(rows(3, 3)))
    one = source(tmp_path, **{"timestamps": None, **options}, bad_files="skip" if skips else "stop")
    proxy = await read_all(one, disk := SimDisk())
    if skips:
        assert proxy.fault is None
        assert proxy.status().malformed == 1
        ((place, reason),) = aside(disk)
        assert (place, reason.endswith("; nothing of it was taken")) == ("a", True)
        assert why.removeprefix("a: ") in reason
        assert logged(disk) == rows(3, 3)
        return
    assert str(proxy.fault).startswith(f"{tmp_path}/{why}")
    assert "; nothing of it was taken.  Put it right, renamed into place" in str(proxy.fault)
    assert logged(disk) == []
    put(tmp_path, "a", write(rows(0, 3)))
    proxy = await read_all(one, disk := disk.restarted())
    assert (proxy.fault, logged(disk)) == (None, rows(0, 6))


async def test_a_file_of_another_type_says_which_column(tmp_path: Path, autojump_clock: Any) -> None:
    table = pa.table({"ts": pa.array([1], pa.timestamp("us")), "n": ["x"], "name": ["y"]})
    pyarrow.parquet.write_table(table, tmp_path / "a")
    proxy = await read_all(source(tmp_path, format="parquet", timestamps=None), SimDisk())
    assert str(proxy.fault).startswith(f"{tmp_path}/a: column n is string; int64 was expected; nothing of it was taken")


@pytest.mark.parametrize(
    ("field", "why"),
    [
        ("string", "field n is string; int64 was expected"),
        (
            ["null", {"type": "bytes", "logicalType": "decimal", "precision": 9}],
            "field n is [null, bytes of decimal]; ",
        ),
    ],
)
async def test_a_file_of_another_avro_schema_says_which_field(
    tmp_path: Path, field: Any, why: str, autojump_clock: Any
) -> None:
    import fastavro

    fields = [{"name": name, "type": "long"} for name in ("ts", "name")] + [{"name": "n", "type": field}]
    with (tmp_path / "a").open("wb") as file:
        fastavro.writer(file, {"type": "record", "name": "r", "fields": fields}, [])
    schema = {"ts": "timestamp!", "n": "int64!", "name": "int64"}
    proxy = await read_all(source(tmp_path, schema, format="avro"), SimDisk())
    assert str(proxy.fault).startswith(f"{tmp_path}/a: {why}")


async def test_links_that_lead_nowhere_are_no_files(tmp_path: Path, autojump_clock: Any) -> None:
    """One that leads to itself made the whole folder unreadable, for ever."""
    put(tmp_path, "a", jsonl(rows(0, 3)))
    (tmp_path / "none").symlink_to("nothing")
    (tmp_path / "loop").symlink_to("loop")
    proxy = await read_all(source(tmp_path), disk := SimDisk())
    assert (proxy.fault, proxy.away, logged(disk)) == (None, "", rows(0, 3))


def test_unreadable_subfolder_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scandir = os.scandir

    def refuse(path: Any) -> Any:
        if str(path).endswith("below"):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return scandir(path)

    (tmp_path / "below").mkdir()
    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(SpeError, match=re.escape(f"{tmp_path}/below cannot be read: Permission denied")):
        LocalStore(str(tmp_path)).list()


async def test_a_row_from_the_future_has_its_file(tmp_path: Path, autojump_clock: Any) -> None:
    """And its row there, not that since the start."""
    put(tmp_path, "a", jsonl(rows(0, 3)))
    put(tmp_path, "b", jsonl(rows(3, 1)) + jsonl(rows(4, 1)).replace(b'"ts": ', b'"ts": 1000000000'))
    one = replace(source(tmp_path), rejected={"kind": "jsonl", "path": "aside", "mode": "stable"})
    async with reading(one, SimDisk()) as proxy:
        await trio.sleep(10)
        found = [row for batch in await proxy.rejected_after(0) for row in batch.rows.columns[0].to_list()]
    assert found == ["b, row 2"]


async def test_a_row_that_cannot_be_understood_has_its_file(tmp_path: Path, autojump_clock: Any) -> None:
    put(tmp_path, "x/a", b"{}\n\nno row\n" + jsonl(rows(0, 1)))
    proxy = await read_all(source(tmp_path), disk := SimDisk())
    assert proxy.status().malformed == 2
    assert [place for place, _ in aside(disk)] == ["x/a, line 1", "x/a, line 3"]
    assert logged(disk) == rows(0, 1)


@pytest.mark.parametrize("form", FORMATS)
async def test_a_file_of_no_bytes_has_no_rows(tmp_path: Path, form: str, autojump_clock: Any) -> None:
    write, options = FORMATS[form]
    put(tmp_path, "a", b"")
    put(tmp_path, "b", write(rows(0, 2)))
    proxy = await read_all(source(tmp_path, **{"timestamps": None, **options}), disk := SimDisk())
    assert (proxy.fault, logged(disk)) == (None, rows(0, 2))


# --- files that change and vanish ---


@pytest.mark.parametrize("skips", [False, True])
@pytest.mark.parametrize(("new", "how"), [(jsonl(rows(0, 5)), "grew"), (jsonl(rows(0, 1)), "shrank"), (b"", "emptied")])
async def test_a_file_that_changes_after_it_was_read_is_noticed(
    tmp_path: Path, new: bytes, how: str, skips: bool, autojump_clock: Any
) -> None:
    put(tmp_path, "a", old := jsonl(rows(0, 3)))
    disk, one = SimDisk(), source(tmp_path, bad_files="skip" if skips else "stop")
    async with reading(one, disk) as proxy:
        await trio.sleep(2)
        (tmp_path / "a").write_bytes(new)
        put(tmp_path, "b", jsonl(rows(3, 2)))
        await trio.sleep(5)
    what = f"it changed after it was read, from {len(old)} to {len(new)} bytes; what is new in it is not taken"
    if skips:
        assert (proxy.fault, aside(disk), logged(disk)) == (None, [("a", what)], rows(0, 5))
        proxy = await read_all(one, disk := disk.restarted())
        assert (proxy.fault, len(aside(disk))) == (None, 1)
        return
    assert f"{tmp_path}/a: {what}.  Put new rows into a file of another name" in str(proxy.fault)
    (tmp_path / "a").unlink()
    proxy = await read_all(one, disk := disk.restarted())
    assert (proxy.fault, logged(disk)) == (None, rows(0, 5))


def after_a_chunk(monkeypatch: pytest.MonkeyPatch, action: Callable[[], None]) -> None:
    """Does something, or fails, while a file is read."""
    monkeypatch.setattr("replicas.connectors.formats.jsonl.CHUNK_ROWS", 2)
    read = FileRows.read

    def reads(self: FileRows, file: BinaryIO, path: str, skip: int) -> Iterator[RowChunk]:
        chunks = read(self, file, path, skip)
        yield next(chunks)
        yield next(chunks)
        action()
        yield from chunks

    monkeypatch.setattr(FileRows, "read", reads)


async def half_read(folder: Path, one: Source, monkeypatch: pytest.MonkeyPatch) -> SimDisk:
    """The disk of a source that has died in the middle of a file, which could not be read further."""

    def fails() -> None:
        raise OSError(errno.EIO, "Input/output error")

    put(folder, "a", jsonl(rows(0, 7)))
    put(folder, "b", jsonl(rows(7, 2)))
    disk = SimDisk()
    with monkeypatch.context() as patch:
        after_a_chunk(patch, fails)
        async with reading(one, disk) as proxy:
            await trio.sleep(0.05)
            assert proxy.away == f"{folder} cannot be read: Input/output error; trying again"
    assert logged(disk) == rows(0, 2)
    return disk.restarted()


@pytest.mark.parametrize("skips", [False, True])
@pytest.mark.parametrize("gone", [False, True])
async def test_file_changed_or_removed_while_stopped_is_noticed(
    tmp_path: Path, gone: bool, skips: bool, monkeypatch: pytest.MonkeyPatch, autojump_clock: Any
) -> None:
    one = source(tmp_path, bad_files="skip" if skips else "stop")
    disk = await half_read(tmp_path, one, monkeypatch)
    taken = logged(disk)
    if gone:
        (tmp_path / "a").unlink()
    else:
        put(tmp_path, "a", jsonl(rows(100, 9)))
    proxy = await read_all(one, disk)
    why = f"; {len(taken)} of its rows were taken before"
    if skips:
        assert (proxy.fault, logged(disk)) == (None, [*taken, *rows(7, 2)])
        assert [(place, reason.endswith(why)) for place, reason in aside(disk)] == [("a", True)]
    else:
        assert f"{why}.  Restore it as it was" in str(proxy.fault)
        assert logged(disk) == taken


async def test_a_file_that_vanishes_in_the_middle_is_read_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, autojump_clock: Any
) -> None:
    after_a_chunk(monkeypatch, (tmp_path / "a").unlink)
    put(tmp_path, "a", jsonl(rows(0, 7)))
    proxy = await read_all(source(tmp_path), disk := SimDisk())
    assert (proxy.fault, logged(disk)) == (None, rows(0, 7))


async def test_a_file_that_changes_in_the_middle_is_noticed_at_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, autojump_clock: Any
) -> None:
    after_a_chunk(monkeypatch, lambda: os.utime(tmp_path / "a", (1, 1)))
    put(tmp_path, "a", jsonl(rows(0, 7)))
    proxy = await read_all(source(tmp_path), SimDisk())
    assert "it changed while it was read, in its time of change; 6 of its rows were taken" in str(proxy.fault)


async def test_a_file_that_was_read_may_vanish(tmp_path: Path, autojump_clock: Any) -> None:
    put(tmp_path, "a", jsonl(rows(0, 3)))
    async with reading(one := source(tmp_path), disk := SimDisk()) as proxy:
        await trio.sleep(2)
        (tmp_path / "a").unlink()
        put(tmp_path, "b", jsonl(rows(3, 3)))
        await trio.sleep(2)
    assert (proxy.fault, logged(disk)) == (None, rows(0, 6))
    put(tmp_path, "a", jsonl(rows(6, 4)))
    proxy = await read_all(one, disk.restarted())
    assert "it changed after it was read" in str(proxy.fault)


async def test_file_removed_before_reading_stops_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, autojump_clock: Any
) -> None:
    disk = await half_read(tmp_path, one := source(tmp_path), monkeypatch)
    (tmp_path / "b").unlink()
    proxy = await read_all(one, disk)
    assert f"{tmp_path}/b: it was removed before it was read; nothing of it was taken" in str(proxy.fault)
    assert logged(disk) == rows(0, 7)


# --- the folder and the list ---


async def test_a_folder_that_is_missing_at_first_stops_the_source(tmp_path: Path, autojump_clock: Any) -> None:
    proxy = await read_all(source(tmp_path / "x"), SimDisk())
    assert str(proxy.fault) == f"{tmp_path}/x cannot be read: No such file or directory"


async def test_a_folder_that_goes_away_later_is_waited_for(tmp_path: Path, autojump_clock: Any) -> None:
    folder, disk = tmp_path / "in", SimDisk()
    put(folder, "a", jsonl(rows(0, 3)))
    async with reading(source(folder), disk) as proxy:
        await trio.sleep(2)
        folder.rename(tmp_path / "away")
        await trio.sleep(2)
        assert proxy.away == f"{folder} cannot be read: No such file or directory; trying again"
    async with reading(source(folder), disk := disk.restarted()) as proxy:
        await trio.sleep(2)
        assert proxy.away
        (tmp_path / "away").rename(folder)
        put(folder, "b", jsonl(rows(3, 3)))
        await trio.sleep(10)
        assert (proxy.away, proxy.fault) == ("", None)
    assert logged(disk) == rows(0, 6)


async def test_a_list_that_is_lost_stops_the_source(tmp_path: Path, autojump_clock: Any) -> None:
    put(tmp_path, "a", jsonl(rows(0, 3)))
    await read_all(one := source(tmp_path), disk := SimDisk())
    disk = disk.restarted()
    folder = source_folder(IN) / "files"
    for name in disk.list(folder):
        disk.remove(folder / name)
    proxy = await read_all(one, disk)
    assert "the list of the files that were read is lost" in str(proxy.fault)


async def test_a_full_disk_is_waited_for(tmp_path: Path, autojump_clock: Any) -> None:
    put(tmp_path, "a", jsonl(rows(0, 3)))
    disk = SimDisk()
    async with reading(source(tmp_path), disk) as proxy:
        await trio.sleep(1)
        disk.space_left = 0
        put(tmp_path, "b", jsonl(rows(3, 3)))
        await trio.sleep(5)
        assert "is not read" in proxy.away
        disk.space_left = None
        await trio.sleep(10)
        assert (proxy.away, proxy.fault) == ("", None)
    assert logged(disk) == rows(0, 6)


# --- the end ---


async def test_a_file_of_a_name_ends_the_stream(tmp_path: Path, autojump_clock: Any) -> None:
    put(tmp_path, "a", jsonl(rows(0, 3)))
    async with reading(source(tmp_path, until="_SUCCESS"), disk := SimDisk()) as proxy:
        await trio.sleep(5)
        assert not proxy.ended
        put(tmp_path, "b", jsonl(rows(3, 3)))
        (tmp_path / "_SUCCESS").touch()
        await trio.sleep(5)
    assert (proxy.ended, proxy.fault) == (True, None)
    assert logged(disk) == rows(0, 6)


# --- columns in names of folders ---

_DAYS = {"ts": "timestamp!", "n": "int64!", "name": "string", "day": "timestamp!", "shop": "int64", "city": "string"}


@pytest.mark.parametrize("form", FORMATS)
async def test_columns_of_folders_are_columns(tmp_path: Path, form: str, autojump_clock: Any) -> None:
    write, options = FORMATS[form]
    put(tmp_path, "day=5/shop=7/city=S%C3%A3o/a", write(rows(0, 2)))
    put(tmp_path, "day=6/shop=__HIVE_DEFAULT_PARTITION__/city=__HIVE_DEFAULT_PARTITION__/b", write(rows(2, 1)))
    one = source(tmp_path, _DAYS, partitions=["day", "shop", "city"], follow=False, **{"timestamps": "us", **options})
    proxy = await read_all(one, disk := SimDisk())
    assert proxy.fault is None
    first, second, third = rows(0, 3)
    expected = [(*first, 5, 7, "São"), (*second, 5, 7, "São"), (*third, 6, None, None)]
    assert logged(disk, _DAYS) == expected


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("a", "a: expected one folder shop=… in its path"),
        ("shop=x/a", "shop=x/a: folder shop: expected int64, got 'x'"),
        ("shop=__HIVE_DEFAULT_PARTITION__/a", "shop=__HIVE_DEFAULT_PARTITION__/a: folder shop: null; expected a value"),
    ],
)
async def test_a_folder_that_does_not_fit_makes_a_bad_file(
    tmp_path: Path, path: str, why: str, autojump_clock: Any
) -> None:
    put(tmp_path, path, jsonl(rows(0, 2)))
    one = source(tmp_path, {**SCHEMA, "shop": "int64!"}, partitions=["shop"])
    proxy = await read_all(one, SimDisk())
    assert str(proxy.fault).startswith(f"{tmp_path}/{why}; nothing of it was taken")


async def test_the_event_time_may_stand_in_a_folder(tmp_path: Path, autojump_clock: Any) -> None:
    put(tmp_path, "ts=1970-01-02/a", b'{"n": 1, "name": "x"}\n')
    await read_all(source(tmp_path, partitions=["ts"], timestamps="iso", follow=False), disk := SimDisk())
    assert logged(disk) == [(86_400_000_000, 1, "x")]


# --- chunks ---


def test_a_large_chunk_is_divided_with_its_malformed_rows() -> None:
    dictionary = StringDictionary()
    texts = dictionary.encode([f"{n}" * 300 for n in range(10, 16)])
    columns = (Column(texts, None, dictionary), Column(np.arange(6)))
    bad = [Malformed(n + 1, "", "") for n in (100, 103, 107)]
    places = np.array([1, 2, 4, 5, 6, 8])
    chunk = RowChunk(100, 9, np.arange(6), columns, bad, places, b"")
    found = list(pieces(chunk, 1_500))
    assert len(found) > 2
    assert [one.first for one in found] == [100, *[one.first + one.taken for one in found[:-1]]]
    assert found[-1].first + found[-1].taken == 109
    assert [one.first + p for one in found for p in one.places.tolist()] == [101, 102, 104, 105, 106, 108]
    assert [row for one in found for row in one.malformed] == bad
    assert all(one.first <= row.line - 1 < one.first + one.taken for one in found for row in one.malformed)
    assert [t for one in found for t in one.columns[1].to_list()] == list(range(6))


# --- configuration ---


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"format": "parquet", "null": "-"}, "null does not go with format parquet"),
        ({"format": "xml"}, "format"),
        ({"settle": "1s", "marker": ".done"}, "expected settle or marker, not both"),
        ({"until": "a/b"}, "expected the name of a file, without a folder"),
        ({"until": "x", "follow": False}, "expected until or follow: false, not both"),
        ({"region": "eu"}, "region goes with s3://"),
        ({"path": "s3://key:secret@bucket/x"}, "expected no credentials and no options in a URL"),
        ({"path": "s3://bucket?access_key=secret"}, "expected no credentials and no options in a URL"),
        ({"path": "s3:///x"}, "expected a folder, file:///… or s3://BUCKET/PREFIX"),
        ({"path": "s3://b", "endpoint": "http://me:secret@host"}, "expected http://HOST"),
        ({"columns": {"n": 1}}, "expected the name of a column for n, not a number"),
    ],
)
def test_errors_contain_no_secrets(options: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError) as error:
        source(**{"path": "in", **options})
    assert why in str(error.value)
    assert "secret" not in str(error.value)


def test_a_column_of_a_folder_must_be_an_attribute() -> None:
    with pytest.raises(SpeError, match=r"directory\.partitions: no attribute has the column x"):
        open_reader(source("in", partitions=["x"]))


# --- the page ---


async def test_the_example_of_the_page_reads_files(tmp_path: Path, autojump_clock: Any) -> None:
    text = (Path(__file__).parents[5] / "docs/how-to/directories.md").read_text()
    simple, dataset = (yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", text, re.DOTALL))
    query = {"query": {"q": {"filter": {"from": "orders", "where": "true"}}}, "outputs": ["q"]}
    put(tmp_path, "incoming/a", b'{"ts": "2001-01-01T00:00:00", "shop": 7, "price": 9.5}\n')
    one = load_data({**simple, **query}, "page", str(tmp_path)).plan.sources[StreamId("orders")]
    async with reading(one, SimDisk()) as proxy:
        await trio.sleep(2)
        assert (proxy.last_id, proxy.fault) == (1, None)
    (parsed,) = load_data({**dataset, **query}, "page", str(tmp_path)).plan.sources.values()
    assert parsed.reader["partitions"] == ["day", "shop"]
