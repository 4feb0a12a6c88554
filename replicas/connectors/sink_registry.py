"""Which sink a client's configuration asks for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from replicas.connectors.sink import MODES, RESERVED, STABLE, JsonLinesSink, Sink
from spe.errors import ConfigError
from spe.runtime.env import Storage
from spe.stream.ids import Channel
from spe.stream.schema import Schema

#: From the folder of a sink to the storage that holds it, and its place there.
Place = Callable[[Path], tuple[Storage, PurePosixPath]]


def open_sink(spec: Mapping[str, Any], schemas: Mapping[Channel, Schema], place: Place) -> Sink:
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
    if kind not in ("parquet", "jsonl"):
        problems.append(f"sink kind {kind!r}; expected one of: parquet, jsonl")
    if problems:
        raise ConfigError(list(dict.fromkeys(problems)))
    folder = Path(str(spec["path"]))
    if kind == "jsonl":
        return JsonLinesSink(*place(folder), schemas, mode)
    from replicas.connectors.parquet_sink import ParquetSink  # pyarrow is an extra, and slow to import

    return ParquetSink(folder, schemas, mode)
