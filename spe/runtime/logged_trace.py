"""Log lines from the trace of a process: the events that operators need first, on standard error."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

from spe.runtime.env import Trace
from spe.runtime.log_line import Level, is_logged, say
from spe.runtime.rate_limited_trace import RateLimit
from spe.stream.times import SECOND

#: Event -> its line, from the event's fields.
LINES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "state": "{replica} is {state}",
        "installed": "{replica} begins with the state of: {origin}",
        "switched": "{consumer} reads {channel} from {producer}, no longer from {before}",
        "peer_lost": "lost {peer}: {why}",
        "peer_reached": "{peer} answers again",
        "unreachable": "cannot reach {peer}: {why}",
        "refused": "refused {peer}: {why}",
        "sent_away": "sent {peer} away: {why}",
        "bad_peer": "closed the connection of {peer}: {why}",
        "no_tls": "refused a connection: no TLS: {why}",
        "certificate_renewed": "uses a new certificate, valid until {until}",
        "certificate_refused": "goes on with the certificate that is valid until {until}: {why}",
        "revoked_certificates": "refuses the certificates that {file} lists",
        "revoked_refused": "goes on with the old list of revoked certificates: {why}",
        "connection_refused": "refused a connection from {host}: there are {connections} already",
        "accept_failed": "cannot accept connections: {why}",
        "other_log": "{consumer} does not read {channel} from {producer}: {why}",
        "reader_of_other_log": "{reader} is not served: {why}",
        "replicas_differ": "{replica}: {where}",
        "rejected": "{replica}: operator {operator!r} goes on without {what} of {time}{more}: {why}",
        "rows_malformed": "source {stream}: left out {count} rows that cannot be understood; the first one: {reason}",
        "rows_refused": "source {stream}: left out {count} rows for their event times; the first one: {reason}",
        "rows_not_kept": "{file}: rows that are left out could not be written: {error}",
        "evicted": "{replica} waits no more for {consumers}, whose output buffer is full",
    }
)
#: Levels of lines above INFO.
LEVELS: Final[Mapping[str, Level]] = MappingProxyType(
    {
        "peer_lost": Level.WARNING,
        "unreachable": Level.WARNING,
        "refused": Level.WARNING,
        "sent_away": Level.WARNING,
        "bad_peer": Level.WARNING,
        "no_tls": Level.WARNING,
        "certificate_refused": Level.ERROR,
        "revoked_refused": Level.ERROR,
        "connection_refused": Level.WARNING,
        "accept_failed": Level.ERROR,
        "other_log": Level.ERROR,
        "reader_of_other_log": Level.ERROR,
        "replicas_differ": Level.ERROR,
        "rejected": Level.WARNING,
        "rows_malformed": Level.WARNING,
        "rows_refused": Level.WARNING,
        "rows_not_kept": Level.WARNING,
        "evicted": Level.WARNING,
    }
)
#: Shortest time until the same line is repeated.
REPEAT_US: Final = 60 * SECOND
#: Most lines of one kind of event within WINDOW_US; the next line gives the number of dropped ones.
LINES_MAX: Final = 100
WINDOW_US: Final = 10 * SECOND
#: Fields of every line: fields of an event with these names are renamed.
_TAKEN: Final = frozenset({"text", "level", "time", "message", "process", "node", "source", "client", "event"})
#: Most characters of a line.
_LINE_MAX: Final = 500
#: Most texts whose last time is stored: unknown peers choose some of the texts.
_TEXTS_MAX: Final = 1000
#: Events that are logged each time, since a state may recur soon.
_ALWAYS: Final = frozenset({"state", "installed", "switched", "peer_lost", "peer_reached"})


class LoggedTrace:
    """Passes every event on, and logs some.

    Args:
      wall_us: microseconds since 1970.
    """

    def __init__(self, inner: Trace, wall_us: Callable[[], int]) -> None:
        self._inner = inner
        self._wall_us = wall_us
        self._limit = RateLimit(LINES_MAX, WINDOW_US)
        #: Time at which each text was last logged; the oldest first.
        self._logged: dict[str, int] = {}

    def event(self, name: str, /, **fields: Any) -> None:
        self._inner.event(name, **fields)
        line, level = LINES.get(name), LEVELS.get(name, Level.INFO)
        if line is not None:
            self._tell(name, _printable(line.format_map(fields)), level, fields)
        elif is_logged(Level.DEBUG):
            text = " ".join((name, *(f"{key}={value}" for key, value in fields.items())))
            self._tell(name, _printable(text), Level.DEBUG, fields)

    def _tell(self, name: str, text: str, level: Level, fields: Mapping[str, Any]) -> None:
        now = self._wall_us()
        if name not in _ALWAYS and level > Level.DEBUG:
            last = self._logged.get(text)
            if last is not None and 0 <= now - last < REPEAT_US:
                return
            self._logged.pop(text, None)
            self._logged[text] = now
            if len(self._logged) > _TEXTS_MAX:
                del self._logged[next(iter(self._logged))]
        left_out = self._limit.passes(name, now)
        if left_out is None:
            return
        more = f" ({left_out:,} more such lines were left out)" if left_out else ""
        about = {f"{key}_" if key in _TAKEN else key: value for key, value in fields.items()}
        say(text + more, level, **{**about, "event": name})


def _printable(text: str) -> str:
    """The text without control characters, and cut: unknown peers choose parts of it."""
    cut = text if len(text) <= _LINE_MAX else text[:_LINE_MAX] + " …"
    return "".join([c if c.isprintable() else c.encode("unicode_escape").decode() for c in cut])


class ListenerLog(logging.Handler):
    """Traces connections that cannot be accepted, for lack of descriptors, in place of trio's log with tracebacks."""

    def __init__(self, trace: Trace) -> None:
        super().__init__()
        self._trace = trace

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        self._trace.event("accept_failed", why=record.getMessage() if error is None else str(error))

    def install(self) -> None:
        """Makes this the only handler of these records."""
        logger = logging.getLogger("trio.serve_listeners")
        logger.handlers[:] = [self]
        logger.propagate = False
