"""Lines of JSON on standard output, whatever that is."""

from __future__ import annotations

import io
import sys
from typing import Any

import pytest

from replicas.cli.view.json_lines import write_out


class Hasty(io.RawIOBase):
    """Takes a few bytes of each write, as a pipe does when a signal comes; or nothing at all."""

    def __init__(self, most: int | None) -> None:
        self.taken = b""
        self._most = most

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int | None:
        if self._most is None:
            return None
        self.taken += bytes(data[: self._most])
        return min(self._most, len(data))


@pytest.mark.parametrize("most", [1, 7, 1_000])
def test_everything_is_written_to_unbuffered_output(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    raw = Hasty(most)
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, write_through=True))  # type: ignore[type-var]
    write_out([b"one line\n" * 3, b"", b"another\n"])
    assert raw.taken == b"one line\n" * 3 + b"another\n"


def test_an_output_that_takes_nothing_now_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(Hasty(None), write_through=True))  # type: ignore[type-var]
    with pytest.raises(BlockingIOError, match="takes nothing now"):
        write_out([b"line\n"])


def test_lines_follow_earlier_printed_text(capfd: pytest.CaptureFixture[str]) -> None:
    with open(sys.__stdout__.fileno(), "w", closefd=False) as out:  # type: ignore[union-attr]
        before, sys.stdout = sys.stdout, out
        try:
            print("first")
            write_out([b"second\n"])
            print("third")
        finally:
            sys.stdout = before
    assert capfd.readouterr().out == "first\nsecond\nthird\n"


def test_output_may_be_text_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    text = io.StringIO()
    monkeypatch.setattr(sys, "stdout", text)
    write_out(["ä\n".encode()])
    assert text.getvalue() == "ä\n"
