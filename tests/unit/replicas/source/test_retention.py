"""The oldest part of a source's log goes once nobody needs it, and nothing else does (E1 to E4)."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable
from pathlib import PurePosixPath

import pytest
import trio
import trio.testing

from replicas.producer.subscription import Overtaken
from replicas.retention.archiving import Archive
from replicas.retention.holders import PROOF
from replicas.retention.trouble import PATIENCE_US
from replicas.simulation.world.disk import SimDisk
from replicas.source.process import Division, SourceSubscription
from replicas.source.proxy import SourceProxy
from replicas.source.retention import SourceRetention, archived
from spe.log import read_log
from spe.log.format import Segment
from spe.log.log_start import LogCut, read_kept
from spe.log.proof_progress import PROVED, encode_proved
from spe.log.source_log import decode_source_batch, decode_source_state, read_source_log
from spe.plan.plan import Retain, Source, Watermark
from spe.stream.strings import StringPool
from spe.stream.times import BEFORE_TIME
from tests.support.crashing_disk import Crashed, CrashingDisk
from tests.support.source_env import ListTrace, source_env
from tests.unit.replicas.source.test_cursors import Numbers, Server
from tests.unit.replicas.source.test_proxy import EVENTS, FOLDER, elements_from, rows_of, source

ROWS = 200
#: So much that about half of the segments are due.
HALF = Retain(size_bytes=8_000, unproved=True)
READERS = ("u/0@n1", "u/0@n2")


def of(retain: Retain) -> Source:
    return source({"kind": "stdin"}, retain=retain, watermark=Watermark.DATA)


async def filled(retain: Retain = HALF, rows: int = ROWS, storage: SimDisk | None = None) -> SimDisk:
    """A disk with a log of so many rows, two or four in a record."""
    storage = SimDisk() if storage is None else storage
    proxy = await SourceProxy.open(source_env(storage), of(retain))
    with trio.move_on_after(rows / 20):
        await proxy.run(reader=Numbers(Server(rows, frozenset()), ends=False))
    proxy.close()
    return storage.restarted()


async def opened(
    storage: SimDisk, retain: Retain = HALF, archive: Archive | None = None, trace: ListTrace | None = None
) -> tuple[SourceProxy, SourceRetention]:
    proxy = await SourceProxy.open(source_env(storage, trace=trace), of(retain))

    def open_archive(place: str) -> Archive:
        assert archive is not None
        return archive

    return proxy, proxy.retention(open_archive, READERS)


def acknowledge(retention: SourceRetention, id: int) -> None:
    for name in READERS:
        retention.acknowledged(name, 1, id)


def names(storage: SimDisk) -> list[str]:
    pool = StringPool()
    batches = (decode_source_batch(r.body, EVENTS, pool) for r in read_log(storage, FOLDER))
    return [n for b in batches if b is not None for n in b.rows.columns[1].to_list()]


EXPECTED = [f"r{n}" for n in range(ROWS)]


async def test_rows_acknowledged_by_all_are_deleted(autojump_clock: trio.testing.MockClock) -> None:
    storage = await filled()
    proxy, retention = await opened(storage)
    before = proxy.status().bytes
    await retention.look()
    assert proxy.base_id == 0, "nobody was heard"
    acknowledge(retention, ROWS)
    await retention.look()
    assert 0 < proxy.base_id < ROWS
    assert proxy.status().bytes <= 8_000 < before
    rows = rows_of(list(elements_from(proxy, proxy.base_id)))
    assert [row[0] for row in rows] == list(range(proxy.base_id + 1, ROWS + 1))
    assert names(storage) == EXPECTED[proxy.base_id :]
    status = proxy.status(retention.status())
    assert (status.first_id, status.held, status.archive) == (proxy.base_id + 1, (), "")
    assert status.first_us == rows[0][1] - 10, "whole from behind the last row that is gone"


@pytest.mark.parametrize("line", [0, 1, 57, 100, ROWS])
async def test_nothing_beyond_the_least_acknowledgement_goes(line: int, autojump_clock: trio.testing.MockClock) -> None:
    proxy, retention = await opened(await filled())
    retention.acknowledged(READERS[0], 1, ROWS)
    retention.acknowledged(READERS[1], 1, line)
    await retention.look()
    assert proxy.base_id <= line
    held = retention.status().holders
    assert [h.holder for h in held] == ([READERS[1]] if line < ROWS else [])


async def test_restart_continues_after_deleted_rows(autojump_clock: trio.testing.MockClock) -> None:
    storage = await filled()
    proxy, retention = await opened(storage)
    acknowledge(retention, ROWS)
    await retention.look()
    base = proxy.base_id
    proxy.close()

    storage = await filled(rows=ROWS + 20, storage=storage.restarted())
    proxy, retention = await opened(storage)
    assert (proxy.base_id, proxy.last_id) == (base, ROWS + 20)
    ids = [row[0] for row in rows_of(list(elements_from(proxy, base)))]
    assert ids == list(range(base + 1, ROWS + 21))
    with pytest.raises(LogCut, match=f"begins behind id {base}"):
        list(read_source_log(storage, FOLDER, EVENTS))


@pytest.mark.parametrize("sync_s", [0.0, 0.2], ids=["synced", "behind"])
async def test_old_tuples_are_deleted_by_time_even_in_a_part_segment(
    autojump_clock: trio.testing.MockClock, sync_s: float
) -> None:
    """Rows are 10 µs apart; a segment has 64 MiB.  Also where some come during each sync."""
    retain, storage = Retain(for_us=800, unproved=True), SimDisk()
    storage.sync_s = sync_s
    proxy = await SourceProxy.open(source_env(storage), of(retain))
    retention = proxy.retention(lambda _: storage, READERS)
    acknowledge(retention, ROWS)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(retention.run)
        with trio.move_on_after(ROWS / 20):
            await proxy.run(reader=Numbers(Server(ROWS, frozenset()), ends=False))
        nursery.cancel_scope.cancel()
    newest = proxy.frontier
    assert newest >= 10 * (ROWS - 2)
    assert newest - 2 * 800 < 10 * proxy.base_id <= newest - 800


async def test_the_last_record_never_goes(autojump_clock: trio.testing.MockClock) -> None:
    """It says where the reader goes on."""
    storage = await filled(Retain(for_us=1, unproved=True))
    for _ in range(3):
        proxy, retention = await opened(storage, Retain(for_us=1, unproved=True))
        acknowledge(retention, ROWS)
        await retention.look()
        await retention.look()
        assert (proxy.last_id, proxy.consumed) == (ROWS, ROWS)
        proxy.close()
        storage = storage.restarted()
    states = [decode_source_state(r.body) for r in read_log(storage, FOLDER)]
    assert states
    assert states[-1].last_id == ROWS


async def test_the_segment_with_the_last_record_stays(autojump_clock: trio.testing.MockClock) -> None:
    """E1: after restarts no segment may be open to be written, and the log is larger than it may be."""
    retain = Retain(size_bytes=1, unproved=True)
    storage = await filled(retain)
    for _ in range(3):
        proxy, retention = await opened(storage, retain)
        assert (proxy.last_id, proxy.consumed) == (ROWS, ROWS)
        acknowledge(retention, ROWS)
        proxy._log.leave()
        await retention.look()
        await retention.look()
        proxy.close()
        storage = storage.restarted()


async def test_unproved_tuples_stay_until_they_are_proved(autojump_clock: trio.testing.MockClock) -> None:
    retain = Retain(size_bytes=8_000)
    storage = await filled(retain)
    proxy, retention = await opened(storage, retain)
    acknowledge(retention, ROWS)
    await retention.look()
    assert proxy.base_id == 0
    assert [h.holder for h in retention.status().holders] == [PROOF]

    middle = proxy.status().bytes and next(s.first for s, _ in proxy._log.closed()[2:])
    for identity, gone in (("another log's", False), (proxy.identity, True)):
        await storage.write_atomic(PROVED, encode_proved({"events": (identity, middle)}, {}).encode())
        await retention.look()
        assert (read_kept(storage, FOLDER).first == middle) is gone
    await storage.write_atomic(PROVED, b'{"version": 1, "sources": {"ev')
    await retention.look()
    assert read_kept(storage, FOLDER).first == middle, "what is damaged proves nothing"


async def test_a_copy_is_in_the_archive_before_anything_goes(autojump_clock: trio.testing.MockClock) -> None:
    retain, archive = Retain(size_bytes=8_000, archive="/archive"), SimDisk()
    storage = await filled(retain)
    before = {n: storage.read(FOLDER / n) for n in storage.list(FOLDER) if n.endswith(".seg")}
    proxy, retention = await opened(storage, retain, archive)
    acknowledge(retention, ROWS)
    await retention.look()
    place, left = archived("events", proxy.identity), set(storage.list(FOLDER))
    assert proxy.base_id > 0
    assert {n: archive.read(place / n) for n in archive.list(place)} == {
        n: data for n, data in before.items() if n not in left
    }
    assert read_kept(storage, FOLDER).archive == "/archive"


class SlowArchive(SimDisk):
    """Something happens while it writes."""

    def __init__(self, happens: Callable[[], object]) -> None:
        super().__init__()
        self.happens = happens

    async def write_atomic(self, path: PurePosixPath, data: bytes | bytearray | memoryview) -> None:
        self.happens()
        await super().write_atomic(path, data)


@pytest.mark.parametrize("line", [0, 60])
async def test_reader_starting_anew_during_archiving_keeps_its_rows(
    line: int, autojump_clock: trio.testing.MockClock
) -> None:
    """An archive may take minutes."""
    retain = Retain(size_bytes=8_000, archive="/archive")
    archive = SlowArchive(lambda: retention.acknowledged(READERS[1], 2, line))
    proxy, retention = await opened(await filled(retain), retain, archive)
    acknowledge(retention, ROWS)
    await retention.look()
    assert archive.files
    assert proxy.base_id <= line
    assert bool(proxy.base_id) is bool(line)
    assert [h.holder for h in retention.status().holders] == [READERS[1]]
    retention.acknowledged(READERS[1], 2, ROWS)
    archive.happens = lambda: None
    await retention.look()
    assert proxy.base_id > line


@pytest.mark.parametrize("found", ["another file", "torn"])
async def test_differing_copy_is_replaced_only_if_torn(found: str, autojump_clock: trio.testing.MockClock) -> None:
    retain, archive = Retain(size_bytes=8_000, archive="/archive"), SimDisk()
    storage = await filled(retain)
    proxy, retention = await opened(storage, retain, archive)
    acknowledge(retention, ROWS)
    first = proxy._log.closed()[0][0].name
    path = archived("events", proxy.identity) / first
    data = storage.read(FOLDER / first)
    await archive.write_atomic(path, data[:50] if found == "torn" else bytes([data[0] ^ 1]) + data[1:])
    with trio.move_on_after(3):
        await retention.run()
    if found == "torn":
        assert proxy.base_id > 0
        assert archive.read(path) == data
    else:
        assert proxy.base_id == 0
        assert "holds something else" in retention.status().trouble


async def test_a_full_archive_is_waited_for_and_named(autojump_clock: trio.testing.MockClock) -> None:
    retain, archive = Retain(size_bytes=8_000, archive="/archive"), SimDisk()
    proxy, retention = await opened(await filled(retain), retain, archive)
    acknowledge(retention, ROWS)
    archive.space_left = 10
    async with trio.open_nursery() as nursery:
        nursery.start_soon(retention.run)
        await trio.sleep(3)
        assert proxy.base_id == 0
        assert "No space left" in retention.status().trouble
        archive.space_left = None
        await trio.sleep(3)
        assert proxy.base_id > 0
        assert not retention.status().trouble
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("archived_too", [False, True])
async def test_a_crash_at_any_step_loses_nothing(archived_too: bool, autojump_clock: trio.testing.MockClock) -> None:
    """Log and archive together hold every row, and the source goes on behind the last one."""
    retain = Retain(size_bytes=8_000, archive="/a") if archived_too else HALF
    whole, steps = await filled(retain), 0
    while True:
        disk = CrashingDisk(whole.restarted())
        archive = CrashingDisk(SimDisk())
        proxy, retention = await opened(disk, retain, archive)
        acknowledge(retention, ROWS)
        # One machine: what happens to either of the two counts.
        count = [steps]

        def step(count: list[int] = count) -> None:
            if count[0] == 0:
                raise Crashed
            count[0] -= 1

        disk._step = archive._step = step  # type: ignore[method-assign]
        with contextlib.suppress(Crashed):
            await retention.look()
        crashed = count[0] == 0
        left, copies = disk.died(), archive.died()
        kept = read_kept(left, FOLDER)
        if archived_too:
            place = archived("events", proxy.identity)
            for name in copies.list(place):
                await left.write_atomic(FOLDER / name, copies.read(place / name))
            for name in ("kept.0", "kept.1"):
                left.files.pop(FOLDER / name, None)
            assert names(left) == EXPECTED
        else:
            assert names(left) == EXPECTED[kept.last_id :]
        again, _ = await opened(left, retain, archive)
        assert (again.last_id, again.base_id) == (ROWS, 0 if archived_too else kept.last_id)
        steps += 1
        if not crashed:
            break
    assert steps > 5


async def test_a_reader_behind_the_log_is_ended(autojump_clock: trio.testing.MockClock) -> None:
    proxy, retention = await opened(await filled())
    cursor = SourceSubscription(proxy, Division(), 0, BEFORE_TIME, None)
    assert cursor.pull(100)
    behind = SourceSubscription(proxy, Division(), 0, BEFORE_TIME, None)
    acknowledge(retention, ROWS)
    await retention.look()
    with pytest.raises(Overtaken, match="1 comes next"):
        behind.pull(100)


async def test_a_full_disk_releases_nothing(autojump_clock: trio.testing.MockClock) -> None:
    """Neither on the disk nor in memory, however often it is tried."""
    storage = await filled()
    proxy, retention = await opened(storage)
    acknowledge(retention, ROWS)
    storage.space_left = 0
    for _ in range(3):
        with pytest.raises(OSError, match="No space left"):
            await retention.look()
        assert [row[0] for row in rows_of(list(elements_from(proxy, 0)))] == list(range(1, ROWS + 1))
        assert proxy.base_id == 0
    storage.space_left = None
    await retention.look()
    assert 0 < proxy.base_id < ROWS
    assert names(storage) == EXPECTED[proxy.base_id :]


class StubbornDisk(SimDisk):
    """No file can be removed while it is ``stubborn``."""

    stubborn = False

    def remove(self, path: PurePosixPath) -> None:
        if self.stubborn:
            raise OSError(errno.EIO, "Input/output error")
        super().remove(path)


async def test_a_file_that_cannot_be_removed_is_tried_again(autojump_clock: trio.testing.MockClock) -> None:
    """Nothing more is released meanwhile, nor needed."""
    storage = StubbornDisk()
    storage.files = (await filled()).files
    files = storage.list(FOLDER)
    proxy, retention = await opened(storage)
    acknowledge(retention, ROWS)
    storage.stubborn, bases = True, set[int]()
    for _ in range(3):
        with pytest.raises(OSError, match="Input/output error"):
            await retention.look()
        bases.add(proxy.base_id)
    (base,) = bases
    assert base > 0
    assert set(files) <= set(storage.list(FOLDER))
    storage.stubborn = False
    await retention.look()
    assert proxy.base_id == base
    segments = [one for one in map(Segment.parse, storage.list(FOLDER)) if one is not None]
    assert min(segments).first == read_kept(storage, FOLDER).first
    assert names(storage) == EXPECTED[base:]


async def test_long_holder_is_named_in_the_log(autojump_clock: trio.testing.MockClock) -> None:
    trace = ListTrace()
    proxy, retention = await opened(await filled(), trace=trace)
    retention.acknowledged(READERS[0], 1, ROWS)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(retention.run)
        await trio.sleep(PATIENCE_US / 1e6 - 1)
        assert trace.named("log_held") == []
        await trio.sleep(5)
        (event,) = trace.named("log_held")
        assert "u/0@n2 needs" in event["why"]
        retention.acknowledged(READERS[1], 1, ROWS)
        await trio.sleep(2)
        assert len(trace.named("log_free")) == 1
        assert proxy.base_id > 0
        nursery.cancel_scope.cancel()
