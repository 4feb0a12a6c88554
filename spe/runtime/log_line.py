"""Log lines of a process, on standard error, as text or as JSON.

    2026-11-23T09:12:04.512Z warning n2: cannot reach n1: the token does not match
    {"time": "2026-11-23T09:12:04.512Z", "level": "warning", "process": "n2", "event": "unreachable", …}

Interactive commands and tests print the text alone: :func:`configure_log` is for the processes of a cluster.
"""

from __future__ import annotations

import enum
import json
import sys
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Final

#: Most characters of a field.
_FIELD_MAX: Final = 500


class Level(enum.IntEnum):
    """Severity of a line."""

    DEBUG = 10  # every event of the trace
    INFO = 20  # an activity of the process
    WARNING = 30  # a failure outside the process, or a possible one
    ERROR = 40  # a function has failed, and needs an operator

    @property
    def word(self) -> str:
        return self.name.lower()


class LogFormat(enum.StrEnum):
    """Format of lines."""

    TEXT = "text"
    JSON = "json"


@dataclass(frozen=True, slots=True)
class _Log:
    """Log settings of this process.

    Attributes:
      wall_us: microseconds since 1970.
      bound: fields of every line: ``process``, and the same name as ``node``, ``source`` or ``client``.
    """

    format: LogFormat
    level: Level
    wall_us: Callable[[], int]
    bound: Mapping[str, str]


#: None: lines consist of their text alone.
_log: _Log | None = None


def configure_log(
    process: str,
    wall_us: Callable[[], int],
    *,
    format: LogFormat = LogFormat.TEXT,
    level: Level = Level.INFO,
    **bound: str,
) -> None:
    """Puts time, level and process before each line from now on.

    With JSON, the traceback of an uncaught error is a line as well.

    Args:
      process: name of the process.
      level: lines of lower levels are dropped.
      bound: further fields of every line.
    """
    global _log
    kind, colon, name = process.partition(":")
    of_kind = {kind: name} if colon else {"node": process}
    _log = _Log(format, level, wall_us, {"process": process, **of_kind, **bound})
    if format is LogFormat.JSON:
        sys.excepthook = _uncaught


def is_logged(level: Level) -> bool:
    """Are lines of this level written?"""
    return level >= (Level.INFO if _log is None else _log.level)


def is_configured() -> bool:
    """Is this a process of a cluster?"""
    return _log is not None


def log_time(wall_us: int) -> str:
    """Formats a time as in log lines: UTC, milliseconds."""
    moment = datetime.fromtimestamp(wall_us / 1e6, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def say(text: str, level: Level = Level.INFO, **fields: Any) -> None:
    """Writes a line to standard error.  Ignores failures, such as a full disk or a closed pipe: the line itself
    often reports a full disk.

    Args:
      fields: subject of the line, for programs; in JSON only, and repeated by the text.  ``replica`` and
        ``channel`` also give ``unit``, ``partition`` and ``stream``.
    """
    if is_logged(level):
        line = text if _log is None else _line(_log, text, level, fields)
        with suppress(OSError, ValueError):  # ValueError: standard error is closed
            print(line, file=sys.stderr, flush=True)


def _line(log: _Log, text: str, level: Level, fields: Mapping[str, Any]) -> str:
    at, process = log_time(log.wall_us()), log.bound["process"]
    text = text.removeprefix(f"{process}: ")
    if log.format is LogFormat.TEXT:
        return f"{at} {level.word} {process}: {text}"
    line = {"time": at, "level": level.word, "message": text, **log.bound, **_parts(fields)}
    return json.dumps({key: _plain(value) for key, value in line.items()})


def _parts(fields: Mapping[str, Any]) -> Mapping[str, Any]:
    """The fields, and the parts of the names of replicas and channels."""
    parts = dict(fields)
    for name in ("replica", "channel"):
        partition, _, _ = str(fields.get(name, "")).partition("@")
        owner, slash, number = partition.rpartition("/")
        if slash and number.isdecimal():
            parts |= {"unit" if name == "replica" else "stream": owner, "partition": int(number)}
    return parts


def _plain(value: Any) -> Any:
    if isinstance(value, bool | int | float) or value is None:
        return value
    text = str(value)
    return text if len(text) <= _FIELD_MAX or "\n" in text else f"{text[:_FIELD_MAX]} …"


def _uncaught(kind: type[BaseException], error: BaseException, where: TracebackType | None) -> None:
    lines = "".join(traceback.format_exception(kind, error, where))
    say(f"{kind.__name__}: {error}", Level.ERROR, event="uncaught", traceback=f"{lines}\n")
