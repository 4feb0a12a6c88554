"""What a process tells the people who run it: lines on standard error, as text or as JSON.

    2026-11-23T09:12:04.512Z warning n2: cannot reach n1: the token does not match
    {"time": "2026-11-23T09:12:04.512Z", "level": "warning", "process": "n2", "event": "unreachable", …}

A command that somebody waits for, and a test, print the text alone: :func:`configure_log` is for the processes of a
cluster.
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

#: Characters of a field.
_FIELD_MAX: Final = 500


class Level(enum.IntEnum):
    """How much a line matters."""

    DEBUG = 10  # every event of the trace
    INFO = 20  # what a process does
    WARNING = 30  # something is wrong outside, or may become so
    ERROR = 40  # something does not work any more, and needs somebody

    @property
    def word(self) -> str:
        return self.name.lower()


class LogFormat(enum.StrEnum):
    """How lines look."""

    TEXT = "text"
    JSON = "json"


@dataclass(frozen=True, slots=True)
class _Log:
    """How this process logs.

    Attributes:
      wall_us: microseconds since 1970.
      bound: what every line is about: ``process``, and ``node``, ``source`` or ``client`` for the same by its kind.
    """

    format: LogFormat
    level: Level
    wall_us: Callable[[], int]
    bound: Mapping[str, str]


#: None: lines are their text.
_log: _Log | None = None


def configure_log(
    process: str,
    wall_us: Callable[[], int],
    *,
    format: LogFormat = LogFormat.TEXT,
    level: Level = Level.INFO,
    **bound: str,
) -> None:
    """From now on each line has the time, its level, and the process.

    As JSON the traceback of an error that nobody has caught is a line as well.

    Args:
      process: its name.
      level: lines of lower ones are left out.
      bound: further fields of every line.
    """
    global _log
    kind, colon, name = process.partition(":")
    of_kind = {kind: name} if colon else {"node": process}
    _log = _Log(format, level, wall_us, {"process": process, **of_kind, **bound})
    if format is LogFormat.JSON:
        sys.excepthook = _uncaught


def is_logged(level: Level) -> bool:
    """Would a line of this level be written?"""
    return level >= (Level.INFO if _log is None else _log.level)


def is_configured() -> bool:
    """Is this the process of a cluster?"""
    return _log is not None


def log_time(wall_us: int) -> str:
    """As before a line of a log: UTC, milliseconds."""
    moment = datetime.fromtimestamp(wall_us / 1e6, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def say(text: str, level: Level = Level.INFO, **fields: Any) -> None:
    """A line on standard error.  Where that fails, for its disk is full or its reader gone, we go on: what
    is said is often that a disk is full.

    Args:
      fields: what it is about, for programs: they are in JSON only, and the text says them as well.  Of ``replica`` and
        ``channel`` come ``unit``, ``partition`` and ``stream``.
    """
    if is_logged(level):
        line = text if _log is None else _line(_log, text, level, fields)
        with suppress(OSError, ValueError):  # ValueError: it is closed
            print(line, file=sys.stderr, flush=True)


def _line(log: _Log, text: str, level: Level, fields: Mapping[str, Any]) -> str:
    at, process = log_time(log.wall_us()), log.bound["process"]
    text = text.removeprefix(f"{process}: ")
    if log.format is LogFormat.TEXT:
        return f"{at} {level.word} {process}: {text}"
    said = {"time": at, "level": level.word, "message": text, **log.bound, **_parts(fields)}
    return json.dumps({key: _plain(value) for key, value in said.items()})


def _parts(fields: Mapping[str, Any]) -> Mapping[str, Any]:
    """The fields, and what the names of replicas and channels consist of."""
    found = dict(fields)
    for name in ("replica", "channel"):
        partition, _, _ = str(fields.get(name, "")).partition("@")
        of, slash, number = partition.rpartition("/")
        if slash and number.isdecimal():
            found |= {"unit" if name == "replica" else "stream": of, "partition": int(number)}
    return found


def _plain(value: Any) -> Any:
    if isinstance(value, bool | int | float) or value is None:
        return value
    text = str(value)
    return text if len(text) <= _FIELD_MAX or "\n" in text else f"{text[:_FIELD_MAX]} …"


def _uncaught(kind: type[BaseException], error: BaseException, where: TracebackType | None) -> None:
    lines = "".join(traceback.format_exception(kind, error, where))
    say(f"{kind.__name__}: {error}", Level.ERROR, event="uncaught", traceback=f"{lines}\n")
