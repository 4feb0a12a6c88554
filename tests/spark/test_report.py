"""Reports on whole runs: a simulated cluster with a cut, and recordings that were changed afterwards."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

import pytest

import spe
from consistency.proof.judge import judge_run, suit, write_report
from consistency.proof.recorded.run import REPORT_FOLDER, Run
from consistency.proof.report.model import Flaw, OutputReport, Report, SinkFacts, Verdict
from consistency.proof.session.errors import explained
from consistency.proof.storage.remote import opened
from replicas.cli.report import UNKNOWN, report
from replicas.cli.verify import AS_IT_SAYS, DIFFERS, verify
from replicas.faults.model import read_faults
from replicas.simulation.scenarios.scenario import Scenario
from replicas.simulation.simulate import simulate
from replicas.simulation.world.cluster import SimCluster
from spe.errors import SpeError
from spe.log.source_log import read_source_log
from spe.problems import Problems
from spe.stream.batch import Batch, Column
from spe.stream.change import Change
from spe.stream.history import Delivered
from spe.stream.ids import Channel
from spe.stream.names import Kind, StreamId
from tests.support.runs import make_run, mounted

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SECOND = 1_000_000
SUMS = Channel(StreamId("sums"), 0)
CONFIG: dict[str, Any] = {
    "bucket": "50ms",
    "defaults": {"x": "1s", "alpha": 0.8, "policy": "process"},
    "sources": {
        name: {
            "from": {
                "generator": {
                    "name": "orders",
                    "rate": 40,
                    "keys": 5,
                    "seed": at,
                    "duration": "8s",
                    "start": "2026-01-01T00:00:00",
                }
            },
            "boundary": "50ms",
        }
        for at, name in enumerate("ab")
    },
    "query": {
        "both": {"union": ["a", "b"]},
        "sums": {
            "aggregate": {
                "from": "both",
                "window": {"tumbling": "500ms"},
                "group_by": "key",
                "compute": {"n": "count(*)", "total": "sum(price)"},
            }
        },
    },
    "outputs": ["sums"],
    "nodes": ["n1", "n2"],
    "clients": {"honest": {"reads": ["sums"]}, "lied_to": {"reads": ["sums"]}, "cut_short": {"reads": ["sums"]}},
}
CUT = {"at": "2s", "kind": "cut", "from": "source:a", "to": "all", "for": "3s"}
EVENTS = [
    {"t": 0, "event": "begin", "begun_us": 0},
    {"t": 2 * SECOND, "event": "fault_began", **CUT, "from": ["source:a"], "to": ["all"], "errors": []},
    {"t": 5 * SECOND, "event": "fault_ended", **CUT, "from": ["source:a"], "to": ["all"], "errors": []},
    {"t": 9 * SECOND, "event": "process_ended", "process": "n1", "status": 0},
]


def altered(changes: list[Change]) -> list[Change]:
    """Two more in the third tuple of the first correction."""
    undone = next(at for at, c in enumerate(changes) if type(c.element).__name__ == "Undo")
    at, batch = next(
        (at, c.element)
        for at, c in enumerate(changes)
        if at > undone and isinstance(c.element, Batch) and c.element.kind is Kind.STABLE and len(c.element) > 2
    )
    columns = list(batch.rows.columns)
    place = 3  # key, window_start, window_end, n
    values = columns[place].values.copy()
    values[2] += 2
    columns[place] = Column(values, columns[place].valid)
    rows = type(batch.rows)(batch.rows.time, batch.rows.t_max, tuple(columns))
    return [
        Change(c.channel, Batch(batch.kind, batch.from_id, batch.upto_id, batch.ids, rows), c.arrived_us)
        if n == at
        else c
        for n, c in enumerate(changes)
    ]


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Source a is cut off for 3 s.  One recording is as it was, one has an altered tuple, one a torn end."""
    clusters: list[SimCluster] = []
    faults = tuple(read_faults([CUT], (), Scenario(0, CONFIG).deployed().directory, Problems()))
    scenario = Scenario(3, CONFIG, faults=faults, heal_us=6 * SECOND)
    outcome = simulate(scenario, watch=lambda cluster: clusters.append(cluster) if not clusters else None)
    assert outcome.holds
    assert outcome.finished
    inputs = {
        s: list(read_source_log(clusters[0].env(f"source:{s}").storage, PurePosixPath(s), source.schema))
        for s, source in clusters[0].plan.sources.items()
    }
    received = {
        name: [
            Change(e.channel, e.element, e.at_us)
            for e in outcome.history
            if isinstance(e, Delivered) and e.consumer == f"client:{name}"
        ]
        for name in CONFIG["clients"]
    }
    received["lied_to"] = altered(received["lied_to"])
    path = tmp_path_factory.mktemp("runs") / "simulated"
    make_run(path, CONFIG, inputs, received, EVENTS)
    (segment,) = (path / "clients" / "cut_short" / "sums.0").glob("*.seg")
    segment.write_bytes(segment.read_bytes()[:-5])
    return path


@pytest.fixture(scope="module")
def found(spark: SparkSession, run_dir: Path) -> Report:
    """The one report that the tests look at, made as if the run lay on a file system that only Spark can read."""
    (run_dir / REPORT_FOLDER).mkdir()
    (run_dir / REPORT_FOLDER / "stale").touch()
    told: list[str] = []
    with opened(spark, f"{mounted(spark, run_dir.parent, 'report')}/{run_dir.name}") as run:
        made = judge_run(spark, run, told.append, {"start-up of Spark": 1.0})
        assert write_report(spark, made, run)[0] == f"{run.origin}/report/report.json"
    assert (made.name, made.folder) == ("simulated", run.origin)
    assert told[:4] == [
        "digests of the run's files",
        "what the clients received",
        "sums: the truth, from the sources' logs",
        "honest · sums: what was received, against it",
    ]
    return made


def of(found: Report, client: str) -> OutputReport:
    return next(o for o in found.outputs if o.client == client)


def test_a_run_that_healed_is_consistent(found: Report) -> None:
    honest = of(found, "honest")
    assert (honest.verdict, honest.findings) == (Verdict.CONSISTENT, [])
    assert honest.stable == honest.truth > 50
    assert honest.tentative.count == honest.tentative.undone > 10
    assert honest.tentative.corrections >= 1
    assert honest.accuracy is not None
    assert honest.accuracy.overall["overlap"] == pytest.approx(1, abs=0.2)


def test_an_altered_tuple_is_named_in_the_report_of_the_run(found: Report) -> None:
    lied_to = of(found, "lied_to")
    assert lied_to.reasons == ["1 tuple altered"]
    (finding,) = lied_to.findings
    (offender,) = finding.offenders
    assert finding.flaw is Flaw.ALTERED
    assert offender.expected is not None
    assert offender.tuple["n"] == offender.expected["n"] + 2
    assert {k: v for k, v in offender.tuple.items() if k != "n"} == {
        k: v for k, v in offender.expected.items() if k != "n"
    }
    assert found.verdict is Verdict.INCONSISTENT


def test_truncated_recording_proves_nothing_beyond_its_end(found: Report) -> None:
    cut_short = of(found, "cut_short")
    assert cut_short.verdict is Verdict.UNKNOWN
    assert cut_short.reasons[0].startswith("recording incomplete: final until 2026-01-01 00:00:0")


def test_a_report_replaces_the_earlier_one(found: Report, run_dir: Path) -> None:
    folder = run_dir / REPORT_FOLDER
    assert not (folder / "stale").exists()
    assert Report.model_validate_json((folder / "report.json").read_text()) == found
    assert "INCONSISTENT" in (folder / "report.html").read_text()
    tables = {str(p.relative_to(folder / "tables")) for p in (folder / "tables").rglob("*.parquet") if p.is_dir()}
    assert {"truth/sums.parquet", "honest/sums/tentative.parquet", "lied_to/sums/flaws.parquet"} <= tables


@pytest.mark.long
def test_a_report_is_verified_and_a_changed_one_is_not(
    spark: SparkSession,
    found: Report,
    run_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The digests of a run that only Spark can read, and the whole report, are computed again; nothing is written."""
    monkeypatch.setattr(spark, "stop", lambda: None)
    file = run_dir / REPORT_FOLDER / "report.json"
    place = f"{found.folder}/report/report.json"
    kept, before = file.read_text(), sorted(run_dir.parent.rglob("*"))
    assert verify([place], lambda: spark, print) == AS_IT_SAYS
    assert sorted(run_dir.parent.rglob("*")) == before
    assert f"VERIFIED  {place}" in capsys.readouterr().out
    try:
        (file.parent / ".report.json.crc").unlink()  # Hadoop's own, which would notice
        file.write_text(kept.replace("INCONSISTENT", "CONSISTENT"))
        assert verify([place], lambda: spark, print) == DIFFERS
        assert 'the report says "CONSISTENT", computed again it is "INCONSISTENT"' in capsys.readouterr().out
        sink = SinkFacts(sink="jsonl lines", rows=1, equal=False, text="1 row, not as recorded")  # gone on, or away now
        reasons = [*found.reasons, f"sink {sink.sink}: {sink.text}"]
        file.write_text(found.model_copy(update={"sinks": [sink], "reasons": reasons}).model_dump_json())
        assert verify([place], lambda: spark, print) == AS_IT_SAYS
        segment = next((run_dir / "clients" / "honest" / "sums.0").glob("*.seg"))
        whole = segment.read_bytes()
        segment.write_bytes(whole[:-1])
        assert verify([place], lambda: spark, print) == DIFFERS
        assert f"{segment.relative_to(run_dir)} has lost its end" in capsys.readouterr().out
        segment.write_bytes(whole)
    finally:
        file.write_text(kept)


@pytest.mark.long
def test_a_callers_session_proves_a_run_and_stays_as_it_was(spark: SparkSession, run_dir: Path, tmp_path: Path) -> None:
    path = tmp_path / "mine"
    shutil.copytree(run_dir, path, ignore=shutil.ignore_patterns(REPORT_FOLDER))
    own = spark.newSession()
    own.conf.set("spark.sql.ansi.enabled", "true")
    own.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    cached = own.range(10).cache()
    assert cached.count() == 10
    settings, before = dict(own.conf.getAll), stored(own)
    made = spe.prove(own, path)
    assert made.verdict is Verdict.INCONSISTENT
    assert of(made, "honest").verdict is Verdict.CONSISTENT
    assert Report.model_validate_json((path / REPORT_FOLDER / "report.json").read_text()) == made
    assert dict(own.conf.getAll) == settings
    assert stored(own) == before >= 1
    cached.unpersist()


def test_for_much_data_spark_is_set_up_as_it_was_started(spark: SparkSession) -> None:
    """And not as Spark is where nothing was set: that would be 200 tasks for each exchange."""
    own = spark.newSession()
    own.conf.set("spark.sql.shuffle.partitions", "77")
    suit(own, 1 << 40)
    assert own.conf.get("spark.sql.shuffle.partitions") == spark.sparkContext.getConf().get(
        "spark.sql.shuffle.partitions"
    )
    suit(own, 1)
    assert own.conf.get("spark.sql.codegen.factoryMode") == "NO_CODEGEN"


def stored(spark: SparkSession) -> int:
    """How many frames Spark keeps for later."""
    return int(spark._jsparkSession.sharedState().cacheManager().numCachedEntries())


def test_damaged_log_gives_no_verdict_and_removes_old_report(
    spark: SparkSession, run_dir: Path, tmp_path: Path
) -> None:
    path = tmp_path / "damaged"
    shutil.copytree(run_dir, path, ignore=shutil.ignore_patterns(REPORT_FOLDER))
    (path / REPORT_FOLDER).mkdir()
    (path / REPORT_FOLDER / "report.json").write_text("{}")
    segment = next((path / "sources" / "a").glob("*.seg"))
    data = bytearray(segment.read_bytes())
    data[len(data) // 2] ^= 1
    segment.write_bytes(bytes(data))
    with pytest.raises(SpeError, match=rf"{segment.name}.*offset"), explained():
        judge_run(spark, Run.open(path), lambda step: None, {})
    assert not (path / REPORT_FOLDER / "report.json").exists()


@pytest.mark.parametrize(
    ("spoil", "expected"),
    [
        (lambda path: shutil.rmtree(path / "sources" / "a"), "incomplete"),
        (lambda path: (path / "events.jsonl").unlink(), "events.jsonl"),
        (lambda path: shutil.rmtree(path / "clients"), "incomplete"),
        (lambda path: _edit(path / "cluster.json", {"fingerprint": "0" * 24}), "another plan"),
        (shutil.rmtree, "no such directory"),
    ],
    ids=["no log", "no events", "no recording", "another configuration", "nothing"],
)
def test_an_incomplete_run_is_refused_before_any_computation(
    run_dir: Path, tmp_path: Path, spoil: Any, expected: str
) -> None:
    path = tmp_path / "spoiled"
    shutil.copytree(run_dir, path, ignore=shutil.ignore_patterns(REPORT_FOLDER))
    spoil(path)
    with pytest.raises(SpeError, match=expected):
        Run.open(path)


def test_where_spark_does_not_start_there_is_no_verdict(
    monkeypatch: pytest.MonkeyPatch, run_dir: Path, tmp_path: Path
) -> None:
    def no_java(*args: object, **more: object) -> None:
        raise SpeError("Spark needs a Java")

    monkeypatch.setattr("consistency.proof.session.session.session", no_java)
    with pytest.raises(SpeError, match="needs a Java"):
        report([run_dir], master=None, conf={}, out=None)
    monkeypatch.setattr("sys.stdin.readline", lambda: "", raising=False)
    monkeypatch.setattr("os.nice", lambda by: None)
    assert report([run_dir], master=None, conf={}, out=None, wait=True) == UNKNOWN  # its parent has ended


def _edit(path: Path, changes: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
