"""Clusters whose sources and clients delete the oldest part of their logs (rules E1 to E4)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePosixPath
from random import Random
from typing import Any, Final

from replicas.simulation.world.disk import SimDisk
from spe.log.format import Segment
from spe.log.log_start import NAMES, read_kept
from spe.log.recovery import live_segments
from spe.plan.plan import Plan

#: Share of the sources, and of the clients with sinks, that delete parts of their logs.
_RETAINED: Final = 0.8
#: Share of these with a copy in the archive.
_ARCHIVED: Final = 0.5
#: Logs of some seconds have 5 to 80 kB, and segments an eighth of that.
_AGES: Final = ("100ms", "400ms", "2s")
_SIZES: Final = ("16KiB", "24KiB", "48KiB")
#: Interval of checkpoints of a node that would otherwise write none to its disk.
_EVERY: Final = ("300ms", "1s", "2s")


def with_retention(random: Random, config: Mapping[str, Any], *, proved: bool = False) -> dict[str, Any]:
    """Returns the configuration with ``retain``; every node writes its state to its disk.

    Args:
      proved: unproved records are kept (:mod:`replicas.simulation.features.proved_logs`).
    """
    sources = {name: _retained(random, source, proved) for name, source in config["sources"].items()}
    changed = {**config, "sources": sources}
    if isinstance(clients := config.get("clients"), Mapping):
        changed["clients"] = {n: _retained(random, c, proved) if c.get("sinks") else c for n, c in clients.items()}
    changed["defaults"] = _stored(random, config.get("defaults") or {})
    if isinstance(nodes := config.get("nodes"), Mapping):
        changed["nodes"] = {
            n: _stored(random, own) if (own or {}).get("checkpoint") else own for n, own in nodes.items()
        }
    return changed


def _retained(random: Random, entry: Mapping[str, Any], proved: bool) -> dict[str, Any]:
    drawn = {"for": random.choice(_AGES), "size": random.choice(_SIZES)}
    kinds = random.choice([("for",), ("size",), ("for", "size")])
    archived = {"archive": "/archive"} if random.random() < _ARCHIVED else {}
    if random.random() >= _RETAINED:
        return dict(entry)
    how = {} if proved else {"unproved": "delete", **archived}
    return {**entry, "retain": {**{k: drawn[k] for k in kinds}, **how}}


def _stored(random: Random, settings: Mapping[str, Any]) -> dict[str, Any]:
    every = random.choice(_EVERY)
    return {**settings, "checkpoint": {"every": every, **(settings.get("checkpoint") or {}), "disk": True}}


def retains(plan: Plan) -> bool:
    """Returns whether a source deletes parts of its log."""
    return any(source.retain is not None for source in plan.sources.values())


def whole(disk: SimDisk, folder: PurePosixPath) -> SimDisk:
    """Returns a disk on which a log has all that was ever deleted of it."""
    beginning = read_kept(disk, folder)
    if beginning.first == 1:
        return disk
    complete = disk.restarted()
    for path, data in (disk.removed or {}).items():
        segment = Segment.parse(path.name)
        if path.parent == folder and segment is not None and segment.first < beginning.first:
            complete = complete.with_file(path, data) if path in complete.files else _with(complete, path, data)
    for name in NAMES:
        complete.files.pop(folder / name, None)
    return complete


def _with(disk: SimDisk, path: PurePosixPath, data: bytes) -> SimDisk:
    disk.open(path).append(data)
    return disk


def missing_copies(disk: SimDisk, folder: PurePosixPath, archive: SimDisk, place: PurePosixPath) -> list[str]:
    """Returns the deleted segments of the log without an equal copy in the archive.

    A segment that a later writer has begun anew has no part of the log, and needs no copy.
    """
    beginning = read_kept(disk, folder)
    gone = {path.name: data for path, data in (disk.removed or {}).items() if path.parent == folder}
    live = live_segments([*gone, *disk.list(folder)])
    removed = {s.name: gone[s.name] for s in live if s.first < beginning.first and s.name in gone}
    return [n for n, data in removed.items() if archive.files.get(place / n) is None or archive.read(place / n) != data]
