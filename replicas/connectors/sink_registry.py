"""Makes the sink that a client's configuration names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any, Final

from replicas.connectors.server_sink import ServerSink
from replicas.connectors.sink import RESERVED, JsonLinesSink, Sink
from spe.connectors import SINKS, find_sink
from spe.connectors.declaration import STABLE
from spe.connectors.installed_connectors import construction
from spe.errors import ConfigError
from spe.runtime.env import Storage
from spe.stream.ids import Channel
from spe.stream.schema import Schema

#: Returns the storage of a sink's folder, and the folder's path in it.
Place = Callable[[Path], tuple[Storage, PurePosixPath]]


Schemas = Mapping[Channel, Schema]


def _parquet(spec: Mapping[str, Any], schemas: Schemas, mode: str, place: Place) -> Sink:
    from replicas.connectors.files.parquet_sink import ParquetSink  # pyarrow is an extra, and slow to import

    path = Path(str(spec["path"]))
    storage, folder = place(path)
    files = None if path.is_absolute() else getattr(storage, "part_files", None)
    if files is not None:  # a simulated disk
        return ParquetSink(Path(folder), schemas, mode, files=files)
    return ParquetSink(path, schemas, mode)


def _jsonl(spec: Mapping[str, Any], schemas: Schemas, mode: str, place: Place) -> Sink:
    return JsonLinesSink(*place(Path(str(spec["path"]))), schemas, mode)


#: Sinks of files, which need a place on a disk.
_OF_FILES: Final[Mapping[str, Callable[[Mapping[str, Any], Schemas, str, Place], Sink]]] = {
    "parquet": _parquet,
    "jsonl": _jsonl,
}


def open_sink(spec: Mapping[str, Any], schemas: Schemas, place: Place) -> Sink:
    """Makes the sink that a client's configuration names.

    A sink of files continues after their contents; a sink on a server is not opened yet.

    Args:
      spec: as in ``spe.plan.directory.ClientSettings.sinks``.
      schemas: schemas of the channels that will be written.
      place: opens the storage for files.  The Parquet library writes to real files only, unless they are simulated.

    Raises:
      ConfigError: the kind or mode is unknown, an attribute has a reserved name, or a package is broken or missing.
      LogCorrupt: a file in the folder was not written by this sink in this mode.
    """
    kind, mode = str(spec.get("kind")), str(spec.get("mode", STABLE))
    declared = find_sink(kind)
    problems = []
    if declared is None:
        problems.append(f"sink kind {kind!r}; expected one of: {', '.join(SINKS)}")
    elif mode not in declared.modes:
        problems.append(f"sink mode {mode!r}; {kind} takes one of: {', '.join(declared.modes)}")
    for channel, schema in schemas.items():
        clash = [n for n in schema.names if n in RESERVED]
        problems += [f"stream {channel.stream!r}: attribute {n!r} has a name that sinks use themselves" for n in clash]
    if declared is None or problems:
        raise ConfigError(list(dict.fromkeys(problems)))
    if kind in _OF_FILES:
        return _OF_FILES[kind](spec, schemas, mode, place)
    options = {k: v for k, v in spec.items() if k not in ("kind", "mode")}
    made = construction(declared)(schemas, mode, options)
    if not isinstance(made, ServerSink):
        raise ConfigError([f"sink {kind!r}: {declared.opens} made a {type(made).__name__}; expected a ServerSink"])
    made.name = f"{kind} {declared.place(spec)}"
    return made
