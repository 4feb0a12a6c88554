"""The sink that a client's configuration asks for: a line for each kind that ``spe.connectors`` declares."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any, Final

from replicas.connectors.sink import MODES, RESERVED, STABLE, JsonLinesSink, Sink
from spe.errors import ConfigError
from spe.runtime.env import Storage
from spe.stream.ids import Channel
from spe.stream.schema import Schema

#: From the folder of a sink to the storage that holds it, and its place there.
Place = Callable[[Path], tuple[Storage, PurePosixPath]]


Schemas = Mapping[Channel, Schema]


def _parquet(folder: Path, schemas: Schemas, mode: str, _: Place) -> Sink:
    from replicas.connectors.parquet_sink import ParquetSink  # pyarrow is an extra, and slow to import

    return ParquetSink(folder, schemas, mode)


def _jsonl(folder: Path, schemas: Schemas, mode: str, place: Place) -> Sink:
    return JsonLinesSink(*place(folder), schemas, mode)


_CONSTRUCTIONS: Final[Mapping[str, Callable[[Path, Schemas, str, Place], Sink]]] = {
    "parquet": _parquet,
    "jsonl": _jsonl,
}


KINDS: Final = tuple(_CONSTRUCTIONS)


def open_sink(spec: Mapping[str, Any], schemas: Schemas, place: Place) -> Sink:
    """The sink that a client's configuration asks for; goes on behind what its files hold.

    Args:
      spec: ``{"kind": "parquet" | "jsonl", "path": folder, "mode": "stable" | "corrections"}``.
      schemas: of each channel that will be written.
      place: where JSON lines go.  Parquet is written by a library that knows files only.

    Raises:
      ConfigError: the kind or mode is unknown, an attribute has a reserved name, or pyarrow is not installed.
      LogCorrupt: a file in the folder was not written by this sink in this mode.
    """
    kind, mode = str(spec.get("kind")), str(spec.get("mode", STABLE))
    problems = [] if mode in MODES else [f"sink mode {mode!r}; expected one of: {', '.join(MODES)}"]
    for channel, schema in schemas.items():
        clash = [n for n in schema.names if n in RESERVED]
        problems += [f"stream {channel.stream!r}: attribute {n!r} has a name that sinks use themselves" for n in clash]
    if kind not in KINDS:
        problems.append(f"sink kind {kind!r}; expected one of: {', '.join(KINDS)}")
    if problems:
        raise ConfigError(list(dict.fromkeys(problems)))
    return _CONSTRUCTIONS[kind](Path(str(spec["path"])), schemas, mode, place)
