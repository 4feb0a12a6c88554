"""Log lines go to standard error, and a failure to write them does no harm."""

from __future__ import annotations

import errno
import io
import sys

import pytest

from spe.runtime.log_line import say


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
