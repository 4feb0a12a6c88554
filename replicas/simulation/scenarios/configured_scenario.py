"""A user's configuration as it is simulated: plain data, and rows made up where the data is not there."""

from __future__ import annotations

import math
from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any, Final

from replicas.simulation.scenarios.random_scenario import GRACE_US
from spe.config.document import Document
from spe.plan.deploy import Deployed
from spe.plan.describe import show_duration
from spe.plan.directory import Directory
from spe.plan.plan import Source
from spe.plan.timing import speed_of
from spe.stream.times import SECOND

#: Rows that a source without data gets, per second of wall time.
_RATE: Final = 50
_FILE_US: Final = 3600 * SECOND


def configuration_to_simulate(
    document: Document, deployed: Deployed, length_us: int
) -> tuple[dict[str, Any], list[str]]:
    """The configuration, and what was changed in it, a line each.

    Files are read where they are.  Files that are not there, and live inputs, are replaced by made-up rows of the same
    schema; generators end after ``length_us`` at the latest.

    Args:
      deployed: what the document means.
    """
    plan, directory = deployed
    changed: dict[str, Any] = {k: v for k, v in deepcopy(document.data).items() if k != "faults"}
    said = []
    for name, source in plan.sources.items():
        entry = changed["sources"][str(name)]
        kind, path = source.reader["kind"], source.reader.get("path")
        if path is not None and Path(str(path)).is_file():
            entry["from"][kind] = str(path)
        elif kind == "generator":
            entry["from"] = {"generator": _ending(entry["from"]["generator"], source, length_us)}
        else:
            entry["from"] = {"generator": _made_up(source, length_us)}
            entry["replay"] = {"speed": _pace(source)}
            why = f"{path} is not there" if path is not None else f"{kind} is live"
            said.append(f"{name}: {why}; made-up rows of its schema instead, {_RATE} a second")
            if source.live:
                for key in ("ahead", "watermark", "idle"):
                    entry.pop(key, None)
                entry.setdefault("time", _time_attribute(source))
    _in_memory(changed, directory)
    return changed, said


def grace_us(config: Mapping[str, Any]) -> int:
    """How long a run may go on after its faults: files last as long as they last, and a run ends when all is quiet."""
    ends = all("generator" in source["from"] for source in config["sources"].values())
    return GRACE_US if ends else _FILE_US


def _time_attribute(source: Source) -> str:
    return source.time or next(a.name for a in source.schema if a.type == "timestamp")


def _pace(source: Source) -> float:
    """Tuple time per wall time; 1 where it is paced otherwise."""
    speed = speed_of(source)
    return 1.0 if speed is None or math.isinf(speed) else speed


def _ending(generator: Any, source: Source, length_us: int) -> dict[str, Any]:
    options: dict[str, Any] = {"name": generator} if isinstance(generator, str) else dict(generator)
    longest_us = round(length_us * _pace(source))
    if "count" not in options and source.reader.get("duration", longest_us + 1) > longest_us:
        options["duration"] = show_duration(longest_us)
    return options


def _made_up(source: Source, length_us: int) -> dict[str, Any]:
    speed = _pace(source)
    return {
        "name": "rows",
        "rate": _RATE / speed,
        "duration": show_duration(round(length_us * speed)),
        "disorder": show_duration(source.disorder_us),
    }


def _in_memory(config: dict[str, Any], directory: Directory) -> None:
    """Sinks of a simulation are JSON lines, on a simulated disk: Parquet's library knows files only."""
    for source in config["sources"].values():
        for key in ("late", "rejected"):
            if "jsonl" not in source.get(key, {}):
                source.pop(key, None)
    for name in directory.clients:
        client = (config.get("clients") or {}).get(name)
        if isinstance(client, Mapping):
            sinks = [sink for sink in client.get("sinks", ()) if "jsonl" in sink]
            plain = {k: v for k, v in client.items() if k != "sinks"}
            config["clients"][name] = plain | ({"sinks": sinks} if sinks else {})
