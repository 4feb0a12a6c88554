"""``spe report --verify``: what it refuses, what it finds without Spark, and what it exits with."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from consistency.proof.recorded.evidence import evidence
from consistency.proof.recorded.run import Run
from consistency.proof.report.model import Report
from replicas.cli.app import execute
from replicas.cli.verify import AS_IT_SAYS, DIFFERS, NOT_VERIFIED, verify
from spe.errors import SpeError
from spe.stream.names import StreamId
from spe.stream.schema import Schema
from tests.support.reports import report
from tests.support.runs import FILTERED, make_run
from tests.support.streams import parse


class Spark:
    """Counts how often it was started and stopped."""

    version = "0"
    sparkContext = SimpleNamespace(master="local[2]")

    def __init__(self) -> None:
        self.started = self.stopped = 0

    def start(self) -> Any:
        self.started += 1
        return self

    def stop(self) -> None:
        self.stopped += 1


@pytest.fixture
def spark() -> Spark:
    return Spark()


@pytest.fixture
def made(tmp_path: Path) -> Path:
    """The report of a run, made by hand."""
    (tmp_path / "in.jsonl").write_text('{"ts": 0, "n": 1}\n')
    path = tmp_path / "run"
    elements = parse("S1/10:10,1 S2/20:20,2 Binf(2)", Schema.of(ts="timestamp", n="int64"))
    make_run(path, FILTERED, {StreamId("a"): elements}, data=tmp_path)
    kept = report().model_copy(
        update={"evidence": evidence(Run.open(path)), "configuration": (path / "config.yaml").read_text()}
    )
    (path / "report").mkdir()
    (path / "report" / "report.json").write_text(kept.model_dump_json())
    return path / "report" / "report.json"


def told(text: str) -> None:
    print(text)


@pytest.fixture
def found_again(made: Path, monkeypatch: pytest.MonkeyPatch) -> list[Report]:
    """What Spark finds: what the report says, unless a test replaces it."""
    found = [Report.model_validate_json(made.read_text())]
    monkeypatch.setattr("replicas.proving.again", lambda spark, run, kept, tell: found[0])
    return found


def test_a_right_report_is_verified(
    made: Path, spark: Spark, found_again: list[Report], capsys: pytest.CaptureFixture[str]
) -> None:
    assert verify([made], spark.start, told) == AS_IT_SAYS
    assert (spark.started, spark.stopped) == (1, 1)
    assert f"VERIFIED  {made}: everything is as it says" in capsys.readouterr().out


def test_a_run_that_was_copied_elsewhere_is_verified(
    made: Path, spark: Spark, found_again: list[Report], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The input, which nobody copied, is named."""
    shutil.copytree(made.parent.parent, tmp_path / "copy")
    (tmp_path / "in.jsonl").unlink()
    assert verify([tmp_path / "copy" / "report" / "report.json"], spark.start, told) == AS_IT_SAYS
    assert f"{tmp_path / 'in.jsonl'} is not here: it was not compared" in capsys.readouterr().out


def test_changed_verdict_is_reported(
    made: Path, spark: Spark, found_again: list[Report], capsys: pytest.CaptureFixture[str]
) -> None:
    found_again[0] = found_again[0].model_copy(update={"reasons": ["1 tuple altered"]})
    assert verify([made], spark.start, told) == DIFFERS
    out = capsys.readouterr().out
    assert f"DIFFERS  {made}" in out
    assert 'reasons: the report says [], computed again it is ["1 tuple altered"]' in out


def _change(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda run: _change(run / "config.yaml", "n > 0", "n > 1"), "has 'where: n > 0', the run 'where: n > 1'"),
        (lambda run: _change(run / "cluster.json", '"spe": "0"', '"spe": "1"'), "cluster.json differs; other bytes in"),
        (lambda run: _change(run / "cluster.json", '"fingerprint": "', '"fingerprint": "0'), "cluster.json has grown"),
        (lambda run: next((run / "sources" / "a").glob("*.seg")).unlink(), "-00000001.seg is missing"),
        (lambda run: (run / "summary.json").write_text("{}"), "summary.json was not there"),
        (lambda run: (run.parent / "in.jsonl").write_text("{}"), "in.jsonl has lost its end"),
    ],
    ids=["configuration", "facts", "fingerprint", "log", "added", "input"],
)  # fmt: skip
def test_files_that_differ_are_named_without_starting_spark(
    made: Path, spark: Spark, spoil: Callable[[Path], None], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    spoil(made.parent.parent)
    assert verify([made], spark.start, told) == DIFFERS
    out = capsys.readouterr().out
    assert said in out
    assert "the verdict was not computed again" in out
    assert spark.started == 0


def test_each_of_several_reports_is_verified(
    made: Path, spark: Spark, found_again: list[Report], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "other"
    shutil.copytree(made.parent.parent, other)
    (other / "events.jsonl").write_text('{"t": 0, "event": "begin", "begun_us": 0}\n')
    assert verify([other / "report" / "report.json", made], spark.start, told) == DIFFERS
    out = capsys.readouterr().out
    assert f"DIFFERS  {other}" in out
    assert f"VERIFIED  {made}" in out
    assert (spark.started, spark.stopped) == (1, 1)


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda file: file.unlink(), "there is no such file; expected the report.json of a run"),
        (lambda file: file.write_text("{"), "it is not JSON"),
        (lambda file: file.write_text('{"version": 2}'), "is of format version 2; this release reads version 1"),
        (
            lambda file: file.write_text(json.dumps(json.loads(file.read_text()) | {"evidence": None})),
            "has no digests: it was made while the run went on",
        ),
        (lambda file: (file.parent.parent / "cluster.json").unlink(), "is not the directory of a run"),
    ],
    ids=["none", "torn", "version", "no digests", "elsewhere"],
)
def test_unverifiable_report_is_refused_first(
    made: Path, spark: Spark, spoil: Callable[[Path], None], said: str
) -> None:
    spoil(made)
    with pytest.raises(SpeError, match=said):
        verify([made], spark.start, told)
    assert spark.started == 0


def test_the_command_verifies(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (made.parent.parent / "summary.json").write_text("{}")
    assert execute(["report", "--verify", str(made)]) == DIFFERS
    assert execute(["report", "--verify", str(made.parent)]) == NOT_VERIFIED
    assert execute(["report", "--verify", str(made), "--out", "x.html"]) == NOT_VERIFIED
    assert "expected --verify without --out" in capsys.readouterr().err


def test_verification_result_is_written_to_junit(made: Path, tmp_path: Path) -> None:
    """A failure where something differs, an error where a report could not be verified."""
    file = tmp_path / "found.xml"
    log = next((made.parent.parent / "sources" / "a").glob("*.seg"))
    log.write_bytes(log.read_bytes()[:-1])
    assert execute(["report", "--verify", str(made), "--junit", str(file)]) == DIFFERS
    suite = ET.parse(file).getroot()[0]
    failure = suite[0].find("failure")
    assert suite.get("name") == str(made)
    assert failure is not None
    assert "has lost its end" in str(failure.get("message"))
    assert execute(["report", "--verify", str(tmp_path / "none.json"), "--junit", str(file)]) == NOT_VERIFIED
    error = ET.parse(file).getroot()[0][0].find("error")
    assert error is not None
    assert "there is no such file" in str(error.get("message"))


def test_bytes_that_are_no_text_are_reported(made: Path, spark: Spark, capsys: pytest.CaptureFixture[str]) -> None:
    (made.parent.parent / "config.yaml").write_bytes(b"\xff\xfe\n")
    assert verify([made], spark.start, told) == DIFFERS
    assert "config.yaml differs from line 1 on" in capsys.readouterr().out
    made.write_bytes(b"\xff\xfe{}")
    with pytest.raises(SpeError, match="is no report: it is not JSON"):
        verify([made], spark.start, told)
    assert spark.started == 0
