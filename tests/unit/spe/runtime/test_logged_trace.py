"""What a process logs: which events, how often, and no control characters from strangers."""

from __future__ import annotations

import errno
import logging

import pytest

from spe.runtime import log_line
from spe.runtime.log_line import begin_lines_with, log_time, say
from spe.runtime.logged_trace import LINES_MAX, REPEAT_US, WINDOW_US, ListenerLog, LoggedTrace
from spe.stream.times import SECOND


class Events:
    """Records the names of events."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def event(self, name: str, /, **fields: object) -> None:
        self.names.append(name)


class Log:
    """A logged trace with a settable clock."""

    def __init__(self) -> None:
        self.now = 1_000 * SECOND
        self.events = Events()
        self.trace = LoggedTrace(self.events, lambda: self.now)


def lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return capsys.readouterr().err.splitlines()


def test_some_events_are_lines_and_all_are_passed_on(capsys: pytest.CaptureFixture[str]) -> None:
    log = Log()
    log.trace.event("state", replica="main/0@n1", state="STABLE", fresh=False)
    log.trace.event("subscribe", consumer="main/0@n1", channel="a/0", producer="n1", mode="main")
    log.trace.event("switched", consumer="client:c", channel="out/0", producer="n2", before="n1")
    assert log.events.names == ["state", "subscribe", "switched"]
    assert lines(capsys) == ["main/0@n1 is STABLE", "client:c reads out/0 from n2, no longer from n1"]


def test_a_refusal_is_logged_at_once_and_then_once_a_minute(capsys: pytest.CaptureFixture[str]) -> None:
    log = Log()
    for _ in range(150):
        log.trace.event("refused", peer="client:c", why="the token does not match")
        log.now += SECOND
    assert REPEAT_US == 60 * SECOND
    assert lines(capsys) == ["refused client:c: the token does not match"] * 3


def test_a_flood_of_different_lines_is_limited_and_counted(capsys: pytest.CaptureFixture[str]) -> None:
    log = Log()
    for number in range(5_000):
        log.trace.event("refused", peer=f"client:{number}", why="the token does not match")
    assert len(lines(capsys)) == LINES_MAX
    log.now += WINDOW_US
    log.trace.event("refused", peer="client:x", why="the token does not match")
    left_out = 5_000 - LINES_MAX
    assert lines(capsys) == [f"refused client:x: the token does not match ({left_out:,} more such lines were left out)"]


def test_every_change_of_state_is_logged(capsys: pytest.CaptureFixture[str]) -> None:
    log = Log()
    for state in ("UP_FAILURE", "STABILIZATION", "STABLE", "UP_FAILURE"):
        log.trace.event("state", replica="main/0@n1", state=state, fresh=False)
    assert [line.rpartition(" ")[2] for line in lines(capsys)] == [
        "UP_FAILURE",
        "STABILIZATION",
        "STABLE",
        "UP_FAILURE",
    ]


def test_a_stranger_cannot_move_the_cursor_or_fill_a_page(capsys: pytest.CaptureFixture[str]) -> None:
    log = Log()
    log.trace.event("refused", peer="\x1b[2J\nmain/0@n1 is STABLE" + "x" * 5_000, why="who?")
    (line,) = lines(capsys)
    assert line.startswith("refused \\x1b[2J\\nmain/0@n1 is STABLE")
    assert len(line) < 600


def test_lines_begin_with_the_time_in_a_process(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_line, "_prefix", str)
    say("one")
    begin_lines_with(lambda: f"{log_time(1_700_000_000_123_999)} ")
    say("two")
    assert lines(capsys) == ["one", "2023-11-14T22:13:20.123Z two"]


def test_too_few_file_descriptors_give_one_line_and_no_traceback(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """trio logs this ten times a second (``trio._highlevel_serve_listeners``)."""
    logger = logging.getLogger("trio.serve_listeners")
    monkeypatch.setattr(logger, "handlers", [])
    monkeypatch.setattr(logger, "propagate", True)
    log = Log()
    ListenerLog(log.trace).install()
    for _ in range(10):
        error = OSError(errno.EMFILE, "Too many open files")
        logger.error("accept returned %s (%s); retrying in %s seconds", "EMFILE", error, 0.1, exc_info=error)
        log.now += SECOND // 10
    assert lines(capsys) == ["cannot accept connections: [Errno 24] Too many open files"]
    assert len(log.events.names) == 10
