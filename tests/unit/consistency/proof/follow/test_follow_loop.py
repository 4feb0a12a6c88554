"""The proof of a run that goes on, over restarts: here without Spark, which is told to find nothing wrong."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="needs the extra spark")

from consistency.proof.follow import follow_loop as following
from consistency.proof.follow import ranges, step
from consistency.proof.follow.state import State, save_text, sync_below
from consistency.proof.recorded.run import Run
from consistency.proof.report.follow_model import Followed
from consistency.proof.report.model import Flaw, Verdict
from consistency.proof.report.schema import FOLLOW_SCHEMA
from replicas.cli.app import execute
from replicas.cli.follow import follow
from replicas.cli.report import INCONSISTENT, UNKNOWN
from spe.errors import SpeError
from spe.stream.batch import Boundary, Element
from spe.stream.change import Change
from spe.stream.ids import Channel
from spe.stream.names import Kind, StreamId
from spe.stream.schema import Schema
from spe.stream.times import END_OF_TIME
from tests.support.reports import check_schema
from tests.support.runs import FILTERED, make_run, write_source_log
from tests.support.streams import parse

A, OUT = StreamId("a"), StreamId("out")
SCHEMA = Schema.of(ts="timestamp", n="int64")
CONFIG: dict[str, Any] = {**FILTERED, "bucket": "10us", "clients": {"one": {"reads": ["out"]}}}
BEGUN = [{"t": 0, "event": "begin", "begun_us": 0}, {"t": 9, "event": "process_ended", "process": "n1", "status": 0}]


class _TurnedOff(BaseException):
    """As if the process were killed."""


def stream(count: int, more: str = "") -> list[Element]:
    """A tuple and its boundary every 10 µs."""
    text = " ".join(f"S{n}/{10 * n}:{10 * n},{n} B{10 * n + 1}({n})" for n in range(1, count + 1))
    return [*parse(f"{text} {more}", SCHEMA), Boundary(Kind.STABLE, END_OF_TIME, count)]


def a_run(path: Path, count: int = 40, more: str = "", segment_bytes: int = 1 << 20) -> Path:
    elements = stream(count)
    received = [Change(Channel(OUT, 0), e, n) for n, e in enumerate(stream(count, more))]
    make_run(path, CONFIG, {A: elements}, {"one": received}, BEGUN, segment_bytes=segment_bytes)
    return path


@pytest.fixture(autouse=True)
def judged(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Every range that Spark was asked for."""
    found: list[tuple[int, int]] = []

    def network(self: following.Following, spark: Any, next_: ranges.Range, logs: Any) -> Any:
        part = SimpleNamespace(since_us=self.state.proved_us, until_us=next_.until_us)
        found.append((part.since_us, part.until_us))
        return SimpleNamespace(part=part, open={}, frontier={OUT: END_OF_TIME})

    def judge(spark: Any, run: Run, network: Any, truth: Any, asked: step.ClientPortion) -> step.StepFound:
        stable = sum(t.known.track.stable - k.track.stable for t, k in zip(asked.taken, asked.known))
        return step.StepFound(stable, {}, 0, [])

    monkeypatch.setattr(following.Following, "_network", network)
    monkeypatch.setattr(following, "suit", lambda *args: None)
    monkeypatch.setattr(step, "truth_of", lambda network, output, places: (None, [3] * len(places)))
    monkeypatch.setattr(step, "judge", judge)
    monkeypatch.setattr(
        "replicas.cli.follow.start_spark", lambda *args: SimpleNamespace(stop=lambda: None, version="0")
    )
    monkeypatch.setattr(ranges, "STEP_RECORDS", 8)
    return found


def result(path: Path) -> Followed:
    text = (path / following.RESULT).read_text()
    check_schema(text, FOLLOW_SCHEMA)
    return Followed.model_validate_json(text)


def without_times(found: Followed) -> dict[str, Any]:
    return found.model_dump(exclude={"name", "folder", "seconds", "seconds_per_hour", "latest", "versions"})


def test_ranges_follow_each_other_up_to_the_end(tmp_path: Path, judged: list[tuple[int, int]]) -> None:
    assert follow(str(a_run(tmp_path / "run"))) == UNKNOWN
    assert [until for _, until in judged[:-1]] == [since for since, _ in judged[1:]]
    assert [until for _, until in judged[:3]] == [40, 80, 120]
    assert judged[-1][1] == END_OF_TIME
    found = result(tmp_path / "run")
    assert (found.ended, found.steps, found.verdict) == (True, len(judged), Verdict.UNKNOWN)
    assert found.reasons == ["one · out: nothing failed: whether failures are put right was not tried"]
    (output,) = found.outputs
    assert (output.stable, output.truth) == (40, 3 * len(judged))
    assert found.sources[0].tuples == 40
    assert found.stream_us == 390


@pytest.mark.parametrize("after", [False, True], ids=["before the state is replaced", "after"])
def test_over_a_kill_each_range_counts_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, judged: list[tuple[int, int]], after: bool
) -> None:
    follow(str(a_run(tmp_path / "known")))
    whole = list(judged)
    path, save, saves = a_run(tmp_path / "run"), save_text, [0]

    def killed(file: Path, text: str) -> None:
        saves[0] += file.name == "state.json"
        if file.name != "state.json" or after:
            save(file, text)
        if file.name == "state.json" and saves[0] % 3 == 0:
            raise _TurnedOff
        if file.name == "state.json" and not after:
            save(file, text)

    monkeypatch.setattr(following, "save_text", killed)
    kills = 0
    judged.clear()
    while True:
        try:
            follow(str(path))
            break
        except _TurnedOff:
            kills += 1
    assert kills >= 3
    assert list(dict.fromkeys(judged)) == whole
    assert len(judged) - len(whole) == (0 if after else kills)
    assert without_times(result(path)) == without_times(result(tmp_path / "known"))


def stopped_after(steps: int, path: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    """Ctrl-C."""
    made, left = following.Following.step, [steps]

    def limited(self: following.Following, spark: Any, tell: Callable[[str], None]) -> Any:
        if not left[0]:
            raise KeyboardInterrupt
        left[0] -= 1
        return made(self, spark, tell)

    with monkeypatch.context() as patched:
        patched.setattr(following.Following, "step", limited)
        return follow(str(path))


def test_after_ctrl_c_the_next_start_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], judged: list[tuple[int, int]]
) -> None:
    path = a_run(tmp_path / "run")
    assert stopped_after(3, path, monkeypatch) == UNKNOWN
    assert f"stopped; the next spe report --follow {path} continues" in capsys.readouterr().out
    found = result(path)
    assert (found.proved_us, found.consistent_us, found.ended) == (120, 120, False)
    assert found.verdict is Verdict.UNKNOWN
    judged.clear()
    assert follow(str(path)) == UNKNOWN
    assert judged[0][0] == 120
    assert "continues at 1970-01-01 00:00:00.000120, after 3 steps" in capsys.readouterr().out
    assert result(path).ended
    judged.clear()
    assert follow(str(path)) == UNKNOWN  # all is proved, and nothing was altered
    assert judged == []


def test_proof_stops_without_its_stored_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = a_run(tmp_path / "run")
    stopped_after(3, path, monkeypatch)
    proof = following.Following(path, 1)
    proof.state.kept = "open-3"
    spark: Any = SimpleNamespace(read=SimpleNamespace(parquet=lambda folder: folder))
    rows = path / "follow" / "open-3" / "counted.parquet"
    for make in (lambda: None, lambda: rows.mkdir(parents=True)):
        make()
        with pytest.raises(SpeError, match=r"open-3 is not whole, and the proof goes on from it; remove"):
            proof._open_rows(spark)
    (rows / "_SUCCESS").touch()
    sync_below(rows)
    assert proof._open_rows(spark) == {"counted": str(rows)}


def test_rows_altered_after_their_proof_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A log with another row: each record is whole, and only what was read of it can tell."""
    path = a_run(tmp_path / "run")
    stopped_after(3, path, monkeypatch)
    before = (path / "follow" / "state.json").read_text()
    elements = parse("S1/10:10,9 B11(1)", SCHEMA) + stream(40)[2:]
    for file in (path / "sources" / "a").glob("*"):
        file.unlink()
    write_source_log(path, A, SCHEMA, elements)
    assert follow(str(path)) == INCONSISTENT
    found = result(path)
    assert found.verdict is Verdict.INCONSISTENT
    (reason,) = [r for r in found.reasons if "sources/a" in r]
    assert "until 1970-01-01 00:00:00.000121, were altered since" in reason
    assert (path / "follow" / "state.json").read_text() == before


def test_a_recording_that_was_altered_is_named_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = a_run(tmp_path / "run", segment_bytes=300)
    stopped_after(4, path, monkeypatch)
    segment = min((path / "clients" / "one" / "out.0").glob("*.seg"))
    data = bytearray(segment.read_bytes())
    data[100] ^= 1
    segment.write_bytes(data)
    assert follow(str(path)) == INCONSISTENT
    assert f"{segment} is not as it was read" in result(path).reasons[0]


def test_an_undo_behind_stable_tuples_is_named_with_its_time(tmp_path: Path) -> None:
    path = a_run(tmp_path / "run", more="U(38)")
    assert follow(str(path)) == INCONSISTENT
    (finding,) = result(path).outputs[0].findings
    assert (finding.flaw, finding.count, finding.offenders[0].place) == (Flaw.UNDONE, 2, 39)
    assert result(path).consistent_until == finding.offenders[0].time == "1970-01-01 00:00:00.000400"


def test_a_log_with_a_wrong_stamp_is_named_once(tmp_path: Path) -> None:
    """Its first tuple is later than its own event time, without a reason."""
    elements = [*parse("S1/15:10,1 B16(1)", SCHEMA), *stream(40)[2:]]
    make_run(tmp_path / "run", CONFIG, {A: elements}, {"one": [Change(Channel(OUT, 0), e, 1) for e in elements]}, BEGUN)
    assert follow(str(tmp_path / "run")) == INCONSISTENT
    (flaw,) = result(tmp_path / "run").sources[0].flaws
    assert flaw.startswith("tuple 1 has the time 1970-01-01 00:00:00.000015")


@pytest.mark.long
def test_the_state_does_not_grow_with_the_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save: Callable[[following.Following, State], None] = following.Following._save
    sizes: list[int] = []

    def saved(self: following.Following, state: State) -> None:
        save(self, state)
        sizes.append(sum(p.stat().st_size for p in (self.run.path / "follow").rglob("*")))

    monkeypatch.setattr(following.Following, "_save", saved)
    follow(str(a_run(tmp_path / "run", 2_000, segment_bytes=2_000)))
    assert len(sizes) > 400
    half = len(sizes) // 2
    assert max(sizes[half:]) < 1.02 * max(sizes[:half])
    assert max(sizes) < 30_000


def test_while_the_run_goes_on_a_step_has_its_least_length(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, judged: list[tuple[int, int]]
) -> None:
    path = a_run(tmp_path / "run")
    monkeypatch.setattr(ranges, "STEP_RECORDS", 40)
    monkeypatch.setattr(Run, "going_on", property(lambda self: True))
    spark: Any = SimpleNamespace(version="0")
    proof = following.Following(path, 150)
    done = proof.step(spark, lambda what: None)
    assert done is not None
    assert judged == [(done.since_us or -END_OF_TIME, 200)]
    assert proof.step(spark, lambda what: None) is not None  # until 400
    assert proof.step(spark, lambda what: None) is None  # the rest is proved when the processes have ended
    assert proof.waits_for == "the processes of the run, which have not ended"
    longer = following.Following(path, 500)
    assert longer.step(spark, lambda what: None) is None


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--verify"], "expected --follow with one run, and without --verify"),
        (["--junit", "x.xml"], "expected --follow with one run"),
        (["another"], "expected --follow with one run"),
        (["--every", "soon"], "--every: expected a duration"),
    ],
)
def test_contradictory_options_are_refused(
    tmp_path: Path, arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert execute(["report", "--follow", str(tmp_path), *arguments]) == UNKNOWN
    assert said in capsys.readouterr().err


def test_a_run_that_has_just_begun_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its processes live, and a source has not begun its log yet."""
    path = a_run(tmp_path / "run")
    facts = json.loads((path / "cluster.json").read_text())
    (path / "cluster.json").write_text(json.dumps(facts | {"pid": os.getpid()}))
    (path / "summary.json").write_text("{}")
    mark = path / "sources" / "a" / "mark.1"
    marks = {file: file.read_bytes() for file in mark.parent.glob("mark.*")}
    for file in marks:
        file.unlink()
    waits = [0]

    def sleep(seconds: float) -> None:
        waits[0] += 1
        if waits[0] == 2:
            for file, data in marks.items():
                file.write_bytes(data)

    monkeypatch.setattr("replicas.cli.follow.time", SimpleNamespace(sleep=sleep, monotonic=time.monotonic))
    monkeypatch.setattr(Run, "going_on", property(lambda self: False))
    assert follow(str(path)) == UNKNOWN
    assert waits[0] == 2
    for file in marks:
        file.unlink()
    (path / "cluster.json").write_text(json.dumps(facts))
    with pytest.raises(SpeError, match="is incomplete: the log of source 'a' was not begun"):
        follow(str(path))


def test_a_run_that_is_elsewhere_or_not_there_is_refused() -> None:
    with pytest.raises(SpeError, match="--follow reads a run on this machine"):
        follow("hdfs://host/runs/mine")
    with pytest.raises(SpeError, match="there is no such directory"):
        follow("/nowhere/at/all")


def test_while_nothing_comes_but_boundaries_steps_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, judged: list[tuple[int, int]]
) -> None:
    elements = parse("S1/10:10,1 B11(1) B100(1) B200(1) B300(1)", SCHEMA)
    received = [Change(Channel(OUT, 0), e, n) for n, e in enumerate(elements)]
    make_run(tmp_path / "run", CONFIG, {A: elements}, {"one": received}, BEGUN)
    monkeypatch.setattr(ranges, "STEP_RECORDS", 3)
    monkeypatch.setattr(Run, "going_on", property(lambda self: True))
    proof, spark = following.Following(tmp_path / "run", 50), SimpleNamespace(version="0")
    while proof.step(spark, lambda what: None) is not None:  # type: ignore[arg-type]
        pass
    assert [until for _, until in judged] == [100, 300]
    assert proof.waits_for == "source a, which is at 1970-01-01 00:00:00.000300"
