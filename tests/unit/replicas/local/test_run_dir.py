"""The proof opens the directory of a run if it is complete, and otherwise gives the reason."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from consistency.proof.recorded.run import Run
from spe.errors import LogCorrupt, SpeError
from spe.stream.ids import Channel
from spe.stream.names import StreamId
from tests.support.runs import make_run

A, OUT = StreamId("a"), StreamId("out")
CONFIG = {
    "bucket": "10us",
    "sources": {
        "a": {
            "schema": {"ts": "timestamp", "n": "int64"},
            "time": "ts",
            "from": {"jsonl": "none.jsonl"},
            "replay": {"max": True},
        }
    },
    "query": {"out": {"filter": {"from": "a", "where": "n > 1"}}},
    "outputs": ["out"],
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "run"
    make_run(path, CONFIG, {A: []}, events=[{"t": 5, "event": "begun", "begun_us": 5}])
    (path / "sources" / "a" / f"{1:020d}-{1:08d}.seg").touch()
    return path


def test_a_complete_directory_has_plan_events_and_recordings(folder: Path) -> None:
    run = Run.open(folder)
    assert run.plan.query.outputs == (OUT,)
    assert [e["event"] for e in run.events] == ["begun"]
    assert list(run.recordings()) == [("client", Channel(OUT, 0))]
    assert run.recording_path("client", Channel(OUT, 0)).is_dir()
    assert run.summary == {}


@pytest.mark.parametrize(
    ("gone", "said"),
    [
        ("cluster.json", "not the directory of a run"),
        ("config.yaml", "no config.yaml"),
        ("events.jsonl", "faults and states"),
        ("sources/a", "log of source 'a'"),
        ("clients/client/out.0", "client 'client' received"),
    ],
)
def test_missing_files_are_named(folder: Path, gone: str, said: str) -> None:
    path = folder / gone
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    with pytest.raises(SpeError, match=said):
        Run.open(folder)


def test_a_log_without_its_beginning_is_refused(folder: Path) -> None:
    log = folder / "sources" / "a"
    (log / f"{1:020d}-{1:08d}.seg").rename(log / f"{9:020d}-{1:08d}.seg")
    with pytest.raises(LogCorrupt, match="begins with record 9"):
        Run.open(folder)


def test_an_empty_log_is_refused(folder: Path) -> None:
    (folder / "sources" / "a" / f"{1:020d}-{1:08d}.seg").unlink()
    with pytest.raises(SpeError, match="is empty"):
        Run.open(folder)


def test_another_configuration_is_refused(folder: Path) -> None:
    config = folder / "config.yaml"
    config.write_text(config.read_text().replace("n > 1", "n > 2"))
    with pytest.raises(SpeError, match="ran another plan"):
        Run.open(folder)


def test_a_torn_last_event_is_skipped_and_any_other_is_refused(folder: Path) -> None:
    events = folder / "events.jsonl"
    whole = events.read_text()
    events.write_text(whole + '{"t": 7, "ev')
    assert len(Run.open(folder).events) == 1
    events.write_text('{"t": 7, "ev\n' + whole)
    with pytest.raises(SpeError, match=r"events\.jsonl:1: expected an event"):
        Run.open(folder)


def test_a_damaged_cluster_file_is_named(folder: Path) -> None:
    (folder / "cluster.json").write_text(json.dumps({"data": "."}))
    with pytest.raises(SpeError, match="damaged"):
        Run.open(folder)


def test_a_missing_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SpeError, match="no such directory"):
        Run.open(tmp_path / "none")
