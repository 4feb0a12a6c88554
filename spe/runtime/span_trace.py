"""Spans of OpenTelemetry from the trace of a process: failures, recoveries and moves.  Needs the extra ``otel``.

A failure is a span from the first tentative release of a replica to its rec_done, with a child span for each period of
tentative results, and for each correction.  A recovery lasts until the replica is STABLE again.  A move is a span of
the coordinator, with its phases.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any, Final

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Span, Status, StatusCode, Tracer, set_span_in_context

from spe import __version__
from spe.runtime.env import Trace
from spe.runtime.log_line import Level, say
from spe.stream.names import NodeState
from spe.stream.times import SECOND

#: State of a replica -> name of the child span of a failure.
_PARTS: Final = {NodeState.UP_FAILURE.name: "tentative", NodeState.STABILIZATION.name: "correction"}
#: Events that are added to every open span: each may be the cause.
_MARKS: Final = frozenset({"peer_lost", "peer_reached", "unreachable", "switched", "input_skew", "ask_partner"})
_OVER: Final = ("done", "dropped")
#: Time between two log lines about spans that cannot be exported.
_LOG_AGAIN_US: Final = 60 * SECOND


class SpanTrace:
    """Passes every event on, and makes spans of some.  Does nothing per tuple.

    Args:
      wall_us: microseconds since 1970.
    """

    def __init__(self, inner: Trace, tracer: Tracer, wall_us: Callable[[], int]) -> None:
        self._inner = inner
        self._tracer = tracer
        self._wall_us = wall_us
        #: By replica: the span of its failure or recovery, and its state.
        self._open: dict[str, tuple[Span, str]] = {}
        #: By replica: the open child span of its failure.
        self._parts: dict[str, Span] = {}

    def event(self, name: str, /, **fields: Any) -> None:
        self._inner.event(name, **fields)
        if name == "state":
            self._state(str(fields["replica"]), str(fields["state"]))
        elif name == "move" and fields["phase"] in _OVER:
            self._move(fields)
        elif name == "installed":
            self._mark(str(fields["replica"]), "installed", _named(origin=str(fields["origin"])))
        elif name == "retired":  # the supposed begin of a recovery was the end of the replica
            self._open.pop(str(fields["replica"]), None)
        elif name == "replica_stopped":
            self._end(str(fields["replica"]), "an operator raised")
        elif name in _MARKS:
            attributes = _named(**{key: str(value) for key, value in fields.items()})
            for replica in self._open:
                self._mark(replica, name, attributes)

    def close(self) -> None:
        """Ends all open spans: the process ends."""
        for replica in list(self._open):
            self._end(replica, "the process has ended")

    # --- replicas ---

    def _state(self, replica: str, state: str) -> None:
        span, before = self._open.get(replica, (None, ""))
        if state == before:
            return
        if state == NodeState.STABLE.name:
            self._end(replica)
        elif state == NodeState.RECOVERING.name:
            self._end(replica, "its state is lost")
            self._open[replica] = (self._start("recovery", _of(replica)), state)
        else:
            if span is None or before == NodeState.RECOVERING.name:
                self._end(replica)
                span = self._start("failure", _of(replica))
            self._end_part(replica)
            self._open[replica] = (span, state)
            self._parts[replica] = self._start(_PARTS[state], _of(replica), span)

    def _end_part(self, replica: str) -> None:
        if (part := self._parts.pop(replica, None)) is not None:
            part.end(self._ns())

    def _end(self, replica: str, error: str = "") -> None:
        self._end_part(replica)
        span, _ = self._open.pop(replica, (None, ""))
        if span is not None:
            if error:
                span.set_status(Status(StatusCode.ERROR, error))
            span.end(self._ns())

    def _mark(self, replica: str, name: str, attributes: Mapping[str, str | int]) -> None:
        if replica in self._open:
            self._open[replica][0].add_event(name, dict(attributes), self._ns())

    # --- moves ---

    def _move(self, fields: Mapping[str, Any]) -> None:
        """Makes the spans of a finished move, from the times at which its phases began."""
        began: Mapping[str, int] = fields["began_us"]
        about = _of(str(fields["target"]))
        about |= _named(move=int(fields["number"]), source=str(fields["source"]))
        span = self._start("move", about, at_us=min(began.values()))
        steps = sorted(began.items(), key=lambda item: item[1])
        for (phase, at_us), (_, end_us) in pairwise(steps):
            self._start(phase, about, span, at_us).end(end_us * 1_000)
        if fields["phase"] == "dropped":
            span.set_status(Status(StatusCode.ERROR, str(fields["why"])))
        span.end(max(began.values()) * 1_000)

    # --- spans ---

    def _start(
        self, name: str, attributes: Mapping[str, str | int], within: Span | None = None, at_us: int | None = None
    ) -> Span:
        context = None if within is None else set_span_in_context(within)
        start_ns = self._ns() if at_us is None else at_us * 1_000
        return self._tracer.start_span(name, context, attributes=attributes, start_time=start_ns)

    def _ns(self) -> int:
        return self._wall_us() * 1_000


def _of(replica: str) -> dict[str, str | int]:
    partition, _, node = replica.partition("@")
    unit, _, number = partition.rpartition("/")
    return _named(replica=replica, unit=unit, partition=int(number), node=node)


def _named(**attributes: str | int) -> dict[str, str | int]:
    """Puts attributes into our namespace."""
    return {f"spe.{name}": value for name, value in attributes.items()}


class ExportedSpans:
    """Exports spans over OTLP, as set by the variables ``OTEL_EXPORTER_OTLP_…``.

    Args:
      process, cluster: names of the process and its cluster.
    """

    def __init__(self, process: str, cluster: str, wall_us: Callable[[], int]) -> None:
        _Complaints(wall_us).install()
        resource = Resource.create(
            {
                "service.name": os.environ.get("OTEL_SERVICE_NAME", "spe"),
                "service.version": __version__,
                "service.namespace": cluster,
                "service.instance.id": process,
            }
        )
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        self._wall_us = wall_us
        self._traces: list[SpanTrace] = []

    def trace(self, inner: Trace) -> SpanTrace:
        """Returns a trace whose spans are exported."""
        span_trace = SpanTrace(inner, self._provider.get_tracer("spe", __version__), self._wall_us)
        self._traces.append(span_trace)
        return span_trace

    def close(self) -> None:
        """Exports the remaining spans.  Blocks until they are sent, or the exporter gives up."""
        for trace in self._traces:
            trace.close()
        self._provider.shutdown()


class _Complaints(logging.Handler):
    """Logs one line a minute in place of the exporter's own messages."""

    def __init__(self, wall_us: Callable[[], int]) -> None:
        super().__init__(logging.WARNING)
        self._wall_us = wall_us
        self._logged_us: int | None = None

    def emit(self, record: logging.LogRecord) -> None:
        now = self._wall_us()
        if self._logged_us is None or now - self._logged_us >= _LOG_AGAIN_US:
            self._logged_us = now
            say(f"cannot export spans: {record.getMessage()}", Level.WARNING, event="spans_not_exported")

    def install(self) -> None:
        """Makes this the only handler of these records."""
        logger = logging.getLogger("opentelemetry")
        logger.handlers[:] = [self]
        logger.propagate = False
