"""A proof of a run whose logs have lost their beginning: from which tuple time on, and what is known there (E1 to E4).

Here without Spark, as in ``test_following``; what Spark says of the rest is in ``tests/spark/test_follow_kept.py``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="needs the extra spark")

from consistency.proof.follow import follow_loop as following
from consistency.proof.follow import ranges, step
from consistency.proof.follow.margins import lookbacks
from consistency.proof.follow.proof_start import KeptLogs, NotYet, beginning
from consistency.proof.follow.readers import ChannelProgress, LogOfSource, LogProgress, RecordingOfChannel
from consistency.proof.follow.state import State, load_state
from consistency.proof.recorded.records import CHANGES
from consistency.proof.recorded.run import Run
from consistency.proof.recorded.table_source import recording_table, source_table
from consistency.proof.report.model import Flaw, Verdict
from replicas.cli.follow import follow
from replicas.cli.report import CONSISTENT, INCONSISTENT, UNKNOWN
from spe.log.log_start import LogCut
from spe.stream.batch import Element
from spe.stream.change import Change
from spe.stream.ids import Channel
from spe.stream.names import StreamId
from spe.stream.times import BEFORE_TIME, END_OF_TIME
from tests.support.runs import make_run
from tests.support.streams import parse
from tests.unit.consistency.proof.follow.test_follow_loop import (
    BEGUN,
    CONFIG,
    OUT,
    SCHEMA,
    A,
    a_run,
    judged,
    result,
    stopped_after,
    stream,
)
from tests.unit.consistency.proof.follow.test_retention import cut, cut_recording

__all__ = ["judged"]  # a fixture

B = StreamId("b")
CHANNEL = Channel(OUT, 0)


def changes(elements: Sequence[Element]) -> list[Change]:
    return [Change(CHANNEL, one, n) for n, one in enumerate(elements)]


def begun(path: Path) -> State | NotYet:
    run = Run.open(path)
    names = [*run.plan.sources, *(o.name for o in run.plan.query.operators)]
    lookback_us = lookbacks(run.reading, {s: tuple(run.plan.query.schema_of(s).names) for s in names})
    return beginning(run, State(fingerprint="f", origins={}), KeptLogs.of(run), lookback_us)


def begun_at(path: Path) -> State:
    found = begun(path)
    assert isinstance(found, State)
    return found


@pytest.fixture(autouse=True)
def _few_steps(monkeypatch: pytest.MonkeyPatch, judged: None) -> None:
    monkeypatch.setattr(ranges, "STEP_RECORDS", 100)


@pytest.fixture
def places(monkeypatch: pytest.MonkeyPatch, judged: None) -> list[list[int]]:
    """How many results there were before each range."""
    found: list[list[int]] = []

    def truth_of(network: Any, output: StreamId, before: list[int]) -> tuple[None, list[int]]:
        found.append(list(before))
        return None, [3] * len(before)

    monkeypatch.setattr(step, "truth_of", truth_of)
    return found


@pytest.mark.parametrize("record", [30, 60, 90, 200])
def test_remaining_rows_are_proved_from_a_named_time(
    tmp_path: Path,
    record: int,
    judged: list[tuple[int, int]],
    places: list[list[int]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = a_run(tmp_path / "run", 200, segment_bytes=300)
    behind = cut(path, record)
    last_us = 10 * (behind // 2)  # of the last tuple that is gone; the next bucket is whole
    assert follow(str(path)) == UNKNOWN
    assert judged[0][0] == last_us + 10
    assert [until for _, until in judged[:-1]] == [since for since, _ in judged[1:]]
    assert judged[-1][1] == END_OF_TIME
    found = result(path)
    assert (found.ended, found.judged_from_us, found.latest[-1].until_us) == (True, last_us + 10, None)
    assert found.judged_from == f"1970-01-01 00:00:00.{last_us + 10:06d}"
    assert found.reasons[-1].startswith(f"before {found.judged_from}: not judged (")
    assert "`retain` deleted what came before" in found.reasons[-1]
    assert places[0] == [last_us // 10]
    assert found.outputs[0].stable == 200 - last_us // 10
    assert found.stream_us == 2000 - (last_us + 10)
    said = capsys.readouterr().out
    assert f"UNKNOWN  from {found.judged_from} on, consistent until the end" in said
    assert said.count("not judged") == 2  # as it begins, and with the verdict


def test_untruncated_run_does_not_mention_a_start(tmp_path: Path) -> None:
    path = a_run(tmp_path / "run")
    assert follow(str(path)) == UNKNOWN
    found = result(path)
    assert (found.judged_from_us, found.judged_from) == (None, "the beginning")
    assert not any("not judged" in reason for reason in found.reasons)


def test_a_proof_that_began_late_goes_on_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, judged: list[tuple[int, int]]
) -> None:
    path = a_run(tmp_path / "run", 200, segment_bytes=300)
    cut(path, 60)
    stopped_after(2, path, monkeypatch)
    first = result(path)
    judged.clear()
    assert follow(str(path)) == UNKNOWN
    found = result(path)
    assert judged[0][0] == first.proved_us
    assert (found.judged_from_us, found.ended) == (first.judged_from_us, True)
    assert "not judged" in found.reasons[-1]


@pytest.mark.parametrize("record", [30, 60, 90, 200])
@pytest.mark.parametrize("also_recording", [False, True])
def test_proof_at_its_start_equals_one_that_reached_it(
    tmp_path: Path, record: int, also_recording: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where to read on, how far logs and recordings go, what was passed: all but what was counted before."""
    path, whole = (a_run(tmp_path / name, 200, segment_bytes=300) for name in ("run", "whole"))
    cut(path, record)
    if also_recording:
        cut_recording(path, record - 20)
    monkeypatch.setattr("consistency.proof.follow.proof_start._PIECE_RECORDS", 5)
    state = begun_at(path)
    run = Run.open(whole)
    log = LogOfSource(source_table(run, A), LogProgress())
    while log.bound_us < state.proved_us and log.pull():
        pass
    known, ours = log.taken(state.proved_us, 0).known, state.logs["a"]
    for what in ("start", "done", "start_id", "last_id", "bound_us"):
        assert getattr(ours, what) == getattr(known, what), what
    recording = RecordingOfChannel(recording_table(run, "one", OUT, CHANGES), 0, ChannelProgress(), sorted_=True)
    recording.read_until(state.proved_us)
    heard, channel = recording.taken(state.proved_us).known, state.channels["one"][str(CHANNEL)]
    assert (channel.start, channel.done) == (heard.start, heard.done)
    for what in ("passed_id", "passed_us", "frontier_us", "live", "overtaken"):
        assert getattr(channel.track, what) == getattr(heard.track, what), what


def test_a_recording_that_is_cut_beyond_the_logs_counts(tmp_path: Path, judged: list[tuple[int, int]]) -> None:
    path = a_run(tmp_path / "run", 200, segment_bytes=300)
    cut(path, 60)
    behind = cut_recording(path, 160)
    assert behind > 120
    assert follow(str(path)) == UNKNOWN
    assert judged[0][0] == 10 * (behind // 2) + 10


TWO: dict[str, Any] = {
    **CONFIG,
    "sources": {"a": CONFIG["sources"]["a"], "b": CONFIG["sources"]["a"]},
    "query": {
        "both": {"union": ["a", "b"]},
        "out": {"aggregate": {"from": "both", "window": "50us", "compute": {"n": "sum(n)"}}},
    },
}


def test_most_truncated_source_decides_start_and_need(tmp_path: Path) -> None:
    path = tmp_path / "run"
    windows = " ".join(f"S{n}/{50 * n - 1}:{50 * (n - 1)},{50 * n},1 B{50 * n}({n})" for n in range(1, 41))
    schema = Run.open(a_shape(tmp_path, TWO)).plan.query.schema_of(OUT)
    received = changes(parse(f"{windows} Binf(40)", schema))
    make_run(path, TWO, {A: stream(200), B: stream(200)}, {"one": received}, BEGUN, segment_bytes=300)
    behind = [cut(path, at, source=source) for source, at in ((A, 50), (B, 120))]
    assert behind[0] < behind[1]
    state = begun_at(path)
    gone_us = 10 * (behind[1] // 2)
    assert state.proved_us == gone_us + 10 + 50
    assert state.places == {"out": [state.proved_us // 50]}
    for name, log in state.logs.items():  # rows of windows that end behind it
        assert (log.start_id + 1) * 10 == gone_us + 10, name


def a_shape(tmp_path: Path, config: dict[str, Any]) -> Path:
    make_run(tmp_path / "shape", config, {A: stream(1), B: stream(1)})
    return tmp_path / "shape"


def forged_run(path: Path, *each: str) -> Path:
    """200 results, of which each client, one and others, got the first 100 in its own way.

    Args:
      each: what it got; pieces, each behind an id: ``20: S21/… // 20: S21/…``.
    """
    names = ["one", *(f"other{n}" for n in range(len(each) - 1))]
    config = CONFIG | {"clients": {name: {"reads": ["out"]} for name in names}}
    received = {
        name: changes([*pieces(text), *pieces(f"100: {right(200, 101)} Binf(200)")]) for name, text in zip(names, each)
    }
    make_run(path, config, {A: stream(200)}, received, BEGUN, segment_bytes=300)
    return path


def pieces(text: str) -> list[Element]:
    found: list[Element] = []
    for piece in text.split(" // "):
        position, colon, words = piece.partition(": ")
        found += parse(words, SCHEMA, position=int(position)) if colon else parse(piece, SCHEMA)
    return found


def right(until: int = 100, first: int = 1) -> str:
    return " ".join(f"S{n}/{10 * n}:{10 * n},{n} B{10 * n + 1}({n})" for n in range(first, until + 1))


def since(first: int) -> str:
    return right(first=first)


def test_earlier_errors_are_not_judged(tmp_path: Path, places: list[list[int]]) -> None:
    """Other rows, and one too many; from T on it has its own ids."""
    path = forged_run(tmp_path / "run", right(20).replace(":100,10", ":100,77") + " " + since(21))
    cut(path, 60)
    assert follow(str(path)) == UNKNOWN
    assert result(path).outputs[0].findings == []


@pytest.mark.parametrize(
    ("text", "flaw", "count"),
    [
        (f"{right(20)} U(18) {since(21)}", Flaw.UNDONE, 2),
        (f"{right(20)} // 20: S21/1500:9,9 // 20: {since(21)}", Flaw.EXTRA, 1),
        (f"{right(39)} // 40: S41/410:410,41 // 39: S40/405:400,40 B420(41) // 41: {since(42)}", Flaw.REORDERED, 1),
    ],
    ids=["undone", "from the far future", "in another order"],
)  # fmt: skip
def test_self_evident_errors_before_the_start_are_reported(tmp_path: Path, text: str, flaw: Flaw, count: int) -> None:
    path = forged_run(tmp_path / "run", text)
    cut(path, 80)
    assert begun_at(path).proved_us == 400
    assert follow(str(path)) == INCONSISTENT
    (found,) = result(path).outputs[0].findings
    assert (found.flaw, found.count) == (flaw, count)
    assert (result(path).consistent_us or 0) >= 400


def test_clients_with_other_ids_are_inconsistent(tmp_path: Path) -> None:
    one_less = " ".join(f"S{n - 1}/{10 * n}:{10 * n},{n} B{10 * n + 1}({n - 1})" for n in range(2, 101))
    path = forged_run(tmp_path / "run", right(), right(), one_less)
    cut(path, 60)
    assert follow(str(path)) == INCONSISTENT
    found = {o.client: o for o in result(path).outputs}
    assert [found[name].verdict for name in ("one", "other0", "other1")] == [
        Verdict.UNKNOWN,
        Verdict.UNKNOWN,
        Verdict.INCONSISTENT,
    ]
    assert "has the id 29, and 30 at another client" in found["other1"].reasons[0]
    assert result(path).consistent_us == result(path).judged_from_us


def test_tentative_results_count_from_there_on(tmp_path: Path) -> None:
    """What was put right before is no failure that was tried; what is open there is."""
    text = f"{right(10)} T/110:1,1 U(10) {right(50)[len(right(10)) :]} T/511:1,1 T/512:1,1 B520(50) U(50)"
    path = forged_run(tmp_path / "run", text)
    cut(path, 104)
    state = begun_at(path)
    assert state.proved_us == 520
    track = state.channels["one"][str(CHANNEL)].track
    assert (track.live, track.tentative, track.undone, track.corrections) == (2, 2, 0, 0)


@pytest.mark.parametrize(("at", "status"), [(10, UNKNOWN), (300, CONSISTENT)])
def test_a_failure_before_is_none_that_was_tried(tmp_path: Path, at: int, status: int) -> None:
    path = a_run(tmp_path / "run", 200, segment_bytes=300)
    (path / "events.jsonl").write_text(
        "".join(json.dumps(one) + "\n" for one in [BEGUN[0], {"t": at, "event": "fault_began", "kind": "cut"}])
    )
    cut(path, 60)
    assert begun_at(path).judged_at_us == 59
    assert follow(str(path)) == status
    found = result(path)
    assert found.verdict is (Verdict.CONSISTENT if status == CONSISTENT else Verdict.UNKNOWN)
    assert found.reasons[-1].startswith("before 1970-01-01 00:00:00.000300: not judged")


def test_wrong_stamp_in_first_remaining_segment_is_reported(tmp_path: Path) -> None:
    elements = stream(200)
    elements[2 * 44] = parse("S45/455:450,45", SCHEMA, position=44)[0]
    make_run(tmp_path / "run", CONFIG, {A: elements}, {"one": changes(elements)}, BEGUN, segment_bytes=300)
    behind = cut(tmp_path / "run", 88)
    assert 80 < behind <= 89
    assert follow(str(tmp_path / "run")) == INCONSISTENT
    (flaw,) = result(tmp_path / "run").sources[0].flaws
    assert flaw.startswith("tuple 45 has the time 1970-01-01 00:00:00.000455")


COUNTED = {"out": {"aggregate": {"from": "a", "window": {"count": 3}, "compute": {"n": "sum(n)"}}}}


def counted(path: Path) -> Path:
    make_run(path, {**CONFIG, "query": COUNTED}, {A: stream(200)}, None, BEGUN, segment_bytes=300)
    cut(path, 60)
    return path


def no_client(path: Path) -> Path:
    """The client stopped before what is left begins."""
    received = changes(parse(right(20), SCHEMA))
    make_run(path, CONFIG, {A: stream(200)}, {"one": received}, BEGUN, segment_bytes=300)
    cut(path, 100)
    return path


def unknown_time(path: Path) -> Path:
    a_run(path, 200, segment_bytes=300)
    cut_recording(path, 60, BEFORE_TIME)
    return path


@pytest.mark.parametrize(
    ("made", "why"),
    [
        (counted, "operator 'out' has windows of 3 rows, and which rows were in one is not known any more"),
        (
            no_client,
            r"nothing can be proved: client one, which has out/0 until 1970-01-01 00:00:00.000201; what is left can be "
            r"proved from 1970-01-01 00:00:00.000\d+ on",
        ),
        (unknown_time, "no time is known from which on results are there"),
    ],
)
def test_unprovable_run_is_refused_with_the_reason(
    tmp_path: Path, made: Callable[[Path], Path], why: str, judged: list[tuple[int, int]]
) -> None:
    with pytest.raises(LogCut, match=f"`retain` deleted what came before.*{why}"):
        follow(str(made(tmp_path / "run")))
    assert judged == []


def test_running_proof_waits_for_slow_client(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, judged: list[tuple[int, int]]
) -> None:
    path = no_client(tmp_path / "run")
    monkeypatch.setattr(Run, "going_on", property(lambda self: True))
    proof, spark = following.Following(path, 10), SimpleNamespace(version="0")
    assert proof.step(spark, lambda what: None) is None  # type: ignore[arg-type]
    assert proof.waits_for.startswith("client one, which has out/0 until 1970-01-01 00:00:00.000201")
    assert judged == []
    assert load_state(path / "follow", proof.state.fingerprint, proof.state.origins).steps == 0


def test_deletion_before_first_step_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, judged: list[tuple[int, int]]
) -> None:
    path = a_run(tmp_path / "run", 200, segment_bytes=300)
    cut(path, 60)
    monkeypatch.setattr(Run, "going_on", property(lambda self: True))
    proof, spark = following.Following(path, 10_000), SimpleNamespace(version="0")
    assert proof.step(spark, lambda what: None) is None  # type: ignore[arg-type]
    first = proof.state.judged_us or END_OF_TIME
    cut(path, 120)
    proof.every_us = 40
    assert proof.step(spark, lambda what: None) is not None  # type: ignore[arg-type]
    assert judged[0][0] == proof.state.judged_us
    assert (proof.state.judged_us or 0) > first
