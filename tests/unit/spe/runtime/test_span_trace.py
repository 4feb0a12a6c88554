"""Spans of OpenTelemetry: what of a trace becomes one, in the SDK's own exporter and at a receiver of OTLP."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from replicas.cli.run.processes import SPANS_VARIABLE, open_spans
from replicas.simulation.scenarios.scenario import Scenario
from replicas.simulation.simulate import simulate
from replicas.simulation.world import hosts
from replicas.simulation.world.clock import now_us
from spe.errors import SpeError
from spe.runtime.span_trace import ExportedSpans, SpanTrace
from spe.stream.history import StateChanged
from spe.stream.times import SECOND

N1 = "main/0@n1"


def _place(span: ReadableSpan) -> tuple[int, int, bool]:
    """By begin; the longest of one begin first, and before its parts."""
    return span.start_time or 0, -(span.end_time or 0), span.parent is not None


class Nothing:
    def event(self, name: str, /, **fields: Any) -> None:
        pass


class Run:
    """A trace whose clock shows what the test says, seconds, and the spans that have ended."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        provider = TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.now_us = 0
        self.trace = SpanTrace(Nothing(), provider.get_tracer("test"), lambda: self.now_us)

    def at(self, second: float, name: str, **fields: Any) -> None:
        self.now_us = round(second * SECOND)
        self.trace.event(name, **fields)

    def state(self, second: float, state: str, replica: str = N1) -> None:
        self.at(second, "state", replica=replica, state=state, fresh=False)

    def spans(self) -> list[ReadableSpan]:
        return sorted(self.exporter.get_finished_spans(), key=_place)

    def text(self) -> list[str]:
        """``name begin-end``, indented where it is part of another."""
        return [
            f"{'  ' if s.parent else ''}{s.name} {(s.start_time or 0) / 1e9:g}-{(s.end_time or 0) / 1e9:g}"
            + (f" ({s.status.description})" if s.status.description else "")
            for s in self.spans()
        ]


def test_failure_lasts_from_first_tentative_release_to_rec_done() -> None:
    run = Run()
    run.state(1, "UP_FAILURE")
    run.at(2, "peer_lost", peer="source:a", why="closed")
    run.state(5, "STABILIZATION")
    run.state(6, "STABILIZATION")  # only whether new results go on has changed
    run.state(7, "UP_FAILURE")
    run.state(8, "STABILIZATION")
    run.state(9, "STABLE")

    assert run.text() == ["failure 1-9", "  tentative 1-5", "  correction 5-7", "  tentative 7-8", "  correction 8-9"]
    root = run.spans()[0]
    assert dict(root.attributes or {}) == {
        "spe.replica": N1, "spe.unit": "main", "spe.partition": 0, "spe.node": "n1"
    }  # fmt: skip
    assert [(e.name, dict(e.attributes or {})) for e in root.events] == [
        ("peer_lost", {"spe.peer": "source:a", "spe.why": "closed"})
    ]
    assert {s.context.trace_id for s in run.spans() if s.context} == {root.context.trace_id if root.context else 0}


def test_a_recovery_says_where_the_state_came_from() -> None:
    run = Run()
    run.state(1, "RECOVERING")
    run.at(2, "installed", replica=N1, origin="n2")
    run.state(3, "STABLE")
    run.state(4, "STABLE")

    assert run.text() == ["recovery 1-3"]
    assert [dict(e.attributes or {}) for e in run.spans()[0].events] == [{"spe.origin": "n2"}]


def test_a_replica_that_retires_does_not_recover() -> None:
    run = Run()
    run.state(1, "RECOVERING")
    run.at(1, "retired", replica=N1)
    run.trace.close()

    assert run.text() == []


def test_spans_that_end_badly_have_an_error() -> None:
    run = Run()
    run.state(1, "UP_FAILURE")
    run.state(2, "RECOVERING")
    run.state(3, "UP_FAILURE")
    run.state(4, "UP_FAILURE", "main/1@n1")
    run.at(5, "replica_stopped", replica=N1)
    run.trace.close()

    assert run.text() == [
        "failure 1-2 (its state is lost)",
        "  tentative 1-2",
        "recovery 2-3",
        "failure 3-5 (an operator raised)",
        "  tentative 3-5",
        "failure 4-5 (the process has ended)",
        "  tentative 4-5",
    ]


def test_a_move_has_its_phases() -> None:
    run = Run()
    began = {"wait": 1, "join": 2, "install": 3, "follow": 6, "leave": 7, "done": 8}
    about = {"number": 4, "source": "n1", "target": "main/0@n3"}
    run.at(3, "move", **about, phase="install", why="", began_us={"wait": SECOND})
    run.at(8, "move", **about, phase="done", why="", began_us={k: v * SECOND for k, v in began.items()})
    run.at(9, "move", **about, phase="dropped", why="n3 is gone", began_us={"wait": SECOND, "dropped": 9 * SECOND})

    assert run.text() == [
        "move 1-9 (n3 is gone)", "  wait 1-9", "move 1-8", "  wait 1-2",
        "  join 2-3", "  install 3-6", "  follow 6-7", "  leave 7-8",
    ]  # fmt: skip
    assert (run.spans()[0].attributes or {})["spe.move"] == 4


def test_spans_of_simulated_failure_are_replica_states(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each replica of a cluster that is cut off from a source: the spans and the history say the same times."""
    run = Run()
    story_trace = hosts.StoryTrace

    def traced(*arguments: Any) -> SpanTrace:
        return SpanTrace(story_trace(*arguments), run.trace._tracer, now_us)

    monkeypatch.setattr(hosts, "StoryTrace", traced)
    config = {
        "sources": {s: {"from": {"generator": {"name": "sequence", "rate": 50, "duration": "12s"}}} for s in "ab"},
        "query": {"out": {"union": ["a", "b"]}},
    }
    faults = [{"at": "2s", "kind": "cut", "target": "source:a", "for": "5s"}]
    data = {
        "version": 1,
        "seed": 3,
        "config": config,
        "faults": faults,
        "heal_us": 10 * SECOND,
        "grace_us": 20 * SECOND,
    }
    outcome = simulate(Scenario.from_data(data))
    assert outcome.holds

    expected = {}
    for replica in ("main/0@n1", "main/0@n2"):
        changes = [e for e in outcome.history if isinstance(e, StateChanged) and e.replica == replica]
        began = next(e.at_us for e in changes if e.state.name == "UP_FAILURE")
        expected[replica] = (began, next(e.at_us for e in changes if e.state.name == "STABLE" and e.at_us > began))
    found = {
        str((s.attributes or {})["spe.replica"]): ((s.start_time or 0) // 1000, (s.end_time or 0) // 1000)
        for s in run.spans()
        if s.name == "failure"
    }
    assert found == expected


@contextmanager
def receiver() -> Iterator[tuple[str, list[ExportTraceServiceRequest]]]:
    """What the exporter sends, as OpenTelemetry's own definition of the protocol reads it."""
    got: list[ExportTraceServiceRequest] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            got.append(ExportTraceServiceRequest.FromString(body))
            self.send_response(200 if self.path == "/v1/traces" else 404)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", got
        finally:
            server.shutdown()
            thread.join()


def test_spans_reach_a_receiver_before_the_process_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    with receiver() as (endpoint, got):
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint)
        spans = ExportedSpans("n1", "shop", lambda: 5 * SECOND)
        trace = spans.trace(Nothing())
        trace.event("state", replica=N1, state="UP_FAILURE", fresh=False)
        spans.close()
    sent = [r for request in got for r in request.resource_spans]
    resource = {a.key: a.value.string_value for a in sent[0].resource.attributes}
    assert (resource["service.name"], resource["service.namespace"]) == ("spe", "shop")
    assert resource["service.instance.id"] == "n1"
    assert sorted(s.name for r in sent for scope in r.scope_spans for s in scope.spans) == ["failure", "tentative"]


def test_an_exporter_that_complains_is_one_line_in_a_minute(capsys: pytest.CaptureFixture[str]) -> None:
    now = [0]
    spans = ExportedSpans("n1", "shop", lambda: now[0])
    logger = logging.getLogger("opentelemetry.exporter")
    for at in (0, 30, 61):
        now[0] = at * SECOND
        logger.error("no route to %s", "host")
    spans.close()
    assert capsys.readouterr().err.splitlines() == ["cannot export spans: no route to host"] * 2


def test_spans_are_off_by_default_and_import_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SPANS_VARIABLE, raising=False)
    assert open_spans("n1", "shop", lambda: 0) is None
    monkeypatch.setenv(SPANS_VARIABLE, "jaeger")
    with pytest.raises(SpeError, match="SPE_SPANS: expected otlp or off, got 'jaeger'"):
        open_spans("n1", "shop", lambda: 0)
    monkeypatch.setenv(SPANS_VARIABLE, "off")
    code = (
        "import sys; from replicas.cli.run.processes import open_spans; assert open_spans('n', 'c', int) is None; "
        "assert not [m for m in sys.modules if m.startswith(('opentelemetry', 'google.protobuf', 'requests'))]"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_without_the_extra_the_message_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SPANS_VARIABLE, "otlp")
    monkeypatch.setitem(sys.modules, "spe.runtime.span_trace", None)
    with pytest.raises(SpeError, match=r"SPE_SPANS needs the extra otel: pip install '\.\[otel\]'"):
        open_spans("n1", "shop", lambda: 0)
