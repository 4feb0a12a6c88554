"""Lines of level error in the logs of a run: which they are, each read once, counted."""

from __future__ import annotations

from pathlib import Path

import pytest

from replicas.local.log_errors import LogErrors, error_text
from spe.runtime.log_line import Level, LogFormat, _line, _Log

TEXT = "2026-11-29T12:07:43.512Z {} {}: {}\n"


@pytest.mark.parametrize("form", list(LogFormat))
@pytest.mark.parametrize("name", ["n1", "source:a b"])
def test_log_lines_are_distinguished_by_level(form: LogFormat, name: str) -> None:
    log = _Log(form, Level.INFO, lambda: 0, {"process": name})
    said = {level: error_text(_line(log, f"{name}: u1/0@n1: no {level.word} here", level, {}), name) for level in Level}
    assert said == {**dict.fromkeys(Level, ""), Level.ERROR: "u1/0@n1: no error here"}


@pytest.mark.parametrize("line", ["", "{", '{"level": "error"', "the error n1: is quoted", "ValueError: error n1: x"])
def test_other_lines_are_no_errors(line: str) -> None:
    assert error_text(line, "n1") == ""


def test_each_error_is_read_once_and_counted(tmp_path: Path) -> None:
    path = tmp_path / "n1.log"
    path.write_text(TEXT.format("error", "n1", "of an earlier run"))
    errors = LogErrors({"n1": path, "n2": tmp_path / "n2.log"})
    assert errors.read() == []
    with path.open("a") as log:
        log.write(TEXT.format("warning", "n1", "slow"))
        log.write(TEXT.format("error", "n1", "no room") * 2)
        log.write(TEXT.format("error", "n1", "cut off")[:40])
        log.flush()
        assert errors.read() == [("n1", "no room")]
        log.write(TEXT.format("error", "n1", "cut off")[40:])
    assert errors.read() == [("n1", "cut off")]
    assert errors.read() == []
    assert errors.found == {"n1": {"count": 3, "first": "no room", "log": "n1.log"}}
