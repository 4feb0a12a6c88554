"""The oldest part of a recording goes once the proof needs it no more; a client that restarts goes on all the same."""

from __future__ import annotations

from pathlib import PurePosixPath

import pytest
import trio
import trio.testing

from replicas.client.recorder import Recorder
from replicas.client.retention import TENTATIVE, RecordingRetention
from replicas.retention.holders import PROOF
from replicas.simulation.world.disk import SimDisk
from spe.log.announced_settings import announced_folder, read_announced
from spe.log.log_start import read_kept
from spe.log.proof_progress import PROVED, encode_proved
from spe.log.recording import channel_folder
from spe.plan.plan import Retain
from spe.stream.change import Change
from tests.support.crashing_disk import Crashed, CrashingDisk
from tests.support.source_env import source_env
from tests.support.streams import PAYLOAD, parse
from tests.unit.replicas.client.test_recorder import ANNOUNCEMENT, FOLDER, ONE, TWO, replay, text

CHANNEL = channel_folder(FOLDER, ONE)
SCHEMAS = {ONE: PAYLOAD, TWO: PAYLOAD}
SECOND = 1_000_000
SMALL = Retain(size_bytes=1_500, unproved=True)
STORY = " ".join(f"S{n}/{10 * n}a B{10 * n + 1}({n})" for n in range(1, 41))


def recorded(storage: SimDisk, *texts: str, announced: int = 0) -> Recorder:
    """A change per second of wall time, in small segments."""
    recorder = Recorder(storage, FOLDER, SCHEMAS, segment_bytes=300)
    for at, element in enumerate(parse(" ".join(texts), position=recorder.position(ONE)[0])):
        recorder.write(Change(ONE, element, at * SECOND))
    for at in range(announced):
        recorder.announced(at * SECOND, ANNOUNCEMENT)
    return recorder


def retaining(storage: SimDisk, recorder: Recorder, retain: Retain = SMALL, now_s: int = 80) -> RecordingRetention:
    env = source_env(storage, epoch_us=now_s * SECOND)
    return RecordingRetention(env, "dashboard", retain, recorder, SCHEMAS, trio.Lock(), lambda place: storage)


async def test_the_oldest_go_by_size_over_all_channels(autojump_clock: trio.testing.MockClock) -> None:
    storage = SimDisk()
    recorder = recorded(storage, STORY, announced=20)
    await recorder.sync()
    retention = retaining(storage, recorder)
    before = retention.status().bytes
    await retention.look()
    status = retention.status()
    assert status.bytes <= 1_500 < before
    assert status.bytes + status.deleted_bytes == before
    assert (status.held, status.archive) == ((), "")
    assert STORY.endswith(text(storage))
    assert 0 < len(list(read_announced(storage, announced_folder(FOLDER)))) < 20


async def test_by_age_counts_when_it_was_received(autojump_clock: trio.testing.MockClock) -> None:
    storage = SimDisk()
    recorder = recorded(storage, STORY)
    await recorder.sync()
    await retaining(storage, recorder, Retain(for_us=40 * SECOND, unproved=True)).look()
    first = replay(storage)[0]
    assert 30 * SECOND < first.arrived_us <= 40 * SECOND


async def test_rows_stamped_by_reset_clock_are_archived_first(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Deleted is a prefix of each channel, and each of its segments was due and copied."""
    storage, archive = SimDisk(), SimDisk()
    recorder = Recorder(storage, FOLDER, SCHEMAS, segment_bytes=300)
    for at, element in enumerate(parse(STORY)):
        recorder.write(Change(ONE, element, (at if at < 30 else 11 + (at - 30) // 20) * SECOND))
    await recorder.sync()
    before = set(storage.list(CHANNEL))
    env = source_env(storage, epoch_us=80 * SECOND)
    retain = Retain(for_us=65 * SECOND, archive="x")
    await RecordingRetention(env, "dashboard", retain, recorder, SCHEMAS, trio.Lock(), lambda place: archive).look()
    gone = {name for name in before - set(storage.list(CHANNEL)) if name.endswith(".seg")}
    assert gone
    assert gone <= set(archive.list(CHANNEL))


async def test_announcements_stay_until_proved(autojump_clock: trio.testing.MockClock) -> None:
    storage, retain = SimDisk(), Retain(for_us=20 * SECOND)
    recorder = recorded(storage, STORY, announced=40)
    await recorder.sync()
    retention = retaining(storage, recorder, retain)
    await retention.look()
    assert len(list(read_announced(storage, announced_folder(FOLDER)))) == 40
    assert [h.holder for h in retention.status().held] == [PROOF]
    await storage.write_atomic(PROVED, encode_proved({}, {"dashboard": {"out/0": 33, "out/1": 1}}).encode())
    await retention.look()
    assert len(list(read_announced(storage, announced_folder(FOLDER)))) < 40


async def test_unfinished_or_unsynced_segments_stay(autojump_clock: trio.testing.MockClock) -> None:
    storage = SimDisk()
    recorder = recorded(storage, STORY)
    await retaining(storage, recorder, Retain(for_us=1, unproved=True)).look()
    assert text(storage) == STORY
    await recorder.sync()
    await retaining(storage, recorder, Retain(for_us=1, unproved=True)).look()
    assert 0 < len(text(storage)) < len(STORY) // 4


async def test_restart_continues_after_deleted_rows(autojump_clock: trio.testing.MockClock) -> None:
    """Also where what is left has no stable tuple: its end is in the record."""
    storage = SimDisk()
    recorder = recorded(storage, STORY, *(f"B{500 + n}(40)" for n in range(40)))
    await recorder.sync()
    await retaining(storage, recorder, Retain(size_bytes=600, unproved=True), now_s=200).look()
    assert "S" not in text(storage)
    assert read_kept(storage, CHANNEL).last_id == 40
    recorder.close()
    assert Recorder(storage.restarted(), FOLDER, SCHEMAS).position(ONE) == (40, 539)


async def test_tentative_results_hold_the_segment_in_which_they_began(autojump_clock: trio.testing.MockClock) -> None:
    """A client that restarts has to withdraw them, and reads them in its recording."""
    storage = SimDisk()
    tentative = " ".join(f"T/{1000 + 2 * n}b b{1001 + 2 * n}" for n in range(40))
    recorder = recorded(storage, STORY, tentative)
    await recorder.sync()
    retention = retaining(storage, recorder, Retain(size_bytes=1, unproved=True), now_s=200)
    await retention.look()
    assert [h.holder for h in retention.status().held] == [TENTATIVE]
    assert "b" in text(storage)
    recorder.close()
    again = recorded(storage.restarted(), "U(40) S41/2000c B2001(41)")
    await again.sync()


async def test_a_restart_with_only_tentative_results_has_its_position(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """E2: all stable ones are gone, and the undo has to name the last of them."""
    storage = SimDisk()
    recorded(storage, STORY).close()
    recorder = recorded(storage := storage.restarted(), " ".join(f"T/{500 + n}b b{501 + n}" for n in range(20)))
    await recorder.sync()
    await retaining(storage, recorder, Retain(size_bytes=1, unproved=True), now_s=200).look()
    assert "S" not in text(storage)
    recorder.close()
    recorder = Recorder(storage := storage.restarted(), FOLDER, SCHEMAS)
    assert recorder.position(ONE)[0] == 40
    recorder.write(Change(ONE, parse("S41/600c", position=40)[0], 0))
    recorder.close()
    assert text(storage).endswith("b520 U(40) S41/600c")


async def test_rows_needed_by_the_proof_stay_and_it_is_named(autojump_clock: trio.testing.MockClock) -> None:
    storage, retain = SimDisk(), Retain(size_bytes=1_500)
    recorder = recorded(storage, STORY)
    await recorder.sync()
    retention = retaining(storage, recorder, retain)
    await retention.look()
    assert text(storage) == STORY
    assert [h.holder for h in retention.status().held] == [PROOF]
    await storage.write_atomic(PROVED, encode_proved({}, {"dashboard": {"out/0": 33}}).encode())
    await retention.look()
    assert 1 < read_kept(storage, CHANNEL).first <= 33


@pytest.mark.parametrize("archive", ["", "/archive"])
async def test_a_crash_at_any_step_loses_nothing(archive: str, autojump_clock: trio.testing.MockClock) -> None:
    storage = SimDisk()
    recorder = recorded(storage, STORY)
    await recorder.sync()
    recorder.close()
    whole, steps, crashed = storage.restarted(), 0, True
    while crashed:
        disk = CrashingDisk(whole.restarted())
        recorder = Recorder(disk, FOLDER, SCHEMAS, segment_bytes=300)
        await recorder.sync()
        env = source_env(disk, epoch_us=80 * SECOND)
        place = SimDisk()
        retain = Retain(size_bytes=1_500, unproved=True, archive=archive)
        retention = RecordingRetention(
            env,
            "dashboard",
            retain,
            recorder,
            SCHEMAS,
            trio.Lock(),
            lambda _, place=place: place,  # type: ignore[misc]
        )
        disk.left = steps
        try:
            await retention.look()
            crashed = False
        except Crashed:
            pass
        left = disk.died()
        kept = read_kept(left, CHANNEL)
        assert STORY.endswith(text(left))
        again = Recorder(left, FOLDER, SCHEMAS)
        assert again.position(ONE) == (40, 401)
        names = [n for n in left.list(CHANNEL) if n.endswith(".seg")]
        assert min(int(n[:20]) for n in names) == kept.first
        if archive and kept.first > 1:
            assert [int(n[:20]) for n in place.list(PurePosixPath(CHANNEL))][:1] == [1]
        steps += 1
    assert steps > 4
