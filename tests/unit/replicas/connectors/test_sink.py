"""Sinks write final tuples exactly once, or every change; after a crash they can be read and continued."""

from __future__ import annotations

import errno
import json
import os
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import trio

from replicas.connectors.files.parquet_sink import DiskFull, ParquetSink
from replicas.connectors.sink import CORRECTIONS, STABLE, JsonLinesSink, Sink
from replicas.connectors.sink_registry import open_sink
from spe.errors import ConfigError, LogCorrupt
from spe.runtime.disk_trouble import is_full
from spe.runtime.production import ThreadCompute
from spe.runtime.storage import in_folder
from spe.stream.change import Change
from spe.stream.ids import Channel
from spe.stream.names import StreamId
from spe.stream.schema import Schema
from tests.support.streams import PAYLOAD, parse

ONE, TWO = Channel(StreamId("out"), 0), Channel(StreamId("out"), 1)
SCHEMAS = {ONE: PAYLOAD, TWO: PAYLOAD}
STORY = "S1/5a S2/6b B10(2) T/12c T/13d b20 U(2) S3/12e B20(3) R+ T/22f b30"

Open = Callable[[str], Sink]


def feed(sink: Sink, text: str, channel: Channel = ONE, schema: Schema = PAYLOAD, position: int = 0) -> None:
    for element in parse(text, schema, position=position):
        sink.write(Change(channel, element, 0))


def commit(sink: Sink) -> None:
    trio.run(sink.commit, ThreadCompute())


def lines(folder: Path, channel: Channel = ONE) -> list[dict[str, Any]]:
    path = folder / f"{channel.stream}.{channel.partition}.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()]


def table(folder: Path, stream: str = "out") -> list[dict[str, Any]]:
    """Rows of all parts, in the order of the parts' names."""
    return [row for p in sorted((folder / stream).glob("*.parquet")) for row in pq.read_table(p).to_pylist()]


@pytest.fixture(params=["jsonl", "parquet"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def reopen(kind: str, tmp_path: Path) -> Open:
    """Opens a sink of either kind on the same folder."""
    return lambda mode: open_sink({"kind": kind, "path": str(tmp_path), "mode": mode}, SCHEMAS, in_folder)


@pytest.fixture
def read(kind: str, tmp_path: Path) -> Callable[[], list[dict[str, Any]]]:
    """Channel ONE as another program reads it."""
    return lambda: lines(tmp_path) if kind == "jsonl" else [r for r in table(tmp_path) if r["_partition"] == 0]


Read = Callable[[], list[dict[str, Any]]]


def brief(rows: list[dict[str, Any]]) -> str:
    """Rows in the notation of streams."""
    words = {"insert": lambda r: f"{'T' if r.get('_tentative') else 'S'}{r['_id']}{r['x']}"}
    words |= {"undo": lambda r: f"U({r['_id']})", "done": lambda r: f"R({r['_id']})"}
    return " ".join(words[r.get("_kind", "insert")](r) for r in rows)


def replayed(rows: list[dict[str, Any]]) -> str:
    """The rows after applying inserts and undos in order, as docs/how-to/read-results.md says."""
    held: list[dict[str, Any]] = []
    for row in rows:
        if row["_kind"] == "insert":
            held.append(row)
        elif row["_kind"] == "undo":
            held = [r for r in held if r["_id"] <= row["_id"]]
    return brief(held)


def test_a_stable_sink_holds_final_tuples_only(reopen: Open, read: Read) -> None:
    sink = reopen(STABLE)
    feed(sink, STORY)
    sink.close()
    assert brief(read()) == "S1a S2b S3e"


def test_a_corrections_sink_holds_every_insert_and_undo(reopen: Open, read: Read) -> None:
    sink = reopen(CORRECTIONS)
    feed(sink, STORY)
    sink.close()
    assert brief(read()) == "S1a S2b T3c T4d U(2) S3e R(3) T4f"
    assert replayed(read()) == "S1a S2b S3e T4f"


def test_ids_of_tentative_batches_go_on(reopen: Open, read: Read) -> None:
    """F7: they continue those of the batch before, whatever ids their producer gave them."""
    sink = reopen(CORRECTIONS)
    feed(sink, "S1/5a S2/6b B10(2) T/12c b13 T/13d b20 U(2) T/14e b21")
    sink.close()
    assert brief(read()) == "S1a S2b T3c T4d U(2) T3e"


def test_repeated_changes_after_a_restart_are_written_once(reopen: Open, read: Read) -> None:
    sink = reopen(STABLE)
    feed(sink, "S1/5a S2/6b B10(2)")
    sink.close()
    sink = reopen(STABLE)
    assert (sink.reached(ONE), sink.reached(TWO)) == (2, 0)
    commit(sink)
    assert (sink.position(ONE), sink.position(TWO)) == (2, 0)
    feed(sink, "S1/5a S2/6b | S3/12c")
    feed(sink, "S2/6b S3/12c S4/13d", position=1)
    sink.close()
    assert brief(read()) == "S1a S2b S3c S4d"


def test_tentative_tuples_of_earlier_session_are_undone(reopen: Open, read: Read) -> None:
    sink = reopen(CORRECTIONS)
    feed(sink, "S1/5a B10(1) T/12b b20")
    sink.close()
    sink = reopen(CORRECTIONS)
    assert sink.reached(ONE) == 1
    feed(sink, "S1/5a S2/12c")
    sink.close()
    assert brief(read()) == "S1a T2b U(1) S2c"
    sink = reopen(CORRECTIONS)
    sink.close()
    assert brief(read()) == "S1a T2b U(1) S2c"


def test_an_undo_works_where_the_client_is_behind_its_sink(reopen: Open, read: Read) -> None:
    """After a power failure the recording may be behind the sinks, and the client continues from the recording."""
    sink = reopen(CORRECTIONS)
    feed(sink, "S1/5a S2/6b S3/7c B10(3)")
    feed(sink, "S1/5a B6(1) T/12d b20", position=0)
    feed(sink, "U(1) S2/6b S3/7c S4/12d", position=1)
    sink.close()
    assert replayed(read()) == "S1a S2b S3c S4d"


def test_an_undo_without_tentative_tuples_is_not_written(reopen: Open, read: Read) -> None:
    sink = reopen(CORRECTIONS)
    feed(sink, "S1/5a U(1) S2/6b")
    sink.close()
    assert brief(read()) == "S1a S2b"


def test_each_channel_has_its_own_ids(reopen: Open, kind: str, tmp_path: Path) -> None:
    sink = reopen(STABLE)
    feed(sink, "S1/5a S2/6b")
    feed(sink, "S1/5x", TWO)
    commit(sink)
    assert (sink.position(ONE), sink.position(TWO)) == (2, 1)
    sink.close()
    if kind == "jsonl":
        assert [r["x"] for r in lines(tmp_path, TWO)] == ["x"]
    else:
        assert [(r["_partition"], r["_id"], r["x"]) for r in table(tmp_path)] == [(0, 1, "a"), (0, 2, "b"), (1, 1, "x")]


def test_only_committed_changes_count_as_safe(reopen: Open) -> None:
    sink = reopen(STABLE)
    feed(sink, "S1/5a S2/6b")
    assert sink.position(ONE) == 0
    commit(sink)
    assert sink.position(ONE) == 2
    sink.close()


ALL = Schema.of(n="int64", x="float64", s="string", ok="bool", at="timestamp")
VALUES = "S1/5:1,0.5,ä,true,2026-01-02T03:04:05.000006 S2/6:null,null,null,null,null S3/7:-1,nan,,false,0"


def test_every_type_and_null_is_written_as_json(tmp_path: Path) -> None:
    sink = JsonLinesSink(*in_folder(tmp_path), {ONE: ALL}, STABLE)
    feed(sink, VALUES + " S4/8:2,inf,a,true,0 S5/9:2,-inf,a,true,0", schema=ALL)
    sink.close()
    first, second, third, fourth, fifth = lines(tmp_path)
    assert first == {
        "_id": 1,
        "_time": "1970-01-01T00:00:00.000005Z",
        "n": 1,
        "x": 0.5,
        "s": "ä",
        "ok": True,
        "at": "2026-01-02T03:04:05.000006Z",
    }
    assert [second[n] for n in ALL.names] == [None] * 5
    assert (third["x"], third["s"], third["at"]) == ("NaN", "", "1970-01-01T00:00:00Z")
    assert (fourth["x"], fifth["x"]) == ("Infinity", "-Infinity")


@pytest.mark.parametrize("mode", [STABLE, CORRECTIONS])
def test_every_type_and_null_is_written_as_parquet(tmp_path: Path, mode: str) -> None:
    sink = ParquetSink(tmp_path, {ONE: ALL}, mode)
    feed(sink, VALUES, schema=ALL)
    sink.close()
    (path,) = (tmp_path / "out").iterdir()
    found = pq.read_table(path)
    types = [str(f.type) for f in found.schema][-6:]
    assert types == ["timestamp[us, tz=UTC]", "int64", "double", "string", "bool", "timestamp[us, tz=UTC]"]
    first, second, third = found.to_pylist()
    assert (first["n"], first["x"], first["s"], first["ok"]) == (1, 0.5, "ä", True)
    assert first["at"].isoformat() == "2026-01-02T03:04:05.000006+00:00"
    assert [second[n] for n in ALL.names] == [None] * 5
    assert third["x"] != third["x"]
    assert (third["n"], third["s"]) == (-1, "")


def test_row_groups_and_parts_are_bounded(tmp_path: Path) -> None:
    """Seven rows, groups of at most two, a part is left at five: 5 + 2, however the batches were cut."""
    sink = ParquetSink(tmp_path, {ONE: PAYLOAD}, STABLE, group_rows=2, part_rows=5)
    feed(sink, "S1/1a S2/2b S3/3c S4/4d S5/5e | S6/6f | S7/7g")
    sink.close()
    files = [pq.ParquetFile(p) for p in sorted((tmp_path / "out").iterdir())]
    groups = [[f.metadata.row_group(i).num_rows for i in range(f.num_row_groups)] for f in files]
    assert [sum(g) for g in groups] == [5, 2]
    assert max(n for g in groups for n in g) <= 2
    assert [p.name for p in sorted((tmp_path / "out").iterdir())] == [
        "0000-00000000-5.parquet",
        "0000-00000001-7.parquet",
    ]


def test_a_crash_leaves_complete_parts_and_the_rest_is_rewritten(tmp_path: Path) -> None:
    """1. part 0 is complete.  2. part 1 is open with a group on disk, and the process dies.  3. a restart."""
    sink = ParquetSink(tmp_path, {ONE: PAYLOAD}, STABLE, group_rows=1)
    feed(sink, "S1/1a S2/2b")
    commit(sink)
    feed(sink, "S3/3c", position=2)
    assert len(list((tmp_path / "out").glob(".*.open"))) == 1
    assert brief(table(tmp_path)) == "S1a S2b"

    again = ParquetSink(tmp_path, {ONE: PAYLOAD}, STABLE)
    assert not list((tmp_path / "out").glob(".*.open"))
    assert again.position(ONE) == 2
    feed(again, "S3/3c S4/4d", position=2)
    again.close()
    assert brief(table(tmp_path)) == "S1a S2b S3c S4d"


@pytest.mark.parametrize("cut", [1, 10, 30])
def test_a_torn_last_line_is_removed_and_rewritten(tmp_path: Path, cut: int) -> None:
    sink = JsonLinesSink(*in_folder(tmp_path), {ONE: PAYLOAD}, STABLE)
    feed(sink, "S1/1a S2/2b")
    sink.close()
    path = tmp_path / "out.0.jsonl"
    path.write_bytes(path.read_bytes()[:-cut])
    again = JsonLinesSink(*in_folder(tmp_path), {ONE: PAYLOAD}, STABLE)
    assert again.reached(ONE) == 1
    feed(again, "S1/1a S2/2b S3/3c")
    again.close()
    assert brief(lines(tmp_path)) == "S1a S2b S3c"


@pytest.mark.parametrize("garbage", [b"\x00" * 50, b"\xff\n{\n\x00", b'{"_id": 2, "x\n', b"\xff\n7\n"])
def test_garbage_after_a_power_failure_is_removed(tmp_path: Path, garbage: bytes) -> None:
    sink = JsonLinesSink(*in_folder(tmp_path), {ONE: PAYLOAD}, STABLE)
    feed(sink, "S1/1a")
    sink.close()
    with (tmp_path / "out.0.jsonl").open("ab") as file:
        file.write(garbage)
    again = JsonLinesSink(*in_folder(tmp_path), {ONE: PAYLOAD}, STABLE)
    assert again.reached(ONE) == 1
    feed(again, "S1/1a S2/2b")
    again.close()
    assert brief(lines(tmp_path)) == "S1a S2b"


@pytest.mark.parametrize("mode", [STABLE, CORRECTIONS])
def test_a_hole_before_whole_lines_is_rewritten(tmp_path: Path, mode: str) -> None:
    """Of what was not synced, a power failure may leave the end alone."""
    sink = JsonLinesSink(*in_folder(tmp_path), {ONE: PAYLOAD}, mode)
    feed(sink, "S1/1a S2/2b S3/3c S4/4d")
    sink.close()
    path = tmp_path / "out.0.jsonl"
    first, second, *rest = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([first, second[:9], bytes(len(second) - 9), *rest]))
    again = JsonLinesSink(*in_folder(tmp_path), {ONE: PAYLOAD}, mode)
    assert again.reached(ONE) == 1
    feed(again, "S1/1a S2/2b S3/3c S4/4d S5/5e")
    again.close()
    assert brief(lines(tmp_path)) == "S1a S2b S3c S4d S5e"


@pytest.mark.parametrize("text", ["date,amount\n2026-01-01,5\n", "Datum,Betrag,Käufer\n2026-01-01,5,ä\n"])
def test_a_file_of_something_else_is_left_alone(tmp_path: Path, text: str) -> None:
    path = tmp_path / "out.0.jsonl"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(LogCorrupt, match="holds something else than the lines of a sink"):
        JsonLinesSink(*in_folder(tmp_path), {ONE: PAYLOAD}, STABLE)
    assert path.read_text(encoding="utf-8") == text


@pytest.mark.parametrize("left", [b'{"_id": 1, "_time": "1970', b"\x00" * 50, b"7\n"])
def test_unsynced_first_line_is_removed_entirely(tmp_path: Path, left: bytes) -> None:
    path = tmp_path / "out.0.jsonl"
    path.write_bytes(left)
    sink = JsonLinesSink(*in_folder(tmp_path), {ONE: PAYLOAD}, STABLE)
    feed(sink, "S1/1a")
    sink.close()
    assert brief(lines(tmp_path)) == "S1a"


def test_lines_of_an_earlier_session_are_safe_once_synced(tmp_path: Path) -> None:
    """The process was killed, so its last lines may be in memory only."""
    sink = JsonLinesSink(*in_folder(tmp_path), {ONE: PAYLOAD}, STABLE)
    feed(sink, "S1/1a S2/2b")
    sink.close()
    again = JsonLinesSink(*in_folder(tmp_path), {ONE: PAYLOAD}, STABLE)
    assert (again.reached(ONE), again.position(ONE)) == (2, 0)
    commit(again)
    assert again.position(ONE) == 2
    again.close()


def test_end_of_a_long_tentative_run_is_located(tmp_path: Path) -> None:
    sink = JsonLinesSink(*in_folder(tmp_path), {ONE: PAYLOAD}, CORRECTIONS)
    feed(sink, "S1/1a " + " ".join(f"T/{i}b" for i in range(2, 3_000)))
    sink.close()
    assert (tmp_path / "out.0.jsonl").stat().st_size > 3 * (1 << 16)
    again = JsonLinesSink(*in_folder(tmp_path), {ONE: PAYLOAD}, CORRECTIONS)
    assert again.reached(ONE) == 1
    again.close()
    assert lines(tmp_path)[-1] == {"_kind": "undo", "_id": 1}


@pytest.mark.parametrize(("before", "now"), [(STABLE, CORRECTIONS), (CORRECTIONS, STABLE)])
def test_a_folder_of_another_mode_is_refused(reopen: Open, before: str, now: str) -> None:
    sink = reopen(before)
    feed(sink, "S1/1a")
    sink.close()
    with pytest.raises(LogCorrupt, match=f"{now} sink"):
        reopen(now)


def test_strings_of_many_dictionaries_are_written_as_text(tmp_path: Path) -> None:
    """Each element of ``parse`` has a dictionary of its own."""
    sink = ParquetSink(tmp_path, {ONE: PAYLOAD}, STABLE)
    for position, word in enumerate(("a", "b", "a", "c")):
        feed(sink, f"S{position + 1}/{position}{word}", position=position)
    sink.close()
    assert brief(table(tmp_path)) == "S1a S2b S3a S4c"


def test_every_mistake_in_a_sink_is_named(tmp_path: Path) -> None:
    clash = {ONE: Schema.of(_id="int64", n="int64")}
    with pytest.raises(ConfigError) as caught:
        open_sink({"kind": "csv", "path": str(tmp_path), "mode": "final"}, clash, in_folder)
    reserved = "stream 'out': attribute '_id' has a name that sinks use themselves"
    assert caught.value.problems == [
        "sink kind 'csv'; expected one of: parquet, jsonl, delta, postgres, kafka, http",
        reserved,
    ]
    with pytest.raises(ConfigError) as caught:
        open_sink({"kind": "jsonl", "path": str(tmp_path), "mode": "final"}, clash, in_folder)
    assert caught.value.problems == ["sink mode 'final'; jsonl takes one of: stable, corrections", reserved]


@pytest.mark.parametrize("mode", [STABLE, CORRECTIONS])
def test_a_write_refused_by_a_full_disk_can_be_repeated(tmp_path: Path, mode: str) -> None:
    """With real files: each line is written as a whole or not at all, and only synced lines are safe."""
    sink = JsonLinesSink(*in_folder(tmp_path), {ONE: PAYLOAD}, mode)
    feed(sink, "S1/5a")
    commit(sink)
    size = (tmp_path / "out.0.jsonl").stat().st_size
    with files_of_at_most(size + 10), pytest.raises(OSError, match="File too large") as refused:
        feed(sink, "S2/6b", position=1)
    assert is_full(refused.value)
    assert (tmp_path / "out.0.jsonl").stat().st_size == size
    assert sink.position(ONE) == sink.reached(ONE) == 1
    feed(sink, "S2/6b", position=1)
    commit(sink)
    sink.close()
    assert [line["_id"] for line in lines(tmp_path)] == [1, 2]
    assert sink.position(ONE) == 2


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("mode", [STABLE, CORRECTIONS])
@pytest.mark.parametrize("size", [0, 3, 100, 1_000, 2_000])
def test_a_part_waits_for_room_wherever_the_disk_refuses_it(tmp_path: Path, mode: str, size: int) -> None:
    """In the header, in a row group or in the footer: each change is taken once, and none is lost."""
    sink = ParquetSink(tmp_path, {ONE: PAYLOAD}, mode, group_rows=1, part_rows=4)
    changes = ["S1/5a", "T/6x", "U(1)", "S2/7b", "S3/8c", "S4/9d", "S5/10e"]
    left, refused, position = list(changes), 0, 0
    with files_of_at_most(size):
        while left:
            try:
                feed(sink, left[0], position=position)
            except DiskFull:
                refused += 1
                break
            position += left.pop(0).startswith("S")
        with suppress(DiskFull):
            commit(sink)
        assert sink.position(ONE) <= position
    assert refused or size == 2_000
    for text in left:
        feed(sink, text, position=position)
        position += text.startswith("S")
    commit(sink)
    assert sink.position(ONE) == 5
    sink.close()
    assert not list((tmp_path / "out").glob(".*.open"))
    told = replayed if mode == CORRECTIONS else brief
    assert told(table(tmp_path)) == "S1a S2b S3c S4d S5e"


@pytest.mark.parametrize("failing", ["file", "folder"])
def test_a_part_whose_sync_failed_never_gets_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    """Linux reports lost data once; a second sync succeeds.  If the sync of the folder failed, the data are safe."""
    sink = ParquetSink(tmp_path, {ONE: PAYLOAD}, STABLE)
    feed(sink, "S1/5a")
    commit(sink)
    feed(sink, "S2/6b", position=1)
    real, calls = os.fsync, 0

    def once(descriptor: int) -> None:
        nonlocal calls
        calls += 1
        if calls == (1 if failing == "file" else 2):
            raise OSError(errno.ENOSPC, "No space left on device")
        real(descriptor)

    monkeypatch.setattr(os, "fsync", once)
    for _ in range(2):
        with pytest.raises(OSError, match=r"a sync failed \(No space left on device\).*/out/") as failed:
            commit(sink)
        assert not is_full(failed.value)
        assert sink.position(ONE) == 1
    with pytest.raises(OSError, match="a sync failed"):
        feed(sink, "S3/7c", position=2)
    sink.close()
    assert brief(table(tmp_path)) == ("S1a" if failing == "file" else "S1a S2b")
    before = calls
    again = ParquetSink(tmp_path, {ONE: PAYLOAD}, STABLE)
    assert calls > before, "a name that is not safe may be acknowledged"
    if failing == "file":
        assert again.position(ONE) == 1
        feed(again, "S2/6b", position=1)
    feed(again, "S3/7c", position=2)
    again.close()
    assert brief(table(tmp_path)) == "S1a S2b S3c"


def test_sink_closed_on_full_disk_resumes_from_complete_parts(tmp_path: Path) -> None:
    sink = ParquetSink(tmp_path, {ONE: PAYLOAD}, STABLE, group_rows=1)
    feed(sink, "S1/5a")
    commit(sink)
    with files_of_at_most(10):
        feed(sink, "S2/6b", position=1)
        sink.close()
    again = ParquetSink(tmp_path, {ONE: PAYLOAD}, STABLE)
    assert again.position(ONE) == 1
    feed(again, "S2/6b", position=1)
    again.close()
    assert brief(table(tmp_path)) == "S1a S2b"
