"""A proof lets go of what it has found CONSISTENT, goes on behind it, and never judges what it did not see (E2)."""

from __future__ import annotations

import json
import shutil
from pathlib import Path, PurePosixPath

import pytest
import trio

pytest.importorskip("pyspark", reason="needs the extra spark")

from consistency.proof.recorded.run import Run
from consistency.proof.report.model import Verdict
from replicas.cli.app import execute
from replicas.cli.follow import follow
from replicas.cli.report import INCONSISTENT, UNKNOWN
from replicas.client.recorder import Reached, SegmentWriter
from replicas.retention.archiving import keep_copy
from replicas.retention.restoring import restore_all
from replicas.source.retention import archived
from spe.errors import SpeError
from spe.log import SegmentedLog
from spe.log.format import Record
from spe.log.log_start import KeptLog, LogCut
from spe.log.origin import read_identity
from spe.log.proof_progress import PROVED, proved_of_recording, proved_of_source
from spe.log.recording import channel_folder, client_folder
from spe.log.source_log import decode_source_batch, decode_source_state, source_folder
from spe.runtime.storage import DiskStorage
from spe.stream.ids import Channel
from spe.stream.names import StreamId
from spe.stream.strings import StringPool
from spe.stream.times import BEFORE_TIME, END_OF_TIME
from tests.support.source_env import AtOnceCompute
from tests.unit.consistency.proof.follow.test_follow_loop import (
    OUT,
    A,
    a_run,
    judged,
    result,
    stopped_after,
    without_times,
)

__all__ = ["judged"]  # a fixture

LOG = source_folder(A)
OUT_0 = Channel(OUT, 0)


def unlock(path: Path) -> None:
    """A lock is held until its process ends."""
    for lock in path.rglob("lock"):
        if lock.parent.name != "follow":
            lock.unlink()


def cut(path: Path, proved: int, archive: Path | None = None, source: StreamId = A) -> int:
    """Deletes what a source with ``retain`` would delete; gives the record with which its log begins now."""
    folder, schema = source_folder(source), Run.open(path).plan.sources[source].schema
    reached = BEFORE_TIME

    def ended(record: Record) -> tuple[int, int]:
        nonlocal reached
        batch = decode_source_batch(record.body, schema, StringPool())
        reached = max(reached, BEFORE_TIME if batch is None or not len(batch) else int(batch.rows.time.max()))
        return decode_source_state(record.body).last_id, reached

    async def release() -> int:
        unlock(path)
        disk = DiskStorage(path)
        ends: dict[int, tuple[int, int]] = {}
        log = await SegmentedLog.open(disk, folder, lambda r: ends.update({r.position.segment: ended(r)}))
        firsts = [s.first for s, _ in log.closed()]
        behind = max(f for f in firsts if f <= proved)
        for segment, _ in log.closed():
            if archive is not None and segment.first < behind:
                place = archived(source, read_identity(disk, folder)) / segment.name
                await keep_copy(DiskStorage(archive), place, log.contents(segment), AtOnceCompute())
        before = [ends[f] for f in firsts if f < behind]
        last_id, until_us = before[-1] if before else (0, BEFORE_TIME)
        await log.release(KeptLog(behind, last_id, until_us, 1, 1, str(archive or "")))
        log.close()
        unlock(path)
        return behind

    return trio.run(release)


def cut_recording(
    path: Path, proved: int, until_us: int | None = None, *, client: str = "one", channel: Channel = OUT_0
) -> int:
    """The same of a client's recording.

    Args:
      until_us: what is said of the tuple time; as it is, where not given.
    """
    folder, schema = channel_folder(client_folder(client), channel), Run.open(path).plan.query.schema_of(channel.stream)

    async def release() -> int:
        unlock(path)
        writer, reached = SegmentWriter(DiskStorage(path), folder, 1), Reached(0, BEFORE_TIME)
        behind = max(s.first for s in writer.segments if s.first <= proved)
        for segment in writer.segments:
            if segment.first < behind:
                reached = reached.behind(writer.contents(segment), segment, schema, folder)
        await writer.release(KeptLog(behind, reached.last_id, reached.until_us if until_us is None else until_us, 1, 1))
        writer.close()
        return behind

    return trio.run(release)


def test_proved_segments_are_released_and_proof_continues(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert follow(str(a_run(tmp_path / "whole", 200, segment_bytes=300))) == UNKNOWN
    path = a_run(tmp_path / "run", 200, segment_bytes=300)
    assert proved_of_source(DiskStorage(path), A, "") is None, "nobody proves it"
    for steps in (0, 5, 9, 4):
        stopped_after(steps, path, monkeypatch)
        proved = proved_of_source(DiskStorage(path), A, "")
        received = proved_of_recording(DiskStorage(path), "one", "out/0")
        assert proved is not None
        assert received is not None
        assert (proved > 1) is (received > 1) is (steps > 0)
        begins, recorded = cut(path, proved), cut_recording(path, received)
        assert (begins > 1) is (recorded > 1) is (steps > 0)
    assert follow(str(path)) == UNKNOWN
    found = result(path)
    assert found.ended
    assert without_times(found) == without_times(result(tmp_path / "whole"))
    assert follow(str(path)) == UNKNOWN, "what is left of what was read is as it was"


def test_full_report_of_truncated_run_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = a_run(tmp_path / "run", 200, segment_bytes=300)
    cut(path, 200)
    with pytest.raises(LogCut, match="cannot be judged any more; spe report --follow proves what is left"):
        Run.open(path).need_whole()
    assert execute(["report", str(path)]) == UNKNOWN
    said = capsys.readouterr()
    assert "CONSISTENT" not in said.out
    assert "spe report --follow proves what is left" in said.err


def test_proof_that_lags_behind_deletion_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With ``unproved: delete`` nobody waits for it."""
    path = a_run(tmp_path / "run", 200, segment_bytes=300)
    stopped_after(3, path, monkeypatch)
    cut(path, 200)
    with pytest.raises(LogCut, match=r"had come to 1970-01-01 00:00:00.000120; to begin anew with .* remove .*follow"):
        follow(str(path))
    assert result(path).verdict is Verdict.UNKNOWN
    shutil.rmtree(path / "follow")
    assert follow(str(path)) == UNKNOWN
    assert result(path).judged_from_us == 1000


def test_alteration_after_the_beginning_is_detected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = a_run(tmp_path / "run", 200, segment_bytes=300)
    stopped_after(9, path, monkeypatch)
    proved = proved_of_source(DiskStorage(path), A, "")
    assert proved is not None
    begins = cut(path, proved)
    segment = next(p for p in (path / LOG).glob("*.seg") if int(p.name[:20]) == begins)
    data = bytearray(segment.read_bytes())
    data[60] ^= 1
    segment.write_bytes(data)
    assert follow(str(path)) == INCONSISTENT
    assert "is not as it was read" in result(path).reasons[0]


def test_once_something_is_wrong_nothing_more_is_let_go(tmp_path: Path) -> None:
    path = a_run(tmp_path / "run", more="U(38)")
    assert follow(str(path)) == INCONSISTENT
    said = json.loads((path / PROVED).read_text())
    log = next(iter(said["sources"].values()))
    assert log["record"] < 80
    assert result(path).proved_us is None or result(path).proved_us == END_OF_TIME


def test_from_the_archive_all_can_be_proved_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, archive = a_run(tmp_path / "run", 200, segment_bytes=300), tmp_path / "archive"
    before = {p.name: p.read_bytes() for p in (path / LOG).glob("*.seg")}
    cut(path, 200, archive)
    with pytest.raises(LogCut, match="spe restore brings it back"):
        Run.open(path).need_whole()
    assert execute(["restore", str(path)]) == 0
    assert {n: (path / LOG / n).read_bytes() for n in before} == before
    Run.open(path).need_whole()
    assert follow(str(path)) == UNKNOWN
    assert result(path).ended
    unlock(path)
    assert execute(["restore", str(path)]) == 0, "there is nothing more to do"


@pytest.mark.parametrize("damage", ["gone", "torn", "flipped", "all gone"])
def test_a_damaged_archive_restores_nothing(tmp_path: Path, damage: str) -> None:
    path, archive = a_run(tmp_path / "run", 200, segment_bytes=300), tmp_path / "archive"
    begins = cut(path, 200, archive)
    second = sorted(archive.rglob("*.seg"))[1]
    match damage:
        case "gone":
            second.unlink()
        case "all gone":
            shutil.rmtree(archive)
        case "torn":
            second.write_bytes(second.read_bytes()[:-5])
        case "flipped":
            data = bytearray(second.read_bytes())
            data[50] ^= 4
            second.write_bytes(data)

    async def restored() -> None:
        await restore_all(DiskStorage(path), lambda place: DiskStorage(Path(place)))

    with pytest.raises(SpeError, match=str(archive)):
        trio.run(restored)
    unlock(path)
    assert trio.run(_begins, path) == begins


async def _begins(path: Path) -> int:
    log = await SegmentedLog.open(DiskStorage(path), PurePosixPath(LOG))
    log.close()
    return log.kept.first
