"""The log of a process: which events it has, how often, and no control characters from strangers."""

from __future__ import annotations

import errno
import json
import logging

import pytest

from spe.runtime import log_line
from spe.runtime.log_line import Level, LogFormat, configure_log
from spe.runtime.logged_trace import LEVELS, LINES, LINES_MAX, REPEAT_US, WINDOW_US, ListenerLog, LoggedTrace
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


def test_an_event_has_its_level_and_its_fields(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_line, "_log", None)
    configure_log("n1", lambda: 0, format=LogFormat.JSON)
    log = Log()
    log.trace.event("state", replica="main/3@n1", state="STABLE", fresh=False)
    log.trace.event("unreachable", peer="n2", why="no answer")
    log.trace.event("installed", replica="main/0@n1", origin="n2", source="x", time=7)
    first, second, third = map(json.loads, lines(capsys))

    assert first == {
        "time": "1970-01-01T00:00:00.000Z",
        "level": "info",
        "message": "main/3@n1 is STABLE",
        "process": "n1",
        "node": "n1",
        "event": "state",
        "replica": "main/3@n1",
        "unit": "main",
        "partition": 3,
        "state": "STABLE",
        "fresh": False,
    }
    assert (second["level"], second["peer"], second["why"]) == ("warning", "n2", "no answer")
    assert (third["time"], third["time_"], third["source_"]) == ("1970-01-01T00:00:00.000Z", 7, "x")


def test_every_event_is_a_line_at_level_debug_and_at_no_other(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_line, "_log", None)
    for level in Level:
        configure_log("n1", lambda: 0, level=level)
        log = Log()
        for _ in range(2):
            log.trace.event("subscribe", consumer="main/0@n1", channel="a/0")
        log.trace.event("state", replica="main/0@n1", state="STABLE")
    stamp = "1970-01-01T00:00:00.000Z"
    debug = f"{stamp} debug n1: subscribe consumer=main/0@n1 channel=a/0"
    state = f"{stamp} info n1: main/0@n1 is STABLE"
    assert lines(capsys) == [debug, debug, state, state]


def test_levels_are_of_events_that_are_lines() -> None:
    assert LEVELS.keys() <= LINES.keys()


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
