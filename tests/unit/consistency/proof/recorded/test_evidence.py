"""Digests of a run's files: what they cover, and how a difference is told."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from types import SimpleNamespace
from typing import Any

import pytest

from consistency.proof.recorded.evidence import (
    BLOCKS,
    differences,
    digests_below,
    digests_outside,
    evidence,
    file_digest,
    stamps,
    unchanged,
)
from consistency.proof.recorded.query_file import read
from consistency.proof.recorded.run import Run
from consistency.proof.recorded.run_files import is_read, read_of
from consistency.proof.recorded.story import node_traces
from consistency.proof.storage.archive import DiskFolder, archive
from spe.checksum import crc32
from spe.config import load
from spe.errors import SpeError
from spe.log.announced_settings import RecordedAnnouncement
from spe.log.format import HEADER_BYTES
from spe.log.provenance import encode_provenance
from spe.runtime.process_birth import birth_of
from spe.stream.names import StreamId
from spe.stream.schema import Schema
from spe.wire.messages.feeds import Announcement
from tests.support.runs import FILTERED, make_run
from tests.support.streams import parse

LOG = "sources/a/00000000000000000001-00000001.seg"
CONFIG: dict[str, Any] = {
    **FILTERED,
    "query": {"out": {"custom": {"class": "own_operator_of_test:Own", "from": ["a"]}}},
}

SAID = Announcement("n1", "out", 1, 0, 2_000_000, 2_000_000, 0.9, "process", "process", "checkpoint", 0)
ANNOUNCED = RecordedAnnouncement(1, SAID)


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    path = tmp_path / "run"
    (tmp_path / "in.jsonl").write_text('{"ts": 0, "n": 1}\n')
    elements = parse("S1/10:10,1 S2/20:20,2 Binf(2)", Schema.of(ts="timestamp", n="int64"))
    events = [{"t": 0, "event": "begin", "begun_us": 0}]
    make_run(path, FILTERED, {StreamId("a"): elements}, events=events, data=tmp_path, announced=[ANNOUNCED])
    (path / "clients" / "client" / ".spe.json").write_bytes(encode_provenance({}))
    return path


def test_all_evidence_of_a_verdict_has_a_digest(run_dir: Path) -> None:
    found = evidence(Run.open(run_dir))
    assert {LOG, "config.yaml", "cluster.json", "events.jsonl", "sources/a/mark.0"} <= {f.path for f in found.files}
    assert "clients/client/.spe.json" in {f.path for f in found.files}
    assert any(f.path.startswith("clients/client/announced/") and f.path.endswith(".seg") for f in found.files)
    assert not any(Path(f.path).name == "lock" for f in found.files)
    (log,) = [f for f in found.files if f.path == LOG]
    content = (run_dir / LOG).read_bytes()
    assert (log.bytes, log.sha256) == (len(content), hashlib.sha256(content).hexdigest())
    assert [f.path for f in found.outside] == [str(run_dir.parent / "in.jsonl")]


def _append(path: Path, more: bytes) -> None:
    path.write_bytes(path.read_bytes() + more)


def _flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(bytes(data))


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda run: _flip(run / LOG, 40), f"{LOG} differs; other bytes in the range 0 to "),
        (lambda run: (run / LOG).write_bytes((run / LOG).read_bytes()[:-5]), f"{LOG} has lost its end: it has "),
        (lambda run: _append(run / "events.jsonl", b"{}\n"), "events.jsonl has grown: it has "),
        (lambda run: (run / "events.jsonl").unlink(), "events.jsonl is missing; the report rests on its "),
        (
            lambda run: (run / "summary.json").write_text("{}"),
            "summary.json was not there when the report was made",
        ),
    ],
    ids=["other bytes", "cut", "grown", "missing", "added"],
)
def test_difference_names_file_and_content(run_dir: Path, spoil: Callable[[Path], None], said: str) -> None:
    kept = digests_below(run_dir)
    assert differences(kept, digests_below(run_dir)) == []
    spoil(run_dir)
    (found,) = differences(kept, digests_below(run_dir))
    assert found.startswith(said)


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda f: _flip(f, 0), "f differs; other bytes in the range 0 to 4,095"),
        (lambda f: (_flip(f, 5_000), _flip(f, 9_000)), "f differs; other bytes in the range 4,096 to 12,287"),
        (
            lambda f: (_flip(f, 4_095), _flip(f, 99_999)),
            "f differs; other bytes in the ranges 0 to 4,095, 98,304 to 99,999",
        ),
        (
            lambda f: f.write_bytes(f.read_bytes()[:50_000]),
            "f has lost its end: it has 50,000 bytes, and had 100,000; equal in the first 49,152 bytes",
        ),
        (
            lambda f: (_append(f, b"x"), _flip(f, 0)),
            "f has grown: it has 100,001 bytes, and had 100,000; other bytes in the range 0 to 4,095",
        ),
    ],
)
def test_range_of_a_difference_is_given_by_blocks(tmp_path: Path, spoil: Callable[[Path], None], said: str) -> None:
    file = tmp_path / "f"
    file.write_bytes(os.urandom(100_000))
    kept = file_digest(file, "f")
    spoil(file)
    assert differences([kept], [file_digest(file, "f")]) == [said]


@pytest.mark.parametrize("size", [0, 1, 4_096, 4_097, 4_096 * BLOCKS, 4_096 * BLOCKS + 1, 5_000_000])
def test_a_file_of_any_size_has_few_blocks(tmp_path: Path, size: int) -> None:
    file = tmp_path / "f"
    file.write_bytes(bytes(size))
    found = file_digest(file, "f")
    assert len(found.blocks) <= BLOCKS
    assert found.sha256 == hashlib.sha256(bytes(size)).hexdigest()


def test_written_digests_are_compared_as_far_as_they_go(tmp_path: Path) -> None:
    file = tmp_path / "f"
    file.write_bytes(os.urandom(100_000))
    kept = file_digest(file, "f")
    _flip(file, 0)
    now = [file_digest(file, "f")]
    for blocks in ([], kept.blocks[:1], kept.blocks * 2):
        (said,) = differences([kept.model_copy(update={"blocks": blocks})], now)
        assert said == ("f differs; other bytes in the range 0 to 4,095" if blocks else "f differs")


def test_files_with_digests_are_the_files_read(run_dir: Path) -> None:
    """From another file system the same is fetched; but the coordinator's database has no digest."""
    for name in ("coordinator/state.sqlite", "faults.json", "nodes/n1/1.seg", "clients/client/out.0/kept.0"):
        (run_dir / name).parent.mkdir(parents=True, exist_ok=True)
        (run_dir / name).write_bytes(b"")
    names = [PurePosixPath(p.relative_to(run_dir)) for p in run_dir.rglob("*") if p.is_file()]
    read = {str(name) for name in names if is_read(name)}
    assert read == {str(p.relative_to(run_dir)) for p in read_of(run_dir)}
    assert read - {one.path for one in digests_below(run_dir)} == {"coordinator/state.sqlite"}
    assert {"coordinator/state.sqlite", "clients/client/out.0/kept.0", LOG} <= read
    assert not {"faults.json", "nodes/n1/1.seg"} & read


def test_archived_run_follows_link_to_log_folder(run_dir: Path, tmp_path: Path) -> None:
    (run_dir / "sources").rename(tmp_path / "large disk")
    (run_dir / "sources").symlink_to(tmp_path / "large disk")
    archive(Run.open(run_dir), DiskFolder(str(tmp_path / "copy")), lambda step: None)
    assert digests_below(tmp_path / "copy") == digests_below(run_dir)


def test_modules_of_the_query_have_a_digest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = tmp_path / "own_operator_of_test.py"
    module.write_text("from operators.custom import CustomOperator\n\n\nclass Own(CustomOperator):\n    pass\n")
    monkeypatch.syspath_prepend(str(tmp_path))

    opened: Any = SimpleNamespace(path=tmp_path, facts={"data": str(tmp_path)}, reading=read(json.dumps(CONFIG)))
    assert [d.path for d in digests_outside(opened)] == [str(module)]


def test_file_written_while_run_is_judged_is_an_error(run_dir: Path) -> None:
    run = Run.open(run_dir)
    before = stamps(run)
    unchanged(before, run)
    _append(run_dir / "events.jsonl", b"{}\n")
    with pytest.raises(SpeError, match=r"events\.jsonl was written while the run was judged"):
        unchanged(before, run)


def test_log_of_another_version_is_named_before_reading(run_dir: Path) -> None:
    whole = (run_dir / LOG).read_bytes()
    head = b"SPELOG2\n" + whole[8 : HEADER_BYTES - 4]
    (run_dir / LOG).write_bytes(head + crc32(head).to_bytes(4, "little") + whole[HEADER_BYTES:])
    with pytest.raises(SpeError, match=rf"{LOG} is of format version 2; this release reads version 1"):
        Run.open(run_dir)
    for torn in (b"", whole[:5], bytes(8) + whole[8:]):
        (run_dir / LOG).write_bytes(torn)
        Run.open(run_dir)


def test_notes_that_a_power_failure_tore_can_be_read(run_dir: Path) -> None:
    torn = b'{"t": 1, "event": "\xff\xfe\x80'
    _append(run_dir / "events.jsonl", torn)
    (run_dir / "trace").mkdir()
    (run_dir / "trace" / "n1.jsonl").write_bytes(b'{"t": 1, "event": "state"}\n' + torn)
    run = Run.open(run_dir)
    assert [e["event"] for e in run.events] == ["begin"]
    assert node_traces(run_dir, load(run_dir / "config.yaml", str(run_dir.parent))[1]) == {
        "n1": [{"t": 1, "event": "state"}]
    }


def test_segment_deleted_while_run_is_opened_is_skipped(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (log,) = Run.open(run_dir).source_segments(StreamId("a"))
    listed = [log, log._replace(first=2)]
    monkeypatch.setattr(Run, "source_segments", lambda run, stream: listed)
    assert Run.open(run_dir).source_segments(StreamId("a")) == listed


def test_run_is_going_on_while_supervisor_runs_without_summary(run_dir: Path) -> None:
    facts = json.loads((run_dir / "cluster.json").read_text())
    assert not Run.open(run_dir).going_on
    (run_dir / "cluster.json").write_text(json.dumps(facts | {"pid": os.getpid()}))
    assert Run.open(run_dir).going_on
    for birth, same in ((birth_of(os.getpid()), True), ("of the boot before", False)):
        (run_dir / "cluster.json").write_text(json.dumps(facts | {"pid": os.getpid(), "birth": birth}))
        assert Run.open(run_dir).going_on is same
    (run_dir / "cluster.json").write_text(json.dumps(facts | {"pid": os.getpid()}))
    (run_dir / "summary.json").write_text('{"verdict": {}}')
    assert not Run.open(run_dir).going_on
