"""G5: acknowledged input can be recomputed from synced state."""

from __future__ import annotations

from consistency.checking.counters import Counters
from consistency.checking.logs.synced_state import check_remade
from spe.stream.history import History, LogHeld


def findings(*events: LogHeld) -> list[str]:
    return [finding.what for finding in check_remade(History(events), Counters())]


def test_more_may_be_held_than_is_acknowledged() -> None:
    assert findings(LogHeld(1, "f/0@n1", (3, 4), (3, 5))) == []


def test_needed_rows_must_not_be_acknowledged() -> None:
    assert findings(LogHeld(1, "f/0@n1", (3, 6), (3, 5))) == [
        "acknowledged [3, 6], and the synced log is replayed from [3, 5]"
    ]


def test_a_log_that_cannot_be_read_is_no_state() -> None:
    assert findings(LogHeld(1, "f/0@n1", (3, 6), (), "there is no commit")) == ["there is no commit"]
