"""Readers of files, and sinks that write them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from os.path import normpath
from pathlib import Path, PurePath
from typing import Any, Final

from spe.connectors.declaration import (
    CELLS,
    CORRECTIONS,
    LEFT_OUT,
    STABLE,
    Guarantees,
    Reader,
    SinkDeclaration,
    check_numbered,
)


@dataclass(frozen=True)
class File(Reader):
    """Reads a file, whose path may be relative to the folder of the data."""

    def check(self, options: Mapping[str, Any]) -> None:
        super().check(options)
        if options.get("header") is False:
            check_numbered(options)

    def reader(self, value: Any, data: Path) -> dict[str, Any]:
        return {"path": str((data / Path(value).expanduser()).absolute())}

    def describe(self, reader: Mapping[str, Any]) -> str:
        return f"{self.kind} {PurePath(str(reader['path'])).name}"


_FILES: Final = Guarantees(
    durable="the file itself, which must stay as it is; and the source's log, from the sync of a row on",
    own_crash="goes on behind the last row of the log: no row twice, none missing",
    other_crash="as long as the file is there and unchanged, nothing is lost",
    failures={
        "the file is missing, or is not what the configuration says": "the source stops and says so; what it has "
        "logged is still served",
        "a row cannot be understood": LEFT_OUT,
        "the source's disk is full": "it waits for room, and goes on behind its log",
        "the file is changed during a run, or before a restart": "not noticed: rows are skipped by their number",
    },
)


@dataclass(frozen=True)
class Folder(SinkDeclaration):
    """Writes files in a folder."""

    def sink(self, value: Any) -> dict[str, Any]:
        return {"path": value}

    def place(self, sink: Mapping[str, Any]) -> str:
        return normpath(str(sink["path"]))


def _file(kind: str, about: str, options: tuple[str, ...], example: str) -> File:
    opens = "replicas.connectors.formats.file_format:FileReplay"
    return File(kind, str, "PATH", about, options, _FILES, opens, example=f"from: {{{example}}}")


_PAGE: Final = "../how-to/real-input.md#files"
_COLUMNS: Final = ("columns", "timestamps")
CSV: Final = _file(
    "csv",
    f"a [file]({_PAGE}) with a row per line",
    CELLS,
    "csv: orders.csv, columns: {ts: ordered_at}, timestamps: ms",
)
JSONL: Final = _file(
    "jsonl", f"a [file]({_PAGE}) with a JSON object per line", _COLUMNS, "jsonl: orders.jsonl, timestamps: s"
)
PARQUET: Final = _file(
    "parquet", f"a [Parquet file]({_PAGE})", (*_COLUMNS, "sort"), "parquet: orders.parquet, sort: ts"
)
ARROW: Final = _file("arrow", f"an [Arrow IPC file]({_PAGE}), or a stream in a file", _COLUMNS, "arrow: orders.arrow")
AVRO: Final = _file("avro", f"an [Avro container file]({_PAGE})", _COLUMNS, "avro: orders.avro")
#: Kinds whose value is one file.
FILES: Final = ("csv", "jsonl", "parquet", "arrow", "avro")

_MODES: Final = {
    STABLE: "final rows only, each exactly once, in the order of their ids",
    CORRECTIONS: "every insert, tentative ones marked, undo and done: applied in order they give the newest answer, in "
    "the end the final one",
}
_FULL: Final = {
    "the disk is full": "the client waits, says so, and takes nothing more until there is room",
    "a sync fails, or a disk reports another error": "the client ends; started again, it goes on from what is complete",
    "another process, query or mode has the folder": "the client refuses it and ends",
}
PARQUET_SINK: Final = Folder(
    "parquet",
    str,
    "PATH",
    "[Parquet files](../how-to/read-results.md#into-files), one after the other",
    _MODES,
    Guarantees(
        durable="a part, once it has its name; only then are its rows acknowledged",
        own_crash="the open part is removed, and its rows are written again: each stands once",
        other_crash="a part without its name is no part; after a power failure as after a kill",
        failures=_FULL,
    ),
    opens="replicas.connectors.files.parquet_sink:ParquetSink",
    example="sinks: [{parquet: results}]",
    not_current="a part is never changed once it has its name; a Delta table has this mode",
)
JSONL_SINK: Final = Folder(
    "jsonl",
    str,
    "PATH",
    "a file of [JSON lines](../how-to/read-results.md#into-files) for each channel",
    _MODES,
    Guarantees(
        durable="a line, once its file is synced, about each second; only then is it acknowledged",
        own_crash="a torn last line is cut, and what is missing is written again: each row stands once",
        other_crash="a power failure takes what was not synced, which is then written again",
        failures=_FULL,
    ),
    opens="replicas.connectors.sink:JsonLinesSink",
    example="sinks: [{jsonl: results, mode: corrections}]",
    not_current="lines are only appended, for programs that follow the file",
)
