"""Whole reports of runs whose files were changed or lost."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
import trio
import yaml

from consistency.proof.report.model import Flaw, OutputReport, Report, Verdict
from replicas.cli.report import INCONSISTENT, UNKNOWN, report
from spe.config import load_data
from spe.errors import SpeError
from spe.log import SegmentedLog, read_log
from spe.log.announced_settings import RecordedAnnouncement
from spe.log.source_log import decode_source_batch, decode_source_state, encode_source_record
from spe.runtime.storage import DiskStorage
from spe.stream.batch import Batch, Boundary, Element, RecDone, Rows, Undo
from spe.stream.change import Change
from spe.stream.ids import Channel
from spe.stream.names import Kind, NodeState, StreamId
from spe.stream.schema import Schema
from spe.stream.strings import StringPool
from spe.stream.times import END_OF_TIME
from spe.wire.messages.feeds import Announcement
from tests.support.runs import make_run

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("commands_use_it")]

A = StreamId("a")
OUT = Channel(StreamId("out"), 0)
SCHEMA = Schema.of(ts="timestamp", n="int64")
CONFIG: dict[str, Any] = {
    "bucket": "10us",
    "sources": {"a": {"schema": {one.name: str(one.type) for one in SCHEMA}, "time": "ts",
                      "from": {"jsonl": "none.jsonl"}, "replay": {"max": True}}},
    "query": {"out": {"filter": {"from": "a", "where": "n % 10 <> 3"}}},
    "outputs": ["out"],
}  # fmt: skip
COUNT = 40
S = 1_000_000


def batch(first: int, numbers: list[int]) -> Batch:
    """Consecutive ids; tuple n has time 10 n."""
    tuples = [(n * 10, n) for n in numbers]
    return Batch(
        Kind.STABLE, first - 1, first - 1 + len(numbers), None, Rows.from_tuples(SCHEMA, [t[0] for t in tuples], tuples)
    )


def logged() -> list[Element]:
    """A tuple and a boundary at a time."""
    found: list[Element] = []
    for n in range(1, COUNT + 1):
        found += [batch(n, [n]), Boundary(Kind.STABLE, (n + 1) * 10, n)]
    return [*found, Boundary(Kind.STABLE, END_OF_TIME, COUNT)]


def received(upto: int = COUNT) -> list[Change]:
    """The output of the tuples up to number ``upto``, and that it is final."""
    kept = [n for n in range(1, upto + 1) if n % 10 != 3]
    end = END_OF_TIME if upto == COUNT else (upto + 1) * 10
    elements: Iterator[Element] = iter([batch(1, kept), Boundary(Kind.STABLE, end, len(kept))])
    return [Change(OUT, element, 1_000) for element in elements]


def judged(path: Path) -> tuple[int, Report]:
    status = report([path], master=None, conf={}, out=None)
    return status, Report.model_validate(json.loads((path / "report" / "report.json").read_text()))


#: By client: how many tuples of the source it received the output of.  The source's log holds the first ten.
UPTO = {"as_logged": 10, "a_tuple_more": 11, "and_a_boundary": 13, "all": COUNT}


@pytest.fixture(scope="module")
def shortened(tmp_path_factory: pytest.TempPathFactory) -> tuple[int, Report, str]:
    """The exit status, the report and the page of a run whose source's log ends early."""
    path = tmp_path_factory.mktemp("shortened") / "run"
    config = CONFIG | {"clients": {name: {"reads": ["out"]} for name in UPTO}}
    make_run(path, config, {A: logged()[:20]}, {name: received(upto) for name, upto in UPTO.items()})
    return *judged(path), (path / "report" / "report.html").read_text()


def of(found: Report, client: str) -> OutputReport:
    return next(o for o in found.outputs if o.client == client)


def test_an_unfinished_log_leaves_the_verdict_open(shortened: tuple[int, Report, str]) -> None:
    found = of(shortened[1], "as_logged")
    assert found.verdict is Verdict.UNKNOWN
    assert any("log incomplete" in reason for reason in found.reasons)


def rewritten(folder: Path, change: Callable[[list[bytes]], list[bytes]], *, segment_bytes: int = 1_000) -> None:
    """A log whose records were changed, each whole and in its place: only what they say can tell."""
    bodies = change([r.body for r in read_log(DiskStorage(folder), PurePosixPath())])
    shutil.rmtree(folder)

    async def write() -> None:
        log = await SegmentedLog.open(DiskStorage(folder), PurePosixPath(), segment_bytes=segment_bytes)
        for body in bodies:
            log.append(body)
            await log.sync()
        log.close()

    trio.run(write)


def without(at: int) -> Callable[[list[bytes]], list[bytes]]:
    return lambda bodies: bodies[:at] + bodies[at + 1 :]


def renumbered(bodies: list[bytes]) -> list[bytes]:
    """The log without the third tuple; later tuples get the ids that follow."""
    pool, found, last_id = StringPool(), [], 0
    for body in without(4)(bodies):
        state, one = decode_source_state(body), decode_source_batch(body, SCHEMA, pool)
        if one is not None:
            one = Batch(one.kind, last_id, last_id + len(one), None, one.rows)
            last_id += len(one)
        found.append(encode_source_record(state._replace(last_id=last_id), one, SCHEMA))
    return found


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (without(4), "tuple 4 follows tuple 2"),  # of tuple 3, which the filter drops: no result misses it
        (without(44), "tuple 24 follows tuple 22"),
        # The last: what follows it counts it.
        (without(2 * COUNT - 2), f"tuple {COUNT + 1} follows tuple {COUNT - 1}"),
        (renumbered, "rows were read and 0 of them left out"),
    ],
    ids=["of the first segment", "of a later one", "the last one", "with ids that hide it"],
)
def test_a_missing_record_is_noticed_though_no_result_needs_it(
    tmp_path: Path, change: Callable[[list[bytes]], list[bytes]], said: str
) -> None:
    make_run(tmp_path / "run", CONFIG, {A: logged()}, {"client": received()})
    rewritten(tmp_path / "run" / "sources" / "a", change)
    with pytest.raises(SpeError, match=rf"{said}"):
        report([tmp_path / "run"], master=None, conf={}, out=None)


def test_between_two_segments_a_record_is_missed_too(tmp_path: Path) -> None:
    make_run(tmp_path / "run", CONFIG, {A: logged()}, {"client": received()})
    rewritten(tmp_path / "run" / "sources" / "a", without(4), segment_bytes=1)
    with pytest.raises(SpeError, match="ends with tuple 2, but the next segment follows tuple 3"):
        report([tmp_path / "run"], master=None, conf={}, out=None)


@pytest.mark.parametrize("client", list(UPTO)[1:])
def test_log_without_end_contradicts_received_output(shortened: tuple[int, Report, str], client: str) -> None:
    status, found, _ = shortened
    assert (status, of(found, client).verdict) == (INCONSISTENT, Verdict.INCONSISTENT)
    assert of(found, client).reasons[-1].endswith("a log has lost its end")
    assert any("a log has lost its end" in reason for reason in found.reasons)


def test_an_x_edited_after_the_run_does_not_change_the_judgement(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The copy of the configuration now allows a minute; nodes announced what held, and how long they waited."""
    said = Announcement("", "", 5, 900_000, 2 * S, 2 * S, 0.9, "process", "process", "checkpoint", 3 * S)
    path = tmp_path / "run"
    plan = make_run(path, CONFIG, {A: logged()})
    unit = str(plan.units[0].id)
    node, other = (str(n) for n in list(load_data(CONFIG).directory.nodes)[:2])
    heard = [
        RecordedAnnouncement(1_000_000, said._replace(unit=unit, node=node)),
        RecordedAnnouncement(1_100_000, said._replace(unit=unit, node=other, waited_us=9)),
    ]
    shutil.rmtree(path)
    make_run(path, CONFIG, {A: logged()}, {"client": received()}, announced=heard)
    edited = CONFIG | {"defaults": {"x": "60s", "alpha": 0.9, "policy": "process"}}
    (path / "config.yaml").write_text(yaml.safe_dump(edited, sort_keys=False))
    status, found = judged(path)
    assert status == UNKNOWN  # nothing failed
    assert found.settings.x == "2s"
    assert [(p.node, p.x_us, p.waited_us, p.kept) for p in found.promises] == [
        (node, 2 * S, 3 * S, False),
        (other, 2 * S, 9, True),
    ]
    assert {p.differs for p in found.promises} == {"X 1m"}
    text = capsys.readouterr().out
    assert f"{node} let a bucket of {unit} wait for 3 s, of 2 s" in text
    assert f"{node} announced X = 2 s, and config.yaml says: X 1m" in text


def story(shift: int = 0) -> list[Element]:
    """The first 18 results, tentative ones that are taken back, and the rest.

    Args:
      shift: of all boundaries in tuple time.
    """
    kept = [n for n in range(1, COUNT + 1) if n % 10 != 3]
    found: list[Element] = []
    for place, n in enumerate(kept, 1):
        if place == 19:
            ten = batch(19, kept[18:22])
            tentative = Batch(Kind.TENTATIVE, ten.from_id, ten.upto_id, None, ten.rows)
            found += [tentative, Boundary(Kind.TENTATIVE, 260, 22), Undo(18)]
        found += [batch(place, [n]), Boundary(Kind.STABLE, n * 10 + 1 + shift, place)]
    return [*found, RecDone(NodeState.STABLE), Boundary(Kind.STABLE, END_OF_TIME, len(kept))]


def renumber(elements: list[Element], behind: int, by: int) -> list[Element]:
    """With a gap in the ids."""
    found: list[Element] = []
    for one in elements:
        if isinstance(one, Batch) and one.upto_id > behind:
            one = Batch(one.kind, one.from_id + by, one.upto_id + by, None, one.rows)
        elif isinstance(one, Boundary) and one.upto_id > behind:
            one = Boundary(one.kind, one.time, one.upto_id + by)
        elif isinstance(one, Undo) and one.upto_id > behind:
            one = Undo(one.upto_id + by)
        found.append(one)
    return found


def nonsense(elements: list[Element]) -> list[Element]:
    """With tentative values that no source sent."""
    found: list[Element] = []
    for one in elements:
        if isinstance(one, Batch) and one.kind is Kind.TENTATIVE:
            times = one.rows.time.tolist()
            one = Batch(
                one.kind, one.from_id, one.upto_id, None, Rows.from_tuples(SCHEMA, times, [(t, -5) for t in times])
            )
        found.append(one)
    return found


RESULTS = 36
#: Clients of one run, each with another forged recording; and what is said of it.
FORGED: dict[str, tuple[list[Element], dict[Flaw, int]]] = {
    "good": (story(), {}),
    "gap": (renumber(nonsense(story()), 10, 7), {Flaw.MISNUMBERED: RESULTS - 10}),
    "far_boundaries": (story(shift=15), {Flaw.BELATED: RESULTS - 5}),
}


def forged_run(path: Path) -> Path:
    """A run with a fault: its clients have forged recordings, and its sources another log than their file says."""
    rows = [f'{{"ts": "1970-01-01T00:00:00.{n * 10:06}Z", "n": {n}}}\n' for n in range(1, COUNT + 1)]
    sources = {}
    for name in ("a", "cell", "aside"):
        (path / f"{name}.jsonl").write_text("".join(rows))
        sources[name] = {**CONFIG["sources"]["a"], "from": {"jsonl": f"{name}.jsonl"}, "on_malformed": "skip"}
    query = {"out": CONFIG["query"]["out"]} | {f"f_{s}": {"filter": {"from": s, "where": "n > 1000"}} for s in sources}
    config = CONFIG | {
        "sources": sources | {"g": {"from": {"generator": {"name": "orders"}}}},
        "query": query | {"f_g": {"filter": {"from": "g", "where": "key < 0"}}},
        "outputs": [*query, "f_g"],
        "clients": {name: {"reads": ["out"]} for name in FORGED},
    }
    cells = [(n * 10, 93 if n == 13 else n) for n in range(1, COUNT + 1)]
    cell = Batch(Kind.STABLE, 0, COUNT, None, Rows.from_tuples(SCHEMA, [time for time, _ in cells], cells))
    aside = [batch(i, [n]) for i, n in enumerate([n for n in range(1, COUNT + 1) if n != 13], 1)]
    end = Boundary(Kind.STABLE, END_OF_TIME, COUNT)
    logs: dict[StreamId, list[Element]] = {
        A: logged(), StreamId("cell"): [cell, end], StreamId("aside"): [*aside, end], StreamId("g"): [end]
    }  # fmt: skip
    events = [{"t": 900, "event": "run", "config": "c.yaml"}, {"t": 950, "event": "fault_began", "kind": "cut"},
              {"t": 10**18, "event": "over"}]  # fmt: skip
    received = {name: [Change(OUT, e, 1_000) for e in elements] for name, (elements, _) in FORGED.items()}
    summary = {"sources": [{"source": "aside", "malformed": 1, "starts": 1, "late": 0}], "verdict": {"complete": True}}
    make_run(path / "run", config, logs, received, events, data=path, summary=summary)
    (path / "run" / "malformed").mkdir()
    (path / "run" / "malformed" / "aside.jsonl").write_text('{"line": 13, "reason": "forged", "text": "?"}\n')
    return path / "run"


@pytest.fixture(scope="module")
def forged(tmp_path_factory: pytest.TempPathFactory) -> tuple[Report, str]:
    """The report and the page of it."""
    path = forged_run(tmp_path_factory.mktemp("forged"))
    return judged(path)[1], (path / "report" / "report.html").read_text()


@pytest.mark.parametrize("client", list(FORGED))
def test_a_forged_recording_is_named(forged: tuple[Report, str], client: str) -> None:
    found = of(forged[0], client)
    assert {one.flaw: one.count for one in found.findings} == FORGED[client][1]
    assert (found.verdict is Verdict.INCONSISTENT) == bool(FORGED[client][1])


def test_tentative_values_that_no_log_gives_are_counted(forged: tuple[Report, str]) -> None:
    assert {client: of(forged[0], client).tentative.impossible for client in FORGED} == {
        client: 4 if client == "gap" else 0 for client in FORGED
    }


def test_a_log_that_its_file_does_not_have_is_named(forged: tuple[Report, str]) -> None:
    found = {one.name: (one.flaws, one.compared) for one in forged[0].sources}
    assert found == {
        "a": ([], "compared by content"),
        "cell": (
            [
                "no row of its input has the contents of 1 tuple of its log: id 13",
                "its log lacks the contents of 1 well-formed row of its input: row 13",
            ],
            "compared by content",
        ),
        "aside": (
            ["its log lacks the contents of 1 well-formed row of its input: row 13"],
            "compared by content",
        ),
        "g": ([], "not compared: generator is not read again"),
    }
    assert "not compared: generator is not read again" in forged[1]


def test_a_recording_without_announcements_is_reported(shortened: tuple[int, Report, str]) -> None:
    _, found, page = shortened
    assert found.promises == []
    assert "No client recorded an announcement of X" in page
