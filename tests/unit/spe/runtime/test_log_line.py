"""Log lines go to standard error, and a failure to write them does no harm."""

from __future__ import annotations

import errno
import io
import json
import sys

import pytest

from spe.runtime import log_line
from spe.runtime.log_line import Level, LogFormat, configure_log, say

AT_US = 1_700_000_000_123_999
STAMP = "2023-11-14T22:13:20.123Z"


@pytest.fixture(autouse=True)
def as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_line, "_log", None)
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    return


class Full(io.StringIO):
    def write(self, text: str) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")


def test_a_line_goes_to_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    say("the disk is full")
    assert capsys.readouterr().err == "the disk is full\n"


def test_a_process_continues_if_standard_error_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", Full())
    say("the disk is full")
    closed = io.StringIO()
    closed.close()
    monkeypatch.setattr(sys, "stderr", closed)
    say("the disk is full")


def test_a_line_of_a_process_has_time_level_and_name(capsys: pytest.CaptureFixture[str]) -> None:
    configure_log("n1", lambda: AT_US)
    say("lost n2")
    say("n1: no room", Level.ERROR)
    assert capsys.readouterr().err == f"{STAMP} info n1: lost n2\n{STAMP} error n1: no room\n"


def test_lines_below_the_level_are_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    configure_log("n1", lambda: AT_US, level=Level.WARNING)
    for level in Level:
        say(level.word, level)
    assert [line.rpartition(" ")[2] for line in capsys.readouterr().err.splitlines()] == ["warning", "error"]


@pytest.mark.parametrize(
    ("process", "bound"),
    [
        ("n1", {"node": "n1"}),
        ("source:shop", {"source": "shop"}),
        ("client:board", {"client": "board"}),
    ],
)
def test_json_has_one_object_per_line_with_its_subject(
    capsys: pytest.CaptureFixture[str], process: str, bound: dict[str, str]
) -> None:
    configure_log(process, lambda: AT_US, format=LogFormat.JSON, cluster="demo")
    say("two\nlines\u2028 and \x1b[2J", Level.WARNING, event="spill", replica="a/b/7@n1", channel="orders/2", bytes=5)
    text = capsys.readouterr().err

    assert text.count("\n") == 1
    assert text.isascii()
    assert "\x1b" not in text
    assert json.loads(text) == {
        "time": STAMP,
        "level": "warning",
        "message": "two\nlines\u2028 and \x1b[2J",
        "process": process,
        **bound,
        "cluster": "demo",
        "event": "spill",
        "replica": "a/b/7@n1",
        "unit": "a/b",
        "channel": "orders/2",
        "stream": "orders",
        "partition": 2,
        "bytes": 5,
    }


def test_uncaught_error_is_json(capsys: pytest.CaptureFixture[str]) -> None:
    configure_log("n1", lambda: AT_US, format=LogFormat.JSON)
    try:
        raise RuntimeError("it broke")
    except RuntimeError as error:
        sys.excepthook(RuntimeError, error, error.__traceback__)
    said = json.loads(capsys.readouterr().err)
    assert (said["level"], said["event"], said["message"]) == ("error", "uncaught", "RuntimeError: it broke")
    assert "raise RuntimeError" in said["traceback"]
