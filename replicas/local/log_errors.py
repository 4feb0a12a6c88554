"""Reads lines of level error in the logs of the processes of a run, while they are written."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from spe.runtime.log_line import Level


class LogErrors:
    """Reads additions to the log of each process.

    Attributes:
      found: for each process with errors the number of lines, the first one, and its log.
    """

    def __init__(self, logs: Mapping[str, Path]) -> None:
        self._logs = logs
        self._offsets = {name: path.stat().st_size if path.exists() else 0 for name, path in logs.items()}
        self.found: dict[str, dict[str, Any]] = {}

    def read(self) -> list[tuple[str, str]]:
        """Returns (process, text) of each new error, without repetitions; an incomplete line is read the next time."""
        new: dict[tuple[str, str], None] = {}
        for name, path in self._logs.items():
            if not path.exists():
                continue
            with path.open("rb") as file:
                file.seek(self._offsets[name])
                data, _, _ = file.read().rpartition(b"\n")
            self._offsets[name] += len(data) + bool(data)
            for text in filter(None, (error_text(line, name) for line in data.decode(errors="replace").splitlines())):
                self.found.setdefault(name, {"count": 0, "first": text, "log": path.name})["count"] += 1
                new[name, text] = None
        return list(new)


def error_text(line: str, process: str) -> str:
    """Returns the error text of a log line written by spe.runtime.log_line; "" for other lines."""
    if line.startswith("{"):
        try:
            entry = json.loads(line)
        except ValueError:
            return ""
        return str(entry.get("message", "")) if entry.get("level") == Level.ERROR.word else ""
    match_ = re.match(rf"\d{{4}}-\S+Z {Level.ERROR.word} {re.escape(process)}: (.*)", line)
    return "" if match_ is None else match_[1]
