"""A user's configuration for a simulation: plain data, with generated rows where data is missing."""

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

#: Rows per second of wall time of a source without data.
_RATE: Final = 50
_FILE_US: Final = 3600 * SECOND


def configuration_to_simulate(
    document: Document, deployed: Deployed, length_us: int
) -> tuple[dict[str, Any], list[str]]:
    """Returns the configuration, and a line for each change in it.

    Files are read if they exist.  Missing files, and live inputs, are replaced by generated rows of the same schema;
    generators end after ``length_us`` at the latest.

    Args:
      deployed: the deployed document.
    """
    plan, directory = deployed
    changed: dict[str, Any] = {k: v for k, v in deepcopy(document.data).items() if k != "faults"}
    notes = []
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
            notes.append(f"{name}: {why}; made-up rows of its schema instead, {_RATE} a second")
            if source.live:
                for key in ("ahead", "watermark", "idle"):
                    entry.pop(key, None)
                entry.setdefault("time", _time_attribute(source))
    _in_memory(changed, directory)
    return changed, notes


def grace_us(config: Mapping[str, Any]) -> int:
    """Returns how long a run may go on after its faults: files have any length, and a run ends when all is quiet."""
    ends = all("generator" in source["from"] for source in config["sources"].values())
    return GRACE_US if ends else _FILE_US


def _time_attribute(source: Source) -> str:
    return source.time or next(a.name for a in source.schema if a.type == "timestamp")


def _pace(source: Source) -> float:
    """Returns tuple time per wall time; 1 if it is paced otherwise."""
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
    """Replaces sinks by JSON lines on a simulated disk: the Parquet library writes real files only."""
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
