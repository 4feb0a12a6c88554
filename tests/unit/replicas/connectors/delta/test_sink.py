"""Delta tables: each row once beside other writers, in every version of the table; what does not fit is refused."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from deltalake import CommitProperties, DeltaTable, Field, Transaction, write_deltalake

from replicas.connectors.delta import table as delta_place
from replicas.connectors.delta.sink import APP, DeltaSink
from replicas.connectors.server_sink import NOTHING_KEPT
from replicas.connectors.sink_registry import open_sink
from replicas.testing import check_sink
from spe.connectors.declaration import CORRECTIONS, CURRENT, MODES, STABLE
from spe.errors import ConfigError, ServerAway, SpeError
from spe.runtime.production import ThreadCompute
from spe.stream.batch import Batch, Rows
from spe.stream.change import Change
from spe.stream.ids import Channel
from spe.stream.names import Kind, StreamId
from spe.stream.schema import Schema
from tests.support.source_env import source_env
from tests.support.streams import PAYLOAD, parse

ONE, TWO = Channel(StreamId("out"), 0), Channel(StreamId("out"), 1)
STORY = "S1/5a S2/6b B10(2) T/12c T/13d b20 U(2) S3/12e B20(3) R+ T/22f b30"
COMPUTE = ThreadCompute()
BOTH = {ONE: PAYLOAD, TWO: PAYLOAD}
_NAMES = count()
#: Crashes of each kind.
FEW = 2


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "table")


Schemas = Mapping[Channel, Schema]


async def opened(
    path: str, mode: str = STABLE, schemas: Schemas = BOTH, query: str = "q1", client: str = "client:c", **options: Any
) -> DeltaSink:
    spec = {"kind": "delta", "path": path, "every": 10_000_000, "append": False, "mode": mode, **options}
    sink = open_sink(spec, schemas, lambda _: pytest.fail("no folder is needed"))
    assert isinstance(sink, DeltaSink)
    env = source_env()
    env.random.seed(next(_NAMES))
    await sink.open(env, dict.fromkeys(schemas, query), client)
    return sink


def feed(sink: DeltaSink, text: str, channel: Channel = ONE, position: int = 0, schema: Schema = PAYLOAD) -> None:
    for element in parse(text, schema, position=position):
        sink.write(Change(channel, element, 0))


async def written(path: str, story: str, mode: str = STABLE, **options: Any) -> DeltaSink:
    sink = await opened(path, mode, **options)
    feed(sink, story)
    await sink.commit(COMPUTE)
    return sink


def rows(path: str, version: int | None = None) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = pa.table(DeltaTable(path, version=version).to_pyarrow_table()).to_pylist()
    order = "_change" if found and "_change" in found[0] else "_id"
    return sorted(found, key=lambda r: (r[order] is None, r.get("_partition") or 0, r[order]))


def held(path: str, version: int | None = None) -> str:
    return " ".join(f"{r['_id']}{r['x']}" for r in rows(path, version))


# --- what the modes say ---


@pytest.mark.parametrize(("mode", "expected"), [(STABLE, "1a 2b 3e"), (CURRENT, "1a 2b 3e 4f")])
async def test_table_holds_rows_of_its_mode(path: str, mode: str, expected: str) -> None:
    await written(path, STORY, mode)
    assert held(path) == expected
    if mode == CURRENT:
        assert [r["x"] for r in rows(path) if r["_tentative"]] == ["f"]


async def test_changes_come_as_they_are_in_their_order_over_restarts(path: str) -> None:
    await written(path, "S1/5a B10(1) T/12c b20", CORRECTIONS)
    sink = await opened(path, CORRECTIONS)
    feed(sink, "S2/12e B20(2) R+", position=1)
    await sink.commit(COMPUTE)
    assert [(r["_change"], r["_kind"], r["_tentative"], r["_id"], r["x"]) for r in rows(path)] == [
        (0, "insert", False, 1, "a"),
        (1, "insert", True, 2, "c"),
        (2, "undo", False, 1, None),
        (3, "insert", False, 2, "e"),
        (4, "done", False, 2, None),
    ]


class Played:
    """A table of its own for each play; what any version of it holds is checked at the end."""

    def __init__(self, folder: Path) -> None:
        self.path = str(folder / f"played-{next(_NAMES)}")

    def rows(self) -> list[Mapping[str, Any]]:
        return list(rows(self.path)) if os.path.isdir(self.path) else []


@pytest.mark.parametrize("most", [FEW, pytest.param(30, marks=pytest.mark.long)])
@pytest.mark.parametrize("mode", MODES)
def test_delta_table_keeps_its_mode_despite_crashes(tmp_path: Path, mode: str, most: int) -> None:
    tables: list[Played] = []

    def played() -> Played:
        tables.append(Played(tmp_path))
        return tables[-1]

    check_sink(lambda table: {"delta": {"path": table.path, "every": "100ms"}, "mode": mode}, played, most=most)
    if mode == CORRECTIONS:
        return
    last = DeltaTable(tables[-1].path)
    assert last.version() > 5
    for version in range(last.version() + 1):
        results = [r["result"] for r in rows(tables[-1].path, version)]
        assert len(results) == len(set(results)), f"version {version} has two rows of one result"


ALL = Schema.of(i="int64", f="float64", b="bool", t="string", m="timestamp")


async def test_each_type_and_each_extreme(path: str) -> None:
    given: list[tuple[Any, ...]] = [
        (-(2**63), float("inf"), True, "é" * 70_000, -62_135_596_800_000_000),
        (2**63 - 1, float("-inf"), False, "", 253_402_300_799_999_999),
        (0, float("nan"), None, "tab\t newline\n 🦆", 1),
        (None, None, None, None, None),
        (7, 5e-324, True, "null", -1),
    ]
    sink = await opened(path, STABLE, {ONE: ALL})
    sink.write(Change(ONE, Batch(Kind.STABLE, 0, 5, None, Rows.from_tuples(ALL, [1, 2, 3, 4, 5], given)), 0))
    await sink.commit(COMPUTE)
    assert [str(f.type) for f in DeltaTable(path).to_pyarrow_table().schema][3:] == [
        "int64", "double", "bool", "string", "timestamp[us, tz=UTC]",
    ]  # fmt: skip

    def us(moment: datetime | None) -> int | None:
        return None if moment is None else (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)

    found = [(r["i"], r["f"], r["b"], r["t"], us(r["m"])) for r in rows(path)]
    assert str(found) == str(given)


async def test_readers_skip_files_by_statistics_in_the_log(path: str) -> None:
    """Also of NaN, which is above every number for Spark, of infinity, long texts, and files of nulls."""
    schema = Schema.of(n="int64", f="float64", t="string", m="timestamp")
    sink = await opened(path, STABLE, {ONE: schema})
    nan, inf, long = float("nan"), float("inf"), "z" * 99
    files = [[(0, 0.5, "a"), (1, 1.5, "b")], [(2, 0.5, "a"), (3, nan, long)], [(4, nan, None), (5, None, None)]]
    infinite = [[(6, inf, ""), (7, -inf, "m")], [(8, inf, "n"), (9, inf, "n")], [(10, -inf, "n"), (11, -inf, "n")]]
    for values in [*files, *infinite]:
        first = values[0][0]
        tuples = [(*v, 1_000_001 * v[0]) for v in values]
        batch = Batch(Kind.STABLE, first, first + 2, None, Rows.from_tuples(schema, [first, first], tuples))
        sink.write(Change(ONE, batch, 0))
        await sink.commit(COMPUTE)
    data = DeltaTable(path).to_pyarrow_dataset()
    assert isinstance(data, ds.Dataset)
    assert len(list(data.get_fragments(ds.field("n") > 5))) == 3
    moment = pa.scalar(3_000_003, pa.timestamp("us", tz="UTC"))
    for which, expected in (
        (ds.field("m") == moment, [3]),
        (ds.field("f") <= 0.5, [0, 2, 7, 10, 11]),
        (ds.field("f") > 1.0, [1, 6, 8, 9]),
        (ds.field("t") == long, [3]),
        (ds.field("t") < "a", [6]),
        (ds.field("n") >= 0, list(range(12))),
    ):
        assert sorted(data.to_table(filter=which)["n"].to_pylist()) == expected, which
    assert len(list(data.get_fragments(ds.field("f") > 1e300))) == 4, "NaN counts"


async def test_tentative_rows_of_a_session_are_withdrawn_by_next(path: str) -> None:
    await written(path, "S1/5a T/6b", CURRENT)
    assert held(path) == "1a 2b"
    again = await opened(path, CURRENT)
    assert (again.reached(ONE), held(path)) == (1, "1a")


async def test_ending_client_commits_its_rows(path: str) -> None:
    sink = await written(path, "S1/5a")
    feed(sink, "S2/6b", position=1)
    await sink.disconnect()
    assert held(path) == "1a 2b"
    feed(sink, "S3/7c", position=2)
    await sink.disconnect()
    assert held(path) == "1a 2b"


async def test_positions_are_transaction_identifiers_of_the_table(path: str) -> None:
    await written(path, "S1/5a S2/6b B10(2)")
    table = DeltaTable(path)
    assert [table.transaction_version(f"tentative-spe/client:c/{c}") for c in (ONE, TWO)] == [2, 0]


async def test_restart_continues_after_log_and_checkpoint(path: str) -> None:
    sink = await written(path, "S1/5a")
    DeltaTable(path).create_checkpoint()
    assert (await opened(path)).reached(ONE) == 1
    feed(sink, "S2/6b", position=1)
    with pytest.raises(SpeError, match="another process writes to it since; this one ends"):
        await sink.commit(COMPUTE)
    assert held(path) == "1a"


# --- other writers ---


def append(path: str) -> None:
    foreign = pa.table({"x": ["theirs"]})
    there = pa.schema(DeltaTable(path).schema().to_arrow())
    whole = pa.table({f.name: foreign["x"] if f.name == "x" else pa.nulls(1, f.type) for f in there}, schema=there)
    write_deltalake(path, whole, mode="append")


@pytest.mark.parametrize("mode", MODES)
async def test_rows_of_others_stay_and_none_of_ours_is_lost(path: str, mode: str) -> None:
    sink = await written(path, "S1/5a T/6b" if mode == CURRENT else "S1/5a", mode)
    sink._table.update_incremental()  # type: ignore[union-attr]
    sink._seen = sink._table.version()  # type: ignore[union-attr]
    append(path)
    feed(sink, "U(1) S2/12e B20(2) R+", position=1)
    await sink.commit(COMPUTE)
    found = held(path)
    assert ("2e" in found, "theirs" in found, "6b" in found) == (True, True, False)


async def test_commit_at_the_last_moment_is_noticed(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tentative files that somebody compacts between our look and our commit are looked for again."""
    sink = await written(path, "S1/5a T/6b", CURRENT)
    feed(sink, "T/7c", position=1)
    await sink.commit(COMPUTE)
    look, times = sink._withdraw, []

    def late(table: DeltaTable, channels: frozenset[int]) -> Any:
        found = look(table, channels)
        if not times:
            assert DeltaTable(path).optimize.compact()["numFilesRemoved"] > 1
        times.append(found)
        return found

    monkeypatch.setattr(sink, "_withdraw", late)
    feed(sink, "U(1) S2/12e B20(2) R+", position=1)
    await sink.commit(COMPUTE)
    assert (held(path), len(times)) == ("1a 2e", 2)


async def test_only_one_of_two_simultaneous_commits_stands(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = await written(path, "S1/5a")
    look = sink._withdraw

    def late(table: DeltaTable, channels: frozenset[int]) -> Any:
        """Another process takes over between the look at the state and the commit."""
        ours = {APP: json.dumps({"state": "{}", "change": 0})}
        if DeltaTable(path).version() == table.version():
            properties = CommitProperties(custom_metadata=ours, app_transactions=[Transaction(APP, 99)])
            write_deltalake(path, DeltaTable(path).to_pyarrow_table()[:0], mode="append", commit_properties=properties)
        return look(table, channels)

    monkeypatch.setattr(sink, "_withdraw", late)
    feed(sink, "S2/6b", position=1)
    with pytest.raises(SpeError, match="another process writes to it since"):
        await sink.commit(COMPUTE)
    assert held(path) == "1a"


async def test_compaction_and_vacuum_run_with_the_sink(path: str) -> None:
    sink = await opened(path, CURRENT)
    for id_ in range(1, 6):
        feed(sink, f"S{id_}/{id_}a", position=id_ - 1)
        feed(sink, f"S{id_}/{id_}b", TWO, position=id_ - 1)
        feed(sink, "T/90p", position=id_)
        feed(sink, "T/90q", TWO, position=id_)
        await sink.commit(COMPUTE)
        DeltaTable(path).optimize.compact()
        DeltaTable(path).vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
        feed(sink, f"U({id_})", position=id_)
        if id_ == 4:  # what is left of a file with tentative rows of both
            await sink.commit(COMPUTE)
            sink._corrections.clear()
            await sink.commit(COMPUTE)
            assert [r["x"] for r in rows(path) if r["_tentative"]] == ["q"]
        feed(sink, f"U({id_})", TWO, position=id_)
        feed(sink, "R+", position=id_)
        feed(sink, "R+", TWO, position=id_)
    await sink.commit(COMPUTE)
    assert held(path) == "1a 2a 3a 4a 5a 1b 2b 3b 4b 5b"
    assert len(DeltaTable(path).file_uris()) < 5


async def test_another_client_is_refused_by_name(path: str) -> None:
    await written(path, "S1/5a")
    with pytest.raises(SpeError, match="is written by client:c; give client:d another place"):
        await opened(path, client="client:d")


async def test_foreign_table_is_refused_or_appended_to(path: str) -> None:
    await written(path, "S1/5a")
    theirs = path + "-theirs"
    write_deltalake(theirs, pa.table(DeltaTable(path).to_pyarrow_table()))
    with pytest.raises(SpeError, match=r"the table has rows, and its log does not say how far we are.*append: true"):
        await opened(theirs)
    for _ in range(2):  # the second time the log says it
        sink = await opened(theirs, append=True)
        feed(sink, "S1/5b S2/6c")
        await sink.commit(COMPUTE)
    assert sorted(held(theirs).split()) == ["1a", "1b", "2c"]


async def test_another_query_or_mode_or_a_restored_table_is_refused(path: str) -> None:
    await written(path, "S1/5a")
    with pytest.raises(SpeError, match="holds out/0 of another query"):
        await opened(path, query="q2")
    with pytest.raises(SpeError, match="does not fit mode corrections: _change is missing, expected int64"):
        await opened(path, CORRECTIONS)
    DeltaTable(path).restore(1)
    with pytest.raises(SpeError, match="restored to an older version"):
        await opened(path)


async def test_log_without_our_commit_is_refused_with_its_ids(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    await written(path, "S1/5a S2/6b")
    monkeypatch.setattr(delta_place.DeltaPlace, "commit_info", lambda *_: None)
    with pytest.raises(SpeError, match=r"has forgotten our last commit.*out/0 up to id 2, out/1 up to id 0"):
        await opened(path)


# --- what does not fit ---


@pytest.mark.parametrize(
    ("columns", "partitions", "expected"),
    [
        ({"_id": pa.int32()}, [], "_id is int32, expected int64"),
        ({"x": None}, [], "x is missing, expected string"),
        ({"_time": pa.timestamp("us")}, [], r"_time is timestamp\[us\], expected timestamp\[us, tz=UTC\]"),
        ({}, ["x"], "it is partitioned by x, expected no column"),
    ],
)
async def test_a_table_with_other_columns_is_refused(
    path: str, columns: dict[str, Any], partitions: list[str], expected: str
) -> None:
    types = {"_partition": pa.int32(), "_id": pa.int64(), "_time": pa.timestamp("us", tz="UTC"), "x": pa.string()}
    types = {name: t for name, t in {**types, **columns}.items() if t is not None}
    DeltaTable.create(path, pa.schema(list(types.items())), partition_by=partitions)
    with pytest.raises(SpeError, match=f"the table does not fit mode stable: .*{expected}"):
        await opened(path)


async def test_features_that_we_do_not_write_are_named(path: str) -> None:
    await written(path, "S1/5a")
    DeltaTable(path).alter.set_table_properties({"delta.enableChangeDataFeed": "true"})
    with pytest.raises(SpeError, match=r"features changeDataFeed|writer version is 4"):
        await opened(path)


async def test_a_schema_that_changes_during_a_run(path: str) -> None:
    sink = await written(path, "S1/5a")
    DeltaTable(path).alter.add_columns([Field("more", "long")])
    feed(sink, "S2/6b", position=1)
    await sink.commit(COMPUTE)
    assert (held(path), rows(path)[0]["more"]) == ("1a 2b", None)
    other = pa.table({"x": pa.array([1])})
    write_deltalake(path, other, mode="overwrite", schema_mode="overwrite")
    feed(sink, "S3/7c", position=2)
    with pytest.raises(SpeError, match=r"_partition is missing, expected int32.*x is int64, expected string"):
        await sink.commit(COMPUTE)


async def test_streams_and_names_that_do_not_go_into_one_table(path: str) -> None:
    other = Channel(StreamId("more"), 0)
    with pytest.raises(ConfigError, match="more, out go to one table; expected a client that reads one stream"):
        await opened(path, schemas={ONE: PAYLOAD, other: PAYLOAD})
    with pytest.raises(ConfigError, match="attribute '_change' has a name that the sink uses itself"):
        await opened(path, CORRECTIONS, {ONE: Schema.of(_change="int64")})


# --- disks ---


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], None]:
    """Makes a full disk of what the sink writes to, or ends that."""
    is_full = False

    def sync(descriptor: int, path: Path) -> None:
        if is_full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        os.fsync(descriptor)

    def switch(to: bool) -> None:
        nonlocal is_full
        is_full = to

    monkeypatch.setattr(delta_place, "_sync", sync)
    return switch


async def test_a_full_disk_is_waited_for(path: str, full: Callable[[bool], None]) -> None:
    sink = await written(path, "S1/5a")
    full(True)
    feed(sink, "S2/6b", position=1)
    for _ in range(2):
        with pytest.raises(ServerAway, match="No space left on device"):
            await sink.commit(COMPUTE)
    assert (sink.position(ONE), held(path)) == (1, "1a")
    full(False)
    await sink.commit(COMPUTE)
    assert (sink.position(ONE), held(path)) == (2, "1a 2b")
    assert len([name for name in os.listdir(path) if name.endswith(".parquet")]) == 2, (
        "a file that had no room is removed"
    )


async def test_a_sync_that_fails_ends_the_client(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = await written(path, "S1/5a")

    def fails(_: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    feed(sink, "S2/6b", position=1)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fails)
        with pytest.raises(SpeError, match="a sync failed"):
            await sink.commit(COMPUTE)
    assert held(path) == "1a"
    assert (await opened(path)).reached(ONE) == 1


async def test_files_are_synced_before_the_commit_that_names_them(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sink, order = await written(path, "S1/5a"), []
    sync, commit = delta_place._sync, DeltaTable.create_write_transaction

    def synced(descriptor: int, file: Path) -> None:
        order.append(file.suffix)
        sync(descriptor, file)

    def committed(*given: Any, **options: Any) -> None:
        commit(*given, **options)
        order.append("commit")

    monkeypatch.setattr(delta_place, "_sync", synced)
    monkeypatch.setattr(DeltaTable, "create_write_transaction", committed)
    feed(sink, "S2/6b", position=1)
    await sink.commit(COMPUTE)
    assert order == [".parquet", "commit", ".json"]


@pytest.mark.parametrize("what", ["commit", "checkpoint"])
async def test_files_torn_by_power_failure_are_removed(path: str, what: str) -> None:
    await written(path, "S1/5a S2/6b")
    table = DeltaTable(path)
    log = Path(path) / "_delta_log"
    if what == "commit":
        (log / f"{table.version() + 1:020}.json").write_bytes(b'{"commitInfo":{"times')
    else:
        table.create_checkpoint()
        (checkpoint,) = log.glob("*.checkpoint.parquet")
        checkpoint.write_bytes(checkpoint.read_bytes()[:100])
    sink = await opened(path)
    assert sink.reached(ONE) == 2
    feed(sink, "S3/7c", position=2)
    await sink.commit(COMPUTE)
    assert held(path) == "1a 2b 3c"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
async def test_a_folder_that_may_not_be_written_ends_the_client(tmp_path: Path) -> None:
    (tmp_path / "closed").mkdir(mode=0o500)
    with pytest.raises(SpeError, match="permission denied; expected a folder that this user may write"):
        await opened(str(tmp_path / "closed" / "table"))


async def test_a_path_below_a_file_ends_the_client(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SpeError, match="no folder"):
        await opened(str(tmp_path / "file" / "table"))


# -- beginning anew --------------------------------------------------------------------------------------------------


def unopened(path: str, mode: str, **options: Any) -> DeltaSink:
    spec = {"kind": "delta", "path": path, "every": 10_000_000, "append": False, "mode": mode, **options}
    sink = open_sink(spec, BOTH, lambda _: pytest.fail("no folder is needed"))
    assert isinstance(sink, DeltaSink)
    return sink


@pytest.mark.parametrize("mode", [STABLE, CURRENT, CORRECTIONS])
async def test_a_forgotten_table_is_written_from_the_first_row(path: str, mode: str) -> None:
    env = source_env()
    assert await unopened(path, mode).forget(env) == NOTHING_KEPT
    await written(path, "S1/5a S2/6b B10(2)" if mode == STABLE else "S1/5a T/6b", mode)
    running = await opened(path, mode)
    before = len(rows(path))
    assert await unopened(path, mode).forget(env) == f"its position and {before} rows are removed"
    assert rows(path) == []
    feed(running, "S3/7c" if mode == STABLE else "S2/7c", position=2 if mode == STABLE else 1)
    with pytest.raises(SpeError, match="another process writes to it since"):
        await running.commit(COMPUTE)
    await written(path, "S1/8x B10(1)", mode, query="q2")
    assert [row["_id"] for row in rows(path)] == [1]


async def test_rows_of_others_stay_where_a_table_is_appended_to(path: str) -> None:
    await written(path, "S1/5a B10(1)", append=True)
    said = await unopened(path, STABLE, append=True).forget(source_env())
    assert said == "its position is removed; its rows stay among those of others"
    await written(path, "S1/8x B10(1)", append=True)
    assert [row["_id"] for row in rows(path)] == [1, 1]
