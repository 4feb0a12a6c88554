"""Which records a step takes of logs and recordings, and where the next one begins."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="needs the extra spark")

from consistency.proof.follow.ranges import next_range
from consistency.proof.follow.readers import ChannelProgress, LogOfSource, LogProgress, RecordingOfChannel
from consistency.proof.follow.state import State
from consistency.proof.recorded.records import CHANGES, scan_stretch
from consistency.proof.recorded.run import Run
from consistency.proof.recorded.table_source import recording_table, source_table
from spe.stream.batch import Element
from spe.stream.change import Change
from spe.stream.ids import Channel
from spe.stream.names import StreamId
from spe.stream.schema import Schema
from spe.stream.times import BEFORE_TIME, END_OF_TIME
from tests.support.runs import FILTERED, make_run
from tests.support.streams import parse

A, OUT = StreamId("a"), StreamId("out")
SCHEMA = Schema.of(ts="timestamp", n="int64")
CONFIG: dict[str, Any] = {
    **FILTERED,
    "bucket": "10us",
    "clients": {"one": {"reads": ["out"]}, "other": {"reads": ["out"]}},
}


def logged(*times: int, end: int = END_OF_TIME) -> list[Element]:
    """A tuple and its boundary at a time; then the end."""
    texts = [f"S{n}/{t}:{t},{n} B{t + 1}({n})" for n, t in enumerate(times, 1)]
    last = "inf" if end >= END_OF_TIME else str(end)
    return parse(" ".join([*texts, f"B{last}({len(times)})"]), SCHEMA)


def received(elements: list[Element]) -> list[Change]:
    return [Change(Channel(OUT, 0), one, 1_000 + n) for n, one in enumerate(elements)]


def a_run(path: Path, log: list[Element], one: list[Element], other: list[Element]) -> Run:
    make_run(path, CONFIG, {A: log}, {"one": received(one), "other": received(other)}, segment_bytes=200)
    return Run.open(path)


def sequences(reader: LogOfSource | RecordingOfChannel, read: Any) -> list[int]:
    return [r.position.sequence for s in read for r in scan_stretch(reader.folder, s)]


def test_log_is_taken_in_steps_and_reread_as_needed(tmp_path: Path) -> None:
    log = logged(10, 20, 30, 40, 50, 60)  # records: tuple, boundary, tuple, boundary, …, end
    run = a_run(tmp_path / "run", log, log, log)
    table = source_table(run, A)

    first = LogOfSource(table, LogProgress())
    while first.bound_us < 40 and first.pull():
        pass
    one = first.taken(30, 15)
    assert sequences(first, one.read) == sequences(first, one.new) == [1, 2, 3, 4, 5, 6]
    assert (one.known.last_id, one.known.bound_us, one.first_us) == (3, 31, 10)
    assert (one.known.start.sequence, one.known.start_id) == (3, 1)  # the tuple of 20 and what follows

    second = LogOfSource(table, one.known)
    assert second.bound_us == 31
    while second.pull():
        pass
    two = second.taken(END_OF_TIME, 15)
    assert sequences(second, two.read) == list(range(3, 14))
    assert sequences(second, two.new) == list(range(7, 14))
    assert (two.known.last_id, two.known.bound_us) == (6, END_OF_TIME)
    assert two.bytes > 0


def test_recording_is_taken_up_to_boundary_covering_range(tmp_path: Path) -> None:
    log = logged(10, 20, 30, 40, 50)
    run = a_run(tmp_path / "run", log, log, log)
    table = recording_table(run, "one", OUT, CHANGES)
    reader = RecordingOfChannel(table, 0, ChannelProgress(), sorted_=True)
    reader.read_until(40)
    assert reader.frontier_us == 41
    taken = reader.taken(25)  # another client has no more
    assert sequences(reader, taken.read) == [1, 2, 3, 4, 5, 6]
    assert (taken.known.track.frontier_us, taken.known.done.sequence) == (31, 7)
    assert taken.known.start.sequence == 5  # the tuple of 30 is in no range yet
    again = RecordingOfChannel(table, 0, taken.known, sorted_=True)
    again.read_until(END_OF_TIME)
    assert again.taken(END_OF_TIME, all_=True).known.track.stable == 5


def test_a_tuple_that_came_early_is_read_again_with_its_range(tmp_path: Path) -> None:
    elements = parse("S1/10:10,1 | S2/32:32,2 B33(2) S3/40:40,3 Binf(3)", SCHEMA)
    run = a_run(tmp_path / "run", elements, elements, elements)
    reader = RecordingOfChannel(recording_table(run, "one", OUT, CHANGES), 0, ChannelProgress(), sorted_=True)
    reader.read_until(30)
    taken = reader.taken(30)
    assert (taken.known.done.sequence, taken.known.start.sequence) == (4, 2)


def test_a_tuple_from_the_far_future_is_not_read_again_for_ever(tmp_path: Path) -> None:
    elements = parse("S1/10:10,1 | S2/999999:9,2 B30(2) S3/40:40,3 Binf(3)", SCHEMA)
    log = logged(10, 20, 40)
    run = a_run(tmp_path / "run", log, elements, log)
    reader = RecordingOfChannel(recording_table(run, "one", OUT, CHANGES), 0, ChannelProgress(), sorted_=True)
    reader.read_until(30)
    assert reader.taken(30).known.start.sequence == 4


def test_the_range_goes_as_far_as_the_slowest_client(tmp_path: Path) -> None:
    log = logged(10, 20, 30, 40, 50)
    run = a_run(tmp_path / "run", log, log, logged(10, 20, end=27))
    found = next_range(run, State(fingerprint="", origins={}), over=False)
    assert (found.until_us, found.first_us) == (20, 10)  # at a bucket
    assert found.waits_for == "client other, which has out until 1970-01-01 00:00:00.000027"


def test_range_follows_slowest_log_and_ended_run_takes_all(tmp_path: Path) -> None:
    log = logged(10, 20, end=33)
    run = a_run(tmp_path / "run", log, log, log)
    state = State(fingerprint="", origins={})
    found = next_range(run, state, over=False)
    assert (found.until_us, found.waits_for) == (30, "source a, which is at 1970-01-01 00:00:00.000033")
    assert next_range(run, state, over=True).until_us == 30
    assert next_range(run, state.model_copy(update={"proved_us": 30}), over=True).until_us == END_OF_TIME
    assert found.logs[A].bound_us == 33 > BEFORE_TIME


def test_a_step_reads_no_more_of_the_logs_than_its_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("consistency.proof.follow.ranges.STEP_RECORDS", 5)
    log = logged(*range(10, 500, 10))
    run = a_run(tmp_path / "run", log, log, log)
    assert next_range(run, State(fingerprint="", origins={}), over=True).until_us == 20
