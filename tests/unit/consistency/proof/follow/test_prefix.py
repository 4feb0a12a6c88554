"""What was read of a log: every later change of it is found, and the memory of it has a bound."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from consistency.proof.follow import prefix
from consistency.proof.follow.prefix import KEPT, Altered, Prefix
from spe.log.format import Segment
from spe.log.log_start import KeptLog, encode_kept

NOON = 1_800_000_000_000_000


def segment(number: int) -> str:
    return Segment(number + 1, 1).name


def a_log(folder: Path, segments: int) -> Prefix:
    """Read as it grew: each segment in two halves."""
    found = Prefix()
    for number in range(segments):
        path = folder / segment(number)
        path.write_bytes(b"first half %d " % number)
        found = found.read(folder, [(path.name, path.stat().st_size, NOON + number)])
        with path.open("ab") as file:
            file.write(b"second half")
        found = found.read(folder, [(path.name, path.stat().st_size, NOON + number)])
    return found


def test_log_that_only_grew_is_unchanged(tmp_path: Path) -> None:
    found = a_log(tmp_path, 3)
    with (tmp_path / segment(2)).open("ab") as file:
        file.write(b"and more")
    assert found.differs(tmp_path) == ""


@pytest.mark.parametrize("at", [0, 5, KEPT + 9], ids=["folded", "one of the folded", "the latest"])
def test_altered_byte_is_detected(tmp_path: Path, at: int) -> None:
    found = a_log(tmp_path, KEPT + 10)
    path = tmp_path / segment(at)
    data = bytearray(path.read_bytes())
    data[3] ^= 1
    path.write_bytes(data)
    said = found.differs(tmp_path)
    assert ("of the first 10 segments, until 2027-01-15 08:00:00.000009" if at < 10 else f"{path} is not as") in said


def test_quick_check_detects_change_by_file_time(tmp_path: Path) -> None:
    found = Prefix()
    for number in range(2):
        (tmp_path / segment(number)).write_bytes(b"records")
    found = found.read(tmp_path, [(segment(0), 7, NOON), (segment(1), 7, NOON)])
    path = tmp_path / segment(0)
    path.write_bytes(b"forgery")
    assert "is not as it was read: its first 7 bytes, until 2027-01-15 08:00:00" in found.differs(tmp_path, quick=True)
    os.utime(path, ns=(0, found.latest[0].changed_ns))
    assert found.differs(tmp_path, quick=True) == ""  # it was not read
    assert found.differs(tmp_path)


def test_shorter_or_missing_file_is_reported(tmp_path: Path) -> None:
    found = a_log(tmp_path, 2)
    path = tmp_path / segment(1)
    path.write_bytes(path.read_bytes()[:-1])
    assert "is not as it was read" in found.differs(tmp_path)
    path.unlink()
    assert "is gone, and was read before" in found.differs(tmp_path)


def test_segment_deleted_by_retain_is_not_called_altered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The segment goes after it was looked whether it is deleted, and before it is read."""
    found, read = a_log(tmp_path, KEPT), prefix._digests

    def deleted_first(file: Path, first: int, size: int) -> tuple[str, str]:
        if file.name == segment(0) and file.exists():
            (tmp_path / "kept.0").write_bytes(encode_kept(KeptLog(2)))
            file.unlink()
        return read(file, first, size)

    monkeypatch.setattr(prefix, "_digests", deleted_first)
    whole = (tmp_path / segment(0)).read_bytes()
    assert found.differs(tmp_path) == ""
    (tmp_path / "kept.0").unlink()
    (tmp_path / segment(0)).write_bytes(whole)
    last = tmp_path / segment(KEPT)
    last.write_bytes(b"records")
    assert found.read(tmp_path, [(last.name, 7, NOON)]).folded == 1


def test_further_reading_detects_earlier_alteration(tmp_path: Path) -> None:
    found = a_log(tmp_path, 1)
    path = tmp_path / segment(0)
    path.write_bytes(b"another beginning, and all the rest of it")
    with pytest.raises(Altered, match="is not as it was read"):
        found.read(tmp_path, [(path.name, path.stat().st_size, NOON)])


def test_prefix_size_does_not_grow_with_the_log(tmp_path: Path) -> None:
    small = a_log(tmp_path, KEPT + 1)
    large = a_log(tmp_path, 3 * KEPT)
    assert large.folded == 2 * KEPT
    assert len(large.model_dump_json()) <= len(small.model_dump_json()) + 100
