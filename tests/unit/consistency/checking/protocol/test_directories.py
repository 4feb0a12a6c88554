"""The checker of D2: the versions of the directory that a process goes by only grow."""

from __future__ import annotations

from consistency.checking.counters import Counters
from consistency.checking.protocol.directories import check_directories
from spe.stream.history import DirectoryApplied, Event, FaultBegan, History, ProcessUp


def found(*events: Event) -> list[str]:
    return [finding.what for finding in check_directories(History(events), Counters())]


def goes_by(number: int, *, epoch: int = 1, host: str = "n1", kept: bool = True) -> DirectoryApplied:
    return DirectoryApplied(5, host, epoch, number, kept)


UP = ProcessUp(4, "n1", 4)


def test_versions_that_grow_are_fine_in_each_process() -> None:
    assert found(UP, goes_by(1), goes_by(2), goes_by(1, host="n2"), goes_by(1, epoch=2), UP, goes_by(1, epoch=2)) == []


def test_process_that_returns_to_old_version_is_detected() -> None:
    assert found(UP, goes_by(2), goes_by(1)) == ["it takes version 1/1, after 1/2"]
    assert found(UP, goes_by(9), goes_by(1, epoch=2), goes_by(10)) == ["it takes version 1/10, after 2/1"]


def test_version_on_disk_counts_after_restart() -> None:
    assert found(UP, goes_by(2), UP, goes_by(1)) == ["it begins with version 1/1, after 1/2"]
    assert found(UP, goes_by(2), UP, goes_by(0, epoch=0)) == ["it begins with version 0/0, after 1/2"]
    assert found(UP, goes_by(1), goes_by(2, kept=False), UP, goes_by(1)) == [], "the disk was full"
    other = DirectoryApplied(5, "n1", 0, 0, False, "directory.other")
    assert found(UP, goes_by(2), UP, other, UP, goes_by(2)) == [], "another plan has another file"
    lost = FaultBegan(4, 0, "wipe", ("n1",))
    assert found(UP, goes_by(2), lost, UP, goes_by(0, epoch=0)) == []
