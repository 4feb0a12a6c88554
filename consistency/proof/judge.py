"""Judges a run: compares every output at every client with the truth, and makes the report and its tables."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import PurePosixPath
from typing import Any, Final

from pyspark.sql import SparkSession

from consistency.proof.comparing.comparison import tolerance_text
from consistency.proof.comparing.measures import keys_from_logs
from consistency.proof.decision import overall
from consistency.proof.losses import Fidelity, losses
from consistency.proof.output import judge_output, received_tables
from consistency.proof.recorded.evidence import evidence, stamps, unchanged
from consistency.proof.recorded.intake import InputFindings, against_input
from consistency.proof.recorded.moved_partitions import move_reports
from consistency.proof.recorded.promises import as_announced, policies, promises
from consistency.proof.recorded.received_output import ReceivedRecording, ReceivedStream
from consistency.proof.recorded.recording import changes, summary, tentative
from consistency.proof.recorded.recoveries import recovery_report
from consistency.proof.recorded.run import REPORT_FOLDER, Run
from consistency.proof.recorded.stamps import Looked, look_through
from consistency.proof.recorded.story import (
    begun_us,
    coordinator_trace,
    ended_us,
    fault_spans,
    node_traces,
    something_failed,
    tracks,
)
from consistency.proof.recorded.table_source import last_state
from consistency.proof.report.model import (
    DirectoryChange,
    Evidence,
    LogReport,
    OutputReport,
    RecoveryReport,
    Report,
    Settings,
    SinkFacts,
    SourceFacts,
    Track,
    Verdict,
)
from consistency.proof.report.page import page
from consistency.proof.scene import ReceivedTables, Scene
from consistency.proof.session.parallel import BackgroundWork, background_threads
from consistency.proof.storage.remote import folder_of, keeper
from consistency.proof.storage.tables import Keep, freed_at_the_end
from consistency.proof.truth import Truth, TruthNetwork, truth
from consistency.sinks.judge import judge_sinks
from spe.errors import SpeError
from spe.log.source_log import SourceState
from spe.plan.describe import show_duration
from spe.plan.directory import Directory
from spe.plan.timing import origins
from spe.stream.names import StreamId
from spe.stream.times import END_OF_TIME

_LITTLE_BYTES: Final = 64 << 20
#: Settings of Spark for small data.
_FOR_LITTLE: Final = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
}

Tell = Callable[[str], None]


def judge_run(
    spark: SparkSession,
    run: Run,
    tell: Tell,
    started_s: Mapping[str, float],
    fidelity: Fidelity | None = None,
    value: Fidelity | None = None,
    *,
    tables: str | None = None,
    sinks_known: list[SinkFacts] | None = None,
) -> Report:
    """Returns the report on a run; an earlier report is removed first.

    Args:
      spark: its settings are changed.
      tell: receives the name of each step as it begins.
      started_s: seconds spent on earlier steps, by name.
      fidelity: the output fidelity to expect while partitions are lost; None: it is not reported.
      value: the same of what a recovery raises; None: the order of recovery is not reported.
      tables: URI or path of a folder for the tables, which leaves an earlier report where it is; None: in the report's.
      sinks_known: sinks as an earlier report read them, since they may have changed; None: they are read.

    Raises:
      SpeError: a log or a recording cannot be used, or was written during the proof although the run is over.
    """
    run.need_whole()
    if tables is None:
        tables = f"{run.where}/{REPORT_FOLDER}/tables"
        _remove_earlier(spark, run)
    suit(spark, sum(f.stat().st_size for each in ("sources", "clients") for f in (run.path / each).rglob("*.seg")))
    steps, before = _Steps(tell, dict(started_s)), stamps(run)
    with freed_at_the_end(), background_threads() as background:
        facts = _read(spark, run, tables, sinks_known, steps, background)
        findings = _judge(facts, steps, background)
    if not run.going_on:
        unchanged(before, run)
    return _report(facts, findings, steps.timings_s, fidelity, value)


@dataclass(frozen=True)
class _Facts:
    """The records of a run, read once; slow ones are functions that wait for their result.

    Attributes:
      keepers: by client and output, stores the tables of that output at that client.
      keep_truth: stores the truth of each output.
      received, tables: by client and output, the received tuples, and the tables that need no truth.
      states, logs, inputs: by source, the end of its log, the result of reading it, and its comparison with the input.
    """

    spark: SparkSession
    run: Run
    network: TruthNetwork
    scene: Scene
    keepers: Mapping[tuple[str, StreamId], Keep]
    keep_truth: Keep
    received: Mapping[tuple[str, StreamId], ReceivedStream]
    tables: Mapping[tuple[str, StreamId], Callable[[], ReceivedTables]]
    states: Mapping[StreamId, SourceState]
    logs: Mapping[StreamId, Callable[[], Looked]]
    inputs: Mapping[StreamId, Callable[[], InputFindings]]
    sinks: Callable[[], list[SinkFacts]]
    evidence: Callable[[], Evidence | None]


def _read(
    spark: SparkSession,
    run: Run,
    tables: str,
    sinks_known: list[SinkFacts] | None,
    steps: _Steps,
    background: BackgroundWork,
) -> _Facts:
    """Reads the records of a run; slow reads go on in the background."""
    clients, going_on = run.directory.clients.items(), run.going_on
    keepers = {(c, o): keeper(spark, f"{tables}/{c}/{o}") for c, client in clients for o in client.reads}
    steps.tell("digests of the run's files")
    digests = background(lambda: None if going_on else evidence(run, spark))
    look = {s: partial(look_through, spark, run, s, run.reading.sources[s]) for s in run.plan.sources}
    logs = {} if going_on else {s: background(work) for s, work in look.items()}
    with steps.step("what the clients received"):
        # Before the logs of a run that goes on: logs read later contain the cause of everything received by now.
        received = {key: _received(spark, run, *key, keep, at_once=going_on) for key, keep in keepers.items()}
    tables_of = {key: partial(received_tables, stream, keepers[key], background) for key, stream in received.items()}
    without_truth = {key: background(work) for key, work in tables_of.items()}
    logs = logs or {s: background(work) for s, work in look.items()}
    network = TruthNetwork(spark, run, None if going_on else lambda source: logs[source]().segments)
    states = {s: last_state(run, s) for s in run.plan.sources}
    return _Facts(
        spark=spark,
        run=run,
        network=network,
        scene=_scene(run, network, states),
        keepers=keepers,
        keep_truth=keeper(spark, f"{tables}/truth"),
        received=received,
        tables=without_truth,
        states=states,
        logs=logs,
        inputs={s: background(partial(_intake, run, s, state, logs[s])) for s, state in states.items()},
        sinks=background(lambda: [] if going_on else _sinks(run) if sinks_known is None else sinks_known),
        evidence=digests,
    )


@dataclass(frozen=True)
class _Findings:
    """The judgement on each part of a run, and on all of it.

    Attributes:
      flaws, compared: by source, sentences on its log's flaws, and its comparison with the input.
    """

    verdict: Verdict
    reasons: list[str]
    outputs: list[OutputReport]
    flaws: Mapping[StreamId, list[str]]
    compared: Mapping[StreamId, InputFindings]
    sinks: list[SinkFacts]
    evidence: Evidence | None


def _judge(facts: _Facts, steps: _Steps, background: BackgroundWork) -> _Findings:
    """Judges every output at every client, every source and every sink."""
    outputs = _outputs(facts, steps, background)
    with steps.step("sources", "the sources' logs, against their inputs"):
        compared = {s: read() for s, read in facts.inputs.items()}
        flaws = {
            s: [*facts.run.signature_flaws(s), *facts.logs[s]().flaws, *against.flaws]
            for s, against in compared.items()
        }
    sinks = facts.sinks()
    verdict, reasons = overall(
        [
            *[(o.verdict, o.title, o.reasons) for o in outputs],
            *[(Verdict.INCONSISTENT, f"source {s}", sentences) for s, sentences in flaws.items() if sentences],
            *[(Verdict.INCONSISTENT, f"sink {s.sink}", [s.text]) for s in sinks if s.equal is False],
        ]
    )
    return _Findings(verdict, reasons, outputs, flaws, compared, sinks, facts.evidence())


def _report(
    facts: _Facts,
    findings: _Findings,
    timings_s: Mapping[str, float],
    fidelity: Fidelity | None,
    value: Fidelity | None,
) -> Report:
    """Assembles the report from facts and findings; no judgement is made here."""
    run, scene, outputs = facts.run, facts.scene, findings.outputs
    plan, directory, begun = run.plan, run.directory, scene.begun_us
    announced = [entry for each in scene.announced.values() for entry in each]
    replicas = tracks(directory, run.events, node_traces(run.path, directory), begun, ended_us(run.events))
    rates = _rates(facts)
    return Report(
        name=run.path.resolve().name,
        folder=run.where,
        cluster=plan.cluster,
        fingerprint=plan.fingerprint,
        begun=f"{datetime.fromtimestamp(begun / 1e6, UTC):%Y-%m-%d %H:%M:%S}",
        duration_us=scene.duration_us,
        verdict=findings.verdict,
        reasons=findings.reasons,
        tolerance=tolerance_text(),
        outputs=outputs,
        faults=list(scene.faults),
        replicas=replicas,
        losses=[] if fidelity is None else losses(directory, replicas, outputs, partial(fidelity, rates)),
        sources=[_source_facts(run.summary, s, state, findings) for s, state in facts.states.items()],
        promises=promises(plan, directory, announced, begun, run.summary),
        logs=[LogReport(replica=r["replica"], **r["log"]) for r in run.summary.get("replicas", ()) if r.get("log")],
        changes=[DirectoryChange(at_us=i.at_us - begun, number=i.version.number, why=i.why) for i in run.issued()],
        moves=move_reports(run.moves(), outputs, begun),
        recovery=None if value is None else _recovery(facts, replicas, outputs, rates, value),
        sinks=findings.sinks,
        settings=settings(as_announced(directory, announced)),
        configuration=(run.path / "config.yaml").read_text(encoding="utf-8"),
        versions={**run.facts.get("versions", {}), "spark": facts.spark.version, "java": _java(facts.spark)},
        timings_s={what: round(took, 2) for what, took in timings_s.items()},
        evidence=findings.evidence,
    )


def _recovery(
    facts: _Facts,
    replicas: Sequence[Track],
    outputs: Sequence[OutputReport],
    rates: Mapping[str, Sequence[float]],
    value: Fidelity,
) -> RecoveryReport | None:
    of_sources = partial(value, {str(s): rates[s] for s in facts.run.plan.sources if s in rates})
    trace, begun = coordinator_trace(facts.run.path), facts.scene.begun_us
    return recovery_report(facts.run.directory, trace, replicas, outputs, of_sources, begun)


class _Steps:
    """Announces each step as it begins, and notes its duration."""

    def __init__(self, tell: Tell, timings_s: dict[str, float]) -> None:
        self.tell = tell
        self.timings_s = timings_s

    @contextmanager
    def step(self, name: str, title: str = "") -> Iterator[None]:
        self.tell(title or name)
        began = time.monotonic()
        yield
        self.timings_s[name] = time.monotonic() - began


def _received(
    spark: SparkSession, run: Run, client: str, output: StreamId, keep: Keep, *, at_once: bool
) -> ReceivedStream:
    read, through = (partial(changes, spark, run, client, output, None), partial(tentative, spark, run, client, output))
    return ReceivedRecording(summary(spark, run, client, output), read, through, keep, at_once=at_once)


def _scene(run: Run, network: TruthNetwork, states: Mapping[StreamId, SourceState]) -> Scene:
    began, outputs = begun_us(run.events), run.plan.query.outputs
    return Scene(
        plan=run.plan,
        directory=run.directory,
        begun_us=began,
        duration_us=ended_us(run.events) - began,
        faults=fault_spans(run.events, began),
        known_us={o: network.frontier[o] for o in outputs},
        data_until_us={o: _data_until_us([states[s.stream] for s in origins(run.plan, o)]) for o in outputs},
        announced={client: run.announced(client) for client in run.directory.clients},
        failed=something_failed(run.events),
        keys_from_logs=frozenset(o for o in outputs if keys_from_logs(run.plan, run.reading, o)),
        cause=str(run.summary.get("verdict", {}).get("reason", "")) if run.summary else "it has no summary",
    )


def _outputs(facts: _Facts, steps: _Steps, background: BackgroundWork) -> list[OutputReport]:
    """Judges every output at every client; the truth of an output is computed once."""
    truths: dict[StreamId, Truth] = {}
    reports: list[OutputReport] = []
    for (client, output), keep in facts.keepers.items():
        if output not in truths:
            with steps.step(f"truth of {output}", f"{output}: the truth, from the sources' logs"):
                truths[output] = truth(facts.network, output, facts.keep_truth)
        with steps.step(f"{client} · {output}", f"{client} · {output}: what was received, against it"):
            came, known = facts.received[client, output], facts.tables[client, output]()
            reports.append(judge_output(facts.scene, client, output, truths[output], came, keep, known, background))
    return reports


def write_report(spark: SparkSession, report: Report, run: Run) -> tuple[str, str]:
    """Writes ``report.json`` and ``report.html`` below the directory of a run; returns their paths.

    Raises SpeError where they cannot be written.
    """
    data, shown = run.path / REPORT_FOLDER / "report.json", run.path / REPORT_FOLDER / "report.html"
    try:
        data.parent.mkdir(parents=True, exist_ok=True)
        data.write_text(report.model_dump_json(indent=1) + "\n", encoding="utf-8")
        shown.write_text(page(report), encoding="utf-8")
    except OSError as error:
        raise SpeError(f"{data.parent} cannot be written: {error.strerror}") from error
    if run.origin:
        for file in (data, shown):
            folder_of(spark, run.origin).put(file, run.relative(file))
    return f"{run.where}/{REPORT_FOLDER}/{data.name}", f"{run.where}/{REPORT_FOLDER}/{shown.name}"


def _rates(facts: _Facts) -> dict[str, list[float]]:
    """Returns tuples per second of each source, and of the partitions of each unit if all of them have made some."""
    seconds = max(facts.scene.duration_us / 1e6, 1e-9)
    rates = {str(s): [state.last_id / seconds] for s, state in facts.states.items() if state.last_id}
    made: dict[str, int] = {}
    for replica in facts.run.summary.get("replicas", ()):
        partition = str(replica["replica"]).rpartition("@")[0]
        made[partition] = max(made.get(partition, 0), int(replica["stable"] or 0))
    for unit in facts.run.plan.units:
        counts = [made.get(f"{unit.id}/{p}", 0) for p in range(unit.partitions)]
        if all(counts):
            rates[str(unit.id)] = [count / seconds for count in counts]
    return rates


def _intake(run: Run, stream: StreamId, state: SourceState, looked: Callable[[], Looked]) -> InputFindings:
    source, content = run.reading.sources[stream], looked().content
    return against_input(run, stream, source, state, ended_us(run.events), content)


def _sinks(run: Run) -> list[SinkFacts]:
    """Reads the sinks and compares them; none for a run on another file system, whose sinks are elsewhere."""
    if run.origin:
        return []
    complete = bool(run.summary.get("verdict", {}).get("complete"))
    judged = judge_sinks(run.plan, run.directory, run.path, complete=complete)
    return [SinkFacts(**sink._asdict()) for sink in judged]


def _remove_earlier(spark: SparkSession, run: Run) -> None:
    if run.origin:
        folder_of(spark, run.origin).remove(PurePosixPath(REPORT_FOLDER))
    shutil.rmtree(run.path / REPORT_FOLDER, ignore_errors=True)


def suit(spark: SparkSession, size: int) -> None:
    """Configures Spark for so many bytes: for small data, compiling, replanning after each stage, and many tasks
    take longer than the work.
    """
    started = spark.sparkContext.getConf()
    for name, little in _FOR_LITTLE.items():
        value = little if size < _LITTLE_BYTES else started.get(name)
        if value is None:
            spark.conf.unset(name)  # Spark's own default, not the value that the session was started with
        else:
            spark.conf.set(name, value)


def settings(directory: Directory) -> Settings:
    """Returns the settings that decide delay and tentative tuples; different values of nodes are listed once each."""
    nodes = directory.nodes.values()

    def each(values: list[str]) -> str:
        return ", ".join(dict.fromkeys(values))

    return Settings(
        x=each([show_duration(n.x_us) for n in nodes]),
        alpha=each([f"{n.alpha:g}" for n in nodes]),
        policies=each([policies(n.during_failure, n.during_stabilization) for n in nodes]),
        reconcile=each([str(n.reconcile) for n in nodes]),
        replicas=max((len(where) for where in directory.placement.values()), default=0),
        nodes=len(directory.nodes),
    )


def _data_until_us(states: Iterable[SourceState]) -> int:
    """Returns the largest event time of sources; END_OF_TIME where one has not ended."""
    each = list(states)
    if any(state.bound_us < END_OF_TIME for state in each):
        return END_OF_TIME
    return max(state.max_event_us for state in each)


def _source_facts(summary: Mapping[str, Any], source: StreamId, state: SourceState, findings: _Findings) -> SourceFacts:
    return SourceFacts(
        name=str(source),
        tuples=state.last_id,
        late=next((int(s["late"]) for s in summary.get("sources", ()) if s["source"] == source), None),
        complete=state.bound_us >= END_OF_TIME,
        flaws=findings.flaws[source],
        compared=findings.compared[source].compared,
    )


def _java(spark: SparkSession) -> str:
    return str(spark._jvm.System.getProperty("java.version"))  # type: ignore[union-attr]
