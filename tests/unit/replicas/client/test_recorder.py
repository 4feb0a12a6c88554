"""A recording holds what a client received, survives a crash, and continues after it."""

from __future__ import annotations

import errno
from pathlib import PurePosixPath

import pytest

from consistency.comparison import compare
from replicas.client.recorder import Recorder, read_recording, recorded_stable
from replicas.simulation.world.disk import SimDisk
from spe.errors import LogCorrupt, LogError, LogFull
from spe.log.announced_settings import announced_folder, read_announced
from spe.log.recording import channel_folder, client_folder
from spe.stream.change import Change
from spe.stream.ids import Channel
from spe.stream.names import StreamId
from spe.stream.schema import Schema
from spe.stream.times import BEFORE_TIME
from spe.wire.messages.feeds import Announcement
from tests.support.files import watch_files
from tests.support.streams import PAYLOAD, parse, show

FOLDER = client_folder("dashboard")
ANNOUNCEMENT = Announcement("n1", "u1", 5, 5, 2_000_000, 2_000_000, 0.9, "process", "process", "checkpoint", 0)
ONE, TWO = Channel(StreamId("out"), 0), Channel(StreamId("out"), 1)


def record(storage: SimDisk, *texts: str, segment_bytes: int = 1 << 20, start: int = 1_000) -> Recorder:
    """Records elements of channel ONE, one microsecond apart."""
    recorder = Recorder(storage, FOLDER, {ONE: PAYLOAD, TWO: PAYLOAD}, segment_bytes=segment_bytes)
    elements = parse(" ".join(texts), position=recorder.position(ONE)[0])
    for at, element in enumerate(elements):
        recorder.write(Change(ONE, element, start + at))
    return recorder


def replay(storage: SimDisk, channel: Channel = ONE, schema: Schema = PAYLOAD) -> list[Change]:
    return list(read_recording(storage, channel_folder(FOLDER, channel), schema))


def text(storage: SimDisk) -> str:
    return show(change.element for change in replay(storage))


def segments(storage: SimDisk) -> list[PurePosixPath]:
    return sorted(p for p in storage.files if p.suffix == ".seg")


def test_changes_are_read_back_with_their_times_of_arrival() -> None:
    storage = SimDisk()
    story = "S1/5a S2/6b B10(2) T/12c b20 U(2) S3/12d B20(3) R+"
    record(storage, story)
    assert text(storage) == story
    assert [(c.channel, c.arrived_us) for c in replay(storage)] == [(ONE, 1_000 + at) for at in range(8)]
    assert replay(storage, TWO) == []


def test_announcements_survive_sessions_and_a_torn_end() -> None:
    storage, folder = SimDisk(), announced_folder(FOLDER)
    assert list(read_announced(storage, folder)) == []
    for session in (1, 2, 3):
        recorder = Recorder(storage, FOLDER, {ONE: PAYLOAD})
        recorder.announced(session, ANNOUNCEMENT)
        recorder.announced(10 * session, ANNOUNCEMENT._replace(waited_us=session))
        storage = storage.restarted()
        if session == 2:  # its last record is torn
            last = [p for p in segments(storage) if p.parent == folder][-1]
            storage = storage.with_file(last, storage.read(last)[:-3])
    assert [one.arrived_us for one in read_announced(storage, folder)] == [1, 10, 2, 3, 30]
    assert [one.announcement.waited_us for one in read_announced(storage, folder)] == [0, 1, 0, 0, 3]
    first = next(p for p in segments(storage) if p.parent == folder)
    data = bytearray(storage.read(first))
    data[40] ^= 1
    with pytest.raises(LogCorrupt, match=f"begins with record 3, not 1; {first.name}"):
        list(read_announced(storage.with_file(first, bytes(data)), folder))


def test_a_recording_is_readable_while_it_is_written() -> None:
    storage = SimDisk()
    recorder = record(storage, "S1/5a")
    assert text(storage) == "S1/5a"
    recorder.write(Change(ONE, parse("B10(1)")[0], 7))
    assert text(storage) == "S1/5a B10(1)"


def test_a_recording_spans_many_segments() -> None:
    storage = SimDisk()
    story = " | ".join(f"S{i}/{i}x" for i in range(1, 40))
    record(storage, story, segment_bytes=300)
    assert len(segments(storage)) > 5
    assert text(storage).split() == story.replace(" |", "").split()


def test_a_second_session_continues_the_first() -> None:
    storage = SimDisk()
    first = record(storage, "S1/5a B10(1)")
    first.close()
    storage = storage.restarted()
    second = record(storage, "S2/12b B20(2)", start=5_000)
    assert text(storage) == "S1/5a B10(1) S2/12b B20(2)"
    assert second.position(ONE) == (2, 20)
    assert second.position(TWO) == (0, BEFORE_TIME)


def test_position_and_frontier_are_restored_over_segments() -> None:
    storage = SimDisk()
    record(storage, "S1/5a B10(1) | " + " | ".join(f"T/{i}x" for i in range(12, 40)), segment_bytes=200)
    storage = storage.restarted()
    again = Recorder(storage, FOLDER, {ONE: PAYLOAD})
    assert again.position(ONE) == (1, 10)


def test_tentative_tuples_of_dead_session_are_undone_in_next() -> None:
    """Nobody holds them any more; an undo is recorded, so that stable tuples never follow tentative ones."""
    storage = SimDisk()
    record(storage, "S1/5a B10(1) T/12b b20")
    storage = storage.restarted()
    record(storage, "S2/12c", start=9_000)
    assert text(storage) == "S1/5a B10(1) T/12b b20 U(1) S2/12c"
    assert [c.arrived_us for c in replay(storage)] == [1_000, 1_001, 1_002, 1_003, 1_003, 9_000]
    storage = storage.restarted()
    Recorder(storage, FOLDER, {ONE: PAYLOAD})
    assert text(storage) == "S1/5a B10(1) T/12b b20 U(1) S2/12c"


def synced_only(_: PurePosixPath, synced: bytes, written: bytes) -> bytes:
    return synced


async def test_only_synced_records_count_and_survive_a_power_failure() -> None:
    storage = SimDisk()
    recorder = record(storage, "S1/5a S2/6b")
    assert recorder.synced(ONE) == 0
    await recorder.sync()
    recorder.write(Change(ONE, parse("S3/7c", position=2)[0], 1_010))
    assert recorder.synced(ONE) == 2
    storage = storage.power_loss(synced_only)
    assert Recorder(storage, FOLDER, {ONE: PAYLOAD}).position(ONE)[0] == 2
    assert text(storage) == "S1/5a S2/6b"


async def test_records_of_a_killed_session_are_synced_before_the_next() -> None:
    """Otherwise the next session would continue after records that a power failure can remove."""
    storage = SimDisk()
    record(storage, "S1/5a B10(1) T/12b b20")
    storage = storage.restarted()
    again = Recorder(storage, FOLDER, {ONE: PAYLOAD})
    assert (again.position(ONE)[0], again.synced(ONE)) == (1, 0)
    await again.sync_due()
    assert again.synced(ONE) == 1
    again.write(Change(ONE, parse("S2/12c", position=1)[0], 9_000))
    await again.sync()
    storage = storage.power_loss(synced_only)
    assert text(storage) == "S1/5a B10(1) T/12b b20 U(1) S2/12c"


async def test_a_segment_is_synced_before_the_next_one_begins() -> None:
    storage = SimDisk()
    recorder = record(storage, "S1/5a", segment_bytes=1)
    for i in range(2, 9):
        await recorder.sync_due()
        recorder.write(Change(ONE, parse(f"S{i}/{i}x", position=i - 1)[0], 1_000 + i))
    storage = storage.power_loss(synced_only)
    assert text(storage) == " ".join(f"S{i}/{i}{'a' if i == 1 else 'x'}" for i in range(1, 8)).replace("S1/1a", "S1/5a")


@pytest.mark.parametrize("cut", range(1, 40))
def test_a_torn_end_loses_only_the_torn_record(cut: int) -> None:
    """The file is cut anywhere inside the last record, read, and continued."""
    storage = SimDisk()
    record(storage, "S1/5a B10(1) S2/12b")
    (path,) = segments(storage)
    whole = storage.read(path)
    storage = storage.with_file(path, whole[:-cut])
    assert text(storage) == "S1/5a B10(1)"
    record(storage, "S2/12b B20(2)")
    assert text(storage) == "S1/5a B10(1) S2/12b B20(2)"


def test_a_torn_header_of_a_new_segment_is_skipped() -> None:
    storage = SimDisk()
    record(storage, "S1/5a")
    (path,) = segments(storage)
    storage = storage.with_file(path, storage.read(path)[:9])
    assert text(storage) == ""
    record(storage, "S1/5a B10(1)")
    assert text(storage) == "S1/5a B10(1)"


def test_damage_inside_a_session_is_reported_with_its_offset() -> None:
    storage = SimDisk()
    record(storage, " | ".join(f"S{i}/{i}x" for i in range(1, 20)), segment_bytes=300)
    path = segments(storage)[1]
    data = bytearray(storage.read(path))
    data[100] ^= 1
    storage = storage.with_file(path, bytes(data))
    with pytest.raises(LogCorrupt, match=rf"begins with record \d+, not \d+; {path.name} at offset \d+: the checksum"):
        replay(storage)


def test_a_recording_of_another_schema_is_refused() -> None:
    storage = SimDisk()
    record(storage, "S1/5a")
    with pytest.raises(LogCorrupt, match=r"clients/dashboard/out\.0: record 1 is no change of this schema"):
        replay(storage, schema=Schema.of(n="int64", m="int64"))


def test_a_second_recorder_of_a_client_is_refused() -> None:
    storage = SimDisk()
    record(storage, "S1/5a")
    with pytest.raises(LogError, match="is held by another process"):
        Recorder(storage, FOLDER, {ONE: PAYLOAD})


def test_a_full_disk_is_reported_and_leaves_whole_records() -> None:
    storage = SimDisk()
    recorder = record(storage, "S1/5a")
    storage.space_left = 20
    with pytest.raises(LogFull, match=rf"record 2.*{errno.ENOSPC}|record 2.*No space"):
        recorder.write(Change(ONE, parse("B10(1)")[0], 7))
    assert text(storage) == "S1/5a"
    storage.space_left = None
    recorder.write(Change(ONE, parse("B10(1)")[0], 8))
    assert text(storage) == "S1/5a B10(1)"


def test_a_recorder_that_waits_for_room_holds_no_file_open(monkeypatch: pytest.MonkeyPatch) -> None:
    storage = SimDisk()
    recorder = Recorder(storage, FOLDER, {ONE: PAYLOAD})
    opened = watch_files(storage, monkeypatch)
    storage.space_left = 3
    for _ in range(2):
        with pytest.raises(LogFull):
            recorder.write(Change(ONE, parse("B10(0)")[0], 7))
    assert [file._closed for file in opened] == [True, True]


def test_other_disk_errors_are_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    storage = SimDisk()
    recorder = record(storage, "S1/5a")

    def broken(*args: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr("replicas.client.recorder.write_whole", broken)
    with pytest.raises(OSError, match="Input/output error"):
        recorder.write(Change(ONE, parse("B10(1)")[0], 7))


def test_the_stable_tuples_of_a_recording_include_repetitions() -> None:
    storage = SimDisk()
    record(storage, "S1/5a S2/6b B10(2) T/12c U(2) S3/12d")
    stable = recorded_stable(storage, FOLDER, {ONE: PAYLOAD, TWO: PAYLOAD})
    ids, rows = stable[ONE]
    assert ids.tolist() == [1, 2, 3]
    assert [v[0] for v in rows.to_tuples()] == ["a", "b", "d"]
    assert len(stable[TWO][1]) == 0
    storage = storage.restarted()
    recorder = Recorder(storage, FOLDER, {ONE: PAYLOAD})
    recorder.write(Change(ONE, parse("S3/12d")[0], 9))
    again = recorded_stable(storage, FOLDER, {ONE: PAYLOAD, TWO: PAYLOAD})
    assert [str(d) for d in compare(again, stable)] == ["out/0: 1 repeated; first id 3 is there more than once"]
