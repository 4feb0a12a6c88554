"""Which sink a client's configuration asks for."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from replicas.connectors.sink import MODES, RESERVED, STABLE, JsonLinesSink, Sink
from spe.errors import ConfigError
from spe.stream.ids import Channel
from spe.stream.schema import Schema


def open_sink(spec: Mapping[str, Any], schemas: Mapping[Channel, Schema]) -> Sink:
    """The sink that a client's configuration asks for; goes on behind what its files hold.

    Args:
      spec: ``{"kind": "parquet" | "jsonl", "path": folder, "mode": "stable" | "corrections"}``.
      schemas: of each channel that will be written.

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
        return JsonLinesSink(folder, schemas, mode)
    from replicas.connectors.parquet_sink import ParquetSink  # pyarrow is an extra, and slow to import

    return ParquetSink(folder, schemas, mode)
