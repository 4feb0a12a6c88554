"""``spe report --follow`` of a run whose logs have lost their beginning: what is left is judged as it always was."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from consistency.proof.follow import ranges
from consistency.proof.report.model import Flaw
from replicas.cli.follow import follow
from replicas.cli.report import INCONSISTENT, UNKNOWN
from replicas.reference import run_reference
from spe.stream.batch import Batch, Boundary, Column, Element
from spe.stream.change import Change
from spe.stream.ids import Channel
from spe.stream.names import Kind, StreamId
from tests.spark.test_follow import HARD, QUERY, replaced, result, shifted
from tests.spark.test_truth import A, B, logged
from tests.support.runs import make_run
from tests.unit.consistency.proof.follow.test_retention import cut, cut_recording

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("commands_use_it")]

#: Without windows of so many rows, of which nothing can be proved.
KEPT = {name: one for name, one in QUERY.items() if "counted" not in name}
OUTPUTS = list(KEPT)
CONFIG: dict[str, Any] = HARD | {"query": KEPT, "outputs": OUTPUTS, "clients": {"honest": {"reads": OUTPUTS}}}
INPUTS: dict[StreamId, list[Element]] = {A: list(logged(1, 160)), B: list(logged(2, 140))}


def copied(path: Path, to: Path) -> Path:
    shutil.copytree(path, to)
    for lock in to.rglob("lock"):
        lock.unlink()
    return to


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Change]]:
    path = tmp_path_factory.mktemp("kept")
    plan = make_run(path / "shape", CONFIG, {})
    received = [Change(c, e, n) for n, (c, e) in enumerate(run_reference(plan, INPUTS, step_rows=10))]
    make_run(path / "run", CONFIG, INPUTS, {"honest": received}, segment_bytes=2_000)
    return path / "run", received


def last_record(path: Path) -> int:
    return max(int(p.name[:20]) for p in path.glob("*.seg"))


@pytest.mark.parametrize(("a", "b", "recording"), [(0.3, 0.0, 0.0), (0.2, 0.5, 0.0), (0.5, 0.5, 0.3), (0.1, 0.0, 0.6)])
def test_every_operator_is_proved_from_its_stored_rows(
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    whole: tuple[Path, list[Change]],
    a: float,
    b: float,
    recording: float,
) -> None:
    monkeypatch.setattr(ranges, "STEP_RECORDS", 12)
    path, received = copied(whole[0], tmp_path / "run"), whole[1]
    for source, share in ((A, a), (B, b)):
        cut(path, 1 + int(share * last_record(path / "sources" / source)), source=source)
    for output in OUTPUTS if recording else ():
        folder = path / "clients" / "honest" / f"{output}.0"
        cut_recording(
            path, 1 + int(recording * last_record(folder)), client="honest", channel=Channel(StreamId(output), 0)
        )
    assert follow(str(path)) == UNKNOWN
    found = result(path)
    assert found.reasons[0] == "nothing failed: whether failures are put right was not tried"
    assert len(found.reasons) == 2
    assert "not judged" in found.reasons[1]
    from_us = found.judged_from_us
    assert from_us is not None
    assert (found.ended, found.consistent_us) == (True, None)
    assert found.steps >= (1 if recording else 2)
    expected = {
        output: sum(
            int((c.element.rows.time >= from_us).sum())
            for c in received
            if c.channel.stream == output and isinstance(c.element, Batch)
        )
        for output in OUTPUTS
    }
    assert {o.output: o.truth for o in found.outputs} == {o.output: o.stable for o in found.outputs} == expected
    assert min(expected.values()) > 5


SLIDING = Channel(StreamId("sliding"), 0)


def batches(changes: list[Change], from_us: int, until_us: int) -> list[int]:
    return [
        n
        for n, c in enumerate(changes)
        if isinstance(c.element, Batch) and len(c.element) and from_us <= c.element.rows.time.min() < until_us
    ]


def other(changes: list[Change], at: int) -> list[Change]:
    """One more in the count of a row."""
    batch = changes[at].element
    assert isinstance(batch, Batch)
    columns = list(batch.rows.columns)
    place = next(n for n, c in enumerate(columns) if c.dictionary is None and c.values.dtype == "int64" and n > 2)
    values = columns[place].values.copy()
    values[0] += 1
    columns[place] = Column(values, columns[place].valid)
    rows = type(batch.rows)(batch.rows.time, batch.rows.t_max, tuple(columns))
    forged = Batch(batch.kind, batch.from_id, batch.upto_id, batch.ids, rows)
    return [*changes[:at], replaced(changes[at], forged), *changes[at + 1 :]]


def without(changes: list[Change], at: int) -> list[Change]:
    """A row less, whose id nothing has."""
    batch = changes[at].element
    assert isinstance(batch, Batch)
    less = Batch(batch.kind, batch.from_id, batch.upto_id, batch.row_ids()[1:], batch.rows.slice(1, len(batch)))
    return [*changes[:at], replaced(changes[at], less), *changes[at + 1 :]]


def one_more(changes: list[Change], at: int) -> list[Change]:
    """A row twice, each with an id of its own; later ones follow."""
    batch = changes[at].element
    assert isinstance(batch, Batch)
    first = Batch(batch.kind, batch.from_id, batch.from_id + 1, None, batch.rows.slice(0, 1))
    return [*changes[:at], replaced(changes[at], first), *(shifted(c) for c in changes[at:])]


def once_more(changes: list[Change], at: int) -> list[Change]:
    """A batch comes again, long after its time was final."""
    late = batches(changes, 0, 2**62)[-1]
    return [*changes[:late], changes[at], *changes[late:]]


def test_before_nothing_is_judged_and_behind_it_all_is(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: tuple[Path, list[Change]]
) -> None:
    """Wrong in the last bucket before T, and in the first one behind it; as the whole run is judged."""
    honest = [c for c in whole[1] if c.channel == SLIDING]
    query = {name: KEPT[name] for name in ("both", "sliding")}
    alone = CONFIG | {"query": query, "outputs": ["sliding"], "clients": {"honest": {"reads": ["sliding"]}}}
    make_run(tmp_path / "shape", alone, INPUTS, {"honest": honest}, segment_bytes=2_000)
    cut(tmp_path / "shape", 1 + last_record(tmp_path / "shape" / "sources" / "a") // 3, source=A)
    assert follow(str(tmp_path / "shape")) == UNKNOWN
    from_us = result(tmp_path / "shape").judged_from_us
    assert from_us is not None
    before, behind = batches(honest, 0, from_us)[-1], batches(honest, from_us, 2**62)[0]
    assert all(isinstance(c.element, Batch | Boundary) and c.element.kind is Kind.STABLE for c in honest)
    received = {
        "honest": honest,
        "other_before": other(honest, before),
        "once_more_before": once_more(honest, before),
        "other_behind": other(honest, behind),
        "without_behind": without(honest, behind),
        "one_more_behind": one_more(honest, behind),
    }
    path = tmp_path / "run"
    make_run(
        path,
        alone | {"clients": {name: {"reads": ["sliding"]} for name in received}},
        INPUTS,
        received,
        segment_bytes=2_000,
    )
    cut(path, 1 + last_record(path / "sources" / "a") // 3, source=A)
    assert follow(str(path)) == INCONSISTENT
    found = result(path)
    assert found.judged_from_us == from_us
    again = honest[before].element
    assert isinstance(again, Batch)
    assert {o.client: {one.flaw: one.count for one in o.findings} for o in found.outputs} == {
        "honest": {},
        "other_before": {},
        "once_more_before": {Flaw.DUPLICATED: len(again)},  # its time was final
        "other_behind": {Flaw.ALTERED: 1},
        "without_behind": {Flaw.MISSING: 1},
        "one_more_behind": {Flaw.DUPLICATED: 1},
    }
    firsts = [
        one.time for o in found.outputs for f in o.findings for one in f.offenders if not o.client.endswith("before")
    ]
    assert firsts
    assert all(time >= found.judged_from for time in firsts)
